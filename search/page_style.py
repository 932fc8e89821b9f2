"""Style and script of the report's page: one column of cards, light and dark, wide and narrow."""

from tightfit.search.palette import BUDGET, KINDS, PREDICTED

BARS = f"""
.memory {{ margin: 12px 0 0; }}
.memory .bar {{ position: relative; display: flex; height: 16px; margin: 6px 0 8px; border-radius: 5px;
  background: rgba(128, 140, 152, 0.18); }}
.memory .bar.thin {{ height: 9px; margin: 2px 0 8px; overflow: hidden; }}
.memory .bar i:first-child {{ border-radius: 5px 0 0 5px; }}
.memory .bar b {{ position: absolute; top: -4px; bottom: -4px; width: 3px; margin-left: -1px;
  border-radius: 1px; background: {BUDGET}; }}
.memory .weights {{ background: {KINDS["searched"][0]}; }}
.memory .embedding {{ background: {PREDICTED}; }}
.memory .cache {{ background: {KINDS["uniform"][0]}; }}
.memory .overhead {{ background: #8A96A3; }}
.memory .legend {{ display: flex; flex-wrap: wrap; gap: 2px 16px; margin: 0; font-size: 0.85rem;
  font-variant-numeric: tabular-nums; }}
.memory .legend span {{ overflow-wrap: anywhere; }}
.memory .legend i, .memory .legend b {{ display: inline-block; width: 10px; height: 10px; margin-right: 6px;
  border-radius: 2px; }}
.memory .legend b {{ width: 3px; height: 13px; vertical-align: -2px; background: {BUDGET}; }}
.memory .note, .memory details {{ margin: 6px 0 0; }}
"""
"""Style of bars with parts, and of the words that name them, for the report and the app alike."""

