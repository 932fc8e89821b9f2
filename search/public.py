"""What may be published of a run's names: where something lies on a machine is not part of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def public_name(model: Mapping[str, Any]) -> str:
    """Return a model's name as others may read it: an alias, a hub id, or what a local folder is called.

    Args:
        model: as a run stored it.
    """
    name, folder = str(model["name"]), model.get("folder")
    local = Path(name).expanduser()
    # The files of an alias or a hub id lie in a folder of another name.
    if local.is_absolute() or local.is_dir() or (folder and Path(folder).name == local.name):
        return local.resolve().name
    return name


def public_settings(settings: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in which folders and files of a machine are called by their names alone."""
    public: dict[str, Any] = public_value(settings)
    return {**public, "model": public_name(model)} if "model" in public else public


def public_value(value: Any) -> Any:
    """Return plain data with a name in place of every path that begins at a root, a home or here."""
    if isinstance(value, Mapping):
        return {key: public_value(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [public_value(one) for one in value]
    if isinstance(value, str) and (value.startswith(("~", "./", "../")) or Path(value).is_absolute()):
        return Path(value).name
    return value
