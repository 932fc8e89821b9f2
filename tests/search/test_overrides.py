from __future__ import annotations

from pathlib import Path

import pytest

from tightfit.search.settings import Settings, load_settings
from tightfit.spaces import InputError

TEXT = """\
name: demo
budget:
  weights: 76MiB
space:
  weights:
    bits: [3, 4]
    pin: {embed: 8b-row-sym}
limits:
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("search.yaml")
    path.write_text(TEXT)
    return path


def load(path: Path, *overrides: str) -> Settings:
    # The empty section is an error of the file unless an override fills it.
    return load_settings(path, ["limits.option_cache=1GiB", *overrides])


def refused(path: Path, *overrides: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        load(path, *overrides)
    return str(caught.value).splitlines()


def test_values_are_yaml(path: Path) -> None:
    settings = load(
        path,
        "budget.weights=80MiB",
        "budget.effective_bits=4",
        "space.weights.bits=[3, 5]",
        "text.allow_shortfall=true",
        "name='2024'",
        "threads=null",
        "sense={marginals: 7}",
        " seed = 3 ",
    )
    assert settings.budget.weights == 80 * 2**20
    assert settings.budget.effective_bits == 4.0
    assert settings.space.weights.bits == (3, 5)
    assert settings.text.allow_shortfall is True
    assert settings.name == "2024"
    assert settings.sense.marginals == 7
    assert settings.seed == 3
    assert settings.space.weights.pin == {"embed": "8b-row-sym"}


def test_the_last_of_two_overrides_wins(path: Path) -> None:
    assert load(path, "seed=1", "seed=2").seed == 2
    assert (
        load(path, "sense.marginals=1", "sense={}").sense.marginals
        == Settings.from_dict({"budget": {"weights": "1B"}}).sense.marginals
    )


def test_null_unsets_a_key(path: Path) -> None:
    budget = load(path, "budget.weights=null", "budget.effective_bits=4").budget
    assert budget.weights is None


def test_the_rest_of_a_key_below_pin_is_one_pattern(path: Path) -> None:
    weights = load(
        path, "space.weights.pin.*.mlp.down_proj=4b-row-sym", "space.weights.only.layers.0.*=[4]"
    ).space.weights
    assert weights.pin == {"embed": "8b-row-sym", "*.mlp.down_proj": "4b-row-sym"}
    assert weights.only == {"layers.0.*": (4,)}
    assert load(path, "space.weights.pin={}").space.weights.pin == {}


def test_a_dataset_replaces_the_source(path: Path) -> None:
    text = load(path, "text.dataset.id=a/b").text
    assert text.source is None
    assert text.dataset is not None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("budget.weights=76", "-s budget.weights: 76 is not a size"),
        ("budget.wieghts=76MiB", "-s budget.wieghts: unknown key; known here: weights, total"),
        ("bugdet.weights=76MiB", "-s bugdet.weights: bugdet: unknown key; known here: name, model"),
        ("weights=76MiB", "-s weights: unknown key; known here: name"),
        ("budget..weights=1MiB", "-s budget..weights: budget['']: unknown key"),
        ("budget.=1MiB", "-s budget.: budget['']: unknown key"),
        ("budget.weights", "-s budget.weights: write an override as key=value"),
        ("=3", "-s =3: write an override as key=value"),
        ("", "-s : write an override as key=value"),
        ("seed=", "-s seed: the value is missing; write null to unset a key."),
        ("seed= ", "-s seed: the value is missing"),
        ("seed=# 3", "-s seed: the value is missing"),
        ("seed.x=3", "-s seed.x: seed has no keys below it."),
        ("name.x=3", "-s name.x: name has no keys below it."),
        ("space.weights.bits.0=3", "-s space.weights.bits.0: space.weights.bits has no keys below it."),
        ("space.weights.bits=3", "-s space.weights.bits: 3 is not a non-empty list"),
        ("space.weights.bits=[3, 9]", "-s space.weights.bits: space.weights.bits[1]: 9 is not one of"),
        (
            "space.weights.exclude=[*.q_proj]",
            "-s space.weights.exclude: YAML reads text that begins with '*'",
        ),
        ("space.weights.pin.=16b", "-s space.weights.pin.: space.weights.pin['']: '' is not a site pattern."),
        (
            "space.weights.pin.*.q=4b",
            "-s space.weights.pin.*.q: space.weights.pin['*.q']: '4b' is not an opt",
        ),
        ("seed=!!python/name:os.system 3", "-s seed: the tag"),
        ("seed=&a 3", "-s seed: YAML reads text that begins with '&'"),
        ("model=@x", "-s model: not valid YAML"),
        ("sense={marginals: 1, marginals: 2}", "-s sense: marginals: the key is given twice."),
        ("sense={marginal: 1}", "-s sense: sense.marginal: unknown key"),
        ("sense=null", "-s sense: null is not a mapping with keys among"),
        ("name=a\n---\nb", "-s name: a second document begins"),
        (
            "budget={}",
            "-s budget: give at least one of weights, total, kv, effective_bits, tokens_per_second "
            "or latency.",
        ),
    ],
)
def test_errors_name_the_override(path: Path, override: str, message: str) -> None:
    (line,) = refused(path, override)
    assert line.startswith(message)


def test_an_override_can_contradict_another_key(path: Path) -> None:
    sense = "sense={fit_tokens: 510, marginal_tokens: 1, prescreen_tokens: 511}"
    assert refused(path, "text.selection=510", sense) == [
        "-s sense: sense.prescreen_tokens: 511 tokens are more than text.selection has (510)."
    ]


def test_an_override_mends_the_file(path: Path) -> None:
    path.write_text(TEXT.replace("76MiB", "76").replace("[3, 4]", "[3, 7]"))
    assert len(refused(path)) == 2
    assert load(path, "budget.weights=1MiB", "space.weights={}").space.weights.bits == (3, 4, 5, 6)


def test_places_below_a_replaced_section_are_the_override(path: Path) -> None:
    (line,) = refused(path, "space={weights: {bits: [7]}}")
    assert line.startswith("-s space: space.weights.bits[0]: 7 is not one of")


def test_an_override_below_something_wrong_leaves_the_error_of_the_file(path: Path) -> None:
    path.write_text(TEXT.replace("limits:", "limits: 4GiB"))
    (line,) = refused(path)
    assert line.startswith("search.yaml:8: limits: '4GiB' is not a mapping")


def test_errors_of_file_and_overrides_come_together(path: Path) -> None:
    path.write_text(TEXT.replace("name: demo", "nam: demo"))
    lines = refused(path, "seed=x", "model=*x", "nonsense")
    assert [line.split(": ")[0] for line in lines] == [
        "search.yaml:1", "-s model", "-s nonsense", "-s seed",
    ]  # fmt: skip
