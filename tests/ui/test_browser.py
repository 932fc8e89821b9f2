"""The page in a real browser, on a real run of a tiny model."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tightfit.search.exporting import export_plan
from tightfit.search.run import run_search
from tightfit.search.settings import Settings
from tightfit.search.store import Store
from tightfit.search.summary import summarize
from tightfit.spaces import Plan
from tightfit.workers.lab import TINY, train

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))),
    None,
)
ARGUMENTS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WAIT = 30_000  # milliseconds; a busy machine is slow, never wrong

# Where a plan's point is on the screen.
PLACE = """digest => {
  const plot = document.querySelector("#front .js-plotly-plot");
  const {xaxis, yaxis} = plot._fullLayout;
  const corner = plot.querySelector(".nsewdrag").getBoundingClientRect();
  for (const trace of plot.data) {
    if (trace.name === "predicted front") continue;
    const i = (trace.customdata || []).findIndex(found => found.startsWith(digest));
    if (i >= 0) return [corner.left + xaxis.d2p(trace.x[i]), corner.top + yaxis.d2p(trace.y[i])];
  }
}"""
POINTS = """() => document.querySelector("#front .js-plotly-plot").data
  .filter(trace => !["predicted front", "chosen", "selected"].includes(trace.name))
  .reduce((sum, trace) => sum + trace.x.length, 0)"""
RANGE = """() => document.querySelector("#front .js-plotly-plot")._fullLayout.xaxis.range.join()"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the tiny model: its folder."""
    settings = {
        "name": "tiny",
        "runs": str(tmp_path_factory.mktemp("runs")),
        "model": str(train(TINY)),
        "threads": 1,
        "workers": {"count": 0, "validation": 0},
        "budget": {"weights": "90000B"},
        "space": {"weights": {"bits": [2, 3, 4, 6], "pin": {"embed": "8b-g64-float"}}},
        "text": {"sequence": 64, "calibration": 512, "selection": 512, "validation": 512, "holdout": 512},
        "sense": {
            "prescreen_tokens": 256,
            "marginals": 8,
            "marginal_tokens": 512,
            "fit_plans": 8,
            "fit_tokens": 512,
            "certificate_plans": 4,
        },
    }
    return run_search(Settings.from_dict(settings), say=lambda text: None)


@pytest.fixture(scope="module")
def timed(settings_of: Callable[..., Settings], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run for llama.cpp whose finalists were run: its folder."""
    settings = settings_of(
        tmp_path_factory.mktemp("timed"),
        target="llama.cpp",
        budget={"weights": "120000B", "tokens_per_second": 1.0},
        space={"weights": {"types": ["Q4_0", "Q5_0", "Q8_0"], "pin": {"embed": "Q8_0"}}},
        sense={
            "prescreen_tokens": 256,
            "marginals": 4,
            "marginal_tokens": 256,
            "fit_plans": 4,
            "fit_tokens": 256,
            "certificate_plans": 4,
        },
        search={"agents": ["exact"], "finalists": 2},
        validate={"hardware": ["llama.cpp"], "prompt": 8, "generate": 8, "rounds": 3},
    )
    return run_search(settings, say=lambda text: None)


@contextmanager
def serving(path: Path) -> Iterator[str]:
    """Serve a folder from a process of its own, as the command does; gives the address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = f"from pathlib import Path; from tightfit.ui.app import serve; serve(Path({str(path)!r}), {port})"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment)
    address = f"http://127.0.0.1:{port}/"
    try:
        for _ in range(600):
            assert process.poll() is None, "the server ended by itself"
            try:
                urllib.request.urlopen(address, timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def page_of(address: str, **options: Any) -> Iterator[tuple[Any, list[str]]]:
    """Open an address in a browser: the page, and what should not have happened, as it happens."""
    from playwright.sync_api import sync_playwright

    faults: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1366, "height": 900}, **options)
        page.set_default_timeout(WAIT)
        page.on("console", lambda message: message.type == "error" and faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: foreign(request.url, address) and faults.append(request.url))
        page.goto(address)
        yield page, faults
        browser.close()


