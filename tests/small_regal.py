"""REGAL's real learner on four tiny graphs, in the process of the tests or in several of their own."""

import functools
import sys
from pathlib import Path

import jax
import numpy as np

from graphrl.agents.regal.config import RegalConfig
from graphrl.agents.regal.learner import learner
from graphrl.costs.problem import Problem
from graphrl.envs.proposal.instance import ProposalParams, instances
from graphrl.graphs.datasets.regal_like import regal_like
from graphrl.learning.learner import Learner, LearnerState, Metrics
from graphrl.learning.spread import on_mesh
from graphrl.mesh import make_mesh
from graphrl.solvers.chromosomes.brkga import Parameters
from graphrl.training import devices

SMALL = RegalConfig(
    problem=Problem("makespan", 2),
    evaluations=16,
    parameters=Parameters(population=10, elites=2, mutants=4),
    rounds=1,
    width=8,
    hint="list",
    actions=2,
    learning_rate=0.1,
)


@functools.cache
def graphs(hint_for: Problem | None = SMALL.hint_for) -> ProposalParams:
    """A batch of four."""
    return instances([regal_like(seed, num_ops=10 + seed) for seed in range(4)], None, hint_for)


def updated(functions: Learner, steps: int, batch: ProposalParams) -> tuple[LearnerState, Metrics]:
    """The state after some updates, and the last metrics."""
    state, metrics = functions.init(jax.random.key(0)), dict[str, jax.Array]()
    for step in range(steps):
        state, metrics = functions.update(state, jax.random.fold_in(jax.random.key(1), step), batch)
    return state, metrics


def leaves(state: LearnerState) -> list[np.ndarray]:
    """All that learning has changed."""
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]


if __name__ == "__main__":  # FILE: one of several processes; the first writes what came of two updates
    devices.start(4, distributed=True)
    mesh = make_mesh(4)
    devices.meet(mesh)
    own = devices.own_rows(mesh, 4)
    batch = devices.shard(jax.tree.map(lambda x: np.asarray(x)[own], graphs()), mesh, 4)
    state, _ = updated(on_mesh(learner(SMALL), mesh), 2, batch)
    if devices.is_main():
        np.savez(Path(sys.argv[1]), *leaves(state))
    print(jax.process_count(), len(own), flush=True)
