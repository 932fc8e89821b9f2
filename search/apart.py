"""Measuring a file's loss in a process of its own, since llama.cpp aborts where it trusted a file.

The parent sends the file and its windows, then one reference at a time; what comes back is how many
windows are done, and at last the measurement or the error. Both ends of the pipes are this program, so what
goes through them may be pickled; nothing of it is kept.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from tightfit.spaces import TightfitError
from tightfit.workers.llamacpp.bench import ending
from tightfit.workers.llamacpp.library import LlamaError
from tightfit.workers.llamacpp.loss import measure_file

if TYPE_CHECKING:
    from torch import Tensor

    from tightfit.workers.measurement import Measurement
    from tightfit.workers.text import Window


def measure_apart(
    path: Path,
    windows: Sequence[Window],
    references: Sequence[Tensor],
    *,
    tick: Callable[[int, int], None] = lambda done, total: None,
    **keywords: Any,
) -> Measurement:
    """Measure the loss of a GGUF file as :func:`tightfit.workers.llamacpp.loss.measure_file` does.

    Raises:
        InputError: as there.
        LlamaError: as there, or llama.cpp ended its process.
    """
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}
    command = [sys.executable, "-P", "-m", __name__]
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, env=environment
        ) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            _send(child.stdin, (path, tuple(windows), keywords))
            for done, reference in enumerate(references, 1):
                _send(child.stdin, reference.cpu().numpy())
                if (answer := _receive(child.stdout)) != done:
                    return _outcome(path, child, answer, said)
                tick(done, len(windows))
            return _outcome(path, child, _receive(child.stdout), said)
        finally:
            child.kill()
            with suppress(BrokenPipeError):  # what was not sent is not wanted any more
                child.stdin.close()


def _send(pipe: IO[bytes], what: object) -> None:
    """Send something to a process; one that has ended already has left an answer, or none."""
    try:
        pickle.dump(what, pipe)
        pipe.flush()
    except BrokenPipeError:
        return


def _receive(pipe: IO[bytes]) -> Any:
    """Return what a process answered, or None where it ended without."""
    try:
        return pickle.load(pipe)
    except (EOFError, pickle.UnpicklingError):  # it ended before an answer, or in the middle of one
        return None


def _outcome(path: Path, child: subprocess.Popen[bytes], answer: Any, said: IO[bytes]) -> Measurement:
    from tightfit.workers.measurement import Measurement

    if isinstance(answer, TightfitError):
        raise answer
    if isinstance(answer, Measurement):
        return answer
    code = child.wait()
    said.seek(0)
    how = ending(code, said.read().decode(errors="replace"))
    raise LlamaError(f"{path} cannot be measured: the process of llama.cpp {how}.")


def main() -> None:
    """Measure what the parent sends; ends when the parent does, for then there is no more to read."""
    import torch

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else is printed is no answer
    path, windows, keywords = pickle.load(sys.stdin.buffer)
    torch.set_num_threads(keywords.get("threads", 1))
    references = cast("Sequence[Tensor]", _references(len(windows)))  # only ever read in turn
    try:
        answer: object = measure_file(
            path, windows, references, tick=lambda done, _: _send(answers, done), **keywords
        )
    except TightfitError as error:
        answer = error
    _send(answers, answer)


def _references(count: int) -> Iterator[Tensor]:
    import torch

    for _ in range(count):
        yield torch.from_numpy(pickle.load(sys.stdin.buffer))


if __name__ == "__main__":
    main()
