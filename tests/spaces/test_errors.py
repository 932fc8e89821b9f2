from __future__ import annotations

import pytest

from tightfit.spaces import InfeasibleError, InputError, TightfitError, suggest


@pytest.mark.parametrize(("kind", "code"), [(TightfitError, 1), (InputError, 2), (InfeasibleError, 3)])
def test_exit_codes_tell_bad_input_from_infeasible(kind: type[TightfitError], code: int) -> None:
    error = kind("what, where, what is allowed")
    assert isinstance(error, TightfitError)
    assert error.exit_code == code


def test_the_nearest_word_is_suggested() -> None:
    assert suggest("bugdet", ["budget", "model"]) == " Did you mean 'budget'?"


def test_nothing_is_suggested_where_nothing_is_near() -> None:
    assert suggest("zzz", ["budget", "model"]) == ""
    assert suggest("budget", []) == ""
