"""A run as a standard Optuna study, for optuna-dashboard and for Optuna's own tools.

The study is derived from the store and never read back: it is written anew each time, so that the two
cannot disagree. It may be written while the run goes on.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.exporters.base import put_in_place
from tightfit.search.facts import SpaceFacts
from tightfit.search.records import StoredPlan, StoredTrial
from tightfit.search.store import Store
from tightfit.spaces import Decision, InputError
from tightfit.workers.measurement import Measurement

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import CategoricalDistribution
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial

STUDY_FILE = "study.db"
"""Name of the study inside a run's folder."""

METRICS = ("loss (nats per token)", "weights (MiB)")
"""What the study minimizes, in this order."""

SPLIT = "selection"
"""The part of the text that a search measures its plans on."""

MIB = 2**20


@dataclass(frozen=True)
class _Outcome:
    """A plan of the search and what became of it: a measurement, or the reason why there is none."""

    plan: StoredPlan
    measured: Measurement | None
    reason: str | None
    proposed: StoredTrial | None


def write_study(store: Store, path: Path) -> Path:
    """Write the study of a run, whole or not at all, replacing an earlier one.

    It is named after the run's folder and holds every whole plan that was measured on the selection
    text, in the order of being first seen; where they were measured under several protocols, those on
    the most tokens. Parameters are the options' names, by decision, for every decision with a choice.
    Plans that could not be measured are failed trials without values. A dashboard that has an earlier
    file open shows the new one once it is started again.

    Args:
        store: of the run; read-only is enough.
        path: file to write, or the folder to write ``study.db`` into.

    Returns:
        The file.

    Raises:
        InputError: the run has no space yet, or there cannot be such a file.
    """
    file = path / STUDY_FILE if path.is_dir() else path
    with store.snapshot():
        decisions, outcomes = store.decisions(), _outcomes(store)
        space, about = SpaceFacts.read(store.get("space")), _about(store)
    if not decisions:
        raise InputError(f"the run at {store.path} has no space yet; let it get past its first stage.")
    with put_in_place(file) as partial:
        partial.write_bytes(b"")
        with _new_study(partial, store.path.resolve().parent.name) as (storage, study):
            for key, value in about.items():
                study.set_user_attr(key, value)
            distributions = _distributions(decisions)
            limit = about.get("limit (bytes)")
            _add_trials(storage, study, [_trial(o, distributions, space, limit) for o in outcomes])
    return file


def _about(store: Store) -> dict[str, Any]:
    """Return what is said of the run as a whole."""
    model, budget = store.get("model", {}), store.get("budget", {})
    about = {
        "model": model.get("name"),
        "budget": budget.get("text"),
        "limit (bytes)": budget.get("limit"),
        "derived from": store.path.name,
    }
    return {key: value for key, value in about.items() if value is not None}


def _outcomes(store: Store) -> list[_Outcome]:
    """Return every whole plan that was measured on the selection text, or could not be."""
    measurements, failures = store.measurements(SPLIT), store.failures()
    # The protocol of most tokens; losses under different ones do not compare.
    tokens = {m.protocol: m.tokens for m in measurements}
    protocol = max(tokens, key=lambda name: (tokens[name], name)) if tokens else None
    measured = {m.plan: m for m in measurements if m.protocol == protocol}
    failed = {f.plan: f.reason for f in failures if f.split == SPLIT}
    proposed: dict[str, StoredTrial] = {}
    for trial in store.trials():
        proposed.setdefault(trial.plan, trial)
    whole = {decision.name for decision in store.decisions()}
    return [
        _Outcome(plan, measured.get(digest), failed.get(digest), proposed.get(digest))
        for digest, plan in store.plans().items()
        if (digest in measured or digest in failed) and {name for name, _ in plan.plan.choices} == whole
    ]


def _distributions(decisions: Sequence[Decision]) -> dict[str, CategoricalDistribution]:
    from optuna.distributions import CategoricalDistribution

    return {
        decision.name: CategoricalDistribution([option.name for option in decision.options])
        for decision in decisions
        if len(decision.options) > 1
    }


