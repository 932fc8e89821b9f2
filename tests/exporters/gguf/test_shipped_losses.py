"""The loss that is measured in the search is the loss of the file in llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.exporters.gguf.tiny import VOCAB, ship, write_folder

from tightfit.compress import Replica
from tightfit.exporters import Shipment
from tightfit.exporters.gguf import export
from tightfit.spaces import GGML_TYPES
from tightfit.workers.evaluator import Evaluator
from tightfit.workers.llamacpp.loss import measure_file
from tightfit.workers.measurement import Measurement
from tightfit.workers.models import load_model
from tightfit.workers.option_cache import OptionCache
from tightfit.workers.text import Window

WINDOWS = [
    Window(f"document {i}", np.random.default_rng([i, 9]).integers(1, VOCAB, 60 + i)) for i in range(4)
]
WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "initializer_range": 0.06}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder("llama", tmp_path_factory.mktemp("wide"), **WIDE)


@pytest.mark.parametrize(
    "types",
    [
        ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"],
        ["Q4_0", "Q5_0", "Q8_0", "IQ4_NL"],
        ["Q4_1", "Q5_1"],
        ["IQ4_XS", "IQ3_S", "F16", "BF16"],
        [name for name in GGML_TYPES if not name.startswith("IQ2")],
    ],
    ids=lambda types: "-".join(types[:2]),
)
def test_the_searched_loss_is_the_shipped_one(types: Sequence[str], folder: Path, tmp_path: Path) -> None:
    shipment = ship(folder, types)
    searched, shipped = _both(shipment, tmp_path)
    assert searched.kl > 1e-3
    assert shipped.kl == pytest.approx(searched.kl, rel=0.01)
    assert abs(shipped.kl - searched.kl) < searched.kl_se
    for own, other in zip(searched.documents, shipped.documents, strict=True):
        assert own.document == other.document
        assert other.kl == pytest.approx(own.kl, rel=0.03)


def _both(shipment: Shipment, tmp_path: Path) -> tuple[Measurement, Measurement]:
    assert shipment.source is not None
    loaded = load_model(str(shipment.source.folder))
    importance = {x.site: torch.linspace(0.5, 2.0, x.cols) for x in loaded.geometry.linears}
    cache = OptionCache(tmp_path / "options", 2**28)
    replica = Replica(loaded.model, loaded.geometry)
    evaluator = Evaluator(replica, importance, cache, tmp_path / "reference", {"model": loaded.digest})
    options = shipment.space.site_options(shipment.plan)
    digest = shipment.plan.digest
    searched = evaluator.measure(digest, options, "holdout", WINDOWS)
    references = evaluator.references(WINDOWS)
    file = export(shipment, tmp_path / "model.gguf")
    return searched, measure_file(file, WINDOWS, references, plan=digest, split="holdout", identity={})
