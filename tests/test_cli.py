"""The command line: help for everything, one line and the right exit code for whatever is wrong."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tightfit import __version__
from tightfit.cli import main
from tightfit.search.facts import SpaceFacts
from tightfit.search.store import Store
from tightfit.spaces import WeightRules, build_space, get_target, read_geometry

ROOT = Path(__file__).parents[1]
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "dtype": "bfloat16",
    "vocab_size": 320,
    "hidden_size": 96,
    "head_dim": 16,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
EXPORT = ("export", "--to", "llama.cpp")
RULES: dict[str, Any] = {"bits": [3, 4], "groups": [32], "zeros": ["integer"]}
SPACE = build_space(
    read_geometry(CONFIG), WeightRules((3, 4), groups=(32,), zeros=("integer",)), get_target("any")
)
SETTINGS = "model: model\nbudget: {effective_bits: 4.0}\nspace: {weights: {bits: [3, 4], groups: [32]}}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a folder with settings and a model whose weights nobody may open."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIGHTFIT_CACHE", str(tmp_path / "cache"))
    write_model(Path("model"), "model.safetensors", "tokenizer.json")
    Path("search.yaml").write_text(SETTINGS)
    yield tmp_path
    assert not (tmp_path / "runs").exists(), "nothing may be written before a run begins"


def write_model(folder: Path, *files: str) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for name in files:
        (folder / name).touch()


@pytest.fixture
def run_folder(folder: Path) -> str:
    """The folder of a run that got as far as its loss model and a result."""
    weights = [[0.02, 0.01] for _ in SPACE.decisions]
    plan = SPACE.plan([0] * len(SPACE.decisions))
    with Store.open(folder / "kept" / "run.db") as store:
        store.set_space(SPACE)
        store.put(
            "settings", {"model": "model", "budget": {"effective_bits": 4}, "space": {"weights": RULES}}
        )
        store.put("model", {"name": "model", "digest": "5f" * 32, "family": "llama"})
        store.put("space", {**vars(SpaceFacts.of(SPACE)), "config": CONFIG})
        store.add_fit("link", {"model": {"weights": weights, "link": {"link": "identity"}}, "plans": 8})
        store.add_plan(plan, SPACE.weight_bytes(plan), "exact")
        store.put("result", {"chosen": plan.digest, "offered": plan.digest})
    return "kept"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), prog_name="tightfit")


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True)


def refusal(result: Result, code: int = 2) -> list[str]:
    """Check the form of a refusal and return its lines without the name of the program."""
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines
    assert all(line.startswith("tightfit: ") and line.endswith((".", "?")) for line in lines)
    return [line.removeprefix("tightfit: ") for line in lines]


def imported(stderr: str) -> set[str]:
    """Modules that ``-X importtime`` saw."""
    return set(re.findall(r"\|\s+([\w.]+)$", stderr, re.MULTILINE))


# Help


@pytest.mark.parametrize("name", ["", *main.commands])
def test_every_command_has_help_for_itself_and_each_option(name: str) -> None:
    result = invoke(*name.split(), "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: ")
    command = main.commands[name] if name else main
    assert command.help
    for parameter in command.params:
        if parameter.param_type_name == "option":
            assert parameter.help, parameter.name
        else:
            assert parameter.name.upper() in command.help


def test_every_command_is_in_the_guide() -> None:
    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    assert [name for name in main.commands if f"tightfit {name}" not in guide] == []


def test_the_version_is_that_of_the_package() -> None:
    assert invoke("--version").stdout == f"tightfit, version {__version__}\n"
    assert f'version = "{__version__}"' in (ROOT / "pyproject.toml").read_text()


# Bad input


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (f"{SETTINGS}serach: {{}}\n", "search.yaml:4", "Did you mean 'search'?"),
        (f"{SETTINGS}seed: 1\nseed: 2\n", "search.yaml:5", "the key is given twice, first in line 4"),
        ("budget: {weights: 76Mib}\n", "search.yaml:1", "unknown unit 'Mib' (units: B, kB"),
        ("budget: {weights: 76}\n", "search.yaml:1", "write a number and a unit, such as 90MiB"),
        (f"{SETTINGS}seed: !!python/object/apply:os.system [ls]\n", "search.yaml:4", "the tag"),
        (f"{SETTINGS}runs: &a [x]\nname: [*a, *a, *a]\n", "search.yaml:5", "as an alias"),
        ("budget: {weights: [1MiB\n", "search.yaml", "not valid YAML"),
        ("", "search.yaml", "the file is empty"),
    ],
)
def test_wrong_settings_name_their_place_and_what_is_allowed(text: str, place: str, words: str) -> None:
    Path("search.yaml").write_text(text)
    lines = refusal(invoke("run", "search.yaml"))
    assert any(line.startswith(place) and words in line for line in lines)


def test_everything_that_is_wrong_has_a_line_of_its_own() -> None:
    Path("search.yaml").write_text("model: 3\nbudget: {weights: 76}\nsed: 1\n")
    lines = refusal(invoke("run", "search.yaml", "-s", "device=gpu"))
    places = ["search.yaml:1", "search.yaml:2", "search.yaml:3", "-s device"]
    assert [line.partition(": ")[0] for line in lines] == places


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["space.weights.groups=[128, 32]", "budget.effective_bits=4"],
            ["group 128 divides no input width", "96 in embed", "192 in layers.0.mlp.down_proj", "32, 64, 0"],
        ),
        (
            ["space.weights.groups=[64]"],
            ["no option is left for embed (width 96)", "groups that divide: 32, 0"],
        ),
        (["space.weights.pin.*.upproj=4b-g32-int"], ["pin", "'*.upproj' matches none of the 16 sites"]),
        (["space.weights.exclude=['lm_head']"], ["exclude", "'lm_head' matches none"]),
        (["space.weights.bits=[4]"], ["space.weights leaves one plan, 4b-g32-int everywhere"]),
        (["model=./missing"], ["model folder './missing' does not exist"]),
        (["model=smollm2-135"], ["no alias", "Did you mean 'smollm2-135m'?"]),
        (["model=empty"], ["has no config.json"]),
        (["model=bare"], ["needs weights in *.safetensors files; none was found"]),
        (["model=pickled"], ["pytorch_model.bin is pickled and can run code, so it is refused"]),
        (["model=search.yaml"], ["is a file; name the folder that holds it"]),
        (["text.source=null"], ["text: neither source nor dataset is given"]),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_it_begins(overrides: list[str], words: list[str]) -> None:
    Path("empty").mkdir()
    write_model(Path("bare"), "tokenizer.json")
    write_model(Path("pickled"), "tokenizer.json", "pytorch_model.bin")
    (line,) = refusal(invoke("run", "search.yaml", *(part for o in overrides for part in ("-s", o))))
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "missing.yaml"], "missing.yaml: there is no such file"),
        (["inspect", "./missing"], "model folder './missing' does not exist"),
        (["inspect", "empty"], "has no config.json"),
        (["inspect", "model", "--budget", "80"], "'80' is not a size: write a number and a unit"),
        (["inspect", "model", "--groups", "48"], "--groups '48'"),
        (["inspect", "model", "--target", "vlm"], "Did you mean 'vllm'?"),
        (["inspect", "model", "--context", "0"], "'--context': 0 is not in the range x>=1"),
        (["inspect", "model", "--context", "2049", "--groups", "32"], "--context: 2049 tokens are more than"),
        (["inspect", "model", "--context", "9", "--shared-prefix", "10"], "--shared-prefix: 10 tokens are"),
        (["inspect", "model", "--groups", "32", "--total", "80"], "'80' is not a size: write a number and"),
        (["report", "missing"], "there is no run at missing (a run is a folder with a run.db)"),
        (["front", "missing"], "there is no run at missing"),
        (["plan", "missing", "--budget", "1MiB"], "there is no run at missing"),
        (["export", "missing"], "there is no run at missing"),
        (["front", "search.yaml"], "search.yaml"),
        (["front", "empty"], "there is no run at empty"),
        (["plan", "kept", "--budget", "80"], "'80' is not a size"),
        (["plan", "kept", "--budget", "80mib"], "Did you mean 'MiB'?"),
        (["plan", "kept"], "Missing option '--budget' (see tightfit plan --help)"),
        (
            ["export", "kept", "--to", "jason"],
            "no exporter is called 'jason' (exporters: json, llama.cpp, llama.cpp-rules, transformers-kv, "
            "kvpress, vllm-kv, llama.cpp-kv, card). Did you mean",
        ),
        (["export", "kept", "--to", "gguf"], "Did you mean 'llama.cpp'?"),
        (["export", "kept", "--to", "llama.cpp"], "llama.cpp cannot express a plan for target any"),
        (["export", "kept", "--to", "llama.cpp-kv"], "the plan says nothing about KV caches"),
        (["export", "kept", "--to", "transformers-kv"], "the plan says nothing about KV caches, so there"),
        (["export", "kept", "--out", "search.yaml"], "search.yaml exists already: name another file"),
        (["export", "kept", "--with", "search.yaml"], "use it with --to card"),
        (["export"], "which run? Name its folder"),
        (["verify", "missing.gguf"], "missing.gguf: there is no such file"),
        (["verify", "search.yaml"], "search.yaml is no whole GGUF file"),
        (["verify"], "Missing argument 'FILE' (see tightfit verify --help)"),
        (["export", "kept", "--plan", "zz"], "0 of the 1 plans in"),
        (["export", "kept", "--out", "missing/plan.json"], "missing/plan.json cannot be written"),
        (["export", "kept", "--out", "."], ". is a folder: name the file to write"),
        (["report", "kept", "--out", "missing/report.html"], "missing/report.html cannot be written"),
        (["report", "unfinished", "--json"], "unfinished/run.db has no result yet: let the search finish."),
        (["--bogus"], "No such option '--bogus' (see tightfit --help)."),
        (["--version=3"], "Option '--version' does not take a value (see tightfit --help)."),
        (["inspekt", "model"], "No such command 'inspekt'. Did you mean 'inspect'? (see tightfit --help)"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(run_folder: str, arguments: list[str], words: str) -> None:
    Path("empty").mkdir()
    Store.open(Path("unfinished", "run.db")).close()
    (line,) = refusal(invoke(*arguments))
    assert words in line
    written = [path for path in Path(run_folder).iterdir() if not path.name.startswith("run.db")]
    assert written == []


# Budgets that nothing keeps


def test_a_budget_below_the_floor_is_infeasible() -> None:
    (line,) = refusal(invoke("run", "search.yaml", "-s", f"budget={{weights: {SPACE.floor - 1}B}}"), code=3)
    assert f"({SPACE.floor} B)" in line
    assert f"({SPACE.ceiling} B)" in line


def test_a_budget_for_one_plan_is_infeasible_and_says_what_would_be_needed() -> None:
    (line,) = refusal(invoke("run", "search.yaml", "-s", f"budget={{weights: {SPACE.floor}B}}"), code=3)
    assert f"3b-g32-int everywhere ({SPACE.floor / 1024:.2f} KiB, {SPACE.floor} B)" in line
    assert re.search(r"raise it by [1-9]\d* B of weights to have a choice\.$", line)


def test_plan_and_inspect_know_infeasible_too(run_folder: str) -> None:
    for arguments in (["plan", run_folder, "--budget", "1kB"], ["inspect", "model", "--groups", "32"]):
        extra = [] if arguments[0] == "plan" else ["--budget", "1kB"]
        (line,) = refusal(invoke(*arguments, *extra), code=3)
        assert "below the floor of this space" in line


@pytest.mark.parametrize(
    ("budget", "code", "words"),
    [
        ("1kB", 3, "below the floor"),
        (f"{SPACE.floor}B", 3, "leaves a single plan"),
        ("1Mb", 2, "unknown unit"),
    ],
)
def test_refusals_load_nothing_heavy(budget: str, code: int, words: str) -> None:
    override = f"budget={{weights: {budget}}}"
    done = python("-X", "importtime", "-m", "tightfit", "run", "search.yaml", "-s", override)
    assert done.returncode == code
    assert done.stdout == ""
    seen = imported(done.stderr)
    assert "tightfit.search.settings" in seen
    assert seen.isdisjoint({"torch", "transformers", "sklearn", "plotly", "optuna", "ray"})
    lines = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert len(lines) == 1
    assert lines[0].startswith("tightfit: ")
    assert words in lines[0]


# What works


def test_a_dry_run_ends_after_range_and_cost() -> None:
    result = invoke("run", "search.yaml", "--dry-run")
    assert result.exit_code == 0, result.output
    for word in ("feasible range: ", "budget: ", "cost: about "):
        assert word in result.stdout


def test_inspect_as_json_is_exact_and_light() -> None:
    """In a process of its own, to see that a 70B model needs no more than its config."""
    model = str(ROOT / "tests" / "data" / "llama_70b")
    done = python("-X", "importtime", "-m", "tightfit", "inspect", model, "--groups", "128", "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["parameters"] == 70_553_706_496
    whole = {"context": 131_072, "batch": 1, "shared_prefix": 0, "bytes": 327_680 * 131_072}
    assert data["kv_cache"] == whole
    assert data["uniform"][0]["option"] == "2b-g128-int"
    assert imported(done.stderr).isdisjoint({"torch", "transformers", "scipy", "sklearn", "sqlite_utils"})


@pytest.mark.parametrize("arguments", [["front", "kept"], ["plan", "kept", "--budget", "1MiB"]])
def test_questions_to_a_run_are_answered_without_a_model(run_folder: str, arguments: list[str]) -> None:
    done = python("-X", "importtime", "-m", "tightfit", *arguments)
    assert done.returncode == 0, done.stderr
    assert imported(done.stderr).isdisjoint({"torch", "transformers", "plotly"})


def test_inspect_shows_the_same_to_people() -> None:
    arguments = ["inspect", "model", "--groups", "32", "--context", "100", "--batch", "3"]
    text, data = invoke(*arguments), json.loads(invoke(*arguments, "--json").stdout)
    assert text.exit_code == 0
    assert f"{data['parameters']:,} parameters" in text.stdout
    assert "100 tokens × 3" in text.stdout
    assert all(row["option"] in text.stdout for row in data["uniform"])


@pytest.mark.parametrize(("total", "code"), [("400KiB", 0), ("90KiB", 3)])
def test_inspect_says_whether_and_up_to_where_a_total_fits(total: str, code: int) -> None:
    arguments = ["inspect", "model", "--groups", "32", "--total", total, "--context", "500"]
    text, data = invoke(*arguments), invoke(*arguments, "--json")
    assert text.exit_code == data.exit_code == code
    verdict = json.loads(data.stdout)["verdict"]
    assert verdict.startswith("does not fit at " if code else "fits: ")
    assert verdict in text.stdout.splitlines()
    assert "longest context within" in text.stdout
    furthest = max(plan["longest_context"] for plan in json.loads(data.stdout)["plans"])
    assert (furthest >= 500) == (code == 0)


def test_inspect_notes_a_budget_that_leaves_one_plan() -> None:
    floor = json.loads(invoke("inspect", "model", "--groups", "32", "--json").stdout)["floor_bytes"]
    result = invoke("inspect", "model", "--groups", "32", "--budget", f"{floor}B")
    assert result.exit_code == 0
    assert "the budget leaves a single plan, 2b-g32-int everywhere" in result.stdout


def test_export_and_plan_write_the_same_plan_for_the_same_digest(run_folder: str) -> None:
    exported = invoke("export", run_folder, "--out", "a.json")
    assert exported.stdout == "wrote a.json\n"
    solved = invoke("plan", run_folder, "--budget", f"{SPACE.floor}B", "--out", "b.json", "--json")
    assert solved.exit_code == 0, solved.output
    assert Path("a.json").read_bytes() == Path("b.json").read_bytes()
    assert json.loads(solved.stdout)["digest"] == json.loads(Path("b.json").read_text())["digest"]


def test_export_goes_into_the_folder_of_the_run_unless_told_otherwise(run_folder: str) -> None:
    assert invoke("export", run_folder).stdout == f"wrote {run_folder}/plan.json\n"
    assert Path(run_folder, "plan.json").is_file()


def test_an_existing_file_is_replaced_by_force_only(run_folder: str) -> None:
    Path("mine.json").write_text("mine")
    refusal(invoke("export", run_folder, "--out", "mine.json"))
    assert Path("mine.json").read_text() == "mine"
    assert invoke("export", run_folder, "--out", "mine.json", "--force").exit_code == 0
    assert json.loads(Path("mine.json").read_text())["tightfit_plan"] == 1


def test_exporters_are_listed_without_a_run_and_load_nothing() -> None:
    done = python("-X", "importtime", "-m", "tightfit", "export", "--list")
    assert done.returncode == 0, done.stderr
    assert imported(done.stderr).isdisjoint({"torch", "transformers", "gguf", "xllamacpp"})
    names = [entry["name"] for entry in json.loads(invoke("export", "--list", "--json").stdout)]
    assert names == [
        *("json", "llama.cpp", "llama.cpp-rules"),
        *("transformers-kv", "kvpress", "vllm-kv", "llama.cpp-kv"),
        "card",
    ]
    assert all(f"\n{name} " in done.stdout for name in names)


def test_a_plan_is_exported_and_verified_and_described(shipped_run: Path) -> None:
    run = str(shipped_run)
    exported = invoke("export", run, "--to", "llama.cpp", "--out", "model.gguf")
    assert exported.exit_code == 0, exported.output
    assert exported.stdout.startswith("wrote model.gguf\nnext:\n  tightfit verify model.gguf --run ")
    verified = invoke("verify", "model.gguf", "--run", run, "--json")
    assert verified.exit_code == 0, verified.output
    assert json.loads(verified.stdout)["loss"]["agrees"] is True
    card = invoke("export", run, "--to", "card", "--out", "README.md", "--with", "model.gguf")
    assert card.exit_code == 0, card.output
    assert "| `model.gguf` |" in Path("README.md").read_text(encoding="utf-8")


def test_a_file_that_does_not_carry_out_the_plan_fails(shipped_run: Path) -> None:
    run = str(shipped_run)
    invoke("export", run, "--to", "llama.cpp", "--out", "model.gguf")
    content = bytearray(Path("model.gguf").read_bytes())
    content[-50] ^= 1
    Path("wrong.gguf").write_bytes(content)
    Path("short.gguf").write_bytes(content[:-1000])
    for extra in ([], ["--json"], ["--no-loss"]):
        failed = invoke("verify", "wrong.gguf", "--run", run, *extra)
        assert failed.exit_code == 1
        assert "are not those that were measured" in failed.stdout
    (line,) = refusal(invoke("verify", "short.gguf", "--run", run))
    assert line == "short.gguf is no whole GGUF file: export it again."
    (line,) = refusal(invoke("verify", "model.gguf", "--run", run, "--plan", "zz"))
    assert line.startswith("0 of the ")


def test_a_write_that_the_system_refuses_leaves_nothing_and_says_so(shipped_run: Path) -> None:
    """A process of its own, which may write no file as large as the model, but SQLite's shared memory."""
    resource = pytest.importorskip("resource")
    Path("out").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tightfit", *EXPORT, str(shipped_run), "--out", "out/x"],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr == "tightfit: out/x cannot be written (File too large).\n"
    assert done.stdout == ""
    assert list(Path("out").iterdir()) == []


