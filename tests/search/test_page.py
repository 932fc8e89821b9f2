from __future__ import annotations

from tightfit.search.figures import front_figure
from tightfit.search.page import Html, figure, page, table, tag


def test_tags_escape_texts_and_keep_markup() -> None:
    assert tag("p", "<b>", tag("b", "&"), None, class_='a"b', aria_label="x") == (
        '<p class="a&quot;b" aria-label="x">&lt;b&gt;<b>&amp;</b></p>'
    )
    assert isinstance(tag("p"), Html)


def test_tables_have_headings_both_ways_and_say_what_they_are() -> None:
    text = table("Sizes", ["What", "MiB"], [["a<b", "1"]], ["chosen"])
    assert '<th scope="row">a&lt;b</th><td>1</td>' in text
    assert '<tr class="chosen">' in text
    assert 'aria-label="Sizes"' in text


def test_a_figure_brings_no_library_of_its_own() -> None:
    text = figure("empty", front_figure([]), "Nothing yet")
    assert len(text) < 20_000
    assert "<figcaption>Nothing yet</figcaption>" in text
    assert text in page("x", text)


def test_no_figure_offers_to_upload_itself() -> None:
    assert '"sendChartToCloud"' in figure("front", front_figure([]), "a figure")
