import numpy as np
import pytest

from tightfit.spaces import InputError
from tightfit.workers.llamacpp import engine
from tightfit.workers.llamacpp.model import LlamaModel


def nll(log_probs, ids):
    return -log_probs[np.arange(len(ids) - 1), ids[1:]].mean()


def test_a_float32_file_has_the_loss_that_transformers_gives(float_file, windows, references):
    with LlamaModel(float_file, 64) as model:
        for window, expected in zip(windows, references, strict=True):
            found = model.log_probs(window.tokens)
            assert found.dtype == np.float32
            assert found.shape == (window.scored, 512)
            assert nll(found, window.tokens) == pytest.approx(nll(expected.numpy(), window.tokens), abs=1e-5)
            assert np.abs(found - expected.numpy()).max() < 1e-4


def test_a_coarse_file_loses_something(coarse_file, windows, references):
    with LlamaModel(coarse_file, 64) as model:
        found = model.log_probs(windows[0].tokens)
    assert np.abs(found - references[0].numpy()).max() > 0.05
    np.testing.assert_allclose(np.exp(found.astype(float)).sum(-1), 1, atol=1e-5)


def test_batches_and_what_came_before_change_nothing(float_file, windows, monkeypatch):
    ids = windows[0].tokens
    with LlamaModel(float_file, 64) as model:
        whole = model.log_probs(ids)
        model.log_probs(windows[1].tokens)
        np.testing.assert_array_equal(model.log_probs(ids), whole)
    monkeypatch.setattr(engine, "SCORED", 7)
    with LlamaModel(float_file, 64) as model:
        np.testing.assert_allclose(model.log_probs(ids), whole, atol=1e-4)


def test_what_cannot_be_scored(float_file):
    with LlamaModel(float_file, 32) as model:
        assert model.n_vocab == 512
        for count in (1, 33):
            with pytest.raises(InputError, match=f"{count} tokens are given; 2 to 32"):
                model.log_probs([3] * count)
        for token in (-1, 512):
            with pytest.raises(InputError, match=f"token {token} is given, but the vocabulary has 512"):
                model.log_probs([3, token, 3])


def test_files_and_contexts_that_cannot_be_loaded(float_file, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(float_file.read_bytes()[:5000])
    with pytest.raises(InputError, match=r"broken\.gguf: llama\.cpp cannot load it: failed to read"):
        LlamaModel(broken, 32)
    with pytest.raises(InputError, match="it knows 64 positions, and 100 are asked for"):
        LlamaModel(float_file, 100)
