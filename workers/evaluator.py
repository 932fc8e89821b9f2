"""The evaluator: the measured loss of a plan."""

from __future__ import annotations

import hashlib
import inspect
import json
import platform
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import transformers
from safetensors import safe_open
from torch import Tensor

from tightfit.compress import QUANTIZER_VERSION, PackedTensor, Replica, compress_matrix
from tightfit.compress.activations import rounded_inputs
from tightfit.compress.threads import one_thread
from tightfit.spaces import KvOption, Option
from tightfit.workers.measurement import DocumentLoss, Measurement
from tightfit.workers.option_cache import OptionCache
from tightfit.workers.prompts import CACHE_VERSION, Prompts
from tightfit.workers.tensor_files import is_whole, sweep, write_tensors
from tightfit.workers.text import Window, digest_windows

# Raised whenever a change here changes any measured loss; part of every content key.
PROTOCOL_VERSION = 2


@dataclass(frozen=True)
class ReferenceWindow:
    """What the uncompressed model says about one window.

    Attributes:
        ids: token ids, shape (tokens,).
        log_probs: log-probabilities of the next token wherever that is scored, float32, shape
            (scored, vocabulary).
    """

    document: str
    ids: Tensor
    log_probs: Tensor


class Evaluator:
    """Measures plans on one replica of a model against that model's own predictions.

    The reference log-probabilities of every window are computed once and kept on disk in float32,
    memory-mapped when used. A plan only dequantizes the sites whose option differs from the plan
    measured before it.

    Windows run side by side, each on a thread of its own. A matrix product that is split over threads
    may round differently for every number of them; this way a loss depends neither on the number of
    threads nor on how many evaluators share the work, and two threads finish sooner than they would by
    sharing every product.

    Args:
        replica: the model.
        importance: per site the mean square of its input features, for the quantizer.
        cache: packed options.
        folder: where reference log-probabilities are kept.
        identity: digests of what else losses depend on: the model's weights, the importances.
        threads: windows that run side by side; an accelerator takes them one by one.
    """

    def __init__(
        self,
        replica: Replica,
        importance: Mapping[str, Tensor],
        cache: OptionCache,
        folder: Path,
        identity: Mapping[str, str],
        threads: int = 1,
    ) -> None:
        self.replica = replica
        self._importance = importance
        self._cache = cache
        self._folder = folder
        self._identity = dict(identity)
        self._applied: dict[str, Option] = {}
        side_by_side = threads if replica.device.type == "cpu" else 1
        self._threads = ThreadPoolExecutor(side_by_side, thread_name_prefix="window")
        self._prompts = Prompts(replica.model)
        self._keeps_logits = "logits_to_keep" in inspect.signature(replica.model.forward).parameters
        replica.restore()  # the reference must come from the original weights, whoever used them before
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)

    @property
    def importance(self) -> Mapping[str, Tensor]:
        """Per site the mean square of its input features."""
        return self._importance

    def clear(self) -> None:
        """Put every original matrix back into the replica."""
        self._apply({})

    def packed(self, site: str, option: Option) -> PackedTensor:
        """Return the packed matrix of a site, quantizing it on first use."""
        original = self.replica.original(site)
        rows, cols = original.shape
        importance = self._importance.get(site)
        return self._cache.get(
            site, option, (rows, cols), lambda: compress_matrix(original, option, importance)
        )

    def matrix(self, site: str, option: Option) -> Tensor:
        """Return what a site's matrix reads back as under an option, shape (rows, cols)."""
        return self.packed(site, option).dequantize(self.replica.device)

    def stored_bytes(self, options: Mapping[str, Option]) -> int:
        """Count the weight bytes of a plan from its packed tensors and the model's own parameters.

        Nothing here comes from the memory formula, so that the two can be compared.
        """
        packed = sum(self.packed(site, option).nbytes for site, option in options.items())
        compressed = sum(self.replica.original(site).numel() for site in options)
        parameters = sum(parameter.numel() for parameter in self.replica.model.parameters())
        return packed + (parameters - compressed) * self.replica.geometry.dtype_bytes

    def protocol(self, split: str, windows: Sequence[Window]) -> str:
        """Content key of measurements on these windows: equal key, equal losses."""
        what = {"split": split, "text": digest_windows(windows)}
        if any(window.prefix for window in windows):
            what["cache"] = str(CACHE_VERSION)
        return self.key(what)

    def key(self, what: Mapping[str, str]) -> str:
        """Content key of something computed on text, together with all else that it depends on."""
        parts = {
            **self._identity,
            **what,
            "quantizer": QUANTIZER_VERSION,
            "protocol": PROTOCOL_VERSION,
            "dtype": str(self.replica.dtype),
            "device": str(self.replica.device),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "machine": platform.machine(),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def measure(
        self,
        plan: str,
        options: Mapping[str, Option],
        split: str,
        windows: Sequence[Window],
        kv: Mapping[int, KvOption] | None = None,
    ) -> Measurement:
        """Measure the loss of a plan.

        With options for KV caches, the prefix of every window is read with nothing compressed; then its
        cache is compressed once, and the model goes on from it through the rest of the window, as if one
        token came at a time. Caches without an option stay as they are. All plans are scored on the same
        tokens, so that their losses pair.

        Args:
            plan: its digest.
            options: the option of every compressed site; sites left out stay uncompressed.
            split: name of the part of the text that the windows come from.
            windows: the tokens to measure on.
            kv: the option of every layer's KV cache.

        Raises:
            ValueError: there are options for KV caches, but a window has no prefix to fill them.
        """
        if kv and not all(window.prefix for window in windows):
            raise ValueError("KV options need windows with a prefix")
        start = time.perf_counter()
        reference = self._reference(windows)
        self._apply(options)
        documents: dict[str, DocumentLoss] = {}
        divergences = []
        model, geometry = self.replica.model, self.replica.geometry
        with one_thread(), rounded_inputs(model, geometry, options):
            weights = self.key({site: option.name for site, option in options.items()}) if kv else ""
            scored = list(self._threads.map(partial(self._score, weights, kv or {}), windows, reference))
        for window, (loss, divergence) in zip(windows, scored, strict=True):
            divergences.append(divergence)
            known = documents.get(window.document)
            documents[window.document] = loss if known is None else add_losses(known, loss)
        p99 = torch.cat(divergences).quantile(0.99).item()
        seconds = time.perf_counter() - start
        protocol = self.protocol(split, windows)
        return Measurement(plan, split, protocol, tuple(documents.values()), p99, seconds)

    def references(self, windows: Sequence[Window]) -> list[Tensor]:
        """Return the uncompressed model's log-probabilities of every next token, memory-mapped.

        Returns:
            Per window a float32 tensor of shape (scored, vocabulary).
        """
        paths = self._reference(windows)
        return [_read_reference(w, path).log_probs for w, path in zip(windows, paths, strict=True)]

    def _apply(self, options: Mapping[str, Option]) -> None:
        # Site by site, so that what is noted stays true where one of them fails.
        for site in [site for site in self._applied if site not in options]:
            self.replica.restore(site)
            del self._applied[site]
        for site, option in options.items():
            if self._applied.get(site) != option:
                self.replica.apply({site: self.matrix(site, option)})
                self._applied[site] = option

    def _reference(self, windows: Sequence[Window]) -> list[Path]:
        """Return where the predictions of the uncompressed model are kept, by window, made if missing."""
        paths = [self._folder / f"{self.key({'window': digest_windows([w])})}.safetensors" for w in windows]
        missing = {path: w for w, path in zip(windows, paths, strict=True) if not is_whole(path)}
        if missing:
            self.clear()
        with one_thread():
            list(self._threads.map(self._keep_reference, missing.values(), missing.keys()))
        return paths

    def _keep_reference(self, window: Window, path: Path) -> None:
        write_tensors(path, {"log_probs": self._log_probs(window)})

    def _score(
        self, weights: str, kv: Mapping[int, KvOption], window: Window, path: Path
    ) -> tuple[DocumentLoss, Tensor]:
        reference = _read_reference(window, path)
        if not kv:
            return score_window(self._log_probs(window), reference)
        logits = self._prompts.continued(weights, window, kv)
        return score_window(torch.log_softmax(logits.float(), dim=-1), reference)

    @torch.no_grad()
    def _log_probs(self, window: Window) -> Tensor:
        """Log-probabilities of every next token that is scored, shape (scored, vocabulary)."""
        ids = torch.from_numpy(window.tokens).to(self.replica.device)
        # The head is a large part of a small model, and what it says about a prefix is not wanted.
        last = {"logits_to_keep": window.scored + 1} if window.prefix and self._keeps_logits else {}
        logits = self.replica.model(input_ids=ids.unsqueeze(0), use_cache=False, **last).logits[0]
        return torch.log_softmax(logits[-window.scored - 1 : -1].float(), dim=-1)


def _read_reference(window: Window, path: Path) -> ReferenceWindow:
    with safe_open(path, framework="pt") as file:
        return ReferenceWindow(window.document, torch.from_numpy(window.tokens), file.get_tensor("log_probs"))


def score_window(log_probs: Tensor, reference: ReferenceWindow) -> tuple[DocumentLoss, Tensor]:
    """Compare predictions with the reference's.

    Args:
        log_probs: of the plan, shape (scored, vocabulary).
        reference: the same window under the uncompressed model.

    Returns:
        Sums over the window, and the KL divergence of every token in nats, shape (scored,).
    """
    expected = reference.log_probs.to(log_probs.device)
    divergence = (expected.exp() * (expected - log_probs)).sum(-1)
    target = reference.ids[-len(expected) :].to(log_probs.device).unsqueeze(-1)
    nll, reference_nll = -log_probs.gather(-1, target).sum(), -expected.gather(-1, target).sum()
    agree = (log_probs.argmax(-1) == expected.argmax(-1)).sum()
    loss = DocumentLoss(
        document=reference.document,
        tokens=target.shape[0],
        kl=divergence.cpu().double().sum().item(),  # not every device has float64
        nll=nll.item(),
        reference_nll=reference_nll.item(),
        agree=int(agree.item()),
    )
    return loss, divergence.cpu()


def add_losses(a: DocumentLoss, b: DocumentLoss) -> DocumentLoss:
    """Add the sums of two windows of one document."""
    return DocumentLoss(
        document=a.document,
        tokens=a.tokens + b.tokens,
        kl=a.kl + b.kl,
        nll=a.nll + b.nll,
        reference_nll=a.reference_nll + b.reference_nll,
        agree=a.agree + b.agree,
    )
