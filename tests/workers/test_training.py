import numpy as np
import pytest
import torch

from tightfit.workers.lab import TINY
from tightfit.workers.training import (
    END,
    Schedule,
    encode,
    fit,
    fixed_threads,
    initialize,
    perplexity,
    train_tokenizer,
)

CONFIG = {**TINY.config(), "vocab_size": 16, "num_hidden_layers": 1, "bos_token_id": None}
SCHEDULE = Schedule(sequence=16, batch=4, steps=30, learning_rate=1e-2, seed=0)


def counting(n):
    """A text that is easy to predict: 0 1 2 … 15 0 1 …"""
    return np.arange(n, dtype=np.int64) % 16


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_training_learns_and_repeats_itself_exactly():
    with fixed_threads(1):
        first, second = (fit(CONFIG, counting(500), SCHEDULE, lambda line: None) for _ in range(2))
        assert perplexity(first, counting(65), 16) < 2
    assert torch.equal(weights(first), weights(second))
    assert not first.training


def test_training_draws_nothing_from_the_global_generator():
    torch.manual_seed(1)
    first = weights(initialize(CONFIG, seed=0))
    torch.manual_seed(2)
    assert torch.equal(first, weights(initialize(CONFIG, seed=0)))
    assert not torch.equal(first, weights(initialize(CONFIG, seed=1)))


def test_matrices_keep_the_size_of_their_input():
    model = initialize({**CONFIG, "num_hidden_layers": 2}, seed=0)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            gain = parameter.std().item() * parameter.shape[1] ** 0.5
            adds = name.endswith(("o_proj.weight", "down_proj.weight"))
            assert gain == pytest.approx(0.5 if adds else 1.0, rel=0.1), name


def test_learning_rate_warms_up_then_decays_to_a_tenth():
    schedule = Schedule(16, 4, 200, 1.0, 0)
    rates = [schedule.rate(step) for step in range(200)]
    peak = int(np.argmax(rates))
    assert 8 <= peak <= 12
    assert max(rates) == pytest.approx(1.0, abs=0.01)
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[-1] == pytest.approx(0.1)


def test_progress_is_reported_twenty_times():
    lines = []
    fit(CONFIG, counting(200), Schedule(16, 1, 40, 1e-3, 0), lines.append)
    assert len(lines) == 20
    assert "40/40" in lines[-1]


def test_perplexity_of_an_untrained_model_is_about_its_vocabulary():
    model = initialize(CONFIG, seed=0)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(1e-3)
    assert perplexity(model, counting(65), 16) == pytest.approx(16, rel=0.01)


def test_tokenizer_reads_any_text_back_and_ends_every_document():
    tokenizer = train_tokenizer(["def double(x): return 2 * x"] * 3, 300)
    text = "double ünïcödé\n\tx 変数"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.token_to_id(END) == 0
    ids = encode(tokenizer, ["double", text])
    assert list(np.flatnonzero(ids == 0)) == [len(tokenizer.encode("double").ids), len(ids) - 1]
    assert ids.dtype == np.int64


def test_tokenizer_training_repeats_itself():
    texts = ["the quick brown fox", "the slow brown dog", "a quick dog"] * 5
    first, second = (train_tokenizer(texts, 290).to_str() for _ in range(2))
    assert first == second


def test_thread_count_is_restored_after_an_error():
    before = torch.get_num_threads()
    inside = []

    def fail():
        with fixed_threads(before + 1):
            inside.append(torch.get_num_threads())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert inside == [before + 1]
    assert torch.get_num_threads() == before
