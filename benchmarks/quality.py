"""What searching is worth: the searched plan beside uniform plans and two-width mixes of equal bytes.

    .venv/bin/python benchmarks/quality.py --text wiki.txt --bits 3.4 3.75 4.0 4.3125

Bits count the decoder's matrices alone, scales and zero points included; the embedding stays at 8
bits. One run per budget in one folder, so that the pre-screen and the single-site measurements are
shared; everything else, fitting included, is done anew. The columns are holdout KL in nats per token.
``--uniform 3 4`` adds budgets of exactly the bytes that uniform plans of these widths take.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tightfit.search.inspection import inspect_settings
from tightfit.search.run import run_search
from tightfit.search.settings import Settings
from tightfit.search.store import Store
from tightfit.search.summary import Front, summarize
from tightfit.search.tables import loss_text, nats_text
from tightfit.spaces import Space, WeightOption


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-offgrid")
    parser.add_argument("--text", default="python-docs", help="a text file, or python-docs")
    parser.add_argument("--bits", type=float, nargs="*", default=[3.75, 4.0, 4.3125])
    parser.add_argument("--uniform", type=int, nargs="*", default=[])
    parser.add_argument("--widths", type=int, nargs="*", default=[2, 3, 4, 5, 6])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", default="runs")
    parser.add_argument("--name", default="quality")
    parser.add_argument("--sense", type=json.loads, default={}, help="settings of `sense` as JSON")
    parser.add_argument("--tokens", type=json.loads, default={}, help="settings of `text` as JSON")
    arguments = parser.parse_args()
    space = inspect_settings(_settings(arguments, 2**62)).space
    budgets = {f"{bits:g} bits": _decoder_budget(space, bits) for bits in arguments.bits}
    for bits in arguments.uniform:
        levels = space.uniform_levels(WeightOption(bits, 64, "integer"))
        budgets[f"uniform {bits}-bit bytes"] = space.bytes_of(levels)
    lines = []
    for name, limit in budgets.items():
        folder = run_search(_settings(arguments, limit))
        lines.append(_line(name, folder))
        print("\n".join([_HEADER, *lines]), flush=True)


_HEADER = (
    f"{'budget':<22}{'chosen':>18}{'best uniform':>18}{'best mix':>18}{'ratio to mix':>14}"
    f"{'ratio to best':>15}{'z':>7}  unexplained  band R2/tau/misordered  link  synergy  split-half tau"
)


def _settings(arguments: argparse.Namespace, limit: int) -> Settings:
    return Settings.from_dict(
        {
            "name": arguments.name,
            "runs": arguments.runs,
            "model": arguments.model,
            "seed": arguments.seed,
            "budget": {"weights": f"{limit}B"},
            "space": {
                "weights": {
                    "bits": arguments.widths,
                    "groups": [64],
                    "zeros": ["integer"],
                    "pin": {"embed": "8b-g64-float"},
                }
            },
            "text": {"source": arguments.text, **arguments.tokens},
            "sense": arguments.sense,
            "search": {"agents": ["uniform", "mix", "exact"]},
        }
    )


def _decoder_budget(space: Space, bits: float) -> int:
    outside = [d for d in space.decisions if d.name in ("embed", "head")]
    decoder = space.weights - sum(d.weights for d in outside)
    return space.fixed_bytes + sum(d.costs[0] for d in outside) + int(bits * decoder / 8)


def _line(name: str, folder: Path) -> str:
    with Store.open(folder, mode="ro") as store:
        summary = summarize(store)
    front, result, link = summary.front, summary.result, summary.link
    if front is None or result is None or link is None:
        raise SystemExit(f"{folder}: the run has no result")
    chosen = front.find(result.chosen)
    if chosen is None:
        raise SystemExit(f"{folder}: the chosen plan was not measured on {front.split}")
    best = {kind: _best(front, kind, summary.limit or 0) for kind in ("uniform", "mix")}
    losses = {kind: loss for kind, (loss, _) in best.items() if loss is not None}
    lowest = min(losses, key=lambda kind: losses[kind])
    z = best[lowest][1]
    cells = [loss_text(chosen.measured.kl, chosen.kl_se)]
    cells += ["-" if loss is None else nats_text(loss) for loss, _ in best.values()]
    mix = losses.get("mix")
    ratio = "-" if mix is None else f"{chosen.measured.kl / mix:.3f}"
    variance, band, sensing = summary.variance or {}, summary.band or {}, summary.sensing or {}
    return (
        f"{name:<22}{cells[0]:>18}{cells[1]:>18}{cells[2]:>18}{ratio:>14}"
        f"{chosen.measured.kl / losses[lowest]:>15.3f}{z:>7.1f}  {variance.get('unexplained')}  "
        f"{band.get('r2')} / {band.get('tau')} / {band.get('misordered')} of {band.get('pairs')}  "
        f"{link['model']['link']['link']}  {link.get('synergy')}  {sensing.get('split_half_tau')}"
    )


def _best(front: Front, kind: str, limit: int) -> tuple[float | None, float]:
    """Loss of the best baseline of a kind, and by how many standard errors the chosen plan beats it.

    The folder also holds baselines of the other budgets; only those within this one count.
    """
    rows = [row for row in front.rows if row.kind == kind and row.bytes <= limit]
    if not rows:
        return None, 0.0
    row = min(rows, key=lambda row: row.measured.kl)
    return row.measured.kl, row.versus_chosen.z if row.versus_chosen else 0.0


if __name__ == "__main__":
    main()
