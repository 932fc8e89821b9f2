"""Agents: whoever proposes plans. Every agent gets the same task and is measured the same way.

An agent is a frozen dataclass with one method, ``propose``, a pure function of task and history. To
add one, write it in a file of its own and name it in :data:`AGENTS`; the contract tests then run over it.
"""

from __future__ import annotations

from importlib import import_module

from tightfit.search.agents.base import Agent, History, Mode, Proposal, Sensitivity, Task, Trial
from tightfit.spaces import InputError, suggest

AGENTS: dict[str, str] = {
    "uniform": "tightfit.search.agents.uniform:Uniform",
    "mix": "tightfit.search.agents.mix:Mix",
    "greedy": "tightfit.search.agents.greedy:Greedy",
    "exact": "tightfit.search.agents.exact:Exact",
    "relinearize": "tightfit.search.agents.relinearize:Relinearize",
    "evolution": "tightfit.search.agents.evolution:Evolution",
    "optuna:tpe": "tightfit.search.agents.optuna_agents:tpe",
    "optuna:nsga2": "tightfit.search.agents.optuna_agents:nsga2",
    "optuna:nsga3": "tightfit.search.agents.optuna_agents:nsga3",
    "optuna:gp": "tightfit.search.agents.optuna_agents:gp",
    "optuna:cmaes": "tightfit.search.agents.optuna_agents:cmaes",
    "optuna:qmc": "tightfit.search.agents.optuna_agents:qmc",
}
"""Name in ``search.yaml`` → module and class, imported when asked for."""


def get_agent(name: str) -> Agent:
    """Return an agent by its name.

    Raises:
        InputError: there is no such agent.
    """
    if name not in AGENTS:
        raise InputError(f"no agent is called {name!r} (agents: {', '.join(AGENTS)}).{suggest(name, AGENTS)}")
    module, _, attribute = AGENTS[name].partition(":")
    agent: Agent = getattr(import_module(module), attribute)()
    return agent


__all__ = [
    "AGENTS",
    "Agent",
    "History",
    "Mode",
    "Proposal",
    "Sensitivity",
    "Task",
    "Trial",
    "get_agent",
]
