"""llama.cpp through its C interface, with nothing but the standard library.

Whoever needs arrays and messages for users takes :mod:`tightfit.workers.llamacpp.model`.
"""

from __future__ import annotations

import ctypes as c
import os
from collections.abc import Sequence
from typing import Any

from tightfit.workers.llamacpp.structs import F32, Batch, ContextParams, ModelParams, check

BATCH = 512
"""Most tokens that are computed at once: llama.cpp's own default of a physical batch."""

SCORED = 128
"""The same where logits are wanted after each, since they take 4 bytes per token of the vocabulary."""

_ERROR, _CONTINUED = 4, 5  # enum ggml_log_level
_NO_FLASH = 0  # LLAMA_FLASH_ATTN_TYPE_DISABLED
_Log = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)
_NOTHING_NEW = ("failed to load model", "failed to load model from file", "error loading model")


class UnusableError(Exception):
    """The library is not one that can be called. The text is half a sentence."""


class RefusedError(Exception):
    """llama.cpp refuses a file or what is asked of it. The text is half a sentence."""


class TooLongError(RefusedError):
    """More tokens are asked for than the model knows positions."""


class Library:
    """The functions of llama.cpp that are needed, from a shared object.

    Whatever llama.cpp would print is kept back; its errors are told where something fails.

    Args:
        path: the shared object.

    Raises:
        UnusableError: it cannot be loaded, or its structs are laid out in another way.
    """

    def __init__(self, path: str) -> None:
        try:
            self._functions: Any = c.CDLL(path)
            self._declare()
        except (OSError, AttributeError) as error:
            raise UnusableError(f"its shared object cannot be used ({error})") from error
        self._errors: list[str] = []
        self._severity = 0
        self._log = _Log(self._listen)  # llama.cpp keeps only the address
        self._functions.llama_log_set(self._log, None)
        for params in (self.model_params(), self.context_params()):
            if difference := check(params):
                raise UnusableError(f"its structs are laid out in another way: by default {difference}")
        self._functions.llama_backend_init()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._functions, f"llama_{name}")

    def model_params(self) -> ModelParams:
        """Return llama.cpp's defaults for loading a model."""
        params: ModelParams = self._functions.llama_model_default_params()
        return params

    def context_params(self) -> ContextParams:
        """Return llama.cpp's defaults for computing with one."""
        params: ContextParams = self._functions.llama_context_default_params()
        return params

    def version(self) -> str:
        """Return what llama.cpp says its version is."""
        version: bytes = self._functions.llama_version()
        return version.decode()

    def reason(self) -> str:
        """Return the errors that llama.cpp reported since the last call, as half a sentence."""
        lines = [_strip(line) for line in "".join(self._errors).splitlines()]
        self._errors.clear()
        told = [line for line in dict.fromkeys(lines) if line and not line.startswith(_NOTHING_NEW)]
        return "; ".join(told) or "it gives no reason"

    def _listen(self, severity: int, text: bytes, _: object) -> None:
        self._severity = self._severity if severity == _CONTINUED else severity
        if self._severity == _ERROR:
            self._errors.append(text.decode(errors="replace"))

    def _declare(self) -> None:
        handle, text = c.c_void_p, c.c_char_p
        signatures: dict[str, tuple[Any, list[Any]]] = {
            "log_set": (None, [_Log, handle]),
            "backend_init": (None, []),
            "version": (text, []),
            "model_default_params": (ModelParams, []),
            "context_default_params": (ContextParams, []),
            "model_load_from_file": (handle, [text, ModelParams]),
            "model_free": (None, [handle]),
            "model_n_ctx_train": (c.c_int32, [handle]),
            "model_get_vocab": (handle, [handle]),
            "vocab_n_tokens": (c.c_int32, [handle]),
            "init_from_model": (handle, [handle, ContextParams]),
            "free": (None, [handle]),
            "n_ctx": (c.c_uint32, [handle]),
            "n_batch": (c.c_uint32, [handle]),
            "get_memory": (handle, [handle]),
            "memory_clear": (None, [handle, c.c_bool]),
            "decode": (c.c_int32, [handle, Batch]),
            "synchronize": (None, [handle]),
            "get_logits": (c.POINTER(c.c_float), [handle]),
        }
        for name, (result, arguments) in signatures.items():
            function = getattr(self._functions, f"llama_{name}")
            function.restype, function.argtypes = result, arguments


