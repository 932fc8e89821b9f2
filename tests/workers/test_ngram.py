import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.workers.ngram import bigram_perplexity


def test_value_computed_by_hand():
    training = np.array([0, 1, 0, 1, 0, 2])
    # After 0: token 1 twice, token 2 once, so T = 2 and 3 observations. Unigram: (4, 3, 2)/9.
    after_zero = (2 + 2 * 3 / 9) / 5
    # After 1: token 0 twice, so T = 1 and 2 observations.
    after_one = (2 + 4 / 9) / 3
    # After 2 nothing was ever seen: the unigram model.
    after_two = 4 / 9
    perplexity = bigram_perplexity(training, np.array([0, 1, 0]), 3)
    assert perplexity == pytest.approx((after_zero * after_one) ** (-1 / 2))
    assert bigram_perplexity(training, np.array([2, 0]), 3) == pytest.approx(1 / after_two)


@given(st.lists(st.integers(0, 4), min_size=2, max_size=60), st.integers(0, 4))
def test_probabilities_after_any_token_add_up_to_one(training, before):
    training = np.array(training)
    total = sum(1 / bigram_perplexity(training, np.array([before, after]), 5) for after in range(5))
    assert total == pytest.approx(1.0)


def test_text_like_the_training_text_is_easier():
    training = np.tile(np.arange(10), 50)
    shuffled = np.random.default_rng(0).permutation(training)
    assert bigram_perplexity(training, training, 10) < 1.1
    assert bigram_perplexity(training, shuffled, 10) > 5
