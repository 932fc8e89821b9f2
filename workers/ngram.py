"""A smoothed bigram model: the least that a trained model must beat to be worth measuring on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def bigram_perplexity(training: NDArray[np.int64], ids: NDArray[np.int64], vocab: int) -> float:
    """Perplexity of ``ids``, all but the first token, under a bigram model of ``training``.

    Witten–Bell smoothing (*The zero-frequency problem*, IEEE Trans. Information Theory 37(4), 1991):
    p(w | v) = (c(v, w) + T(v) · p(w)) / (c(v) + T(v)), with T(v) the number of different tokens seen
    after v, and p(w) the unigram model with one added to every count.

    Args:
        training: token ids, int64.
        ids: token ids, int64, at least two.
        vocab: number of different tokens.
    """
    counts = np.zeros((vocab, vocab), dtype=np.float64)
    np.add.at(counts, (training[:-1], training[1:]), 1.0)
    unigram = np.bincount(training, minlength=vocab) + 1.0
    unigram /= unigram.sum()
    before, after = ids[:-1], ids[1:]
    kinds = np.count_nonzero(counts, axis=1)
    total = counts.sum(axis=1)
    # A token never seen before another has no bigram statistics at all: the unigram model stands in.
    backoff = np.where(kinds == 0, 1, kinds)[before]
    likelihood = (counts[before, after] + backoff * unigram[after]) / (total[before] + backoff)
    return float(np.exp(-np.log(likelihood).mean()))
