from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tightfit.compress import PackedTensor, compress_matrix
from tightfit.spaces import WeightOption
from tightfit.workers.option_cache import OptionCache

SHAPE = (8, 64)
OPTION = WeightOption(4, 32, "float")


def packed(site: str, option: WeightOption = OPTION) -> PackedTensor:
    weight = torch.randn(SHAPE, generator=torch.Generator().manual_seed(sum(site.encode())))
    return compress_matrix(weight, option, None)


def equal(a: PackedTensor, b: PackedTensor) -> bool:
    x, y = a.tensors(), b.tensors()
    same = set(x) == set(y) and all(x[k].dtype == y[k].dtype and torch.equal(x[k], y[k]) for k in x)
    return same and (a.option, a.rows, a.cols) == (b.option, b.rows, b.cols)


class Quantizer:
    """Counts how often it is asked for each matrix."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def get(self, cache: OptionCache, site: str, option: WeightOption = OPTION) -> PackedTensor:
        def build() -> PackedTensor:
            self.made.append(site)
            return packed(site, option)

        return cache.get(site, option, SHAPE, build)


@pytest.fixture
def quantizer() -> Quantizer:
    return Quantizer()


@pytest.fixture
def size(tmp_path: Path, quantizer: Quantizer) -> int:
    """Bytes of one file."""
    cache = OptionCache(tmp_path / "one", 2**20)
    quantizer.get(cache, "a")
    quantizer.made.clear()
    return cache.nbytes


def names(folder: Path) -> set[str]:
    return {file.name.split(".")[0] for file in folder.glob("*.safetensors")}


@pytest.mark.parametrize(
    "option",
    [WeightOption(3, 32, "integer"), WeightOption(2, 0, "none"), OPTION, WeightOption(16), WeightOption(32)],
    ids=lambda option: option.name,
)
def test_what_is_read_back_is_what_was_made(
    option: WeightOption, tmp_path: Path, quantizer: Quantizer
) -> None:
    cache = OptionCache(tmp_path, 2**20)
    first, second = quantizer.get(cache, "a", option), quantizer.get(cache, "a", option)
    assert quantizer.made == ["a"]
    assert equal(first, packed("a", option))
    assert equal(second, first)
    assert torch.equal(second.dequantize(), first.dequantize())


def test_sites_and_options_are_kept_apart(tmp_path: Path, quantizer: Quantizer) -> None:
    cache = OptionCache(tmp_path, 2**20)
    asked = [(site, WeightOption(b, 32, "float")) for site in ("a", "a.b") for b in (3, 4)]
    for _ in range(2):
        for site, option in asked:
            assert equal(quantizer.get(cache, site, option), packed(site, option))
    assert quantizer.made == ["a", "a", "a.b", "a.b"]


def test_the_least_recently_used_file_goes_first(tmp_path: Path, quantizer: Quantizer, size: int) -> None:
    cache = OptionCache(tmp_path / "cache", 3 * size)
    for site in "abc":
        quantizer.get(cache, site)
    quantizer.get(cache, "a")
    quantizer.get(cache, "d")
    assert names(tmp_path / "cache") == {"a", "c", "d"}
    quantizer.get(cache, "b")
    assert names(tmp_path / "cache") == {"a", "b", "d"}
    assert quantizer.made == ["a", "b", "c", "d", "b"]


def test_the_files_never_take_more_than_the_cap(tmp_path: Path, quantizer: Quantizer, size: int) -> None:
    for cap in (0, 1, size - 1, size, 2 * size + 1):
        folder = tmp_path / str(cap)
        cache = OptionCache(folder, cap)
        for site in "abcabc":
            assert equal(quantizer.get(cache, site), packed(site))
            used = sum(file.stat().st_size for file in folder.iterdir())
            assert used == cache.nbytes <= cap
        assert len(names(folder)) == min(cap // size, 3)


def test_a_matrix_larger_than_the_cap_drives_nothing_out(
    tmp_path: Path, quantizer: Quantizer, size: int
) -> None:
    cache = OptionCache(tmp_path / "cache", size)
    quantizer.get(cache, "a")
    large = quantizer.get(cache, "b", WeightOption(32))
    assert equal(large, packed("b", WeightOption(32)))
    assert names(tmp_path / "cache") == {"a"}


def test_files_and_their_order_of_use_outlive_a_run(tmp_path: Path, quantizer: Quantizer, size: int) -> None:
    folder = tmp_path / "cache"
    first = OptionCache(folder, 3 * size)
    for site in "abc":
        quantizer.get(first, site)
    for age, site in enumerate("cba"):
        (file,) = folder.glob(f"{site}.*")
        os.utime(file, (1e9 - age, 1e9 - age))
    quantizer.get(first, "a")
    second = OptionCache(folder, 3 * size)
    assert second.nbytes == 3 * size
    assert equal(quantizer.get(second, "c"), packed("c"))
    assert quantizer.made == ["a", "b", "c"]
    third = OptionCache(folder, 2 * size)  # the cap may shrink between runs
    quantizer.get(third, "d")
    assert names(folder) == {"c", "d"}


def test_what_a_killed_writer_left_is_ignored_and_removed(tmp_path: Path, quantizer: Quantizer) -> None:
    name = f"a.{OPTION.name}.safetensors"
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True)
    dead, alive = tmp_path / f".{name}.{int(gone.stdout)}", tmp_path / f".{name}.{os.getppid()}"
    for partial in (dead, alive):
        partial.write_bytes(b"half of a file")
    cache = OptionCache(tmp_path, 2**20)
    assert cache.nbytes == 0
    assert not dead.exists()
    assert alive.exists()
    assert equal(quantizer.get(cache, "a"), packed("a"))
    assert equal(quantizer.get(cache, "a"), packed("a"))
    assert quantizer.made == ["a"]


def test_a_quantizer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    cache = OptionCache(tmp_path, 2**20)

    def fail() -> PackedTensor:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        cache.get("a", OPTION, SHAPE, fail)
    assert list(tmp_path.iterdir()) == []


def test_a_matrix_outlives_its_file(tmp_path: Path, quantizer: Quantizer, size: int) -> None:
    folder: Callable[[], set[str]] = lambda: names(tmp_path / "cache")
    cache = OptionCache(tmp_path / "cache", size)
    quantizer.get(cache, "a")
    mapped = quantizer.get(cache, "a")
    quantizer.get(cache, "b")
    assert folder() == {"b"}
    assert equal(mapped, packed("a"))


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in folder.iterdir()}


def test_a_reader_touches_nothing(tmp_path: Path, quantizer: Quantizer) -> None:
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True)
    writer = OptionCache(tmp_path, 2**20)
    quantizer.get(writer, "a")
    (tmp_path / f".b.{OPTION.name}.safetensors.{int(gone.stdout)}").write_bytes(b"half of a file")
    before = contents(tmp_path)
    reader = OptionCache(tmp_path, 0, writable=False)
    for site in "abab":
        assert equal(quantizer.get(reader, site), packed(site))
    assert quantizer.made == ["a", "b", "b"]
    assert contents(tmp_path) == before
    absent = tmp_path / "absent"
    assert equal(quantizer.get(OptionCache(absent, 2**20, writable=False), "a"), packed("a"))
    assert not absent.exists()


def test_a_reader_sees_what_is_written_and_deleted_later(tmp_path: Path, quantizer: Quantizer) -> None:
    reader, writer = OptionCache(tmp_path, 2**20, writable=False), OptionCache(tmp_path, 2**20)
    quantizer.get(writer, "a")
    assert equal(quantizer.get(reader, "a"), packed("a"))
    assert quantizer.made == ["a"]
    (tmp_path / f"a.{OPTION.name}.safetensors").unlink()
    assert equal(quantizer.get(reader, "a"), packed("a"))
    assert quantizer.made == ["a", "a"]


def test_a_file_that_somebody_else_deleted_is_made_again(
    tmp_path: Path, quantizer: Quantizer, size: int
) -> None:
    folder = tmp_path / "cache"
    cache = OptionCache(folder, 2 * size)
    quantizer.get(cache, "a")
    (folder / f"a.{OPTION.name}.safetensors").unlink()
    for _ in range(2):
        assert equal(quantizer.get(cache, "a"), packed("a"))
    assert quantizer.made == ["a", "a"]
    assert cache.nbytes == size
    (folder / f"a.{OPTION.name}.safetensors").unlink()
    quantizer.get(cache, "b")
    quantizer.get(cache, "c")  # drives out what is not there any more
    assert names(folder) == {"b", "c"}
