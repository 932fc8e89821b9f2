"""Handing a plan to the tools that carry it out.

One module per downstream tool. It writes the tool's own file, checks it under that tool's matching
rules, and is held to what :mod:`tightfit.exporters.verify` reads back from what was written, never to
what a tool says about itself. An exporter says what it writes: an *artefact* holds the very weights or
caches that were measured; a *recipe* hands rules to a tool that quantizes again, so that its loss is not
the measured one; a *document* is for people. It may import ``spaces`` and ``compress``; weights come
through a :class:`Source`, a loss through a callable. Those for KV caches are in :mod:`tightfit.exporters.kv`.

To add an exporter, write one file with an ``export(shipment, out)`` function and one line in
:data:`EXPORTERS`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from tightfit.exporters.base import Shipment, Source
from tightfit.spaces import InputError, Space


@dataclass(frozen=True)
class Exporter:
    """One way to write a plan.

    Attributes:
        kind: ``artefact``, ``recipe`` or ``document``, as above.
        suffix: of the file or folder it writes.
        function: ``module:function``, imported when used.
        tool: who reads the file.
        about: what it is for, in one line.
        target: name of the target whose plans it can carry out; None where it takes any plan.
        needs_source: whether it reads the model's files and matrices, and not only the plan.
        needs_kv: whether it is about KV caches, so that a plan has to decide about them.
        folder: whether it writes a folder and not a file.
        beside: endings of further files, which take the place of the suffix.
        after: ``module:function`` that says, from shipment and file, how to go on; one line each.
        aliases: other words that people look for it under.
    """

    kind: Literal["artefact", "recipe", "document"]
    suffix: str
    function: str
    tool: str
    about: str
    target: str | None = None
    needs_source: bool = False
    needs_kv: bool = False
    folder: bool = False
    beside: tuple[str, ...] = ()
    after: str | None = None
    aliases: tuple[str, ...] = ()

    def export(self, shipment: Shipment, out: Path) -> Path:
        """Write the plan and return the path written.

        Raises:
            InputError: the tool cannot express such a plan, or the file cannot be written.
        """
        self.check_space(shipment.space)
        if out.is_dir() and not self.folder:
            raise InputError(f"{out} is a folder: name the file to write.")
        function: Callable[[Shipment, Path], Path] = _load(self.function)
        return function(shipment, out)

    def files(self, out: Path) -> list[Path]:
        """Return every file, or the folder, that an export to ``out`` writes."""
        return [out, *(out.with_name(out.stem + ending) for ending in self.beside)]

    def advice(self, shipment: Shipment, out: Path) -> list[str]:
        """Return lines that say how to go on with what was written."""
        if self.after is None:
            return []
        function: Callable[[Shipment, Path], list[str]] = _load(self.after)
        return function(shipment, out)

    def check_target(self, target: str) -> None:
        """Refuse plans for another target: they hold options that the tool cannot express.

        Raises:
            InputError: the plan was searched for another target.
        """
        if self.target is not None and target != self.target:
            raise InputError(
                f"{self.tool} cannot express a plan for target {target}: search with target: {self.target}, "
                "or export it with --to json."
            )

    def check_space(self, space: Space) -> None:
        """Refuse plans of a space that the tool cannot express, or that say nothing about what it stores.

        Raises:
            InputError: the space is for another target, or decides about weights only.
        """
        self.check_target(space.target.name)
        if self.needs_kv:
            from tightfit.exporters.kv.layers import load_of

            load_of(space)

    def to_dict(self) -> dict[str, Any]:
        """Return what there is to know about it as plain data."""
        hidden = ("function", "needs_source", "needs_kv", "folder", "beside", "after", "aliases")
        return {key: value for key, value in asdict(self).items() if key not in hidden}


EXPORTERS: dict[str, Exporter] = {
    "json": Exporter(
        "recipe",
        ".json",
        "tightfit.exporters.plan_json:export",
        "any script",
        "every site's format with exact bytes",
        aliases=("plan",),
    ),
    "llama.cpp": Exporter(
        "artefact",
        ".gguf",
        "tightfit.exporters.gguf:export",
        "llama.cpp",
        "the compressed model in one file, ready to run",
        target="llama.cpp",
        needs_source=True,
        aliases=("gguf", "llamacpp", "llama", "ollama"),
    ),
    "llama.cpp-rules": Exporter(
        "recipe",
        ".txt",
        "tightfit.exporters.llamacpp_rules:export",
        "llama-quantize",
        "tensor types and importances for quantizing yourself",
        target="llama.cpp",
        needs_source=True,
        beside=(".imatrix.gguf",),
        after="tightfit.exporters.llamacpp_rules:summary",
        aliases=("rules", "llama-quantize", "imatrix", "gguf-rules"),
    ),
    "transformers-kv": Exporter(
        "artefact",
        ".kv",
        "tightfit.exporters.kv.cache_folder:export",
        "Transformers",
        "the KV caches as measured, and the code they need",
        needs_kv=True,
        folder=True,
        after="tightfit.exporters.kv.cache_folder:summary",
        aliases=("transformers", "kv", "kvcache", "cache"),
    ),
    "kvpress": Exporter(
        "recipe",
        ".press.json",
        "tightfit.exporters.kv.kvpress:export",
        "kvpress",
        "the share of cached tokens that every layer evicts",
        needs_kv=True,
        after="tightfit.exporters.kv.kvpress:summary",
        aliases=("press", "snapkv"),
    ),
    "vllm-kv": Exporter(
        "recipe",
        ".vllm.json",
        "tightfit.exporters.kv.vllm:export",
        "vLLM",
        "arguments for its KV cache, some layers at 16 bits",
        needs_kv=True,
        after="tightfit.exporters.kv.vllm:summary",
        aliases=("vllm",),
    ),
    "llama.cpp-kv": Exporter(
        "recipe",
        ".llama.json",
        "tightfit.exporters.kv.llamacpp:export",
        "llama.cpp",
        "arguments for its KV cache, all layers alike",
        needs_kv=True,
        after="tightfit.exporters.kv.llamacpp:summary",
        aliases=("llamacpp-kv", "gguf-kv"),
    ),
    "card": Exporter(
        "document",
        ".md",
        "tightfit.exporters.card:export",
        "people, hubs",
        "the model card: sizes, losses, how to make it again",
        aliases=("readme", "model-card", "markdown"),
    ),
}
"""Name on the command line → exporter."""


def get_exporter(name: str) -> Exporter:
    """Return an exporter by its name.

    Raises:
        InputError: there is no such exporter.
    """
    if name not in EXPORTERS:
        allowed = ", ".join(EXPORTERS)
        raise InputError(f"no exporter is called {name!r} (exporters: {allowed}).{_hint(name)}")
    return EXPORTERS[name]


def _load(function: str) -> Any:
    module, _, name = function.partition(":")
    return getattr(import_module(module), name)


def _hint(name: str) -> str:
    """Suggest the exporter that a wrong name comes nearest to, or is another word for."""
    words = {alias: key for key, exporter in EXPORTERS.items() for alias in (key, *exporter.aliases)}
    near = difflib.get_close_matches(name.lower(), list(words), n=1, cutoff=0.6)
    return f" Did you mean {words[near[0]]!r}?" if near else ""


__all__ = ["EXPORTERS", "Exporter", "Shipment", "Source", "get_exporter"]
