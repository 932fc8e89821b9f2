"""Putting a plan of a run on its way: with the weights as they were measured, and what was found out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.exporters import Shipment, Source
from tightfit.exporters.checkpoint import Checkpoint
from tightfit.search.card_facts import card_facts
from tightfit.search.public import public_name
from tightfit.search.resolve import stored_space
from tightfit.search.store import Store
from tightfit.spaces import Geometry, InputError, Linear, Option, Plan

if TYPE_CHECKING:
    from torch import Tensor

    from tightfit.compress import PackedTensor
    from tightfit.workers.option_cache import OptionCache


def stored_shipment(store: Store, plan: Plan, *, source: bool = False, facts: bool = False) -> Shipment:
    """Return a plan of a run on its way to an exporter.

    Args:
        store: of the run.
        plan: one of its space.
        source: add the model's files and its matrices as they were measured; reads all weights once.
        facts: add what a model card says.

    Raises:
        InputError: the run stopped before it wrote its model or its space; or its model is gone, or not
            the one that was measured, or the importances that its matrices were rounded with are gone.
    """
    model = store.get("model")
    if model is None:
        raise InputError(f"{store.path} does not say of which model yet: run the search first.")
    space = stored_space(store)
    named = {"name": public_name(model), "digest": model["digest"], "family": model["family"]}
    files = stored_source(store, model, space.geometry) if source else None
    return Shipment(space, plan, named, files, card_facts(store, plan, model) if facts else {})


def stored_source(store: Store, model: Mapping[str, Any], geometry: Geometry) -> Source:
    """Return the model of a run with its matrices: out of the run's option cache, or quantized once more.

    Raises:
        InputError: the model is gone or is another one, or the importances are gone.
    """
    from safetensors.torch import load_file

    from tightfit.workers.option_cache import OptionCache

    folder = find_model(store, model)
    kept = find_importance(store.path.parent, model["digest"], recorded_importance(store))
    importance = load_file(kept)
    cache = OptionCache(kept.with_suffix(""), 0, writable=False)
    return Source(folder, partial(_packed, cache, Checkpoint(folder), geometry, importance), importance)


def find_model(store: Store, model: Mapping[str, Any]) -> Path:
    """Return the folder of the model that a run was made with.

    Raises:
        InputError: it is gone, or holds other weights now.
    """
    from tightfit.workers.models import digest_folder
    from tightfit.workers.sources import resolve_folder

    # The folder of an alias lies in a cache, which may have moved; that of a hub id too.
    held = Path(model.get("folder") or "")
    folder = held if (held / "config.json").is_file() else resolve_folder(model["name"])
    digest = digest_folder(folder)
    if digest != model["digest"]:
        raise InputError(
            f"the model in {folder} has the digest {digest}, but the run in {store.path.parent} was made "
            f"with {model['digest']}: put that model back, or search again."
        )
    return folder


def recorded_importance(store: Store) -> str | None:
    """Return the digest of the importances that a run rounded its matrices with, if it says so."""
    digest: str | None = store.get("identity", {}).get("importance digest")
    return digest


def find_importance(folder: Path, digest: str, importance: str | None = None) -> Path:
    """Return the file of importances that the matrices of a run were rounded with.

    Args:
        folder: of the run.
        digest: of the model.
        importance: digest of the importances; a run that does not know it takes the file written last.

    Raises:
        InputError: there is none, only others, or one that has changed since.
    """
    from safetensors.torch import load_file

    from tightfit.compress import QUANTIZER_VERSION
    from tightfit.workers.recipe import digest_importance

    options, ending = folder / "options", f"-v{QUANTIZER_VERSION}.safetensors"
    # A name is made of model, importances and version.
    kept = sorted(options.glob(f"{digest[:16]}-*.safetensors"), key=lambda p: p.stat().st_mtime)
    usable = [path for path in kept if path.name.endswith(ending)]
    if importance is not None:
        usable = [path for path in usable if path.name == f"{digest[:16]}-{importance[:16]}{ending}"]
    if not usable:
        why = _why_unusable(kept, ending)
    elif importance is not None and digest_importance(load_file(usable[-1])) != importance:
        why = "have changed"
    else:
        return usable[-1]
    raise InputError(
        f"the importances in {options} that the run rounded its matrices with {why}: search again "
        "under another name to export weights; the plan alone can still be exported with --to json."
    )


def _why_unusable(kept: Sequence[Path], ending: str) -> str:
    others = kept and not any(path.name.endswith(ending) for path in kept)
    return "were made by another version of Tightfit" if others else "are gone"


def _packed(
    cache: OptionCache,
    checkpoint: Checkpoint,
    geometry: Geometry,
    importance: Mapping[str, Tensor],
    site: str,
    option: Option,
) -> PackedTensor:
    from tightfit.compress import compress_matrix

    linear = geometry.linear(site)
    return cache.get(
        site,
        option,
        (linear.rows, linear.cols),
        lambda: compress_matrix(read_matrix(checkpoint, geometry, linear), option, importance.get(site)),
    )


def read_matrix(checkpoint: Checkpoint, geometry: Geometry, linear: Linear) -> Tensor:
    """Read a matrix out of a model's files as it is loaded for measuring: float32, shape (rows, cols).

    Raises:
        InputError: no file holds it.
    """
    # A tied matrix may be stored under either name, and a bare decoder lacks the first part of all names.
    paths = [linear.path, *(x.path for x in geometry.linears if x.tied_to == linear.site)]
    matrix = checkpoint.read(*(f"{path}.weight" for path in paths))
    return matrix.t() if linear.transposed else matrix
