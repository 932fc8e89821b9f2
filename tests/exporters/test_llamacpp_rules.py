from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFReader
from tests.exporters.quantizing import CONFIG, TIED, Matrices

from tightfit.exporters import Shipment
from tightfit.exporters.gguf import gguf_name
from tightfit.exporters.llamacpp_rules import command, export, imatrix_path, summary
from tightfit.spaces import (
    GGML_TYPES,
    GgmlOption,
    InputError,
    Plan,
    WeightRules,
    build_space,
    get_target,
    read_geometry,
)

GPT2 = {"model_type": "gpt2", "vocab_size": 331, "n_embd": 64, "n_layer": 2, "n_head": 4}


def ship(config: dict[str, Any], choose: dict[str, str], otherwise: str = "Q4_0") -> Shipment:
    """A plan by decision, with importances for every site."""
    geometry = read_geometry(config)
    space = build_space(geometry, WeightRules(types=tuple(GGML_TYPES)), get_target("llama.cpp"))
    choices = tuple((d.name, choose.get(d.name, otherwise)) for d in space.decisions)
    importance = {linear.site: torch.ones(linear.cols) for linear in geometry.linears}
    source = replace(Matrices.draw().source(Path("unused")), importance=importance)
    return Shipment(space, Plan(choices), {"name": "x", "digest": "7e" * 32}, source)


@pytest.fixture
def mixed() -> Shipment:
    return Matrices.draw().ship()


def test_each_tensor_finds_its_type_as_llama_quantize_looks_for_it(mixed: Shipment, tmp_path: Path) -> None:
    lines = export(mixed, tmp_path / "rules.txt").read_text().split()  # it splits at white space
    parsed = [line.split("=") for line in lines]
    for site, option in mixed.space.site_options(mixed.plan).items():
        name = gguf_name("llama", site)
        kind = next(kind for pattern, kind in parsed if re.search(pattern.lower(), name))
        assert kind.upper() == option.name


def test_every_matrix_that_llama_quantize_would_touch_has_a_rule(tmp_path: Path) -> None:
    """That is every matrix but norms and positions; one without a rule would get the base type."""
    matrices = Matrices.draw()
    export(matrices.ship(), tmp_path / "rules.txt")
    patterns = [line.split("=")[0] for line in (tmp_path / "rules.txt").read_text().split()]
    for tensor in GGUFReader(matrices.write_float_gguf(tmp_path / "f32.gguf")).tensors:
        matches = sum(bool(re.search(pattern, tensor.name)) for pattern in patterns)
        assert matches == (len(tensor.shape) == 2)


def test_the_importance_matrix_lies_beside_with_what_the_run_used(mixed: Shipment, tmp_path: Path) -> None:
    out = export(mixed, tmp_path / "my.rules.txt")
    assert sorted(tmp_path.iterdir()) == sorted([out, tmp_path / "my.rules.imatrix.gguf"])
    found = {tensor.name: tensor.data.reshape(-1) for tensor in GGUFReader(imatrix_path(out)).tensors}
    assert mixed.source is not None
    assert len(found) == 2 * len(mixed.source.importance)
    for site, values in mixed.source.importance.items():
        assert (found[f"{gguf_name('llama', site)}.in_sum2"] == values.numpy()).all()


@pytest.mark.parametrize(
    ("config", "choose", "otherwise", "types", "base"),
    [
        (CONFIG, {"embed": "Q8_0", "head": "Q6_K"}, "IQ2_XS", "q8_0 --output-tensor-type q6_K", "IQ2_XS"),
        (TIED, {"embed": "IQ4_NL", "layers.0.mlp.up_proj": "Q4_K"}, "F16", "iq4_nl", "IQ4_NL"),
        (TIED, {}, "BF16", "bf16", "Q8_0"),
    ],
)
def test_the_command_names_both_files_the_types_outside_the_blocks_and_a_quantized_base(
    config: dict[str, Any], choose: dict[str, str], otherwise: str, types: str, base: str, tmp_path: Path
) -> None:
    out = tmp_path / "my rules.txt"
    assert command(ship(config, choose, otherwise), out) == (
        f"llama-quantize --imatrix '{tmp_path}/my rules.imatrix.gguf' --tensor-type-file '{out}' "
        f"--token-embedding-type {types} model-f32.gguf model.gguf {base}"
    )