class Engine:
    """A GGUF file loaded in llama.cpp, with one sequence in its cache.

    Args:
        library: llama.cpp.
        path: the file.
        context: most tokens of a sequence.
        threads: CPU threads.
        scoring: whether logits are wanted after every token, not only after the last one of a call. Keys
            and values then stay in float32 and attention is computed without the flash kernels, which
            round to float16: a loss is that of the weights. Otherwise all is as llama.cpp has it by
            default.

    Attributes:
        vocab: number of tokens in the vocabulary.
        batch: most tokens per call of :meth:`decode`.

    Raises:
        RefusedError: llama.cpp cannot load the file, or the model knows fewer positions.
    """

    def __init__(self, library: Library, path: str, context: int, threads: int, scoring: bool) -> None:
        self._library = library
        self._scoring = scoring
        self._model = self._context = None
        try:
            self._load(path)
            self.vocab: int = library.vocab_n_tokens(library.model_get_vocab(self._model))
            self.batch = min(SCORED if scoring else BATCH, context)
            self._start(context, threads)
        except BaseException:
            self.close()
            raise

    def clear(self) -> None:
        """Forget all tokens."""
        self._library.memory_clear(self._library.get_memory(self._context), True)

    def decode(self, ids: Sequence[int]) -> None:
        """Compute the tokens that follow in the sequence, and wait until that is done.

        Args:
            ids: at most :attr:`batch` of them.

        Raises:
            RefusedError: llama.cpp could not.
        """
        count = len(ids)
        tokens = (c.c_int32 * count)(*ids)
        wanted = bytes([self._scoring] * (count - 1) + [1])
        code = self._library.decode(self._context, Batch(n_tokens=count, token=tokens, logits=wanted))
        if code:
            raise RefusedError(f"llama.cpp could not compute {count} tokens: {self._library.reason()}")
        self._library.synchronize(self._context)

    def logits(self) -> Any:
        """Return a pointer to the float32 logits of the last call, shape (tokens or 1, vocabulary)."""
        return self._library.get_logits(self._context)

    def close(self) -> None:
        """Free everything."""
        if self._context is not None:
            self._library.free(self._context)
        if self._model is not None:
            self._library.model_free(self._model)
        self._model = self._context = None

    def _load(self, path: str) -> None:
        self._library.reason()
        params = self._library.model_params()
        params.n_gpu_layers = 0
        self._model = self._library.model_load_from_file(os.fsencode(path), params)
        if self._model is None:
            raise RefusedError(f"llama.cpp cannot load it: {self._library.reason()}")

    def _start(self, context: int, threads: int) -> None:
        known = self._library.model_n_ctx_train(self._model)
        if context > known:
            raise TooLongError(f"it knows {known} positions, and {context} are asked for")
        params = self._library.context_params()
        params.n_ctx = context
        params.n_batch = params.n_ubatch = self.batch
        params.n_outputs_max = self.batch if self._scoring else 1
        params.n_threads = params.n_threads_batch = threads
        if self._scoring:
            params.type_k = params.type_v = F32
            params.flash_attn_type = _NO_FLASH
        self._context = self._library.init_from_model(self._model, params)
        if self._context is None:
            raise RefusedError(f"llama.cpp cannot compute with it: {self._library.reason()}")
        if self._library.n_ctx(self._context) < context or self._library.n_batch(self._context) < self.batch:
            raise UnusableError("it does not keep to the context and batch that it is given")


def _strip(line: str) -> str:
    """Take the names of functions off the start of a line of llama.cpp's log."""
    head, colon, rest = line.strip().partition(": ")
    if colon and (head.replace("_", "").isalnum() or head in _NOTHING_NEW):
        return _strip(rest)
    return line.strip().rstrip(".")
