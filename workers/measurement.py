"""What measuring a plan gives: losses per document, so that any two plans compare paired."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class DocumentLoss:
    """Sums over the scored tokens of one document, in nats.

    Attributes:
        document: id of the document in its text.
        tokens: number of scored tokens.
        kl: Σ KL(p_reference ‖ p_plan).
        nll: Σ negative log-likelihood of the true next token under the plan.
        reference_nll: the same under the uncompressed model.
        agree: number of tokens where both models' most likely next token is the same.
    """

    document: str
    tokens: int
    kl: float
    nll: float
    reference_nll: float
    agree: int


@dataclass(frozen=True)
class Measurement:
    """The measured loss of one plan on one fixed set of tokens.

    Attributes:
        plan: digest of the plan.
        split: the part of the text: ``selection``, ``validation`` or ``holdout``.
        protocol: content key of everything else that the losses depend on (model weights, text
            and tokens, quantizer, dtype, library versions).
        documents: one entry per document.
        kl_p99: 99th percentile of the per-token KL, in nats.
        seconds: wall-clock time it took.
    """

    plan: str
    split: str
    protocol: str
    documents: tuple[DocumentLoss, ...]
    kl_p99: float
    seconds: float

    @property
    def tokens(self) -> int:
        """Number of scored tokens."""
        return sum(d.tokens for d in self.documents)

    @property
    def kl(self) -> float:
        """Mean KL divergence per token in nats: the loss."""
        return sum(d.kl for d in self.documents) / self.tokens

    @property
    def kl_se(self) -> float:
        """Standard error of :attr:`kl`, resampling documents."""
        return ratio_se([d.kl for d in self.documents], [d.tokens for d in self.documents])

    @property
    def delta_nll(self) -> float:
        """Mean increase of the negative log-likelihood per token over the reference, in nats."""
        return sum(d.nll - d.reference_nll for d in self.documents) / self.tokens

    @property
    def perplexity(self) -> float:
        """Perplexity of the plan: exp of its mean negative log-likelihood."""
        return math.exp(sum(d.nll for d in self.documents) / self.tokens)

    @property
    def reference_perplexity(self) -> float:
        """Perplexity of the uncompressed model on the same tokens."""
        return math.exp(sum(d.reference_nll for d in self.documents) / self.tokens)

    @property
    def agreement(self) -> float:
        """Share of tokens where plan and reference predict the same next token."""
        return sum(d.agree for d in self.documents) / self.tokens

    def to_dict(self) -> dict[str, Any]:
        """Return the measurement as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Measurement:
        """Read a measurement from plain data."""
        documents = tuple(DocumentLoss(**row) for row in data["documents"])
        return cls(**{**data, "documents": documents})


FailureKind = Literal["not finite", "died"]


@dataclass(frozen=True)
class Failure:
    """A plan that could not be measured, for good: it is not tried again.

    Attributes:
        plan, split, protocol: as of the measurement that it stands for.
        kind: the loss was not finite, or whoever measured it failed or died of it again and again.
        reason: one sentence.
    """

    plan: str
    split: str
    protocol: str
    kind: FailureKind
    reason: str


def fault(measurement: Measurement) -> str | None:
    """Say what is not finite in a measurement, or return None where everything is."""
    for document in measurement.documents:
        for name in ("kl", "nll", "reference_nll"):
            value = getattr(document, name)
            if not math.isfinite(value):
                return f"{name} of document {document.document} is {value}"
    if not math.isfinite(measurement.kl_p99):
        return f"the 99th percentile of the KL is {measurement.kl_p99}"
    # e to the mean loss must be a number too: 700 nats per token is beyond any use.
    if max(sum(d.nll for d in measurement.documents) / measurement.tokens, 0.0) > 700:
        return "the perplexity is beyond any number"
    return None


@dataclass(frozen=True)
class Paired:
    """A paired comparison of two plans on the same documents.

    Attributes:
        difference: mean loss of the first minus the second, nats per token; negative is better.
        se: its standard error over documents.
    """

    difference: float
    se: float

    @property
    def z(self) -> float:
        """Difference in standard errors; 0 when both are equal everywhere."""
        return self.difference / self.se if self.se > 0 else 0.0


def compare(first: Measurement, second: Measurement) -> Paired:
    """Compare two plans on the documents that both were measured on.

    Raises:
        ValueError: they were not measured on the same tokens of the same documents.
    """
    other = {d.document: d for d in second.documents}
    if {d.document: d.tokens for d in first.documents} != {k: d.tokens for k, d in other.items()}:
        raise ValueError("paired comparison needs both plans measured on the same documents and tokens")
    deltas = [d.kl - other[d.document].kl for d in first.documents]
    tokens = [d.tokens for d in first.documents]
    return Paired(sum(deltas) / sum(tokens), ratio_se(deltas, tokens))


def ratio_se(sums: Sequence[float], tokens: Sequence[int]) -> float:
    """Standard error of Σ sums / Σ tokens when documents are drawn at random.

    The linearized ratio estimator (Cochran, *Sampling Techniques*, 1977, §6.4): residuals
    sums − ratio · tokens, since long documents weigh more. Infinite for fewer than two documents.
    """
    n, total = len(sums), sum(tokens)
    if n < 2:
        return math.inf
    ratio = sum(sums) / total
    residual = sum((s - ratio * t) ** 2 for s, t in zip(sums, tokens, strict=True))
    return math.sqrt(n / (n - 1) * residual) / total
