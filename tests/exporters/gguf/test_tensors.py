"""Order of the rows in which tensors are stored."""

from __future__ import annotations

import pytest

from tightfit.exporters.gguf.tensors import rotary_rows


@pytest.mark.parametrize(("heads", "width"), [(1, 4), (3, 64), (2, 6)])
def test_rows_that_rotate_together_become_neighbours(heads: int, width: int) -> None:
    rows = rotary_rows(heads, width)
    assert sorted(rows) == list(range(heads * width))
    for head in range(heads):
        part = rows[head * width : (head + 1) * width]
        assert list(part[::2]) == list(range(head * width, head * width + width // 2))
        assert list(part[1::2] - part[::2]) == [width // 2] * (width // 2)
