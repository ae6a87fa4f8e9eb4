"""REGAL learns: after some seconds of training its proposals beat standard BRKGA on graphs that it has not seen."""

from typing import Any

import jax
import numpy as np
import pytest

from graphrl.agents.regal.config import RegalConfig
from graphrl.agents.regal.learner import learner
from graphrl.envs.proposal import instances
from graphrl.graphs.datasets.regal_like import regal_like
from graphrl.graphs.padding import common_sizes
from graphrl.learning.learner import on_mesh
from graphrl.mesh import make_mesh
from graphrl.solvers.chromosomes.brkga import Parameters

UPDATES, LOOK, GRAPHS = 100, 20, 8
SEED = 1


@pytest.mark.slow
def test_the_trained_policy_beats_its_starting_point_on_unseen_graphs() -> None:
    """Standard BRKGA is 0%, and so is the untrained policy, within a point. Measured on the unseen graphs after 120
    updates: 2.9, 7.8 and 9.2% for seeds 0, 1 and 2; seed 1 is there after 40. As in a real run, the policy is the one
    that was best on other held-out graphs.
    """
    seen, validation, unseen = (
        [regal_like(first + i, num_ops=30 + 6 * (i % 3)) for i in range(count)]
        for first, count in ((0, 64), (2000, 32), (1000, 32))
    )
    generation = Parameters(population=20, elites=4, mutants=4)  # alone: what a proposal is worth shows most there
    config = RegalConfig(  # as published: it starts as BRKGA
        evaluations=20, parameters=generation, genes="priorities", hint="none", rounds=1, learning_rate=1e-2
    )
    sizes = common_sizes([*seen, *validation, *unseen])
    training, looked_at, test = (instances(graphs, sizes, config.hint_for) for graphs in (seen, validation, unseen))
    functions = on_mesh(learner(config), make_mesh(GRAPHS, jax.devices()[:1]))
    start, updates, key = jax.random.split(jax.random.key(SEED), 3)
    state, chooser = functions.init(start), np.random.default_rng(SEED)

    def improvement(params: Any, graphs: Any) -> float:
        return float(functions.evaluate(params, key, graphs)["improvement"])

    before = improvement(state.params, test)
    best, params = -np.inf, state.params
    for step in range(UPDATES):
        rows = chooser.choice(len(seen), GRAPHS, replace=False)
        batch = jax.tree.map(lambda x, rows=rows: x[rows], training)
        state, _ = functions.update(state, jax.random.fold_in(updates, step), batch)
        if (step + 1) % LOOK == 0 and (score := improvement(state.params, looked_at)) > best:
            best, params = score, jax.tree.map(np.array, state.params)
    assert improvement(params, test) > max(before, 0) + 3
