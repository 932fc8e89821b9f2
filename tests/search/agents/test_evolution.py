from __future__ import annotations


def test_x(task_of):
    task = task_of("fused", 0.4)
    from tests.search.agents import simulation

    h = simulation.simulate("exact", task, simulation.interacting(task, 0.3), 3, 4)
    print(len(h.trials), [t.loss for t in h.measured], h.measured[0].measured.kl_se)
