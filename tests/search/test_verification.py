"""A file is verified by its bytes and by its loss in llama.cpp, and either of them can say no."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from gguf import GGUFReader

from tightfit.cli import main
from tightfit.search.exporting import export_plan
from tightfit.search.progress import Progress
from tightfit.search.reopen import reopen
from tightfit.search.resolve import stored_plan, stored_space
from tightfit.search.store import Store
from tightfit.search.summary import SPLITS
from tightfit.search.verification import LossCheck, find_run, verify_file
from tightfit.spaces import InputError
from tightfit.workers.llamacpp.library import LlamaError
from tightfit.workers.measurement import DocumentLoss, Measurement


@pytest.fixture
def run(shipped_run: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, to be changed."""
    return Path(shutil.copytree(shipped_run, tmp_path / "runs" / "tiny"))


@pytest.fixture
def file(shipped_run: Path, tmp_path: Path) -> Path:
    """The run's choice as a GGUF file."""
    with Store.open(shipped_run, mode="ro") as store:
        return export_plan(store, "llama.cpp", tmp_path / "model.gguf").files[0]


def measured(losses: Sequence[float], tokens: int = 100) -> Measurement:
    documents = [DocumentLoss(f"d{i}", tokens, tokens * loss, 3.0, 3.0, 9) for i, loss in enumerate(losses)]
    return Measurement("aa" * 32, "holdout", "p", tuple(documents), 0.5, 1.0)


def test_a_reopened_run_measures_what_it_measured_then(shipped_run: Path) -> None:
    with Store.open(shipped_run, mode="ro") as store:
        reopened, digest = reopen(store), stored_plan(store, None).digest
        (held,) = [m for m in store.measurements("holdout") if m.plan == digest]
        options = stored_space(store).site_options(stored_plan(store, None))
    again = reopened.evaluator.measure(digest, options, "holdout", reopened.windows["holdout"])
    assert replace(again, seconds=held.seconds) == held
    assert reopened.changed == ()
    references = reopened.references("holdout")
    assert [len(r) for r in references] == [w.scored for w in reopened.windows["holdout"]]


def test_an_exported_file_loses_in_llama_cpp_what_was_reported(shipped_run: Path, file: Path) -> None:
    verified = verify_file(file, shipped_run, progress=Progress())
    assert verified.agrees
    assert verified.notes == ()
    loss = verified.loss
    assert loss is not None
    assert loss.stored
    assert loss.reported.split == "holdout"
    assert loss.measured.plan == verified.read_back.plan
    assert loss.measured.kl == pytest.approx(loss.reported.kl, rel=0.02)
    assert loss.measured.kl != loss.reported.kl  # it really comes from another program
    assert verified.render().endswith(f"verified: model.gguf carries out plan {loss.measured.plan[:12]}")
    data = json.loads(json.dumps(verified.to_dict()))
    assert data["agrees"] is True
    assert data["loss"]["kl"] == loss.measured.kl
    assert data["read_back"]["ratio"] == 1


def test_the_loss_is_only_measured_where_it_is_asked_for(shipped_run: Path, file: Path) -> None:
    verified = verify_file(file, shipped_run, loss=False)
    assert verified.agrees
    assert verified.loss is None
    assert "verified: model.gguf holds plan" in verified.render()


def test_wrong_bytes_are_the_end_of_it(shipped_run: Path, file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-40] ^= 16
    file.write_bytes(content)
    verified = verify_file(file, shipped_run)
    assert not verified.agrees
    assert verified.loss is None
    assert "not verified: model.gguf does not carry out plan" in verified.render()


def test_right_bytes_that_llama_cpp_computes_differently_are_found_by_their_loss(
    shipped_run: Path, file: Path
) -> None:
    """Every tensor is right, but the file says that positions rotate at another speed."""
    key, content = b"llama.rope.freq_base", bytearray(file.read_bytes())
    place = content.index(key) + len(key) + 4
    assert struct.unpack_from("<f", content, place) == (10000.0,)
    struct.pack_into("<f", content, place, 100.0)
    file.write_bytes(content)
    verified = verify_file(file, shipped_run)
    assert verified.read_back.agrees
    assert verified.loss is not None
    assert not verified.agrees
    assert verified.loss.errors is not None
    assert verified.loss.errors > 3
    assert "standard errors of the reported loss\nnot verified" in verified.render()


def test_a_file_of_another_tokenizer_is_not_verified(shipped_run: Path, file: Path) -> None:
    """Its loss is the same, since that is measured on token ids."""
    key, content = b"tokenizer.ggml.eos_token_id", bytearray(file.read_bytes())
    content[content.index(key) + len(key) + 4] += 1
    file.write_bytes(content)
    verified = verify_file(file, shipped_run)
    assert verified.read_back.mismatches == ()
    assert not verified.agrees
    assert verified.loss is None
    assert "wrong: tokenizer.ggml.eos_token_id is " in verified.render()


def test_a_file_that_makes_llama_cpp_abort_is_one_sentence(shipped_run: Path, file: Path) -> None:
    """Every tensor is right, but the file asks for what llama.cpp asserts never happens."""
    _spoil(file)
    with pytest.raises(LlamaError) as failure:
        verify_file(file, shipped_run)
    assert failure.value.exit_code == 1
    words = str(failure.value)
    assert words.startswith(f"{file} cannot be measured: the process of llama.cpp was ended by SIGABRT: ")
    assert "GGML_ASSERT(eps >= 0.0f) failed" in words
    assert "\n" not in words


def test_the_command_survives_such_a_file(shipped_run: Path, file: Path) -> None:
    _spoil(file)
    result = CliRunner().invoke(main, ["verify", str(file), "--run", str(shipped_run)])
    assert result.exit_code == 1
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("tightfit: ")]
    assert "was ended by SIGABRT" in line


