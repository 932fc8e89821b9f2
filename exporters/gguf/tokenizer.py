"""The tokenizer of a file: its tokens, how they merge, and which of them are special.

Read as Transformers builds it, because that is the one whose tokens were measured. llama.cpp has two
kinds for the supported families: ``gpt2``, byte-pair merges over bytes, and ``llama``, SentencePiece's
merges over characters with bytes as a last resort.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tightfit.exporters.gguf.characters import SPACE, joining_ranks, space_in_front
from tightfit.exporters.gguf.pretokenizers import recognize
from tightfit.spaces import InputError

# Types of a token, as in ``llama_token_type`` of llama.cpp's ``include/llama.h``.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
# Score of what no merge makes; merges count down from 0.
_NO_SCORE = -1e6


@dataclass(frozen=True)
class Vocabulary:
    """What llama.cpp is told about a tokenizer.

    Attributes:
        model: llama.cpp's kind of tokenizer.
        pre: its name for how text is cut into words.
        tokens: by id, one for every row of the embedding.
        types: of every token.
        merges: pairs of tokens that join, the earliest first; for ``gpt2``.
        scores: of every token, the highest joins first; for ``llama``.
        special: ``bos``, ``eos``, ``unk``, ``pad`` → id, as far as they exist.
        add_bos, add_eos: whether a text gets them.
        add_space: whether a text gets a space in front; for ``llama``.
        chat_template: in Jinja, or several by name; None where there is none.
    """

    model: Literal["gpt2", "llama"]
    pre: str
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...]
    scores: tuple[float, ...]
    special: Mapping[str, int]
    add_bos: bool
    add_eos: bool
    add_space: bool
    chat_template: str | Mapping[str, str] | None


def read_vocabulary(folder: Path, config: Any, size: int) -> Vocabulary:
    """Read the tokenizer of a model folder.

    Args:
        folder: with ``tokenizer.json`` or whatever else Transformers builds a tokenizer from.
        config: the model's configuration, for special tokens that the tokenizer does not name.
        size: number of tokens that the model has weights for.

    Raises:
        InputError: there is no tokenizer, or llama.cpp has none that does the same.
    """
    tokenizer = _load(folder)
    backend = tokenizer.backend_tokenizer
    state = json.loads(backend.to_str())
    model, special = state["model"], _special(tokenizer, config, size)
    if model["type"] != "BPE" or model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        raise InputError(f"{folder}: llama.cpp has no tokenizer like this one of type {model['type']}.")
    core = _over_characters if model.get("byte_fallback") else _over_bytes
    add_bos, add_eos = _frame(tokenizer, special)
    return Vocabulary(
        special=special,
        add_bos=add_bos,
        add_eos=add_eos,
        chat_template=tokenizer.chat_template or None,
        **core(folder, backend, state, size, special.get("unk")),
    )


def write_vocabulary(writer: Any, vocabulary: Vocabulary) -> None:
    """Add a tokenizer to a ``gguf.GGUFWriter``."""
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    writer.add_token_merges(vocabulary.merges)  # nothing is added for an empty list
    writer.add_token_scores(vocabulary.scores)
    for name, index in vocabulary.special.items():
        getattr(writer, f"add_{name}_token_id")(index)
    writer.add_add_bos_token(vocabulary.add_bos)
    writer.add_add_eos_token(vocabulary.add_eos)
    writer.add_add_space_prefix(vocabulary.add_space)
    template = vocabulary.chat_template
    if isinstance(template, str):
        writer.add_chat_template(template)
    elif template:
        writer.add_chat_template([{"name": name, "template": text} for name, text in template.items()])


def _over_bytes(
    folder: Path, backend: Any, state: Mapping[str, Any], size: int, _: int | None
) -> dict[str, Any]:
    """Return what makes a vocabulary of the kind ``gpt2``."""
    if (state["normalizer"] or {}).get("type", "NFC") != "NFC":  # llama.cpp takes text as it comes
        raise InputError(f"{folder}: llama.cpp does not change text as this tokenizer's normalizer does.")
    model = state["model"]
    pre = recognize(backend.pre_tokenizer, bool(model.get("ignore_merges")))
    tokens, types = _tokens(state, size)
    merges = tuple(" ".join(pair) for pair in _merges(model))
    return {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "types": types,
        "merges": merges,
        "scores": (),
        "add_space": False,
    }


def _over_characters(
    folder: Path, backend: Any, state: Mapping[str, Any], size: int, unknown: int | None
) -> dict[str, Any]:
    """Return what makes a vocabulary of the kind ``llama``."""
    add_space = space_in_front(backend, folder)
    tokens, types = _tokens(state, size, unknown)
    normal = {token for token, kind in zip(tokens, types, strict=True) if kind == NORMAL}
    ranks = joining_ranks(normal, _merges(state["model"]), folder)
    return {
        "model": "llama",
        "pre": "default",
        "tokens": tokens,
        "types": types,
        "merges": (),
        "scores": tuple(float(-ranks[token]) if token in ranks else _NO_SCORE for token in tokens),
        "add_space": add_space,
    }


def _merges(model: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in model["merges"]]


def _load(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InputError(f"{folder}: its tokenizer cannot be read ({reason}).") from error
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise InputError(f"{folder}: its tokenizer is of a kind that llama.cpp has none like.")
    return tokenizer


def _special(tokenizer: Any, config: Any, size: int) -> dict[str, int]:
    found = {}
    for name in ("bos", "eos", "unk", "pad"):
        index = getattr(tokenizer, f"{name}_token_id", None)
        if index is None:
            index = getattr(config, f"{name}_token_id", None)
        index = index[0] if isinstance(index, list) and index else index
        if isinstance(index, int) and 0 <= index < size:
            found[name] = index
    return found


def _frame(tokenizer: Any, special: Mapping[str, int]) -> tuple[bool, bool]:
    """Return whether a text gets a first and a last token, by looking at one."""
    inner = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    more = len(whole) - len(inner)
    first = more > 0 and whole[0] == special.get("bos")
    return first, more - first > 0 and whole[-1] == special.get("eos")


def _tokens(
    state: Mapping[str, Any], size: int, unknown: int | None = None
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return text and type of every id; tokens beyond the embedding are left out, holes filled."""
    by_id = {index: token for token, index in state["model"]["vocab"].items()}
    added = {x["id"]: x for x in state["added_tokens"]}
    seen = {*by_id.values(), *(x["content"] for x in added.values())}
    fallback = bool(state["model"].get("byte_fallback"))
    tokens, types = [], []
    for index in range(size):
        kind = NORMAL
        if index in added:
            token, special = added[index]["content"], added[index]["special"]
            # llama.cpp looks for such tokens in the text as it is given.
            token, kind = (token, CONTROL) if special else (token.replace(SPACE, " "), USER_DEFINED)
        elif index in by_id:
            token = by_id[index]
            kind = BYTE if fallback and _BYTE.fullmatch(token) else NORMAL
        else:
            token, kind = f"[PAD{index}]", UNUSED
            token += SPACE if token in seen else ""
        tokens.append(token)
        types.append(UNKNOWN if index == unknown else kind)
    if len(set(tokens)) != size:
        raise InputError("tokenizer.json: two tokens have the same text, which llama.cpp does not take.")
    return tuple(tokens), tuple(types)
