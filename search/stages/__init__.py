"""The stages of a run, one module each, in this order.

``prepare`` loads the model and the text, ``sense`` scores options, ``fit`` makes a loss model of the
scores, ``solve`` finds the exact front, ``explore`` lets agents propose plans, ``validate`` picks one
and judges it on holdout text. ``speed`` runs plans in the tool that they are for: before solving where
the budget bounds speed, and before the last choice. A stage is a function of the :class:`Bench` and of
what the stages before it returned; what people see of it, it writes into the store.
"""

from tightfit.search.stages.crews import whole_run_crew
from tightfit.search.stages.explore import Candidate, explore
from tightfit.search.stages.fit import certify, fit
from tightfit.search.stages.prepare import Bench, prepare
from tightfit.search.stages.sense import Sensed, sense
from tightfit.search.stages.solve import make_task, solve_task
from tightfit.search.stages.speed import speed_sides, sweep_files
from tightfit.search.stages.validate import validate

__all__ = [
    "Bench",
    "Candidate",
    "Sensed",
    "certify",
    "explore",
    "fit",
    "make_task",
    "prepare",
    "sense",
    "solve_task",
    "speed_sides",
    "sweep_files",
    "validate",
    "whole_run_crew",
]
