"""The model card: what a compressed model is, what it loses, how to make it again and how to check it.

Markdown with the front matter that model hubs read. Whatever the run has not found out is left out.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tightfit.exporters.base import Shipment, write_whole
from tightfit.exporters.kv.layers import layer_caches, load_of, option_counts
from tightfit.spaces import GgmlOption, format_size

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9][\w.+-]*")


def export(shipment: Shipment, out: Path) -> Path:
    """Write the card and return the path written.

    Raises:
        InputError: the file cannot be written, or the plan is not one of the space.
    """
    return write_whole(out, describe(shipment))


def describe(shipment: Shipment) -> str:
    """Return the card."""
    sections = (_front_matter, _head, _formats, _losses, _certainty, _hardware, _files, _again)
    parts = ["\n".join(section(shipment)) for section in sections]
    return "\n\n".join(part for part in parts if part) + "\n"


def _front_matter(shipment: Shipment) -> Iterator[str]:
    facts, name = shipment.facts, str(shipment.model["name"])
    yield "---"
    if _PLAIN_WORD.fullmatch(str(facts.get("license", ""))):
        yield f"license: {facts['license']}"
    if _HUB_ID.fullmatch(name) and not Path(name).exists():
        yield f"base_model: {name}"
    yield f"tags: [tightfit{', gguf' if shipment.space.target.types else ''}]"
    yield "---"


def _head(shipment: Shipment) -> Iterator[str]:
    space, plan, model, facts = shipment.space, shipment.plan, shipment.model, shipment.facts
    weight_bytes = space.weight_bytes(plan)
    name = Path(str(model["name"])).name or str(model["name"])
    yield f"# {_safe(name)}, compressed to {format_size(weight_bytes)}"
    yield ""
    parameters = f", {facts['parameters']:,} parameters" if "parameters" in facts else ""
    license_name = facts.get("license")
    rows = [
        ("base model", f"{_safe(name)} ({_safe(model['family'])}{parameters}), SHA-256 `{model['digest']}`"),
        ("license of the base model", _safe(license_name) if license_name else "not stated in its folder"),
        ("plan", f"`{plan.digest}`"),
        ("made for", _safe(space.target.name)),
        ("weights", f"{weight_bytes:,} B, {space.effective_bits(weight_bytes):.3f} effective bits"),
    ]
    if space.has_kv:
        rows.append(("KV cache", _caches(shipment)))
    if "limit" in facts:
        rows.append(("budget", f"{facts['limit']:,} B ({_safe(facts.get('budget', ''))})"))
    if slow := facts.get("too_slow"):
        rows.append(("**too slow**", f"it misses the bound on speed: {_safe(' and '.join(slow))}"))
    yield from _table(("", ""), rows)
    yield ""
    yield _kind(shipment)


def _caches(shipment: Shipment) -> str:
    """Say in one line what the caches take, at which load, and how they are stored."""
    load, caches = load_of(shipment.space), layer_caches(shipment)
    size = sum(cache.bytes for cache in caches)
    sequences = "1 sequence" if load.batch == 1 else f"{load.batch:,} sequences"
    shared = f", {load.shared_prefix:,} tokens in common" if load.shared_prefix and load.batch > 1 else ""
    layers = ", ".join(f"{count} × {name}" for name, count in option_counts(caches).items())
    return f"{size:,} B at {load.context:,} tokens × {sequences}{shared}; layers: {layers}"


def _kind(shipment: Shipment) -> str:
    """Say whether the numbers below are those of the file: artefact or recipe."""
    if shipment.space.target.types:
        return (
            "The GGUF file is an **artefact**: it holds the very blocks that were measured. Rules for "
            "`llama-quantize` are a **recipe**: it quantizes again, so verify what it makes."
        )
    return (
        "The plan is a **recipe**: a tool that carries it out quantizes again, and what it makes has to be "
        "measured again. The losses below are those of Tightfit's own packing."
    )


def _formats(shipment: Shipment) -> Iterator[str]:
    """Formats by kind of layer, in depth order."""
    geometry, kinds = shipment.space.geometry, dict[str, Counter[str]]()
    sizes: Counter[str] = Counter()
    ggml = False
    for site, option in shipment.space.site_options(shipment.plan).items():
        linear = geometry.linear(site)
        kinds.setdefault(linear.module, Counter())[option.name] += 1
        sizes[linear.module] += option.tensor_bytes(linear.rows, linear.cols)
        ggml |= isinstance(option, GgmlOption)
    yield "## What is stored how"
    yield ""
    rows = [
        (f"`{kind}`", ", ".join(f"{n} × {name}" for name, n in counts.most_common()), f"{sizes[kind]:,}")
        for kind, counts in kinds.items()
    ]
    rest = "F32" if ggml else geometry.dtype
    rows.append(("norms, biases, positions", rest, f"{shipment.space.fixed_bytes:,}"))
    yield from _table(("kind of layer", "formats", "bytes"), rows)


def _losses(shipment: Shipment) -> Iterator[str]:
    losses, text = shipment.facts.get("losses", ()), shipment.facts.get("text")
    if not losses or not text:
        return
    yield "## What it loses"
    yield ""
    yield (
        f"Mean KL divergence from the base model per token, in nats, on {text['split']} text that "
        f"{'no choice has seen' if text['split'] == 'holdout' else 'the search has seen'}: "
        f"{text['tokens']:,} tokens of {text['documents']} documents ({_safe(text['source'])}). "
        f"Errors are standard errors over documents; the base model's perplexity there is "
        f"{text['reference_perplexity']}."
    )
    yield ""
    header = ("plan", "bytes", "bits", "KL ± se", "paired difference", "perplexity", "top-1 agreement")
    yield from _table(header, [_loss_row(row, i == 0) for i, row in enumerate(losses)])


def _loss_row(row: Mapping[str, Any], own: bool) -> tuple[str, ...]:
    bits = row.get("effective_bits")
    return (
        "**this plan**" if own else _safe(row["label"]),
        f"{row['weight_bytes']:,}",
        "" if bits is None else f"{bits:.3f}",
        row["loss"],
        row.get("more", ""),
        row["perplexity"],
        f"{row['agreement']:.1%}",
    )


def _certainty(shipment: Shipment) -> Iterator[str]:
    topics: Sequence[Sequence[str]] = shipment.facts.get("trust", ())
    if topics:
        yield "## How sure that is"
        yield ""
        yield from (f"- **{_safe(topic)}.** {_safe(sentence)}" for topic, sentence in topics)


def _hardware(shipment: Shipment) -> Iterator[str]:
    hardware: Mapping[str, Any] | None = shipment.facts.get("hardware")
    if hardware:
        yield "## How fast it is"
        yield ""
        first, *rivals = [[_safe(cell) for cell in row] for row in hardware["rows"]]
        yield from _table(hardware["header"], [["**this plan**", *first[1:]], *rivals])
        yield ""
        yield _safe(hardware["setting"]) + "."


def _files(shipment: Shipment) -> Iterator[str]:
    files: Sequence[Mapping[str, Any]] = shipment.facts.get("files", ())
    if files:
        yield "## Files"
        yield ""
        rows = [(f"`{file['name']}`", f"{file['bytes']:,}", f"`{file['sha256']}`") for file in files]
        yield from _table(("file", "bytes", "SHA-256"), rows)


def _again(shipment: Shipment) -> Iterator[str]:
    """The commands, and the settings that they need."""
    facts = shipment.facts
    if "settings" not in facts:
        return
    names = [str(file["name"]) for file in facts.get("files", ())]
    file = next((name for name in names if name.endswith(".gguf")), "plan.gguf")
    yield "## Make it again, and check it"
    yield ""
    yield "```console"
    yield "tightfit run search.yaml                     # with the settings below"
    if shipment.space.target.types:
        yield f"tightfit export RUN --to llama.cpp --plan {shipment.plan.short} --out {file}"
        yield f"tightfit verify {file} {facts['verify']}"
    else:
        yield f"tightfit export RUN --to json --plan {shipment.plan.short} --out plan.json"
    if shipment.space.has_kv:
        yield f"tightfit export RUN --to transformers-kv --plan {shipment.plan.short} --out plan.kv"
    yield "```"
    yield ""
    if versions := facts.get("versions"):
        yield "Made with " + ", ".join(f"{key} {_safe(value)}" for key, value in versions.items()) + "."
        yield ""
    yield "```yaml"
    yield "# search.yaml: JSON is YAML too"
    yield json.dumps(facts["settings"], indent=2, ensure_ascii=False).replace("```", "'''")
    yield "```"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(header) + " |"
    yield "|" + " --- |" * len(header)
    yield from ("| " + " | ".join(row) + " |" for row in rows)


def _safe(value: object) -> str:
    """Write text of a user or a file so that it is neither markup nor the end of a cell."""
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", " ".join(str(value).split())).replace("<", "&lt;")
