import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter
from hypothesis import given
from hypothesis import strategies as st

from tightfit.workers.smollm2 import move_off_grid, read_weights
from tightfit.workers.sources import SMOLLM2_CONFIG, fetch_gguf, read_config, resolve_folder

LINEAR = "model.layers.0.mlp.up_proj.weight"
EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"


def weights(seed=0, scale=1.0):
    generator = np.random.default_rng(seed)
    shapes = {LINEAR: (6, 64), EMBEDDING: (8, 64), NORM: (64,)}
    return {
        name: scale * generator.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()
    }


def steps(name, values):
    groups = values.reshape(-1, 32)
    return np.abs(groups).max(axis=1) / 127 if name == EMBEDDING else np.ptp(groups, axis=1) / 15


@given(st.integers(0, 2**31), st.sampled_from([1e-3, 1.0, 50.0]))
def test_noise_stays_within_a_quarter_step_of_its_own_grid(seed, scale):
    original = weights(scale=scale)
    moved = move_off_grid(original, seed)
    for name in (LINEAR, EMBEDDING):
        shift = np.abs(moved[name] - original[name]).reshape(-1, 32).max(axis=1)
        bound = steps(name, original[name]) / 4
        assert (shift <= bound * 1.01 + 1e-6 * scale).all()
        assert (shift > bound * 0.5).all(), "the noise must fill the quarter step"
        assert moved[name].dtype == np.float32
    np.testing.assert_array_equal(moved[NORM], original[NORM])


def test_noise_is_seeded_and_differs_between_tensors():
    original = weights()
    first, again, other = (move_off_grid(original, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first[LINEAR], again[LINEAR])
    assert (first[LINEAR] != other[LINEAR]).any()
    twins = {LINEAR: original[LINEAR], LINEAR.replace("up", "gate"): original[LINEAR]}
    a, b = move_off_grid(twins).values()
    assert (a != b).any()


def test_groups_of_equal_weights_stay():
    original = {LINEAR: np.full((2, 32), 0.5, dtype=np.float32)}
    np.testing.assert_array_equal(move_off_grid(original)[LINEAR], original[LINEAR])


def interleave(values, heads):
    """How llama.cpp's converter stores query and key rows (``LlamaModel.permute``)."""
    rows, cols = values.shape
    return values.reshape(heads, 2, rows // heads // 2, cols).swapaxes(1, 2).reshape(rows, cols)


def test_weights_are_read_under_their_transformers_names_with_rotary_rows_in_order(tmp_path):
    generator = np.random.default_rng(0)
    q = generator.standard_normal((9 * 4, 32), dtype=np.float32)
    k = generator.standard_normal((3 * 4, 32), dtype=np.float32)
    down, embedding = generator.standard_normal((2, 5, 32), dtype=np.float32)
    writer = GGUFWriter(tmp_path / "tiny.gguf", "llama")
    writer.add_tensor("blk.0.attn_q.weight", interleave(q, 9))
    writer.add_tensor("blk.0.attn_k.weight", interleave(k, 3))
    writer.add_tensor("blk.12.ffn_down.weight", down)
    writer.add_tensor("token_embd.weight", embedding)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    expected = {
        "model.layers.0.self_attn.q_proj.weight": q,
        "model.layers.0.self_attn.k_proj.weight": k,
        "model.layers.12.mlp.down_proj.weight": down,
        EMBEDDING: embedding,
    }
    read = read_weights(tmp_path / "tiny.gguf")
    assert read.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(read[name], values)


@pytest.mark.real
def test_the_config_in_code_is_the_one_in_the_file():
    fields = GGUFReader(fetch_gguf()).fields
    keys = {
        "llama.attention.head_count": "num_attention_heads",
        "llama.attention.head_count_kv": "num_key_value_heads",
        "llama.block_count": "num_hidden_layers",
        "llama.context_length": "max_position_embeddings",
        "llama.embedding_length": "hidden_size",
        "llama.feed_forward_length": "intermediate_size",
        "llama.rope.dimension_count": "head_dim",
        "llama.vocab_size": "vocab_size",
        "tokenizer.ggml.bos_token_id": "bos_token_id",
        "tokenizer.ggml.eos_token_id": "eos_token_id",
        "tokenizer.ggml.padding_token_id": "pad_token_id",
    }
    assert {key: fields[field].contents() for field, key in keys.items()} == {
        key: SMOLLM2_CONFIG[key] for key in keys.values()
    }
    assert fields["llama.rope.freq_base"].contents() == SMOLLM2_CONFIG["rope_parameters"]["rope_theta"]
    epsilon = fields["llama.attention.layer_norm_rms_epsilon"].contents()
    assert epsilon == pytest.approx(SMOLLM2_CONFIG["rms_norm_eps"], rel=1e-6)


@pytest.mark.real
def test_prepared_folders_say_what_the_code_says():
    for alias in ("smollm2-135m", "smollm2-135m-offgrid"):
        assert read_config(str(resolve_folder(alias))) == read_config(alias)


@pytest.mark.real
def test_only_the_original_lies_on_a_4_bit_grid():
    from safetensors import safe_open

    name = "model.layers.7.mlp.down_proj.weight"
    distinct = {}
    for alias in ("smollm2-135m", "smollm2-135m-offgrid"):
        with safe_open(resolve_folder(alias) / "model.safetensors", "np") as file:
            groups = file.get_tensor(name).reshape(-1, 32)
        distinct[alias] = max(len(np.unique(group)) for group in groups[:200])
    assert distinct["smollm2-135m"] <= 16
    assert distinct["smollm2-135m-offgrid"] > 16
