"""Vocabularies: tokens, types, special ones, and the same tokens in llama.cpp."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import pytest
from tests.exporters.gguf.tiny import VOCAB, byte_tokenizer, save_tokenizer, ship, texts, tokenize
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoTokenizer

from tightfit.exporters.gguf import export
from tightfit.exporters.gguf.tokenizer import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Vocabulary,
    read_vocabulary,
)
from tightfit.spaces import InputError

TEXTS = ["", "Hello world", "two  spaces\nand\ttabs  ", "12345 3.14 é 我 🚀", "a ▁ b"]
_SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def test_tokens_types_and_special_tokens_of_a_byte_level_tokenizer(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    size = tokenizer.get_vocab_size()
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    save_tokenizer(tokenizer, tmp_path)
    vocabulary = _read(tmp_path, VOCAB)
    assert vocabulary.model == "gpt2"
    assert vocabulary.types[0] == CONTROL
    assert vocabulary.types[1:size] == (NORMAL,) * (size - 1)
    assert (vocabulary.tokens[size], vocabulary.types[size]) == ("<tool>", USER_DEFINED)
    assert vocabulary.types[size + 1 :] == (UNUSED,) * (VOCAB - size - 1)
    assert len(set(vocabulary.tokens)) == VOCAB
    assert vocabulary.special == {"bos": 0, "eos": 0}
    assert not vocabulary.add_bos
    assert list(vocabulary.merges) == [
        " ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]
    ]


def test_special_tokens_that_only_the_config_names_are_taken_from_there(tmp_path: Path) -> None:
    save_tokenizer(byte_tokenizer(), tmp_path, pad_token="<|end|>")
    config = SimpleNamespace(bos_token_id=7, eos_token_id=[9, 8], pad_token_id=3)
    assert read_vocabulary(tmp_path, config, VOCAB).special == {"bos": 7, "eos": 9, "pad": 0}


def test_tokens_without_an_embedding_are_left_out(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(["<image>"])
    save_tokenizer(tokenizer, tmp_path)
    assert "<image>" not in _read(tmp_path, tokenizer.get_vocab_size() - 1).tokens


@pytest.mark.parametrize("template", ["{{ messages }}", {"default": "{{ a }}", "tools": "{{ b }}"}, None])
def test_the_chat_template_is_kept(template: Any, folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folder_of("llama"), tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    fields = gguf.GGUFReader(export(ship(folder), tmp_path / "model.gguf")).fields
    found = {name: field.contents() for name, field in fields.items() if "chat_template" in name}
    if isinstance(template, dict):
        assert found["tokenizer.chat_template"] == "{{ a }}"
        assert found["tokenizer.chat_template.tools"] == "{{ b }}"
    else:
        assert found.get("tokenizer.chat_template") == template


@pytest.mark.parametrize(
    ("single", "adds"),
    [("<|end|> $A", (True, False)), ("<|end|> $A <|end|>", (True, True)), ("$A", (False, False))],
)
def test_tokens_around_a_text_are_added_in_llama_cpp_too(
    single: str, adds: tuple[bool, bool], folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(folder_of("llama"), tmp_path / "model")
    tokenizer = byte_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(single, special_tokens=[("<|end|>", 0)])
    save_tokenizer(tokenizer, folder)
    vocabulary = _read(folder, VOCAB)
    assert (vocabulary.add_bos, vocabulary.add_eos) == adds
    reference = AutoTokenizer.from_pretrained(folder)
    path = export(ship(folder), tmp_path / "model.gguf")
    assert tokenize(path, TEXTS) == [reference(text)["input_ids"] for text in TEXTS]


@pytest.mark.parametrize("kind", ["llama", "gemma", "metaspace"])
def test_llama_cpp_makes_the_same_tokens_of_characters(
    kind: str, folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(folder_of("llama"), tmp_path / "model")
    save_tokenizer(_character_tokenizer(kind), folder, **_SPECIAL)
    vocabulary = _read(folder, VOCAB)
    assert (vocabulary.model, vocabulary.add_space) == ("llama", kind != "gemma")
    assert vocabulary.types[:4] == (UNKNOWN, CONTROL, CONTROL, BYTE)
    assert vocabulary.types[258:260] == (BYTE, NORMAL)
    reference = AutoTokenizer.from_pretrained(folder)
    path, cases = export(ship(folder), tmp_path / "model.gguf"), [*TEXTS, *texts()[:5]]
    assert tokenize(path, cases) == [reference(text)["input_ids"] for text in cases]


def test_merges_that_leave_out_a_pair_are_refused(tmp_path: Path) -> None:
    tokenizer = _character_tokenizer("gemma", complete=False)
    save_tokenizer(tokenizer, tmp_path, **_SPECIAL)
    with pytest.raises(
        InputError, match=r"llama.cpp would join .* to a token, which this tokenizer does not"
    ):
        _read(tmp_path, VOCAB)


def test_characters_cut_in_another_way_are_refused(tmp_path: Path) -> None:
    tokenizer = _character_tokenizer("gemma")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.NFKC()])
    save_tokenizer(tokenizer, tmp_path, **_SPECIAL)
    with pytest.raises(InputError, match="does not cut text as this tokenizer with bytes as fallback does"):
        _read(tmp_path, VOCAB)


def test_text_that_is_changed_first_is_refused_but_for_composing_characters(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.normalizer = normalizers.NFC()
    save_tokenizer(tokenizer, tmp_path)
    assert _read(tmp_path, VOCAB).pre == "gpt-2"
    tokenizer.normalizer = normalizers.Lowercase()
    save_tokenizer(tokenizer, tmp_path)
    with pytest.raises(InputError, match="does not change text as this tokenizer's normalizer does"):
        _read(tmp_path, VOCAB)


def test_other_kinds_of_tokenizers_are_refused(tmp_path: Path) -> None:
    save_tokenizer(Tokenizer(models.WordLevel({"<|end|>": 0, "a": 1}, unk_token="<|end|>")), tmp_path)
    with pytest.raises(InputError, match="no tokenizer like this one of type WordLevel"):
        _read(tmp_path, VOCAB)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="its tokenizer cannot be read"):
        _read(tmp_path, VOCAB)


def _read(folder: Path, size: int) -> Vocabulary:
    return read_vocabulary(folder, SimpleNamespace(), size)


def _character_tokenizer(kind: str, complete: bool = True) -> Tokenizer:
    """A tokenizer as the conversion from SentencePiece makes it, or one that lacks a merge."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(texts()[:60], trainers.BpeTrainer(vocab_size=60, show_progress=False))
    state = json.loads(trained.to_str())["model"]
    pieces = sorted(state["vocab"], key=state["vocab"].get)
    joined = [piece for piece in pieces if len(piece) > 1]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *joined]
    tokens += [piece for piece in pieces if len(piece) == 1]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pairs = [(token[:cut], token[cut:]) for token in joined for cut in range(1, len(token))]
    pairs = [pair for pair in pairs if pair[0] in vocabulary and pair[1] in vocabulary]
    merges = pairs if complete else pairs[:-1]
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    )
    if kind == "llama":
        steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        tokenizer.normalizer = normalizers.Sequence(steps)
    elif kind == "gemma":
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer
