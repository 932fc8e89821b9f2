from __future__ import annotations

import re

from tightfit.ui.style import HEAD, STYLE, theme


def test_nothing_is_fetched_from_elsewhere() -> None:
    made = theme()
    assert made._stylesheets == []
    assert made._font_css == []
    assert "http" not in STYLE + HEAD
    assert "url(" not in STYLE


def test_generic_fonts_are_not_quoted_as_names() -> None:
    assert theme().font.startswith("system-ui, ")
    assert theme().font_mono.startswith("ui-monospace, ")


def test_every_colour_has_a_dark_one() -> None:
    light, dark = re.findall(r"^body(?:\.dark)? \{(.*?)\}", STYLE, re.DOTALL | re.MULTILINE)
    names = lambda block: re.findall(r"(--tf-\w+):", block)
    assert names(light) == names(dark)
    assert set(re.findall(r"var\((--tf-\w+)\)", STYLE)) <= set(names(light))
