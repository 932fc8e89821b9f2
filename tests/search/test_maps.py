from __future__ import annotations

from collections.abc import Callable

import pytest

from tightfit.search.maps import cache_label, memory_parts, plan_map, sensitivity_map, total_part
from tightfit.search.records import Score, Site
from tightfit.spaces import (
    KvOption,
    KvRules,
    Load,
    Space,
    WeightRules,
    build_space,
    get_target,
    read_geometry,
)


@pytest.fixture
def space() -> Callable[..., Space]:
    def build(
        family: str = "llama",
        target: str = "any",
        tied: bool = True,
        kv: KvRules | None = None,
        **rules: object,
    ) -> Space:
        llama = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 3}
        heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": tied}
        gpt2 = {"vocab_size": 320, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 32}
        config = {**llama, **heads} if family == "llama" else gpt2
        geometry = read_geometry({"model_type": family, "dtype": "float32", **config})
        load = Load(256, 2) if kv else None
        return build_space(geometry, WeightRules(**rules), get_target(target), kv, load)

    return build


def sites(space: Space) -> list[Site]:
    owner = {site: decision.name for decision in space.decisions for site in decision.sites}
    return [
        Site(x.site, x.layer, x.module, x.rows, x.cols, x.tied_to, owner[x.site])
        for x in space.geometry.linears
    ]


def every_score(space: Space) -> list[Score]:
    return [
        Score(d.name, o.name, i + 0.1 * o.bits, 0.01)
        for i, d in enumerate(space.decisions)
        for o in d.options
    ]


