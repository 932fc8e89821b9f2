"""The loss of a GGUF file, measured in llama.cpp against the uncompressed model's own predictions."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.spaces import InputError
from tightfit.workers.llamacpp.library import library_version
from tightfit.workers.llamacpp.model import LlamaModel
from tightfit.workers.measurement import DocumentLoss, Measurement
from tightfit.workers.text import Window

if TYPE_CHECKING:
    from torch import Tensor

# Raised whenever a change here or in how llama.cpp is called changes any measured loss.
PROTOCOL_VERSION = 1


def measure_file(
    path: Path,
    windows: Sequence[Window],
    references: Sequence[Tensor],
    *,
    plan: str,
    split: str,
    identity: Mapping[str, str],
    threads: int = 1,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> Measurement:
    """Measure the loss of a GGUF file in llama.cpp.

    It pairs with measurements of the evaluator on the same windows, document by document.

    Args:
        path: the file.
        windows: the tokens to measure on.
        references: per window the uncompressed model's log-probabilities of every next token, float32,
            shape (tokens − 1, vocabulary), as :meth:`tightfit.workers.evaluator.Evaluator.references`
            returns them.
        plan: digest of the plan that the file carries out.
        split: name of the part of the text that the windows come from.
        identity: digests of what else the loss depends on: the model's weights, the file.
        threads: CPU threads.
        tick: called with (windows done, windows in all) after each; may raise to stop.

    Raises:
        InputError: there is no llama.cpp, it cannot load the file, or the file has another vocabulary.
        LlamaError: llama.cpp cannot be called, or could not compute the windows.
    """
    import torch

    from tightfit.workers.evaluator import ReferenceWindow, add_losses, score_window

    start = time.perf_counter()
    documents: dict[str, DocumentLoss] = {}
    divergences = []
    with LlamaModel(path, max(len(window.tokens) for window in windows), threads) as model:
        for i, (window, expected) in enumerate(zip(windows, references, strict=True)):
            _check_vocabulary(path, model.n_vocab, expected.shape[1])
            found = torch.from_numpy(model.log_probs(window.tokens)[window.prefix :])
            reference = ReferenceWindow(window.document, torch.from_numpy(window.tokens), expected)
            loss, divergence = score_window(found, reference)
            known = documents.get(window.document)
            documents[window.document] = loss if known is None else add_losses(known, loss)
            divergences.append(divergence)
            tick(i + 1, len(windows))
    p99 = torch.cat(divergences).quantile(0.99).item()
    protocol = file_protocol(split, windows, identity)
    seconds = time.perf_counter() - start
    return Measurement(plan, split, protocol, tuple(documents.values()), p99, seconds)


def file_protocol(split: str, windows: Sequence[Window], identity: Mapping[str, str]) -> str:
    """Content key of a file's loss on these windows: equal key, equal losses."""
    from tightfit.workers.text import digest_windows

    parts = {
        **identity,
        "split": split,
        "text": digest_windows(windows),
        "llama.cpp": library_version(),
        "protocol": PROTOCOL_VERSION,
        "machine": platform.machine(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _check_vocabulary(path: Path, found: int, expected: int) -> None:
    if found != expected:
        raise InputError(
            f"{path}: its vocabulary has {found} tokens and the model's {expected}; the file belongs to "
            "another model."
        )
