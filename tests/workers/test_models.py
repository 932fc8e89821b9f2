import dataclasses
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tightfit.compress import check_geometry
from tightfit.spaces import InputError, read_geometry
from tightfit.workers.lab import TINY, train
from tightfit.workers.models import digest_folder, load_model, prepare_alias


@pytest.fixture(scope="module")
def tiny():
    return train(TINY)


@pytest.fixture
def copy(tiny, tmp_path):
    return shutil.copytree(tiny, tmp_path / "copy")


def edit_config(folder, **changes):
    path = folder / "config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, **changes}), encoding="utf-8")


def rewrite(folder, change):
    """Change the tensors of a folder's one file."""
    path = folder / "model.safetensors"
    weights = {name: tensor.clone() for name, tensor in load_file(path).items()}
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})


def test_loaded_model_is_float32_frozen_and_fits_its_geometry(tiny):
    loaded = load_model(str(tiny))
    parameters = list(loaded.model.parameters())
    assert {p.dtype for p in parameters} == {torch.float32}
    assert not any(p.requires_grad for p in parameters)
    assert not loaded.model.training
    assert sum(p.numel() for p in parameters) == loaded.geometry.parameters
    assert loaded.folder == tiny
    assert loaded.tokenizer.decode(loaded.tokenizer("a list of files")["input_ids"]) == "a list of files"


def test_loaded_weights_are_the_files(tiny):
    loaded = load_model(str(tiny))
    for name, tensor in load_file(tiny / "model.safetensors").items():
        assert torch.equal(loaded.model.get_parameter(name), tensor), name


def test_half_precision_files_are_loaded_in_float32(copy):
    def halve(weights):
        for name in weights:
            weights[name] = weights[name].bfloat16()

    rewrite(copy, halve)
    edit_config(copy, dtype="bfloat16")
    loaded = load_model(str(copy))
    assert next(loaded.model.parameters()).dtype == torch.float32
    assert loaded.geometry.dtype == "bfloat16"


def test_digest_does_not_depend_on_how_tensors_are_spread_over_files(tiny, copy):
    weights = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    names = sorted(weights, reverse=True)
    for index, part in enumerate((names[::2], names[1::2])):
        save_file({name: weights[name] for name in part}, copy / f"model-{index}.safetensors")
    edit_config(copy, transformers_version="0.0", _name_or_path="elsewhere")
    assert digest_folder(copy) == digest_folder(tiny)


def test_digest_changes_with_any_weight_and_with_the_config(tiny, copy):
    digests = {digest_folder(tiny)}

    def nudge(weights):
        weights["model.norm.weight"][0] += 1e-6

    rewrite(copy, nudge)
    digests.add(digest_folder(copy))
    edit_config(copy, rms_norm_eps=1e-6)
    digests.add(digest_folder(copy))
    assert len(digests) == 3


def test_unsupported_family_is_refused_before_anything_is_loaded(copy):
    edit_config(copy, model_type="bert")
    (copy / "model.safetensors").write_bytes(b"never read")
    with pytest.raises(InputError, match="'bert' is not supported"):
        load_model(str(copy))


def test_missing_tensor_is_refused_where_transformers_would_draw_random_numbers(copy):
    rewrite(copy, lambda weights: weights.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(InputError, match=r"1 tensors.*model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(str(copy))


def test_truncated_file_is_refused(copy):
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(InputError, match="could not be loaded"):
        load_model(str(copy))


def test_config_of_another_width_is_refused(copy):
    edit_config(copy, intermediate_size=192)
    with pytest.raises(InputError, match="could not be loaded"):
        load_model(str(copy))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mlp": 192}, r"layers\.0\.mlp\.gate_proj: the loaded weight is \(128, 64\), .* \(192, 64\)"),
        ({"blocks": 4}, r"layers\.3\.self_attn\.q_proj: the loaded model has no such layer"),
    ],
)
def test_model_that_does_not_fit_the_geometry_is_named_by_layer(tiny, change, message):
    other = read_geometry(dataclasses.replace(TINY, **change).config())
    with pytest.raises(InputError, match=message):
        check_geometry(load_model(str(tiny)).model, other)


def test_untied_head_is_refused_where_the_config_says_tied(tiny):
    loaded = load_model(str(tiny))
    loaded.model.lm_head.weight = torch.nn.Parameter(loaded.model.lm_head.weight.clone())
    with pytest.raises(InputError, match=r"lm_head.*tied to embed"):
        check_geometry(loaded.model, loaded.geometry)


def test_no_code_of_a_folder_is_run(copy):
    (copy / "trap.py").write_text("raise SystemExit('ran')\n", encoding="utf-8")
    edit_config(copy, auto_map={"AutoConfig": "trap.Config", "AutoModelForCausalLM": "trap.Model"})
    assert load_model(str(copy)).geometry.family == "llama"


def test_unknown_alias_is_refused():
    with pytest.raises(InputError, match="no alias"):
        prepare_alias("gpt-5")


@pytest.mark.real
def test_smollm2_predicts_the_language_reference_and_the_off_grid_copy_nearly_as_well():
    from pydoc_data.topics import topics

    losses = {}
    for alias in ("smollm2-135m", "smollm2-135m-offgrid"):
        loaded = load_model(alias)
        assert loaded.geometry.parameters == 134_515_008
        ids = torch.tensor(loaded.tokenizer(topics["typesseq"])["input_ids"][:512])[None]
        with torch.no_grad():
            losses[alias] = loaded.model(ids, labels=ids).loss.item()
    assert losses["smollm2-135m"] < 2.5
    assert 0 < losses["smollm2-135m-offgrid"] - losses["smollm2-135m"] < 0.15