def _trial(
    outcome: _Outcome,
    distributions: dict[str, CategoricalDistribution],
    space: SpaceFacts | None,
    limit: int | None,
) -> FrozenTrial:
    from optuna.trial import TrialState, create_trial

    plan, measured = outcome.plan, outcome.measured
    trial = create_trial(
        state=TrialState.FAIL if measured is None else TrialState.COMPLETE,
        values=None if measured is None else [measured.kl, plan.bytes / MIB],
        params={name: option for name, option in plan.plan.choices if name in distributions},
        distributions=dict(distributions),
        user_attrs=_attributes(outcome, space, limit),
    )
    trial.datetime_start = datetime.fromtimestamp(plan.first_seen)
    trial.datetime_complete = trial.datetime_start + timedelta(seconds=measured.seconds if measured else 0)
    return trial


def _attributes(outcome: _Outcome, space: SpaceFacts | None, limit: int | None) -> dict[str, Any]:
    """Return what is said of a plan beside its options and objectives, as far as it is known."""
    plan, measured, proposed = outcome.plan, outcome.measured, outcome.proposed
    found: dict[str, Any] = {
        "digest": plan.plan.digest,
        "label": proposed.label if proposed else plan.source,
        "agent": proposed.agent if proposed else None,
        "round": proposed.round if proposed else None,
        "within budget": None if limit is None else plan.bytes <= limit,
        "effective bits": space.effective_bits(plan.bytes) if space else None,
        "failed": outcome.reason if measured is None else None,
    }
    if measured is not None:
        found["perplexity"] = measured.perplexity
        found["kl_se"] = measured.kl_se if len(measured.documents) > 1 else None
    return {key: value for key, value in found.items() if value is not None}


def _add_trials(storage: RDBStorage, study: Study, trials: Sequence[FrozenTrial]) -> None:
    """Add trials to an empty study, all at once.

    ``Study.add_trial`` asks the file twice for every parameter of every trial, which takes minutes for a
    few hundred trials over a few hundred decisions. The rows here are the ones that it would write.
    """
    import sqlalchemy
    from optuna.distributions import distribution_to_json

    texts = {name: distribution_to_json(d) for t in trials[:1] for name, d in t.distributions.items()}
    study_id = storage.get_study_id_from_name(study.study_name)
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for number, trial in enumerate(trials):
        of = {"trial_id": number + 1}
        times = {"datetime_start": trial.datetime_start, "datetime_complete": trial.datetime_complete}
        rows["trials"].append(
            {**of, "number": number, "study_id": study_id, "state": trial.state.name, **times}
        )
        for objective, value in enumerate(trial.values or ()):
            rows["trial_values"].append(
                {**of, "objective": objective, "value": value, "value_type": "FINITE"}
            )
        for name, distribution in trial.distributions.items():
            value = distribution.to_internal_repr(trial.params[name])
            rows["trial_params"].append(
                {**of, "param_name": name, "param_value": value, "distribution_json": texts[name]}
            )
        for key, value in trial.user_attrs.items():
            rows["trial_user_attributes"].append({**of, "key": key, "value_json": json.dumps(value)})
    tables = sqlalchemy.MetaData()
    tables.reflect(storage.engine, only=list(rows))
    with storage.engine.begin() as connection:
        for name, content in rows.items():
            connection.execute(tables.tables[name].insert(), content)


@contextmanager
def _new_study(file: Path, name: str) -> Iterator[tuple[RDBStorage, Study]]:
    """Open an empty study in a new file, and let go of the file at the end."""
    import optuna

    from tightfit.search.agents.optuna_study import quiet

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(file)
        # Nobody sees this file before it is whole, so nothing has to be safe on disk before the end.
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA journal_mode = MEMORY")
        return connection

    with quiet():
        # The connection is made here, since a URL cannot hold every path.
        storage = optuna.storages.RDBStorage("sqlite:///study.db", engine_kwargs={"creator": connect})
        try:
            study = optuna.create_study(
                study_name=name, storage=storage, directions=["minimize"] * len(METRICS)
            )
            study.set_metric_names(list(METRICS))
            yield storage, study
        finally:
            storage.remove_session()
            storage.engine.dispose()
    with file.open("rb") as written:
        os.fsync(written.fileno())