def test_a_full_disk_leaves_the_earlier_file_and_says_so(shipped_run: Path) -> None:
    """A real one: a file system of 64 KiB that only this process sees."""
    Path("disk").mkdir()
    inside = "mount -t tmpfs -o size=64k none disk || exit 77; echo mine > disk/x; "
    inside += '"$@" || echo "code $?"; cat disk/x; ls -A disk'
    export = [sys.executable, "-m", "tightfit", *EXPORT, str(shipped_run), "--out", "disk/x", "--force"]
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare")
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", inside, "sh", *export],
        capture_output=True,
        text=True,
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("this system lets nobody mount a file system of their own")
    assert done.stderr == "tightfit: disk/x cannot be written (No space left on device).\n"
    assert done.stdout == "code 2\nmine\nx\n"


def test_doctor_as_json_says_the_same_as_in_words() -> None:
    words, data = invoke("doctor"), invoke("doctor", "--json")
    assert words.exit_code == data.exit_code
    findings = json.loads(data.stdout)
    assert [line.split()[1] for line in words.stdout.splitlines()] == [f["subject"] for f in findings]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make doctor find something."""
    from tightfit.search import doctor

    def plant(level: str) -> None:
        findings = [doctor.Finding(level, "probe", "a finding")]  # type: ignore[arg-type]
        monkeypatch.setattr(doctor, "examine", lambda: findings)

    return plant


@pytest.mark.parametrize(("level", "code"), [("ok", 0), ("warning", 0), ("error", 1)])
def test_doctor_fails_where_something_needed_is_wrong(
    failing: Callable[..., None], level: str, code: int
) -> None:
    failing(level)
    assert invoke("doctor").exit_code == code


def test_report_as_json_writes_the_file_that_was_asked_for(run_folder: str) -> None:
    silent, written = (
        invoke("report", run_folder, "--json"),
        invoke("report", run_folder, "--json", "--out", "x.html"),
    )
    assert json.loads(silent.stdout) == json.loads(written.stdout)
    assert Path("x.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert not Path(run_folder, "report.html").exists()


def test_no_arguments_at_all_show_the_help() -> None:
    result = invoke()
    assert result.exit_code == 2
    assert result.output.startswith("Usage: tightfit [OPTIONS] COMMAND")
