from __future__ import annotations

import json

import numpy as np
import pytest
from tests.proxies.timing import TYPES, geometry_of, machine, mixes, space_of, timed

from tightfit.proxies.latency import LatencyTable, Products
from tightfit.proxies.latency_design import design_plans
from tightfit.proxies.latency_fit import fit_latency
from tightfit.spaces import GgmlOption, InputError

TABLE = LatencyTable(
    phase="generate",
    tokens=1,
    fixed=1e-3,
    rate=1e-9,
    types={"Q4_K": 2e-9, "Q2_K": 4e-9},
    shapes={(4096, 256): 5e-10, (768, 256): -3e-9},
    classes={("Q4_K", 256, 768): 3e-9},
    plans=9,
    error=0.02,
)


def test_a_tied_embedding_is_multiplied_once_and_an_untied_one_looked_up() -> None:
    for tied, expected in ((True, 1), (False, 1)):
        products = Products(geometry_of(tied))
        options = {site: GgmlOption("Q4_K") for site in ("embed",) + (() if tied else ("head",))}
        assert products.classes(options) == [("Q4_K", 4096, 256)] * expected
    assert Products(geometry_of(tied=False)).classes({"embed": GgmlOption("Q4_K")}) == []


def test_every_matrix_of_the_blocks_is_multiplied() -> None:
    space = space_of()
    options = space.site_options(space.plan([0] * len(space.decisions)))
    classes = Products(space.geometry).classes(options)
    assert len(classes) == 6 * 7 + 1
    assert sorted(set(classes)) == [
        ("Q2_K", rows, cols) for rows, cols in ((64, 256), (256, 256), (256, 768), (768, 256), (4096, 256))
    ]


def test_work_is_bytes_per_token_or_weights_of_a_prompt_whose_last_token_alone_needs_the_head() -> None:
    geometry = geometry_of()
    generate, prompt = Products(geometry), Products(geometry, "prompt", 128)
    assert generate.work(("Q4_K", 768, 256)) == 768 * 144
    assert prompt.work(("Q4_K", 768, 256)) == 768 * 256
    assert prompt.work(("Q4_K", 4096, 256)) == 4096 * 256 / 128
    assert generate.work(("Q4_K", 4096, 256)) == 4096 * 144


def test_a_class_falls_back_to_its_format_and_an_unknown_format_to_the_bytes() -> None:
    products = TABLE.products(geometry_of())
    seen, other, unknown = ("Q4_K", 256, 768), ("Q4_K", 256, 256), ("Q6_K", 256, 256)
    assert TABLE.seconds(products, seen) == pytest.approx(3e-9 * 256 * 3 * 144)
    assert TABLE.seconds(products, other) == pytest.approx(2e-9 * 256 * 144)
    assert TABLE.seconds(products, unknown) == pytest.approx(1e-9 * 256 * 210)
    assert TABLE.seconds(products, ("Q4_K", 4096, 256)) == pytest.approx(2.5e-9 * 4096 * 144)
    assert TABLE.seconds(products, ("Q4_K", 768, 256)) == 0.0  # no product takes less than no time


def test_seconds_of_options_add_up_to_those_of_plans() -> None:
    for tied in (True, False):
        space = space_of(tied)
        rows = TABLE.seconds_of(space.geometry, space.decisions)
        assert [len(row) for row in rows] == [len(d.options) for d in space.decisions]
        for seed in range(5):
            rng = np.random.default_rng([75, seed])
            levels = [int(rng.integers(len(d.options))) for d in space.decisions]
            added = TABLE.fixed + sum(row[level] for row, level in zip(rows, levels, strict=True))
            options = space.site_options(space.plan(levels))
            assert TABLE.predict(space.geometry, options) == pytest.approx(added)
        assert bool(rows[0].any()) == tied  # a lookup costs nothing


def test_a_table_survives_being_written() -> None:
    space = space_of()
    seconds = machine(Products(space.geometry), 0)
    table = fit_latency(space.geometry, timed(space, design_plans(space, 12, 0), seconds, 0), 0.01)
    for each in (TABLE, table):
        assert LatencyTable.from_dict(json.loads(json.dumps(each.to_dict()))) == each
    options = mixes(space, 1, 0)[0]
    again = LatencyTable.from_dict(json.loads(json.dumps(table.to_dict())))
    assert again.predict(space.geometry, options) == table.predict(space.geometry, options)
    assert set(table.types) == set(TYPES)


@pytest.mark.parametrize("broken", [{}, {"shapes": [[1, 2]]}, {"surplus": 1}])
def test_what_is_no_table_is_refused(broken: dict[str, object]) -> None:
    data = {} if broken == {} else {**TABLE.to_dict(), **broken}
    with pytest.raises(InputError, match="this is no table of times"):
        LatencyTable.from_dict(data)
