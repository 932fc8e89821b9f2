"""How the page looks: the report's colours and letters, on Gradio's components."""

from __future__ import annotations

from typing import Any

import gradio as gr

from tightfit.search.page_style import BARS
from tightfit.search.palette import FONT
from tightfit.ui.plot_click import PLOTLY_URL

MONO = 'ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace'

HEAD = f"""
<meta name="color-scheme" content="light dark">
<link rel="preload" as="script" href="{PLOTLY_URL}">
"""


KEYS = """
() => document.addEventListener("keyup", event => {
  // Gradio tells of a released slider only where a pointer released it.
  const slider = event.target.closest && event.target.closest("input[type=range]");
  if (slider && /^(Arrow|Page|Home|End)/.test(event.key))
    slider.dispatchEvent(new PointerEvent("pointerup", {bubbles: true}));
})
"""


def theme() -> gr.themes.Base:
    """Return a theme that uses the fonts of the system and the colours of the report."""
    neutral, accent = gr.themes.colors.slate, gr.themes.colors.sky
    made = gr.themes.Base(
        primary_hue=accent,
        neutral_hue=neutral,
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
        radius_size="sm",
    )
    made.font, made.font_mono = FONT, MONO
    return made.set(**_VALUES)


_VALUES: dict[str, Any] = {
    "body_background_fill": "#f7f8f9",
    "body_background_fill_dark": "#101418",
    "body_text_color": "#1a2129",
    "body_text_color_dark": "#e4e8ec",
    "body_text_color_subdued": "#5a6572",
    "body_text_color_subdued_dark": "#98a4b1",
    "background_fill_primary": "#ffffff",
    "background_fill_primary_dark": "#171c22",
    "background_fill_secondary": "#f1f4f7",
    "background_fill_secondary_dark": "#1e252c",
    "block_background_fill": "#ffffff",
    "block_background_fill_dark": "#171c22",
    "block_border_width": "0px",
    "block_border_width_dark": "0px",
    "block_border_color": "#e1e5ea",
    "block_border_color_dark": "#2a323b",
    "block_label_text_color": "#5a6572",
    "block_label_text_color_dark": "#98a4b1",
    "block_title_text_color": "#1a2129",
    "block_title_text_color_dark": "#e4e8ec",
    "block_title_text_weight": "600",
    "block_info_text_color": "#5a6572",
    "block_info_text_color_dark": "#98a4b1",
    "block_shadow": "none",
    "border_color_primary": "#e1e5ea",
    "border_color_primary_dark": "#2a323b",
    "border_color_accent": "#0072b2",
    "color_accent": "#0072b2",
    "slider_color": "#0072b2",
    "slider_color_dark": "#56b4e9",
    "link_text_color": "#0072b2",
    "link_text_color_dark": "#56b4e9",
    "button_primary_background_fill": "#0072b2",
    "button_primary_background_fill_dark": "#0072b2",
    "button_primary_background_fill_hover": "#005f96",
    "button_primary_background_fill_hover_dark": "#1487cc",
    "button_primary_text_color": "#ffffff",
    "button_primary_text_color_dark": "#ffffff",
    "button_secondary_background_fill": "#ffffff",
    "button_secondary_background_fill_dark": "#1e252c",
    "button_secondary_background_fill_hover": "#f1f4f7",
    "button_secondary_background_fill_hover_dark": "#2a323b",
    "button_secondary_border_color": "#c9d0d8",
    "button_secondary_border_color_dark": "#3a4550",
    "button_secondary_text_color": "#1a2129",
    "button_secondary_text_color_dark": "#e4e8ec",
    "button_border_width": "1px",
    "input_background_fill": "#ffffff",
    "input_background_fill_dark": "#1e252c",
    "input_border_color": "#c9d0d8",
    "input_border_color_dark": "#3a4550",
    "checkbox_border_color": "#8a96a3",
    "checkbox_border_color_dark": "#6b7684",
    "table_even_background_fill": "#ffffff",
    "table_even_background_fill_dark": "#171c22",
    "table_odd_background_fill": "#ffffff",
    "table_odd_background_fill_dark": "#171c22",
    "table_border_color": "#e1e5ea",
    "table_border_color_dark": "#2a323b",
}

