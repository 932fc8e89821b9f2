from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tightfit.exporters import Shipment
from tightfit.exporters.plan_json import describe, export
from tightfit.spaces import Plan


@pytest.fixture
def written(shipment: Shipment, tmp_path: Path) -> dict[str, Any]:
    text = export(shipment, tmp_path / "plan.json").read_text(encoding="utf-8")
    assert text.endswith("}\n")
    return dict(json.loads(text))


def test_the_file_reads_back_as_the_same_plan_with_the_same_bytes(
    shipment: Shipment, written: dict[str, Any]
) -> None:
    plan = Plan.from_dict(written)
    assert plan == shipment.plan
    assert written["digest"] == plan.digest
    assert written["weight_bytes"] == shipment.space.weight_bytes(plan)
    assert written["effective_bits"] == pytest.approx(
        shipment.space.effective_bits(written["weight_bytes"]), abs=1e-6
    )


def test_sites_and_what_no_decision_changes_add_up_to_the_weights(written: dict[str, Any]) -> None:
    sites = sum(site["bytes"] for site in written["sites"].values())
    assert sites + written["fixed_bytes"] == written["weight_bytes"]


def test_every_matrix_is_listed_by_its_module_path_with_its_option(
    shipment: Shipment, written: dict[str, Any]
) -> None:
    owners = [linear for linear in shipment.space.geometry.linears if linear.tied_to is None]
    assert list(written["sites"]) == [linear.path for linear in owners]
    options = shipment.space.site_options(shipment.plan)
    for linear in owners:
        site, option = written["sites"][linear.path], options[linear.site]
        assert (site["bits"], site["group"], site["zero"]) == (option.bits, option.group, option.zero)
        codes = linear.rows * linear.cols * option.bits / 8
        assert codes <= site["bytes"] < codes * 1.2 + 2


def test_the_file_says_which_model_and_target_it_is_for(shipment: Shipment, written: dict[str, Any]) -> None:
    assert written["model"] == dict(shipment.model)
    assert written["target"] == shipment.space.target.name


def test_a_tied_head_is_not_listed_beside_the_embedding(make_shipment: Callable[..., Shipment]) -> None:
    assert "lm_head" not in describe(make_shipment("tied"))["sites"]
    assert "lm_head" in describe(make_shipment("untied"))["sites"]
