"""A plan as rules for ``llama-quantize``, which makes the same bytes from a float32 model.

Two files are written: the rules for ``--tensor-type-file``, and beside them the importance matrix for
``--imatrix``. :func:`command` says how both are used. What ``llama-quantize`` does with them is that of
llama.cpp's ``src/llama-quant.cpp``: the first rule found in a tensor's name counts, but only if
the base type is a quantized one, and a type that does not divide a width is replaced.
"""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.exporters.base import Shipment, put_in_place
from tightfit.exporters.gguf.architectures import gguf_name
from tightfit.exporters.gguf.refusals import ggml_options
from tightfit.exporters.imatrix import write_imatrix
from tightfit.exporters.rules import Rule, anchored_rules, lint
from tightfit.spaces import EMBED, HEAD, GgmlOption, InputError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Recipe:
    """What ``llama-quantize`` is told.

    Attributes:
        rules: in the order of the file, with how many tensors each of them matches.
        importance: name of a tensor → importance of its input features, shape (cols,).
        base: the type that tensors without a rule would get; there are none.
        embedding: type of the token embedding.
        head: type of the output head; None where it is tied to the embedding.
    """

    rules: dict[Rule, int]
    importance: dict[str, Tensor]
    base: str
    embedding: str
    head: str | None


def export(shipment: Shipment, out: Path) -> Path:
    """Write the rules, and the importance matrix at :func:`imatrix_path`; return the path of the rules.

    Raises:
        InputError: a file cannot be written, the plan is not one of the space, or ``llama-quantize``
            could not carry it out to the letter.
    """
    recipe, dataset = read_recipe(shipment), f"calibration of Tightfit plan {shipment.plan.digest[:12]}"
    with put_in_place(out) as rules:
        rules.write_text("".join(f"{rule.pattern}={rule.option}\n" for rule in recipe.rules), "utf-8")
        if recipe.importance:
            with put_in_place(imatrix_path(out)) as beside:
                write_imatrix(beside, recipe.importance, dataset)
    return out


def imatrix_path(out: Path) -> Path:
    """Return where the importance matrix goes: beside the rules."""
    return out.with_name(f"{out.stem}.imatrix.gguf")


def read_recipe(shipment: Shipment) -> Recipe:
    """Return what ``llama-quantize`` must be told to make a plan's bytes.

    Raises:
        InputError: it could not carry the plan out to the letter, or the importances are not known.
    """
    if shipment.source is None:
        raise InputError(
            "rules for llama-quantize need the importances of the run that found the plan, so that it "
            "rounds in the same way; this plan comes without."
        )
    family, options = shipment.space.geometry.family, _stored_options(shipment)
    names = {site: gguf_name(family, site) for site in options}
    types = {names[site]: _ggml_name(option) for site, option in options.items()}
    importance = {
        names[site]: shipment.source.importance[site]
        for site in options
        if site in shipment.source.importance
    }
    for site, option in options.items():
        if option.needs_importance and names[site] not in importance:
            raise InputError(
                f"{site}: llama-quantize refuses {option.type} without importances of its inputs."
            )
    return Recipe(
        lint(anchored_rules(types), types),
        importance,
        _base_type(shipment, options),
        types[names[EMBED]],
        types[names[HEAD]] if HEAD in names else None,
    )


def command(shipment: Shipment, out: Path) -> str:
    """Return the shell command that makes the plan's model out of a float32 GGUF file.

    That file comes from llama.cpp's ``convert_hf_to_gguf.py --outtype f32``.

    Args:
        shipment: the plan.
        out: where :func:`export` wrote the rules.
    """
    recipe = read_recipe(shipment)
    words = ["llama-quantize"]
    if recipe.importance:
        words += ["--imatrix", str(imatrix_path(out))]
    words += ["--tensor-type-file", str(out), "--token-embedding-type", recipe.embedding]
    if recipe.head:
        words += ["--output-tensor-type", recipe.head]
    return shlex.join([*words, "model-f32.gguf", "model.gguf", recipe.base])


def summary(shipment: Shipment, out: Path) -> list[str]:
    """Return lines for people: how many tensors every rule matches, and the command to run."""
    recipe = read_recipe(shipment)
    width = len(str(max(recipe.rules.values())))
    return [
        *(f"{count:>{width}} × {rule.pattern}={rule.option}" for rule, count in recipe.rules.items()),
        "The float32 file of llama.cpp's convert_hf_to_gguf.py --outtype f32 becomes the plan's model with:",
        command(shipment, out),
    ]


def _stored_options(shipment: Shipment) -> dict[str, GgmlOption]:
    """Return the type of every site, which must be the one that llama-quantize stores when asked for it."""
    space = shipment.space
    space.levels(shipment.plan)  # refuses a plan that is not of this space
    options = space.site_options(shipment.plan)
    for site, option in options.items():
        cols = space.geometry.linear(site).cols
        if isinstance(option, GgmlOption) and not option.divides(cols):
            raise InputError(
                f"{site}: {option.type} stores blocks of {option.block} weights, which do not divide the "
                f"width {cols}; llama-quantize would store {option.fitting(cols).type} in its place."
            )
    return ggml_options(space.geometry, options)


def _base_type(shipment: Shipment, options: dict[str, GgmlOption]) -> str:
    """The quantized type of most weights, which llama.cpp then calls the whole file after."""
    weights: Counter[str] = Counter()
    for site, option in options.items():
        if option.quantized:
            linear = shipment.space.geometry.linear(site)
            weights[option.type] += linear.rows * linear.cols
    # Rules are only read where the base is a quantized type, so a plan of floats needs one as well.
    return weights.most_common(1)[0][0] if weights else "Q8_0"


def _ggml_name(option: GgmlOption) -> str:
    """The type as ggml itself writes it, which some versions of llama-quantize insist on."""
    return option.type.lower().replace("_k", "_K")