STYLE = (
    BARS
    + """
body {
  --tf-card: #ffffff; --tf-ink: #1a2129; --tf-muted: #5a6572; --tf-line: #e1e5ea; --tf-wash: #f1f4f7;
  --tf-accent: #0072b2; --tf-good: #00734f; --tf-bad: #b34700; --tf-mark: #fdf1e8;
}
body.dark {
  --tf-card: #171c22; --tf-ink: #e4e8ec; --tf-muted: #98a4b1; --tf-line: #2a323b; --tf-wash: #1e252c;
  --tf-accent: #56b4e9; --tf-good: #3ec79d; --tf-bad: #ff9a5c; --tf-mark: #33261b;
}
.gradio-container { font-size: 15px; line-height: 1.5; }
.gradio-container main { width: 100%; max-width: 1360px; margin: 0 auto !important;
  padding: 4px 0 40px !important; }
.html-container { padding: 0 !important; }
#top { align-items: flex-start; }
#top > .block { flex: 1 1 320px; }
#controls { gap: 8px; flex: 0 1 300px; }
#controls .block, #texts, #phase, #matrices { padding: 0; background: transparent; }
#runs .container, #matrices .container { display: flex; align-items: center; gap: 12px; }
#runs .container > span, #matrices .container > span { margin: 0; flex: none; }
#runs .container > .wrap, #matrices .container > .wrap { flex: 1; min-width: 0;
  border: 1px solid var(--tf-line); border-radius: 8px; background: var(--tf-card); }
#texts, #phase { display: flex; flex-wrap: wrap; align-items: center; gap: 4px 14px; padding: 12px 18px 0; }
#texts > span, #phase > span { margin: 0; width: auto; }
#texts label, #phase label { padding: 2px 8px; border: 0; background: transparent; }
#budget { padding: 0 18px 12px; }
#plans { padding: 0; --font-mono: var(--font); --input-text-size: 0.83rem; font-size: 0.83rem;
  font-variant-numeric: tabular-nums; }
#controls .row { justify-content: flex-end; gap: 8px; }
#controls .row button { flex: 0 1 120px; min-width: 0; }
.gradio-container .form { background: transparent; border: 0; }
.gradio-container :focus-visible { outline: 2px solid var(--tf-accent); outline-offset: 2px; }
.tf-kicker { color: var(--tf-accent); font-size: 0.75rem; font-weight: 600; letter-spacing: 0.06em;
  text-transform: uppercase; margin: 0 0 2px; }
.tf-title { display: flex; flex-wrap: wrap; align-items: center; gap: 6px 14px; }
.tf-title h1 { font-size: 1.55rem; font-weight: 650; line-height: 1.2; margin: 0; letter-spacing: -0.01em;
  overflow-wrap: anywhere; color: var(--tf-ink); }
.tf-lead, .tf-note, .tf-card .note { color: var(--tf-muted); font-size: 0.87rem; margin: 4px 0 0;
  overflow-wrap: anywhere; }
.tf-alert { color: var(--tf-bad); font-size: 0.9rem; margin: 8px 0 0; overflow-wrap: anywhere; }
.tf-state { font-size: 0.8rem; font-weight: 600; padding: 2px 10px 2px 8px; border-radius: 999px;
  border: 1px solid var(--tf-line); background: var(--tf-card); color: var(--tf-muted); white-space: nowrap; }
.tf-state::before { content: ""; display: inline-block; width: 8px; height: 8px; border-radius: 50%;
  margin-right: 6px; background: currentColor; }
.tf-state.running, .tf-state.finished { color: var(--tf-good); }
.tf-state.paused { color: var(--tf-bad); }
.tf-verdict { padding: 12px 16px; border-radius: 10px; background: var(--tf-card); color: var(--tf-ink);
  border: 1px solid var(--tf-line); border-left: 6px solid var(--tf-muted); font-weight: 600; }
.tf-verdict.good { border-left-color: var(--tf-good); }
.tf-verdict.bad { border-left-color: var(--tf-bad); }
.tf-verdict p { margin: 0; overflow-wrap: anywhere; }
.tf-verdict .tf-note { font-weight: 400; margin-top: 4px; }
.tf-steps { display: flex; flex-wrap: wrap; gap: 2px 18px; margin: 8px 0 0; padding: 0; list-style: none;
  font-size: 0.83rem; font-weight: 500; color: var(--tf-muted); }
.tf-steps li { display: flex; align-items: center; gap: 6px; margin: 0; }
.tf-steps li::before { content: ""; width: 8px; height: 8px; border-radius: 50%;
  border: 1.5px solid var(--tf-muted); }
.tf-steps li.done::before { background: var(--tf-muted); }
.tf-steps li.now { color: var(--tf-accent); font-weight: 650; }
.tf-steps li.now::before { background: var(--tf-accent); border-color: var(--tf-accent); }
.tf-bar { height: 6px; border-radius: 3px; background: var(--tf-wash); margin-top: 8px; overflow: hidden; }
.tf-bar i { display: block; height: 100%; background: var(--tf-accent); border-radius: 3px; }
.tf-box { gap: 0 !important; }
.tf-box .tf-card { border: 0 !important; background: transparent !important; }
.tf-box .block { background: transparent; }
.tf-card, .tf-box { background: var(--tf-card) !important; border: 1px solid var(--tf-line) !important;
  border-radius: 10px !important; color: var(--tf-ink); }
.tf-card { padding: 14px 18px; }
.tf-card h2, h2.tf-heading { font-size: 1.05rem; font-weight: 650; margin: 0; color: var(--tf-ink);
  overflow-wrap: anywhere; }
.tf-card p { margin: 4px 0 0; }
h2.tf-heading { padding: 14px 18px 0; }
.tf-caption { padding: 0 18px 12px; }
.tf-chip, .tf-card .mark { display: inline-block; margin-left: 8px; padding: 0 7px;
  border: 1px solid currentColor; border-radius: 9px; color: var(--tf-good);
  font-size: 0.75rem; font-weight: 500; vertical-align: 2px; }
.tf-tiles { display: grid; gap: 10px 14px; margin: 12px 0 0; padding: 0;
  grid-template-columns: repeat(auto-fit, minmax(94px, 1fr)); }
.tf-tiles dt { color: var(--tf-muted); font-size: 0.78rem; }
.tf-tiles dd { margin: 0; }
.tf-tiles .value { font-size: 1.2rem; font-weight: 650; letter-spacing: -0.02em; line-height: 1.25;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.tf-tiles .value small { font-size: 0.8rem; font-weight: 500; letter-spacing: 0; }
.tf-tiles .beside { color: var(--tf-muted); font-size: 0.76rem; line-height: 1.3; }
.tf-card .scroll { overflow-x: auto; margin: 12px 0 0; }
.tf-card table { border-collapse: collapse; width: 100%; font-size: 0.83rem;
  font-variant-numeric: tabular-nums; }
.tf-card th, .tf-card td { padding: 4px 8px; text-align: right; white-space: nowrap; font-weight: 400;
  border-bottom: 1px solid var(--tf-line); }
.tf-card thead th { color: var(--tf-muted); font-size: 0.77rem; border-bottom-color: var(--tf-muted); }
.tf-card th:first-child, .tf-card td:first-child { text-align: left; padding-left: 0; }
.tf-card tbody th { font-weight: 500; }
.tf-card .tf-names tbody th { white-space: normal; }
.tf-card tr.chosen { background: var(--tf-mark); }
.tf-card tr.selected > th { color: var(--tf-accent); font-weight: 650; }
.tf-card details { margin-top: 10px; }
.tf-card caption.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden;
  clip-path: inset(50%); }
.tf-card code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: 0.88em; }
.tf-card pre { background: var(--tf-wash); border-radius: 8px; padding: 12px 14px; margin: 12px 0 0;
  overflow-x: auto; line-height: 1.6; }
.tf-card summary { cursor: pointer; color: var(--tf-accent); font-size: 0.9rem; }
.tabs button.selected { color: var(--tf-accent) !important; }
.tabs button.selected::after { background-color: var(--tf-accent) !important; }
#exports { margin: 0 18px 16px; width: auto; gap: 8px; }
.tf-empty { padding: 24px 28px; max-width: 680px; }
.tf-plot { width: 100%; min-height: inherit; }
.tf-plot.tf-words { display: flex; align-items: center; justify-content: center; text-align: center;
  color: var(--tf-muted); padding: 24px; min-height: 200px; }
.tf-plot .nsewdrag { cursor: pointer; }
@media (max-width: 640px) {
  .tf-card .tight tbody th { white-space: normal; min-width: 8rem; }
  .gradio-container .main.fillable { padding: 8px; }
  .tf-card table { font-size: 0.79rem; }
  .tf-card th, .tf-card td { padding: 4px 3px 4px 5px; }
  #matrix-column { order: -1; }
  #top { flex-direction: column; align-items: stretch; }
  #top > .block, #controls { flex: none; width: 100%; }
  .tf-title h1 { font-size: 1.3rem; }
  .tf-card { padding: 12px 14px; }
  h2.tf-heading { padding: 12px 14px 0; }
}
"""
)
