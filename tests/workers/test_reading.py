import json
import sys
from dataclasses import dataclass

import pytest

from tightfit.spaces import InputError
from tightfit.workers.reading import (
    CHUNK_CHARACTERS,
    Document,
    read_dataset,
    read_documents,
    split_paragraphs,
)

WIKITEXT = """
 = Homarus gammarus =

 The European lobster .

 = = Description = =

 It has two claws .

 = Dick Rifenburg =

 An American football player .
"""


@dataclass
class Source:
    id: str
    config: str | None = None
    split: str = "train"
    column: str = "text"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_python_docs_are_one_document_per_topic_in_a_fixed_order():
    documents = read_documents("python-docs")
    names = [document.id for document in documents]
    assert names == sorted(names)
    assert "typesseq" in names
    assert all(document.text.strip() for document in documents)


def test_wikitext_is_split_at_titles_and_not_at_sections(tmp_path):
    documents = read_documents(write(tmp_path / "valid.txt", WIKITEXT))
    assert len(documents) == 2
    assert "Description" in documents[0].text
    assert "football" in documents[1].text


def test_text_before_the_first_title_is_a_document(tmp_path):
    documents = read_documents(write(tmp_path / "valid.txt", "A preface .\n" + WIKITEXT))
    assert [document.text.split()[0] for document in documents] == ["A", "=", "="]


def test_other_text_is_grouped_into_runs_of_whole_paragraphs(tmp_path):
    paragraphs = [f"{i} " + "word " * 100 for i in range(20)]
    documents = read_documents(write(tmp_path / "book.txt", "\n\n".join(paragraphs)))
    assert [p.rstrip() for p in paragraphs] == [p for d in documents for p in split_paragraphs(d.text)]
    assert all(CHUNK_CHARACTERS <= len(d.text) < CHUNK_CHARACTERS + 600 for d in documents[:-1])
    assert len({document.id for document in documents}) == len(documents) > 3


def test_jsonl_lines_are_documents(tmp_path):
    lines = [json.dumps({"text": text, "more": 1}) for text in ("first", "second\u2028line")]
    path = write(tmp_path / "some.jsonl", "\n\n".join(lines) + "\n")
    assert read_documents(path) == [
        Document("some.jsonl#1", "first"),
        Document("some.jsonl#3", "second\u2028line"),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: is not valid JSON"),
        ('{"body": "x"}', "line 2: .*'text'"),
        ('{"text": 3}', "line 2: .*'text'"),
        ("[]", "line 2"),
    ],
)
def test_bad_jsonl_names_its_line(tmp_path, line, message):
    path = write(tmp_path / "some.jsonl", '{"text": "fine"}\n' + line)
    with pytest.raises(InputError, match=message):
        read_documents(path)


def test_folder_gives_one_document_per_file_with_distinct_ids(tmp_path):
    write(tmp_path / "a" / "same.md", "first")
    write(tmp_path / "b" / "same.md", "second")
    write(tmp_path / "c.txt", WIKITEXT)
    write(tmp_path / "b" / "rows.jsonl", '{"text": "third"}')
    write(tmp_path / "ignored.csv", "1,2")
    documents = read_documents(str(tmp_path))
    assert [document.id for document in documents] == ["a/same.md", "b/rows.jsonl#1", "b/same.md", "c.txt"]


@pytest.mark.parametrize("name", ["empty.txt", "empty.jsonl"])
def test_empty_text_is_refused_by_name(tmp_path, name):
    with pytest.raises(InputError, match=rf"{name}.*no text"):
        read_documents(write(tmp_path / name, " \n\n"))


def test_folder_without_text_is_refused(tmp_path):
    with pytest.raises(InputError, match="no text"):
        read_documents(str(tmp_path))


def test_text_that_is_not_utf8_is_refused_by_name(tmp_path):
    (tmp_path / "latin.txt").write_bytes("grün".encode("latin-1"))
    with pytest.raises(InputError, match=r"latin\.txt.*not UTF-8 \(byte 2\)"):
        read_documents(str(tmp_path / "latin.txt"))


def test_missing_text_is_refused_with_the_nearest_name():
    with pytest.raises(InputError, match=r"neither.*Did you mean 'python-docs'"):
        read_documents("python_docs")


def test_other_files_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"only \.txt"):
        read_documents(write(tmp_path / "text.parquet", "x"))


def test_paragraphs_keep_their_indentation():
    text = "\n\n  if x:\n      y\n   \n\n\n    z  \n\n"
    assert split_paragraphs(text) == ["  if x:\n      y", "    z"]


def test_dataset_without_its_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"tightfit\[data\]"):
        read_dataset(Source("some-org/some-data"))


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """Write rows into a local dataset folder and return its path."""
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def make(column, texts):
        rows = "\n".join(json.dumps({column: text}) for text in texts)
        write(tmp_path / "data" / "train.jsonl", rows)
        return str(tmp_path / "data")

    return make


def test_dataset_rows_are_documents(dataset):
    folder = dataset("body", ["first", "", "second"])
    assert [d.text for d in read_dataset(Source(folder, column="body"))] == ["first", "second"]


def test_dataset_of_wikitext_lines_is_put_together_into_articles(dataset):
    folder = dataset("text", WIKITEXT.splitlines(keepends=True))
    assert len(read_dataset(Source(folder))) == 2


def test_dataset_with_another_column_names_the_columns(dataset):
    folder = dataset("text", ["first"])
    with pytest.raises(InputError, match=r"'texts' holds no text \(columns: text\).*Did you mean 'text'"):
        read_dataset(Source(folder, column="texts"))


def test_dataset_with_another_split_is_refused(dataset):
    folder = dataset("text", ["first"])
    with pytest.raises(InputError, match="could not be read"):
        read_dataset(Source(folder, split="validation"))
