import argparse

import pytest
import torch

from tightfit.compress import Replica
from tightfit.spaces import InputError
from tightfit.workers.evaluator import Evaluator
from tightfit.workers.llamacpp.loss import file_protocol, measure_file
from tightfit.workers.measurement import compare, fault
from tightfit.workers.models import load_model
from tightfit.workers.option_cache import OptionCache
from tightfit.workers.sources import fetch_gguf, resolve_folder
from tightfit.workers.text import Window


def measure(path, windows, references, **changes):
    given = {"plan": "p", "split": "holdout", "identity": {"model": "m", "file": path.name}, **changes}
    return measure_file(path, windows, references, **given)


def test_the_uncompressed_file_loses_nothing(float_file, windows, references):
    found = measure(float_file, windows, references)
    assert found.kl == pytest.approx(0, abs=1e-5)
    assert found.delta_nll == pytest.approx(0, abs=1e-5)
    assert found.agreement == 1
    assert (found.plan, found.split) == ("p", "holdout")


def test_losses_are_those_of_an_evaluator_document_by_document(
    tiny_model, tmp_path, coarse_file, windows, references
):
    found = measure(coarse_file, windows, references)
    loaded = load_model(tiny_model)
    evaluator = Evaluator(
        Replica(loaded.model, loaded.geometry), {}, OptionCache(tmp_path / "o", 2**20), tmp_path / "r", {}
    )
    plain = evaluator.measure("plain", {}, "holdout", windows)
    assert [(d.document, d.tokens) for d in found.documents] == [("a", 92), ("b", 49)]
    assert fault(found) is None
    for own, theirs in zip(found.documents, plain.documents, strict=True):
        assert own.reference_nll == pytest.approx(theirs.nll, abs=1e-3)
    assert compare(found, plain).difference == pytest.approx(found.kl, abs=1e-6)
    assert found.kl > 0.001
    assert found.kl_p99 > found.kl


def test_documents_add_up_by_hand(coarse_file, windows, references):
    ticks = []
    whole = measure(coarse_file, windows, references, tick=lambda *at: ticks.append(at))
    first, second, third = (
        measure(coarse_file, [window], [reference]).documents[0]
        for window, reference in zip(windows, references, strict=True)
    )
    a, b = whole.documents
    assert a.kl == pytest.approx(first.kl + third.kl)
    assert b == second
    assert ticks == [(1, 3), (2, 3), (3, 3)]


def test_another_vocabulary_is_another_model(coarse_file, windows):
    wrong = [torch.zeros(window.scored, 500) for window in windows]
    with pytest.raises(InputError, match="vocabulary has 512 tokens and the model's 500"):
        measure(coarse_file, windows, wrong)


def test_the_key_depends_on_file_split_and_text(windows):
    keys = {
        file_protocol("holdout", windows, {"file": "a"}),
        file_protocol("holdout", windows, {"file": "b"}),
        file_protocol("selection", windows, {"file": "a"}),
        file_protocol("holdout", windows[:2], {"file": "a"}),
    }
    assert len(keys) == 4


@pytest.mark.real
def test_the_default_models_own_file_is_the_default_model():
    loaded = load_model(str(resolve_folder("smollm2-135m")))
    ids = loaded.tokenizer(argparse.__doc__, return_tensors="pt")["input_ids"]  # more than one batch
    reference = torch.log_softmax(loaded.model(input_ids=ids).logits[0, :-1].float(), dim=-1)
    windows = [Window("text", ids[0].numpy())]
    found = measure(fetch_gguf(), windows, [reference])
    assert found.reference_perplexity < 30
    # llama.cpp rounds what enters a 4-bit product to 8 bits, and nothing else differs.
    assert 0 < found.kl < 0.01
    assert abs(found.delta_nll) < 0.01
