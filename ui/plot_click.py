"""A plotly figure that tells which point was clicked, which Gradio's own plots cannot.

plotly.js comes from this server, at :data:`PLOTLY_URL`. A click triggers ``select`` with the
``customdata`` of the point as ``event_data.key``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import gradio as gr

if TYPE_CHECKING:
    import plotly.graph_objects as go

PLOTLY_URL = "/plotly.js"

_SCRIPT = """
const plot = element.querySelector(".tf-plot");
// Named one by one, since a later plotly may bring others, such as one that uploads the figure.
const buttons = ["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"];
const config = {displaylogo: false, modeBarButtons: [buttons]};
const style = name => getComputedStyle(document.body).getPropertyValue(name).trim();
const finger = matchMedia("(pointer: coarse)").matches;
let listening = false;
async function draw() {
  if (!props.value) return;
  const {figure, alt, words} = JSON.parse(props.value);
  plot.setAttribute("aria-label", alt);
  if (!figure) {
    if (listening) Plotly.purge(plot);
    listening = false;
    plot.classList.add("tf-words");
    plot.textContent = words;
    return;
  }
  if (!listening) plot.textContent = "";
  plot.classList.remove("tf-words");
  const layout = figure.layout, ink = style("--tf-muted");
  layout.font.color = ink;
  layout.modebar = {color: ink, activecolor: style("--tf-ink"), bgcolor: "rgba(0,0,0,0)"};
  layout.hoverlabel = {...layout.hoverlabel, bgcolor: style("--tf-card"), bordercolor: style("--tf-line"),
    font: {...(layout.hoverlabel || {}).font, color: style("--tf-ink")}};
  const entries = layout.showlegend ? figure.data.filter(trace => trace.showlegend !== false).length : 0;
  if (plot.offsetWidth < 480) layout.height += 12 * entries;  // the legend takes more rows
  if (finger) layout.dragmode = false;  // let it scroll past a figure
  const quiet = figure.data[0] && figure.data[0].type === "heatmap";
  const displayModeBar = finger || quiet ? false : "hover";
  await Plotly.react(plot, figure.data, layout, {...config, displayModeBar});
  if (!listening) {
    listening = true;
    plot.on("plotly_click", event => {
      const key = event.points[0] && event.points[0].customdata;
      if (!key) return;
      trigger("select", {key: Array.isArray(key) ? key[0] : key});
      const answer = document.querySelector(props.answer);
      if (answer && innerWidth <= 640) answer.scrollIntoView({behavior: "smooth", block: "nearest"});
    });
  }
}
watch("value", draw);
new ResizeObserver(() => { if (listening && plot.offsetWidth) Plotly.Plots.resize(plot); }).observe(plot);
new MutationObserver(draw).observe(document.body, {attributes: true, attributeFilter: ["class"]});
draw();
"""


def plot_click(elem_id: str, min_height: int, answer: str) -> gr.HTML:
    """Return a figure; give it what :func:`drawn` returns, and listen to its ``select``.

    Args:
        elem_id: id of its element.
        min_height: room kept for it, in pixels.
        answer: CSS selector of what a click changes; narrow screens scroll there.
    """
    return gr.HTML(
        value="",
        # The value is not part of the markup, so that no change of it makes the browser build it anew.
        html_template='<div class="tf-plot" role="img" aria-label=""></div>',
        js_on_load=_SCRIPT,
        head=f'<script src="{PLOTLY_URL}"></script>',
        apply_default_css=False,
        min_height=min_height,
        elem_id=elem_id,
        answer=answer,
    )


def drawn(figure: go.Figure | None, alt: str, zoom: str = "", words: str = "") -> str:
    """Return the value that draws a figure, or says in words why there is none.

    Args:
        figure: what to draw.
        alt: what it shows, for people who do not see it.
        zoom: as long as this stays the same, so does what the user zoomed to.
        words: shown where there is no figure.
    """
    if figure is None:
        return json.dumps({"figure": None, "alt": alt, "words": words})
    figure.update_layout(uirevision=zoom)
    return json.dumps({"figure": json.loads(figure.to_json()), "alt": alt})
