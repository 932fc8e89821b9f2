from __future__ import annotations

import pytest
from plotly.offline import get_plotlyjs
from starlette.applications import Starlette
from starlette.testclient import TestClient

from tightfit.ui.plot_click import PLOTLY_URL
from tightfit.ui.server import guards, routes


def client(host: str, seen_as: str) -> TestClient:
    return TestClient(Starlette(routes=routes(), middleware=guards(host)), base_url=f"http://{seen_as}:7860")


@pytest.mark.parametrize(
    ("host", "seen_as", "status"),
    [
        ("127.0.0.1", "127.0.0.1", 200),
        ("127.0.0.1", "localhost", 200),
        ("127.0.0.1", "example.org", 400),
        ("localhost", "example.org", 400),
        ("0.0.0.0", "example.org", 200),
    ],
)
def test_on_this_machine_alone_only_its_own_names_are_answered_to(
    host: str, seen_as: str, status: int
) -> None:
    assert client(host, seen_as).get(PLOTLY_URL).status_code == status


def test_the_page_may_fetch_nothing_from_other_hosts() -> None:
    policy = client("127.0.0.1", "localhost").get(PLOTLY_URL).headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "http" not in policy
    assert "*" not in policy


def test_the_plot_library_comes_from_here_whole() -> None:
    answer = client("127.0.0.1", "localhost").get(PLOTLY_URL)
    assert answer.text == get_plotlyjs()
    assert answer.headers["Content-Type"].startswith("text/javascript")
