import os
from pathlib import Path

import pytest

from tightfit.workers.llamacpp.engine import Engine, RefusedError, TooLongError, _strip
from tightfit.workers.llamacpp.library import load_library


def engine(path: Path, context: int = 64) -> Engine:
    return Engine(load_library(), str(path), context, threads=1, scoring=False)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "failed to read magic"),
        (b"no such format" * 9, "invalid magic characters: 'no s'"),
        (None, "data is not within the file bounds"),
    ],
)
def test_a_broken_file_is_refused_with_the_reason_of_llama_cpp(content, reason, float_file, tmp_path):
    path = tmp_path / "broken.gguf"
    path.write_bytes(float_file.read_bytes()[:-1000] if content is None else content)
    with pytest.raises(RefusedError, match=reason) as caught:
        engine(path)
    assert "failed to load model" not in str(caught.value)


def test_an_error_is_told_once(float_file, tmp_path):
    with pytest.raises(RefusedError, match="No such file"):
        engine(tmp_path / "nowhere.gguf")
    assert load_library().reason() == "it gives no reason"
    engine(float_file).close()


def test_more_positions_than_the_model_knows_are_refused(float_file):
    with pytest.raises(TooLongError, match="it knows 64 positions, and 65 are asked for"):
        engine(float_file, 65)


def test_more_tokens_than_the_context_are_refused(float_file):
    loaded = engine(float_file, 16)
    with pytest.raises(RefusedError, match="could not compute 16 tokens"):
        fill(loaded)
    loaded.clear()
    loaded.decode(list(range(16)))
    loaded.close()


def fill(loaded: Engine) -> None:
    for _ in range(1000):  # llama.cpp rounds contexts up
        loaded.decode(list(range(16)))


def test_tokens_one_by_one_give_what_all_at_once_give(float_file):
    ids = [5, 300, 17, 4, 4, 511]
    loaded = Engine(load_library(), str(float_file), 64, threads=1, scoring=True)
    loaded.decode(ids)
    last = loaded.logits()[(len(ids) - 1) * loaded.vocab : len(ids) * loaded.vocab]
    loaded.clear()
    for token in ids:
        loaded.decode([token])
    assert loaded.logits()[: loaded.vocab] == pytest.approx(last, abs=1e-4)
    loaded.close()


def test_memory_is_given_back(float_file):
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    if not Path("/proc/self/statm").exists():
        pytest.skip("needs /proc")
    for _ in range(3):
        engine(float_file).close()
    before = resident()
    for _ in range(40):
        engine(float_file).close()
    assert resident() - before < 40 * float_file.stat().st_size / 4


def test_what_llama_cpp_logs_names_no_functions():
    assert _strip("llama_model_load: error loading model: missing tensor 'x'") == "missing tensor 'x'"
    assert _strip("gguf_init_from_reader: failed to read magic\n") == "failed to read magic"
