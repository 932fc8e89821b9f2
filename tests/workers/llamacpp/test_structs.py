import pytest

from tightfit.workers.llamacpp.library import load_library
from tightfit.workers.llamacpp.structs import _RESERVE, ContextParams, ModelParams, check

LAST = {ModelParams: ModelParams.use_extra_bufts.offset, ContextParams: ContextParams.swa_full.offset}


def defaults(kind):
    library = load_library()
    return library.model_params() if kind is ModelParams else library.context_params()


@pytest.mark.parametrize("kind", [ModelParams, ContextParams])
def test_the_installed_build_is_laid_out_as_the_structs(kind):
    assert check(defaults(kind)) is None


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("kind", [ModelParams, ContextParams])
def test_a_new_field_anywhere_before_the_last_that_is_set_is_noticed(kind, size):
    raw = bytes(defaults(kind))[:-_RESERVE]
    for at in range(0, LAST[kind] + 1, 4):
        longer = raw[:at] + bytes(size) + raw[at:] + bytes(_RESERVE - size)
        assert check(kind.from_buffer_copy(longer)) is not None, at


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("kind", [ModelParams, ContextParams])
def test_a_field_that_is_gone_is_noticed(kind, size):
    raw = bytes(defaults(kind))[:-_RESERVE]
    for at in range(0, LAST[kind] - size + 1, 4):
        shorter = raw[:at] + raw[at + size :] + bytes(_RESERVE + size)
        assert check(kind.from_buffer_copy(shorter)) is not None, at


def test_a_default_that_differs_is_named():
    params = defaults(ContextParams)
    params.n_batch = 4096
    assert check(params) == "n_batch is 4096 instead of 2048"
