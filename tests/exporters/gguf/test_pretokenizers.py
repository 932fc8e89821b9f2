"""Cutting text into words: recognized, told apart, and the same in llama.cpp."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from tests.exporters.gguf.tiny import byte_tokenizer, save_tokenizer, ship, texts, tokenize
from tokenizers import Regex, Tokenizer, pre_tokenizers
from transformers import AutoTokenizer

from tightfit.exporters.gguf import export
from tightfit.exporters.gguf.pretokenizers import PROBE, WORDS, Words, build, recognize
from tightfit.spaces import InputError

TEXTS = ["", " ", "Hello world", " two  spaces\n\nand\ttabs  ", "I'll DON'T 12345 3.14", PROBE]


@pytest.mark.parametrize("words", WORDS, ids=lambda words: words.name)
def test_llama_cpp_makes_the_same_tokens(
    words: Words, folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(folder_of("llama"), tmp_path / "model")
    save_tokenizer(_with_whole_words(byte_tokenizer(build(words)), words.whole), folder)
    path = export(ship(folder), tmp_path / "model.gguf")
    assert gguf.GGUFReader(path).fields["tokenizer.ggml.pre"].contents() == words.name
    tokenizer = AutoTokenizer.from_pretrained(folder)
    cases = [*TEXTS, *texts()[:5]]
    assert tokenize(path, cases) == [tokenizer(text)["input_ids"] for text in cases]


def test_the_probe_tells_them_apart() -> None:
    for one, other in itertools.combinations(WORDS, 2):
        same = build(one).pre_tokenize_str(PROBE) == build(other).pre_tokenize_str(PROBE)
        assert same == ({one.name, other.name} == {"llama-bpe", "dbrx"})


def test_another_spelling_of_the_same_rule_is_recognized() -> None:
    pattern = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    spelled = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    assert recognize(spelled, whole=False) == "gpt-2"


@pytest.mark.parametrize(
    "unknown",
    [
        None,
        pre_tokenizers.Whitespace(),
        pre_tokenizers.ByteLevel(add_prefix_space=True),
        pre_tokenizers.Sequence([pre_tokenizers.Punctuation(), pre_tokenizers.ByteLevel(False)]),
    ],
)
def test_an_unknown_way_is_refused_with_the_known_ones(unknown: pre_tokenizers.PreTokenizer | None) -> None:
    with pytest.raises(InputError, match=r"not known to have \(known: gpt-2, smollm, llama-bpe"):
        recognize(unknown, whole=False)


def _with_whole_words(tokenizer: Tokenizer, whole: bool) -> Tokenizer:
    state = json.loads(tokenizer.to_str())
    state["model"]["ignore_merges"] = whole
    return Tokenizer.from_str(json.dumps(state))