def _spoil(file: Path) -> None:
    key, content = b"llama.attention.layer_norm_rms_epsilon", bytearray(file.read_bytes())
    struct.pack_into("<f", content, content.index(key) + len(key) + 4, -1.0)
    file.write_bytes(content)


def test_a_file_that_llama_cpp_refuses_is_bad_input_as_ever(shipped_run: Path, file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"llama.rope.freq_base", b"llama.rope.freq_bbbb"))
    file.write_bytes(file.read_bytes().replace(b"llama.block_count", b"llama.block_c0unt"))
    with pytest.raises(InputError, match=r"model\.gguf: "):
        verify_file(file, shipped_run)


def test_another_plan_of_the_run_is_not_what_the_file_holds(shipped_run: Path, file: Path) -> None:
    with Store.open(shipped_run, mode="ro") as store:
        own, decisions = stored_plan(store, None).digest, len(store.decisions())
        other = next(d for d, p in store.plans().items() if d != own and len(p.plan.choices) == decisions)
    verified = verify_file(file, shipped_run, other)
    assert not verified.agrees
    assert any("names the plan" in warning for warning in verified.read_back.warnings)


def test_a_plan_that_was_measured_nowhere_is_measured_now(run: Path, tmp_path: Path) -> None:
    with Store.open(run, mode="ro") as store:
        decisions = len(store.decisions())
        known = {m.plan for m in store.measurements() if m.split in SPLITS}
        digest = next(
            d for d, p in store.plans().items() if d not in known and len(p.plan.choices) == decisions
        )
        file = export_plan(store, "llama.cpp", tmp_path / "model.gguf", digest).files[0]
        before = len(store.measurements())
    verified = verify_file(file, run)
    assert verified.loss is not None
    assert not verified.loss.stored
    assert verified.loss.reported.split == "holdout"
    assert "the plan measured now" in verified.render()
    assert verified.agrees
    with Store.open(run, mode="ro") as store:
        assert len(store.measurements()) == before  # a run is only read


@pytest.mark.parametrize("key", ["text", "holdout text", "model digest"])
def test_a_run_of_other_inputs_is_refused(key: str, run: Path, file: Path) -> None:
    with Store.open(run) as store:
        store.put("identity", {**store.get("identity"), key: "ab" * 32})
    with pytest.raises(InputError, match=f"was measured with another {key} "):
        verify_file(file, run)


def test_other_versions_are_noted_and_no_hindrance(run: Path, file: Path) -> None:
    with Store.open(run) as store:
        store.put("identity", {**store.get("identity"), "torch version": "1.0"})
    verified = verify_file(file, run)
    (note,) = verified.notes
    assert note.startswith("torch version is ")
    assert note.endswith(", the run had 1.0")
    assert f"note: {note}" in verified.render()


def test_the_run_is_found_among_others_by_plan_and_model(run: Path, file: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run, run.with_name("other")))
    with Store.open(other) as store:
        store.put("model", {**store.get("model"), "digest": "ab" * 32})
    plan, model = (str(GGUFReader(file).fields[f"tightfit.{key}"].contents()) for key in ("plan", "model"))
    run.with_name("broken").mkdir()
    run.with_name("broken").joinpath("run.db").write_bytes(b"no database" * 100)
    assert find_run(run.parent, plan, model) == run
    assert find_run(run.parent, plan[:8], "ab" * 32) == other
    assert find_run(run, None) == run
    with pytest.raises(InputError, match=r"2 runs in .* hold plan .*other, .*tiny\): name one with --run"):
        find_run(run.parent, plan)
    with pytest.raises(InputError, match=r"none of the 3 runs in .* holds plan 'ffff' of this model"):
        find_run(run.parent, "ffff", model)
    with pytest.raises(InputError, match="the file names no plan"):
        find_run(run.parent, None)
    with pytest.raises(InputError, match="none of the 0 runs in"):
        find_run(tmp_path / "missing", plan)


@pytest.mark.parametrize(
    ("shift", "words", "agrees"),
    [
        (0.0, "they agree within one standard error of", True),
        (0.9, "they agree within one standard error of", True),
        (-1.1, "they agree within two standard errors of", True),
        (2.9, "they agree within three standard errors of", True),
        (3.1, "they differ by 3.1 standard errors of", False),
        (-8.0, "they differ by 8.0 standard errors of", False),
    ],
)
def test_the_difference_is_judged_by_the_error_of_what_was_reported(
    shift: float, words: str, agrees: bool
) -> None:
    losses = [0.02, 0.03, 0.05, 0.04]
    reported = measured(losses)
    check = LossCheck(measured([loss + shift * reported.kl_se for loss in losses]), reported)
    assert check.agrees is agrees
    assert words in check.render()
    assert check.paired.difference == pytest.approx(shift * reported.kl_se)
    assert check.to_dict()["standard_errors"] == pytest.approx(abs(shift))


def test_losses_without_any_spread_must_be_equal() -> None:
    assert LossCheck(measured([0.0, 0.0]), measured([0.0, 0.0])).agrees
    assert not LossCheck(measured([0.1, 0.1]), measured([0.0, 0.0])).agrees


def test_a_single_document_says_nothing_against_it() -> None:
    check = LossCheck(measured([0.9]), measured([0.1]))
    assert check.errors is None
    assert check.agrees
    assert "a single document cannot say" in check.render()
    data = check.to_dict()
    assert data["kl_se"] is data["reported_kl_se"] is data["difference_se"] is None
    json.dumps(data, allow_nan=False)