STYLE = """
:root {
  --page: #f7f8f9; --card: #ffffff; --ink: #1a2129; --muted: #5a6572; --line: #e1e5ea; --wash: #f1f4f7;
  --accent: #0072b2; --good: #00734f; --bad: #b34700; --mark: #fdf1e8;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #101418; --card: #171c22; --ink: #e4e8ec; --muted: #98a4b1; --line: #2a323b; --wash: #1e252c;
    --accent: #56b4e9; --good: #3ec79d; --bad: #ff9a5c; --mark: #33261b;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  -webkit-text-size-adjust: 100%;
}
main { max-width: 1120px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere; letter-spacing: -0.01em; }
h2 { font-size: 1.15rem; margin: 0 0 4px; letter-spacing: -0.005em; }
p { margin: 0 0 12px; }
.kicker { color: var(--accent); font-size: 0.8rem; font-weight: 600; letter-spacing: 0.06em;
  text-transform: uppercase; margin: 0 0 6px; }
.lead, .note, figcaption { color: var(--muted); font-size: 0.9rem; }
.lead { margin: 6px 0 0; overflow-wrap: anywhere; }
.verdict { margin: 24px 0; padding: 16px 20px; border-radius: 10px; background: var(--card);
  border: 1px solid var(--line); border-left: 6px solid var(--muted); font-size: 1.1rem; font-weight: 600; }
.verdict.good { border-left-color: var(--good); }
.verdict.bad { border-left-color: var(--bad); }
.verdict p { margin: 0; }
.verdict .note { font-weight: 400; margin-top: 6px; }
.tiles { display: grid; gap: 12px; margin: 0 0 24px; padding: 0;
  grid-template-columns: repeat(auto-fit, minmax(138px, 1fr)); }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px; }
.tile dt { color: var(--muted); font-size: 0.8rem; }
.tile dd { margin: 0; }
.tile .value { font-size: 1.5rem; font-weight: 650; letter-spacing: -0.02em; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.tile .value small { font-size: 0.85rem; font-weight: 500; letter-spacing: 0; }
.tile .beside { color: var(--muted); font-size: 0.8rem; line-height: 1.35; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 20px 24px; margin: 0 0 24px; }
.pair { display: grid; gap: 24px; grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); }
.pair > * { min-width: 0; }
figure { margin: 12px 0 0; }
figcaption { margin-top: 4px; }
.plot { width: 100%; }
.scroll { overflow-x: auto; margin: 12px 0; }
table { border-collapse: collapse; width: 100%; font-size: 0.88rem; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 10px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
thead th { color: var(--muted); font-weight: 500; font-size: 0.8rem; border-bottom-color: var(--muted); }
tbody th { font-weight: 500; }
th:first-child, td.text, th.text { text-align: left; }
tbody tr:hover { background: var(--wash); }
tr.chosen { background: var(--mark); font-weight: 600; }
.tight table { font-size: 0.82rem; }
.tight th, .tight td { padding: 6px; }
.tight tbody th { white-space: normal; min-width: 8.5rem; }
tr.selected > :first-child { box-shadow: inset 3px 0 var(--accent); }
tr.dominated { color: var(--muted); }
.mark { margin-left: 8px; padding: 1px 7px; border: 1px solid var(--line); border-radius: 9px;
  background: var(--card); color: var(--muted); font-size: 0.75rem; font-weight: 500; }
.chosen .mark { color: var(--good); border-color: currentColor; }
tr.total, tr.total th { font-weight: 650; }
.range { position: relative; height: 12px; margin: 18px 0 10px; }
.range i { position: absolute; top: 0; bottom: 0; border-radius: 6px; }
.range::before { content: ""; position: absolute; inset: 5px 0; background: var(--line); border-radius: 1px; }
.range .possible { background: var(--line); }
.range .fill { left: 0; background: var(--accent); }
.range .limit { top: -5px; bottom: -5px; width: 3px; background: var(--bad); border-radius: 1px; }
dl.words { margin: 12px 0 0; display: grid; gap: 4px 20px; grid-template-columns: 10.5rem 1fr; }
.pair > dl.words { grid-template-columns: 1fr; gap: 0; align-content: start; }
dl.words dt { font-weight: 600; font-size: 0.92rem; }
dl.words dd { margin: 0 0 8px; }
code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace;
  font-size: 0.85em; }
pre { background: var(--wash); border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px;
  overflow-x: auto; margin: 12px 0; line-height: 1.6; }
details { margin-top: 12px; }
summary { cursor: pointer; color: var(--accent); font-size: 0.92rem; }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
footer { color: var(--muted); font-size: 0.82rem; overflow-wrap: anywhere; }
@media (max-width: 640px) {
  main { padding: 20px 12px 40px; }
  section { padding: 16px 14px; }
  h1 { font-size: 1.4rem; }
  .tiles { grid-template-columns: 1fr 1fr; gap: 8px; }
  .tile { padding: 10px 12px; }
  .tile .value { font-size: 1.2rem; }
  dl.words { grid-template-columns: 1fr; gap: 0; }
  dl.words dd { margin-bottom: 12px; }
}
@media (pointer: coarse), (max-width: 640px) { .modebar { display: none !important; } }
@media print {
  body { background: #fff; }
  section, .tile, .verdict { break-inside: avoid; }
}
"""

SCRIPT = """
const dark = matchMedia("(prefers-color-scheme: dark)");
const plots = document.querySelectorAll(".js-plotly-plot");
function recolour() {
  const style = getComputedStyle(document.documentElement);
  const [ink, card, line] = ["--muted", "--card", "--line"].map(name => style.getPropertyValue(name).trim());
  for (const plot of plots) {
    Plotly.relayout(plot, {
      "font.color": ink, "modebar.color": ink, "modebar.bgcolor": "rgba(0,0,0,0)",
      "hoverlabel.bgcolor": card, "hoverlabel.bordercolor": line, "hoverlabel.font.color": ink,
    });
  }
}
dark.addEventListener("change", recolour);
recolour();
if (matchMedia("(pointer: coarse)").matches)  // let a finger scroll past a figure
  for (const plot of plots) Plotly.relayout(plot, {dragmode: false});
"""
