r"""What KV caches are worth in a search: with weights, layer by layer, against rank, against the truth.

    .venv/bin/python benchmarks/kv.py joint
    .venv/bin/python benchmarks/kv.py layers
    .venv/bin/python benchmarks/kv.py rank
    .venv/bin/python benchmarks/kv.py enumerated
    .venv/bin/python benchmarks/kv.py joint --model smollm2-135m-offgrid --shares 0.5 --context 512 \
        --prefix 512 --sequence 128 --selection 512 --holdout 1024

- ``joint``: weights and caches from one budget, against the two budgets that one would set by hand
  (``kv_joint.py``).
- ``layers``: caches alone, layer by layer, against uniform caches and published rules, and bits of keys
  against bits of values (``kv_layers.py``).
- ``rank``: fewer bits against fewer numbers at equal bytes (``kv_rank.py``).
- ``enumerated``: every plan of a small space of weights and caches is measured, then searched for
  (``kv_enumerated.py``); it takes a tiny model of its own.

Everything is measured in this process. Losses are KL divergences in nats per token after a prompt whose
cache is compressed; standard errors are over documents, those of ratios paired. Runs are kept where
``--runs`` says, so that a second call measures only what is new.
"""

from __future__ import annotations

import argparse
import json
import tempfile

import kv_enumerated
import kv_joint
import kv_layers
import kv_rank

BENCHMARKS = {
    "joint": kv_joint.measure,
    "layers": kv_layers.measure,
    "rank": kv_rank.measure,
    "enumerated": kv_enumerated.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=list(BENCHMARKS))
    parser.add_argument("--model", default="lab")
    parser.add_argument("--text", default="python-docs", help="a text file, or python-docs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="one per physical core unless given")
    parser.add_argument("--runs", help="folder of the runs; a temporary one unless given")
    sizes = parser.add_argument_group("tokens")
    sizes.add_argument("--context", type=int, default=192, help="that bytes are counted at")
    sizes.add_argument("--prefix", type=int, default=192, help="in the cache where losses are measured")
    sizes.add_argument("--sequence", type=int, default=64, help="of a window after its prefix")
    sizes.add_argument("--calibration", type=int, default=1024)
    sizes.add_argument("--selection", type=int, default=2048)
    sizes.add_argument("--holdout", type=int, default=4096)
    space = parser.add_argument_group("what may be chosen")
    space.add_argument("--weight-bits", type=int, nargs="*", default=[2, 3, 4, 5, 6, 8])
    space.add_argument("--weight-group", type=int, default=32)
    space.add_argument("--kv-bits", type=int, nargs="*", default=[2, 3, 4, 6, 8, 16], help="of joint")
    space.add_argument("--keep", type=float, nargs="*", default=[0.5, 1.0], help="shares of the tokens kept")
    space.add_argument("--residual", type=int, default=16)
    space.add_argument("--sinks", type=int, default=4)
    space.add_argument("--sense", type=json.loads, default={}, help="settings of `sense` as JSON")
    joint = parser.add_argument_group("joint")
    joint.add_argument(
        "--shares", type=float, nargs="*", default=[0.2, 0.5, 0.8], help="of caches in uncompressed bytes"
    )
    joint.add_argument("--budget", type=float, default=0.25, help="share of the uncompressed bytes")
    joint.add_argument(
        "--plain-bits", type=int, help="of an uncompressed weight; those of the model's dtype unless given"
    )
    others = parser.add_argument_group("layers and rank")
    others.add_argument(
        "--uniform", type=int, nargs="*", default=[4, 2], help="bits of the uniform caches whose bytes count"
    )
    arguments = parser.parse_args()
    if arguments.runs:
        BENCHMARKS[arguments.what](arguments)
        return
    with tempfile.TemporaryDirectory(prefix="tightfit-kv-") as arguments.runs:
        BENCHMARKS[arguments.what](arguments)


if __name__ == "__main__":
    main()