def foreign(url: str, address: str) -> bool:
    return not url.startswith((address, "data:", "blob:"))


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium or Chrome on the PATH")
def test_a_run_is_shown_explored_and_exported(finished: Path) -> None:
    with Store.open(finished, mode="ro") as store:
        held = store.measurements("holdout")
        final = store.get("result")["offered"]
        others = [p for p in store.plans().values() if len(p.plan.choices) == len(store.decisions())]
    with serving(finished.parent) as address, page_of(address) as (page, faults):
        page.wait_for_selector("#front .js-plotly-plot .nsewdrag")
        assert page.evaluate(POINTS) == len(held)
        shown = page.locator("#plan h2 code")
        assert shown.inner_text() == final[:12]

        # A click on a point shows its plan, and so does a click on its row.
        other = next(m.plan[:12] for m in held if m.plan != final)
        page.mouse.click(*page.evaluate(PLACE, other))
        page.wait_for_selector(f"#plan code:text('{other}')")
        page.locator("#plans").get_by_text(final[:12]).first.click()
        page.wait_for_selector(f"#plan code:text('{final[:12]}')")

        # So do the arrow keys and Enter; nothing offers to upload a figure.
        page.keyboard.press("ArrowUp")
        page.keyboard.press("Enter")
        page.wait_for_function(
            "was => document.querySelector('#plan h2 code').innerText !== was", arg=final[:12]
        )
        assert page.locator("[data-title*=hare]").count() == 0

        # The slider solves for another budget, by pointer and by key.
        slider = page.locator("#budget input[type=range]")
        box = slider.bounding_box()
        page.mouse.click(box["x"] + 0.75 * box["width"], box["y"] + box["height"] / 2)
        page.wait_for_selector("#plan >> text=Solved for")
        first = page.locator("#plan .tf-note").first.inner_text()
        slider.focus()
        for _ in range(20):
            page.keyboard.press("ArrowLeft")
        page.wait_for_function(
            "was => !document.querySelector('#plan .tf-note').innerText.includes(was)", arg=first
        )
        page.wait_for_selector("#plan >> text=Solved for")

        # What is exported is the plan that is shown.
        page.wait_for_timeout(1000)
        with page.expect_download() as download:
            page.click("#export")
        data = json.loads(Path(download.value.path()).read_text())
        assert Plan.from_dict(data).digest == data["digest"]
        assert data["digest"][:12] == shown.inner_text()

        # A zoom outlives what the run measures meanwhile.
        area = page.locator("#front .nsewdrag").bounding_box()
        page.mouse.move(area["x"] + 0.3 * area["width"], area["y"] + 0.3 * area["height"])
        page.mouse.down()
        page.mouse.move(area["x"] + 0.7 * area["width"], area["y"] + 0.8 * area["height"], steps=5)
        page.mouse.up()
        zoomed = page.evaluate(RANGE)
        new = next(p.plan.digest for p in others if p.plan.digest not in {m.plan for m in held})
        with Store.open(finished) as store:
            store.add_measurement(replace(held[0], plan=new))
        page.wait_for_function(f"count => ({POINTS})() === count", arg=len(held) + 1)
        assert page.evaluate(RANGE) == zoomed

        # Layers: both maps, and a click on a cell or a choice in the list shows the matrix.
        page.get_by_role("tab", name="Layers").click()
        page.wait_for_selector("#layout .js-plotly-plot .nsewdrag")
        cells = page.locator("#sensitivity .nsewdrag").first.bounding_box()
        page.mouse.click(cells["x"] + 5, cells["y"] + 5)
        page.wait_for_selector("#matrix h2 >> text=layers.0.attn.q_proj")

        # Nothing else is handed out, and nothing else was asked for.
        refused = page.request.get(f"{address}gradio_api/file={finished / 'run.db'}")
        assert refused.status == 403
        assert page.request.get(address, headers={"Host": "example.org"}).status == 400
        assert faults == []


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium or Chrome on the PATH")
def test_a_run_for_llama_cpp_shows_its_speeds_and_hands_out_its_file(timed: Path, tmp_path: Path) -> None:
    with Store.open(timed, mode="ro") as store:
        final, front = store.get("result")["offered"], summarize(store).front
        other = next(row.digest for row in front.rows if row.digest != final)
        wanted = export_plan(store, "llama.cpp", tmp_path / "wanted.gguf", final).files[0]
    with serving(timed) as address, page_of(address, color_scheme="dark") as (page, faults):
        page.wait_for_selector("#front .js-plotly-plot .nsewdrag")
        page.click("#ship")
        page.wait_for_selector("#weights:visible", timeout=4 * WAIT)  # torch is imported first
        with page.expect_download() as download:
            page.click("#weights")
        assert download.value.suggested_filename.endswith(f"{final[:12]}.gguf")
        assert Path(download.value.path()).read_bytes() == wanted.read_bytes()

        # Types are printed in the cells of the plan.
        page.get_by_role("tab", name="Layers").click()
        page.wait_for_selector("#layout .js-plotly-plot .nsewdrag")
        types = page.evaluate("document.querySelector('#layout .js-plotly-plot').data[0].text.flat()")
        assert set(types) <= {"Q4_0", "Q5_0", "Q8_0"}

        # Speeds: figure and table, either phase, and a click on a point shows its plan.
        page.get_by_role("tab", name="Speed").click()
        page.wait_for_selector("#speed .js-plotly-plot .nsewdrag")
        assert page.locator("#speeds tbody tr.chosen").count() == 1
        assert page.locator("#run-plan h2 code").inner_text() == final[:12]
        page.mouse.click(*page.evaluate(PLACE.replace("#front", "#speed"), other))
        page.wait_for_selector(f"#run-plan code:text('{other[:12]}')")
        page.locator("#phase").get_by_text("time to the first token").click()
        page.wait_for_function(
            "document.querySelector('#speed .js-plotly-plot').layout.xaxis.title.text.includes('first token')"
        )
        assert faults == []


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium or Chrome on the PATH")
def test_without_a_run_the_page_says_how_to_start_one(tmp_path: Path) -> None:
    with serving(tmp_path) as address, page_of(address) as (page, faults):
        page.wait_for_selector("text=tightfit run search.yaml")
        assert page.locator("button:visible").count() == 0
        assert faults == []