def test_the_summary_says_how_many_tensors_each_rule_matches(tmp_path: Path) -> None:
    shipment = ship(
        {**CONFIG, "num_hidden_layers": 12}, {"layers.1.mlp.up_proj": "Q2_K", "layers.11.mlp.up_proj": "Q2_K"}
    )
    lines = summary(shipment, tmp_path / "rules.txt")
    assert r"12 × ^blk\.[0-9]+\.attn_q\.weight$=q4_0" in lines
    assert r"10 × ^blk\.(0|2|3|4|5|6|7|8|9|10)\.ffn_up\.weight$=q4_0" in lines
    assert r" 2 × ^blk\.(1|11)\.ffn_up\.weight$=q2_K" in lines
    assert r" 1 × ^token_embd\.weight$=q4_0" in lines
    assert lines[-1] == command(shipment, tmp_path / "rules.txt")
    assert sum(int(line.split()[0]) for line in lines[:-2]) == len(shipment.space.geometry.linears)


def test_a_model_of_another_shape_is_named_as_llama_cpp_names_it(tmp_path: Path) -> None:
    text = export(ship(GPT2, {"layers.1.attn.c_attn": "Q8_0"}), tmp_path / "rules.txt").read_text()
    assert r"^blk\.0\.attn_qkv\.weight$=q4_0" in text
    assert r"^blk\.1\.attn_qkv\.weight$=q8_0" in text


def test_a_type_that_llama_quantize_would_replace_is_refused(tmp_path: Path) -> None:
    shipment = ship(TIED, {})
    first, *rest = shipment.space.decisions
    options = (*first.options, GgmlOption("Q3_K"))
    narrow = replace(
        shipment.space.geometry,
        linears=tuple(replace(linear, cols=320) for linear in shipment.space.geometry.linears),
    )
    space = replace(shipment.space, geometry=narrow, decisions=(replace(first, options=options), *rest))
    plan = Plan(((first.name, "Q3_K"), *shipment.plan.choices[1:]))
    with pytest.raises(InputError) as refusal:
        export(replace(shipment, space=space, plan=plan), tmp_path / "rules.txt")
    assert str(refusal.value) == (
        "embed: Q3_K stores blocks of 256 weights, which do not divide the width 320; llama-quantize would "
        "store Q4_0 in its place."
    )
    assert list(tmp_path.iterdir()) == []


def test_a_type_that_needs_importances_is_refused_where_a_site_has_none(tmp_path: Path) -> None:
    shipment = ship(CONFIG, {"layers.2.attn.q_proj": "IQ2_S"})
    assert shipment.source is not None
    known = {s: v for s, v in shipment.source.importance.items() if s != "layers.2.attn.q_proj"}
    shipment = replace(shipment, source=replace(shipment.source, importance=known))
    with pytest.raises(InputError, match=r"layers\.2\.attn\.q_proj: llama-quantize refuses IQ2_S without"):
        export(shipment, tmp_path / "rules.txt")


def test_a_plan_without_its_importances_is_refused(mixed: Shipment, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="this plan comes without"):
        export(replace(mixed, source=None), tmp_path / "rules.txt")


def test_options_that_are_no_types_of_llama_cpp_are_refused(mixed: Shipment, tmp_path: Path) -> None:
    space = build_space(read_geometry(CONFIG), WeightRules(), get_target("any"))
    plan = space.plan([0] * len(space.decisions))
    with pytest.raises(InputError, match=r"llama\.cpp cannot store 23 matrices of this plan"):
        export(replace(mixed, space=space, plan=plan), tmp_path / "rules.txt")


def test_a_plan_of_another_space_is_refused(mixed: Shipment, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the plan has no choice for embed"):
        export(replace(mixed, plan=Plan(mixed.plan.choices[1:])), tmp_path / "rules.txt")
    assert list(tmp_path.iterdir()) == []


def test_neither_file_is_written_where_the_other_cannot_be(mixed: Shipment, tmp_path: Path) -> None:
    (tmp_path / "rules.imatrix.gguf").mkdir()
    with pytest.raises(InputError, match=r"rules\.imatrix\.gguf is a folder"):
        export(mixed, tmp_path / "rules.txt")
    (tmp_path / "other.txt").mkdir()
    with pytest.raises(InputError, match=r"other\.txt is a folder: name the file to write"):
        export(mixed, tmp_path / "other.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.txt", "rules.imatrix.gguf"]
