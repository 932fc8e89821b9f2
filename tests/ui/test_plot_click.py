from __future__ import annotations

import json

import plotly.graph_objects as go

from tightfit.ui.plot_click import PLOTLY_URL, drawn, plot_click


def test_a_figure_is_drawn_with_its_zoom_and_words_for_those_who_do_not_see_it() -> None:
    figure = go.Figure(go.Scatter(x=[1], y=[2], customdata=["digest"]))
    value = json.loads(drawn(figure, "one point", zoom="run front"))
    assert value["alt"] == "one point"
    assert value["figure"]["data"][0]["customdata"] == ["digest"]
    assert value["figure"]["layout"]["uirevision"] == "run front"


def test_without_a_figure_there_are_words() -> None:
    assert json.loads(drawn(None, "nothing", words="not yet")) == {
        "figure": None,
        "alt": "nothing",
        "words": "not yet",
    }


def test_the_element_has_a_role_and_loads_its_library_from_this_server() -> None:
    element = plot_click("front", 100, answer="#plan")
    assert 'role="img"' in element.html_template
    assert element.head == f'<script src="{PLOTLY_URL}"></script>'
    assert PLOTLY_URL.startswith("/")