@pytest.mark.parametrize("target", ["any", "vllm"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_every_matrix_of_a_plan_has_its_cell(space: Callable[..., Space], family: str, target: str) -> None:
    built = space(family, target, bits=(4, 8), zeros=("integer",))
    plan = built.plan([i % 2 for i in range(len(built.decisions))])
    found = plan_map(sites(built), built.decisions, plan)
    cells = {cell.site: cell for row in found.cells for cell in row} | {
        cell.site: cell for cell in found.apart
    }
    options = built.site_options(plan)
    assert {site.removesuffix(" = head"): cell.option for site, cell in cells.items()} == {
        site: option.name for site, option in options.items()
    }
    assert found.layers == (0, 1, 2)
    assert len(found.modules) == (7 if family == "llama" else 4)


def test_types_of_llama_cpp_are_named_with_the_bits_that_they_store(space: Callable[..., Space]) -> None:
    built = space(target="llama.cpp", types=("Q4_0", "Q5_1"))
    found = plan_map(sites(built), built.decisions, built.plan([1] * len(built.decisions)))
    cells = [cell for row in found.cells for cell in row if cell]
    assert {(cell.option, cell.type, cell.stored, cell.bits) for cell in cells} == {("Q5_1", "Q5_1", 6.0, 5)}
    other = space(bits=(3, 4))
    plain = plan_map(sites(other), other.decisions, other.plan([0] * len(other.decisions)))
    assert {(cell.type, cell.stored) for row in plain.cells for cell in row if cell} == {(None, None)}


def test_a_tied_pair_is_one_cell_and_an_untied_one_two(space: Callable[..., Space]) -> None:
    for tied, names in ((True, ["embed = head"]), (False, ["embed", "head"])):
        built = space(tied=tied)
        found = plan_map(sites(built), built.decisions, built.plan([0] * len(built.decisions)))
        assert [cell.site for cell in found.apart] == names


def test_sensitivity_prefers_the_most_trustworthy_scores(space: Callable[..., Space]) -> None:
    built = space(bits=(3, 4))
    every = every_score(built)
    assert sensitivity_map(sites(built), built.decisions, lambda kind: []) is None
    for held, words in (({"prescreen"}, "estimated"), ({"prescreen", "calibrated"}, "calibrated")):
        found = sensitivity_map(
            sites(built), built.decisions, lambda kind, held=held: every if kind in held else []
        )
        assert words in found.what


def test_sensitivity_is_shown_at_the_option_that_the_plan_uses_most(space: Callable[..., Space]) -> None:
    built = space(bits=(3, 4, 5), zeros=("float",), pin={"layers.0.attn.q_proj": "8b-g64-float"})
    levels = [0 if len(d.options) == 1 else 1 for d in built.decisions]
    scores = every_score(built)
    found = sensitivity_map(sites(built), built.decisions, lambda kind: scores, built.plan(levels))
    assert "stored at 4b-g64-float" in found.what
    assert {cell.option for row in found.cells for cell in row[1:]} == {"4b-g64-float"}
    pinned = found.cells[0][0]
    assert (pinned.option, pinned.loss, pinned.se) == ("8b-g64-float", pytest.approx(1.8), 0.01)


def test_decisions_without_a_score_leave_a_hole(space: Callable[..., Space]) -> None:
    built = space(bits=(3, 4))
    scores = [score for score in every_score(built) if not score.decision.startswith("layers.1.")]
    found = sensitivity_map(sites(built), built.decisions, lambda kind: scores)
    assert set(found.cells[1]) == {None}
    assert None not in found.cells[0]


@pytest.mark.parametrize("target", ["any", "vllm"])
def test_memory_parts_add_up_to_the_exact_bytes(space: Callable[..., Space], target: str) -> None:
    built = space(target=target, tied=False, bits=(3, 4, 8), zeros=("integer",))
    plan = built.plan([len(d.options) - 1 - i % 2 for i, d in enumerate(built.decisions)])
    total = total_part(memory_parts(built.decisions, built.fixed_bytes, plan))
    assert (total.floor, total.ceiling) == (built.floor, built.ceiling)
    assert total.planned == built.weight_bytes(plan)
    assert total.bits == pytest.approx(built.effective_bits(total.planned))
    assert total.weights == built.weights
    assert total_part(memory_parts(built.decisions, built.fixed_bytes)).planned is None


def test_caches_lie_beside_their_layers(space: Callable[..., Space]) -> None:
    built = space(bits=(3, 4), kv=KvRules(bits=(4, 16), keep=(0.5, 1.0)))
    levels = [i % 2 for i in range(len(built.matrix_decisions))] + [0, 1, 2]
    plan = built.plan(levels)
    found = plan_map(sites(built), built.decisions, plan)
    assert [cell.cache for cell in found.caches] == list(built.kv_options(plan).values())
    assert [cell.decision for cell in found.caches] == [f"layers.{layer}.kv" for layer in range(3)]
    matrices = plan_map(sites(built), built.matrix_decisions, plan)
    assert (matrices.cells, matrices.apart, matrices.caches) == (found.cells, found.apart, ())
    assert found.all() == [*matrices.all()[:-1], *found.caches, *found.apart]


def test_caches_that_are_one_decision_lie_apart(space: Callable[..., Space]) -> None:
    built = space(target="llama.cpp", types=("Q4_0",), kv=KvRules(bits=(8, 16)))
    found = plan_map(sites(built), built.decisions, built.plan([0] * len(built.decisions)))
    assert found.caches == ()
    assert [(cell.site, cell.cache) for cell in found.apart[1:]] == [
        ("kv", built.kv_options(built.plan([0] * len(built.decisions)))[0])
    ]
    shown = sensitivity_map(sites(built), built.decisions, lambda kind: every_score(built))
    assert shown.apart[1].loss == pytest.approx(len(built.decisions) - 1 + 0.8)


def test_caches_are_compared_at_one_option_that_loses_something(space: Callable[..., Space]) -> None:
    built = space(bits=(3, 4), kv=KvRules(bits=(4, 16), keep=(0.5, 1.0), share=True, spread=True))
    lossless = [len(d.options) - 1 for d in built.decisions]
    scores = every_score(built)
    shown = sensitivity_map(sites(built), built.decisions, lambda kind: scores, built.plan(lossless))
    (option,) = {cell.option for cell in shown.caches}
    assert KvOption.from_name(option).bits < 16
    assert not KvOption.from_name(option).spread
    assert f"or this cache at {option};" in shown.what
    held = {(score.decision, score.option): score.value for score in scores}
    assert [cell.loss for cell in shown.caches] == [held[cell.decision, option] for cell in shown.caches]


def test_memory_of_caches_is_a_part_of_its_own(space: Callable[..., Space]) -> None:
    built = space(bits=(3, 4), kv=KvRules(bits=(4, 16)))
    plan = built.plan([0, *[1] * (len(built.decisions) - 1)])
    parts = memory_parts(built.decisions, built.fixed_bytes, plan)
    assert [part.name for part in parts[-2:]] == ["norms and other", "KV cache"]
    assert parts[-1].planned == built.cache_bytes(plan)
    total = total_part(parts)
    assert total.planned == built.bytes_of(built.levels(plan))
    assert total.bits == pytest.approx(built.effective_bits(built.weight_bytes(plan)))


def test_cells_of_caches_say_bits_and_share_of_tokens() -> None:
    options = {
        KvOption(4, 2, 0.5): "4/2 ½",
        KvOption(8, 8): "8/8",
        KvOption(4, 4, spread=True): "4s/4",
        KvOption(shared=True): "shared",
        KvOption(cutoff=True): "cut",
    }
    assert {option: cache_label(option) for option in options} == options
