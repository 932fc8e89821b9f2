"""Checking an exported file: that it is the plan, and that it loses in llama.cpp what was reported."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tightfit.exporters.verify import MODEL_KEY, PLAN_KEY, ReadBack, open_gguf, read_back, stated
from tightfit.search.progress import Progress, Tick
from tightfit.search.reopen import Reopened, reopen
from tightfit.search.resolve import stored_plan, stored_space
from tightfit.search.shipping import stored_shipment
from tightfit.search.store import RUN_FILE, Store
from tightfit.search.summary import SPLITS
from tightfit.search.tables import loss_text
from tightfit.spaces import PLAIN, InputError, Plan, Space
from tightfit.workers.measurement import Measurement, Paired, compare

MOST_ERRORS = 3.0
"""Standard errors of the reported loss by which the loss in llama.cpp may differ from it."""

_WEIGHTS_ONLY = (
    "the file holds weights only, so its loss was compared with that of the plan's weights on plain caches; "
    "the loss that the run reports includes the plan's caches."
)


@dataclass(frozen=True)
class LossCheck:
    """The loss of a file in llama.cpp beside the loss of its plan.

    Attributes:
        measured: the file, in llama.cpp.
        reported: the plan, as the run measured it.
        stored: whether the run had measured it; otherwise it was measured just now.
    """

    measured: Measurement
    reported: Measurement
    stored: bool = True

    @property
    def paired(self) -> Paired:
        """The file minus the plan, over the same documents."""
        return compare(self.measured, self.reported)

    @property
    def errors(self) -> float | None:
        """The difference in standard errors of the reported loss; None where a single document hides them."""
        if len(self.reported.documents) < 2:
            return None
        difference, se = abs(self.paired.difference), self.reported.kl_se
        return difference / se if se > 0 else 0.0 if difference == 0 else float("inf")

    @property
    def agrees(self) -> bool:
        """Whether nothing speaks against both being the same."""
        return self.errors is None or self.errors <= MOST_ERRORS

    def to_dict(self) -> dict[str, Any]:
        """Return the check as plain data."""
        known = len(self.reported.documents) > 1
        return {
            "agrees": self.agrees,
            "split": self.reported.split,
            "tokens": self.reported.tokens,
            "documents": len(self.reported.documents),
            "kl": self.measured.kl,
            "kl_se": self.measured.kl_se if known else None,
            "reported_kl": self.reported.kl,
            "reported_kl_se": self.reported.kl_se if known else None,
            "reported_by_run": self.stored,
            "difference": self.paired.difference,
            "difference_se": self.paired.se if known else None,
            "standard_errors": self.errors,
            "perplexity": self.measured.perplexity,
            "reported_perplexity": self.reported.perplexity,
            "top1_agreement": self.measured.agreement,
        }

    def render(self) -> str:
        """Return the check as text."""
        measured, reported, paired = self.measured, self.reported, self.paired
        known = len(reported.documents) > 1
        source = "reported" if self.stored else "the plan measured now"
        line = (
            f"{reported.split}, {reported.tokens:,} tokens of {len(reported.documents)} documents: "
            f"KL in llama.cpp {loss_text(measured.kl, measured.kl_se if known else None)} nats/token, "
            f"{source} {loss_text(reported.kl, reported.kl_se if known else None)}"
        )
        # In powers of ten, since it may be smaller than its error by orders of magnitude.
        difference = f"{paired.difference:+.1e} ± {f'{paired.se:.1e}' if known else '?'}"
        return f"{line}\npaired difference {difference}: {self._verdict()}"

    def _verdict(self) -> str:
        if self.errors is None:
            return "a single document cannot say how much that is"
        if not self.agrees:
            return f"they differ by {self.errors:.1f} standard errors of the reported loss"
        words = ("one standard error", "two standard errors", "three standard errors")
        return f"they agree within {words[max(0, math.ceil(self.errors) - 1)]} of the reported loss"


@dataclass(frozen=True)
class Verification:
    """What became of checking a file.

    Attributes:
        loss: None where it was not asked for, or the tensors are wrong already.
        notes: what has changed since the run.
    """

    read_back: ReadBack
    loss: LossCheck | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def agrees(self) -> bool:
        """Whether the file is what the run says it is."""
        return self.read_back.agrees and (self.loss is None or self.loss.agrees)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "agrees": self.agrees,
            "read_back": self.read_back.to_dict(),
            "loss": self.loss.to_dict() if self.loss else None,
            "notes": list(self.notes),
        }

    def render(self) -> str:
        """Return everything as text, the verdict last."""
        parts = [self.read_back.render(), *(f"note: {note}" for note in self.notes)]
        if self.loss:
            parts.append(self.loss.render())
        name, plan = Path(self.read_back.file).name, self.read_back.plan[:12]
        if self.agrees:
            what = "carries out" if self.loss else "holds"
            return "\n".join([*parts, f"verified: {name} {what} plan {plan}"])
        return "\n".join([*parts, f"not verified: {name} does not carry out plan {plan}"])


def verify_file(
    file: Path,
    run: Path,
    digest: str | None = None,
    *,
    loss: bool = True,
    progress: Progress | None = None,
) -> Verification:
    """Check a GGUF file against the run that its plan is from.

    Args:
        file: what was exported.
        run: a run's folder, or a folder of runs.
        digest: start of the plan's digest; the one that the file's metadata names unless given.
        loss: measure its loss in llama.cpp, if its tensors are right.
        progress: where progress lines go.

    Raises:
        InputError: the file is no whole GGUF file, no run or no plan is found, or the run's model or text
            is gone or is another one.
        LlamaError: llama.cpp cannot be called, or the file made it abort.
    """
    reader = open_gguf(file)
    digest = digest or stated(reader, PLAN_KEY)
    folder = find_run(run, digest, stated(reader, MODEL_KEY))
    with Store.open(folder, mode="ro") as store:
        plan = stored_plan(store, digest)
        read = read_back(file, stored_shipment(store, plan, source=True), reader)
        if not read.agrees or not loss:
            return Verification(read)
        progress = progress or Progress()
        with progress.stage("verify", "loading model and text"):
            reopened = reopen(store)
        with progress.stage("verify", "measuring in llama.cpp") as tick:
            checked = check_loss(store, reopened, plan, file, tick)
        notes = reopened.changed
        if _has_cache(stored_space(store), plan):
            notes += (_WEIGHTS_ONLY,)
    return Verification(read, checked, notes)


def check_loss(store: Store, reopened: Reopened, plan: Plan, file: Path, tick: Tick) -> LossCheck:
    """Measure the loss of a file in llama.cpp on the most trustworthy text that its plan was measured on.

    A plan that was measured nowhere is measured on holdout text now. So is one with compressed KV caches,
    without them, since a file holds weights only.
    """
    from tightfit.search.apart import measure_apart

    evaluator, known, space = reopened.evaluator, None, stored_space(store)
    for split in SPLITS if not _has_cache(space, plan) else ():
        protocol = evaluator.protocol(split, reopened.windows[split])
        if known := store.find_measurement(plan.digest, split, protocol):
            break
    split = known.split if known else SPLITS[0]
    windows = reopened.windows[split]
    reported = known or evaluator.measure(plan.digest, space.site_options(plan), split, windows)
    measured = measure_apart(
        file,
        windows,
        reopened.references(split),
        plan=plan.digest,
        split=split,
        identity={"model": str(store.get("model")["digest"])},
        threads=reopened.threads,
        tick=tick,
    )
    return LossCheck(measured, reported, known is not None)


def _has_cache(space: Space, plan: Plan) -> bool:
    """Whether a plan says how KV caches are compressed."""
    return any(option != PLAIN for option in space.kv_options(plan).values())


def find_run(run: Path, digest: str | None, model: str | None = None) -> Path:
    """Return the folder of the run that holds a plan.

    Args:
        run: a run's folder, or a folder of runs.
        digest: start of the plan's digest; only a run's own folder does without.
        model: digest of the model, where the file names one; it decides among several runs.

    Raises:
        InputError: there is no such run, or more than one.
    """
    if (run / RUN_FILE).is_file() or run.is_file():
        return run
    if digest is None:
        raise InputError(
            f"the file names no plan, so that no run of {run} can be found for it: name the plan (--plan) or "
            "the run's own folder (--run)."
        )
    folders = sorted(path.parent for path in run.glob(f"*/{RUN_FILE}"))
    found = [folder for folder in folders if _holds(folder, digest, model)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise InputError(
            f"none of the {len(folders)} runs in {run} holds plan {digest[:12]!r}"
            f"{' of this model' if model else ''}: name the folder of its run (--run) or its plan (--plan)."
        )
    raise InputError(
        f"{len(found)} runs in {run} hold plan {digest[:12]!r} ({', '.join(map(str, found))}): name one "
        "with --run."
    )


def _holds(folder: Path, digest: str, model: str | None) -> bool:
    try:
        store = Store.open(folder, mode="ro")
    except InputError:  # a damaged run hides no other
        return False
    with store:
        if model and not str((store.get("model") or {}).get("digest", "")).startswith(model):
            return False
        return any(held.startswith(digest) for held in store.plans())
