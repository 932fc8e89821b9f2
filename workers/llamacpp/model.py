"""Log-probabilities of a GGUF file, as llama.cpp computes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from tightfit.spaces import InputError
from tightfit.workers.llamacpp.engine import Engine, RefusedError, UnusableError
from tightfit.workers.llamacpp.library import LlamaError, load_library, unusable

_ROWS = 64  # that the softmax works on at once, so that they stay in the processor's cache


class LlamaModel:
    """A GGUF file in llama.cpp.

    Keys and values are kept in float32 and attention is computed without flash kernels. The mean loss of
    the tests' model in a float32 file is then Transformers' to 1e-6 nats; with llama.cpp's defaults, a
    float16 cache and flash kernels, to 6e-5.

    A file that makes llama.cpp abort, rather than refuse it, ends this process.

    Args:
        path: the file.
        context: most tokens that are given at once.
        threads: CPU threads.

    Attributes:
        n_vocab: number of tokens in the vocabulary.

    Raises:
        InputError: there is no llama.cpp, it cannot load the file, or the model knows fewer positions.
        LlamaError: llama.cpp is not one that can be called.
    """

    def __init__(self, path: Path, context: int, threads: int = 1) -> None:
        self._path = path
        self._limit = context
        try:
            self._engine = Engine(load_library(), str(path), context, threads, scoring=True)
        except RefusedError as error:
            raise InputError(f"{path}: {error}.") from error
        except UnusableError as error:
            raise unusable(str(error)) from error
        self.n_vocab = self._engine.vocab

    def log_probs(self, ids: Sequence[int] | NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the log-probabilities of every next token, nothing being known before the first.

        Args:
            ids: at least two tokens, and at most the context.

        Returns:
            Shape (tokens − 1, vocabulary), in nats.

        Raises:
            InputError: there are too many or too few tokens, or some that the vocabulary does not have.
            LlamaError: llama.cpp could not compute them.
        """
        tokens = self._checked(ids)
        out = np.empty((len(tokens) - 1, self.n_vocab), np.float32)
        self._engine.clear()
        for start in range(0, len(out), self._engine.batch):
            part = out[start : start + self._engine.batch]
            self._decode(tokens[start : start + len(part)])
            logits = np.ctypeslib.as_array(self._engine.logits(), part.shape)
            for row in range(0, len(part), _ROWS):
                part[row : row + _ROWS] = _log_softmax(logits[row : row + _ROWS])
        return out

    def close(self) -> None:
        """Free the model."""
        self._engine.close()

    def __enter__(self) -> LlamaModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _decode(self, tokens: list[int]) -> None:
        try:
            self._engine.decode(tokens)
        except RefusedError as error:
            raise LlamaError(f"{self._path}: {error}.") from error

    def _checked(self, ids: Sequence[int] | NDArray[np.integer]) -> list[int]:
        tokens = [int(token) for token in ids]
        if not 2 <= len(tokens) <= self._limit:
            raise InputError(
                f"{self._path}: {len(tokens)} tokens are given; 2 to {self._limit} can be scored."
            )
        if min(tokens) < 0 or max(tokens) >= self.n_vocab:
            raise InputError(
                f"{self._path}: token {max(tokens) if min(tokens) >= 0 else min(tokens)} is given, but the "
                f"vocabulary has {self.n_vocab}; the file belongs to another model."
            )
        return tokens


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Log-softmax of each row, its sum in float64."""
    shifted: NDArray[np.float32] = logits - logits.max(axis=-1, keepdims=True)
    total = np.exp(shifted).sum(axis=-1, dtype=np.float64, keepdims=True)
    shifted -= np.log(total).astype(np.float32)
    return shifted
