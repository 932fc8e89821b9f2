"""The process that runs one file once, and prints what it took as JSON.

It is run by its path, without site-packages, and imports almost nothing, so that its peak memory is that
of llama.cpp with this file and 11 MB of Python.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # no installation is known without site-packages
    sys.path.insert(0, str(Path(__file__).parents[3]))

from tightfit.workers.llamacpp.engine import Engine, Library, RefusedError, TooLongError, UnusableError

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(library: str, path: str, prompt: int, generate: int) -> dict[str, Any]:
    """Run a file on one thread.

    One token goes first, as in llama.cpp's own tools: it brings the weights into memory.

    Args:
        library: llama.cpp's shared object.
        path: the GGUF file.
        prompt: tokens of the prompt.
        generate: tokens that follow it, one by one.

    Returns:
        The fields of a :class:`tightfit.workers.llamacpp.speed.Sample`; or why there are none, under
        ``unusable``, ``too long`` or ``refused``.
    """
    try:
        functions = Library(library)
        start = time.perf_counter()
        engine = Engine(functions, path, prompt + generate, threads=1, scoring=False)
        load = time.perf_counter() - start
        ids = token_ids(prompt + generate, engine.vocab)
        engine.decode(ids[:1])
        engine.clear()
        first_token = _seconds(engine, ids[:prompt], engine.batch)
        generation = _seconds(engine, ids[prompt:], 1)
    except UnusableError as error:
        return {"unusable": str(error)}
    except TooLongError as error:
        return {"too long": str(error)}
    except RefusedError as error:
        return {"refused": str(error)}
    return {
        "prompt_rate": prompt / first_token,
        "generation_rate": generate / generation,
        "first_token": first_token,
        "load": load,
        "peak_bytes": _peak_bytes(),
    }


def token_ids(count: int, vocab: int) -> list[int]:
    """Spread token ids evenly over a vocabulary, the same every time (multiplicative hashing)."""
    return [(i + 1) * 2654435761 % 2**32 * vocab >> 32 for i in range(count)]


def _seconds(engine: Engine, ids: Sequence[int], at_once: int) -> float:
    start = time.perf_counter()
    for i in range(0, len(ids), at_once):
        engine.decode(ids[i : i + at_once])
    return time.perf_counter() - start


def _peak_bytes() -> int:
    """Most memory that this process had resident, pages of mapped files included."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage on Linux also counts the parent, before this program replaced it
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _end_with_parent() -> None:
    os.read(0, 1)  # comes back when the other end of the pipe is closed, however the parent ends
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
