from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.proxies.marginals import Marginal, choose_marginals, measure_marginals
from tightfit.spaces import Decision, Plan, WeightOption


def decisions_of(*widths: tuple[int, ...]) -> list[Decision]:
    """One decision per tuple of bits."""
    result = []
    for index, bits in enumerate(widths):
        options = tuple(WeightOption(b, 64, "integer") for b in bits)
        costs = tuple(option.tensor_bytes(64, 64) for option in options)
        result.append(Decision(f"site{index}", (f"site{index}",), options, costs, 4096))
    return result


def scores_of(decisions: list[Decision], seed: int = 0) -> list[np.ndarray]:
    return [
        np.random.default_rng([seed, 61, i]).lognormal(0, 1.5, len(d.options))
        for i, d in enumerate(decisions)
    ]


@given(
    widths=st.lists(
        st.lists(st.sampled_from([2, 3, 4, 5, 6, 8]), min_size=1, max_size=5, unique=True).map(
            lambda bits: tuple(sorted(bits))
        ),
        min_size=1,
        max_size=12,
    ),
    count=st.integers(0, 80),
)
def test_pairs_are_distinct_have_a_choice_and_are_as_many_as_asked(
    widths: list[tuple[int, ...]], count: int
) -> None:
    decisions = decisions_of(*widths)
    pairs = choose_marginals(decisions, scores_of(decisions), count)
    assert pairs == sorted(set(pairs))
    assert all(len(decisions[d].options) > 1 and o < len(decisions[d].options) for d, o in pairs)
    available = sum(len(bits) for bits in widths if len(bits) > 1)
    assert len(pairs) == min(count, available)


@pytest.mark.parametrize("count", [12, 13, 14, 40])
def test_every_width_gets_an_equal_share(count: int) -> None:
    decisions = decisions_of(*[(3, 4, 6)] * 30)
    pairs = choose_marginals(decisions, scores_of(decisions), count)
    shares = Counter(decisions[d].options[o].bits for d, o in pairs)
    assert set(shares) == {3, 4, 6}
    assert max(shares.values()) - min(shares.values()) <= 1


def test_what_a_rare_width_cannot_use_goes_to_the_others() -> None:
    decisions = decisions_of(*[(3, 4)] * 30, (4, 8), (4, 8))
    pairs = choose_marginals(decisions, scores_of(decisions), 30)
    shares = Counter(decisions[d].options[o].bits for d, o in pairs)
    assert shares == {8: 2, 3: 14, 4: 14}


@pytest.mark.parametrize("count", [8, 20, 50])
def test_ranks_are_spread_evenly_from_the_lowest_to_the_highest_score(count: int) -> None:
    decisions = decisions_of(*[(3, 4)] * 40)
    scores = scores_of(decisions)
    pairs = choose_marginals(decisions, scores, count)
    for option in (0, 1):
        order = np.argsort([row[option] for row in scores])
        ranks = sorted(int(np.flatnonzero(order == d)[0]) for d, o in pairs if o == option)
        assert (ranks[0], ranks[-1]) == (0, 39)
        gaps = np.diff(ranks)
        assert gaps.max() - gaps.min() <= 1


def test_a_decision_without_a_choice_is_never_measured() -> None:
    decisions = decisions_of((8,), (3, 4), (8,), (3, 4))
    pairs = choose_marginals(decisions, scores_of(decisions), 100)
    assert pairs == [(1, 0), (1, 1), (3, 0), (3, 1)]


def test_nothing_is_chosen_where_nothing_can_be() -> None:
    decisions = decisions_of((8,), (4,))
    assert choose_marginals(decisions, scores_of(decisions), 10) == []


def test_the_choice_depends_on_the_scores_alone() -> None:
    decisions = decisions_of(*[(3, 4, 5)] * 20)
    first = choose_marginals(decisions, scores_of(decisions), 15)
    assert choose_marginals(decisions, scores_of(decisions), 15) == first
    # Ranks count, not sizes: a change of scale changes nothing.
    assert choose_marginals(decisions, [1000 * row for row in scores_of(decisions)], 15) == first
    assert choose_marginals(decisions, scores_of(decisions, seed=1), 15) != first


def test_each_pair_is_measured_as_a_plan_of_one_choice_and_what_fails_is_left_out() -> None:
    decisions = decisions_of((3, 4), (3, 4), (3, 4))
    asked: list[Plan] = []

    def measure(plans: Sequence[Plan]) -> list[tuple[float, float] | None]:
        asked.extend(plans)
        return [(1.0, 0.5), None, (3.0, 0.5)]

    marginals = measure_marginals(decisions, [(0, 1), (1, 1), (2, 0)], measure)
    assert [plan.choices for plan in asked] == [
        (("site0", "4b-g64-int"),),
        (("site1", "4b-g64-int"),),
        (("site2", "3b-g64-int"),),
    ]
    assert marginals == [Marginal(0, 1, 1.0, 0.5), Marginal(2, 0, 3.0, 0.5)]
