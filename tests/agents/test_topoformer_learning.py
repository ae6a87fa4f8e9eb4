"""Topoformer learns: after some seconds of training its orders need less memory on graphs that it has not seen."""

import jax
import pytest

from graphrl.agents.topoformer.config import TopoformerConfig
from graphrl.agents.topoformer.learner import learner
from graphrl.envs.ordering import instances
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.padding import common_sizes
from graphrl.learning.learner import on_mesh
from graphrl.mesh import make_mesh

UPDATES, GRAPHS, SEED = 200, 8, 0


@pytest.mark.slow
def test_the_trained_policy_beats_its_starting_point_on_unseen_graphs() -> None:
    """Percent below the best of 100 random orders: untrained, greedy orders are some 15 above it; the standard error of
    the mean of 32 graphs is about 1.
    """
    config = TopoformerConfig(layers=1, width=16, samples=8, learning_rate=3e-3)
    functions = on_mesh(learner(config), make_mesh(GRAPHS, jax.devices()[:1]))
    unseen, seen = ([layered(40, first + i) for i in range(count)] for first, count in ((0, 32), (1000, 512)))
    sizes = common_sizes([*unseen, *seen])
    held_out = instances(unseen, sizes)

    def look() -> dict[str, float]:
        return {
            name: float(value) for name, value in functions.evaluate(state.params, jax.random.key(1), held_out).items()
        }

    state = functions.init(jax.random.key(SEED))
    before = look()
    for step in range(UPDATES):
        first = GRAPHS * step % len(seen)
        batch = instances(seen[first : first + GRAPHS], sizes)
        state, _ = functions.update(state, jax.random.key(step), batch)
    after = look()
    assert after["greedy"] > before["greedy"] + 5
    assert after["sampled"] > before["sampled"] + 4
    assert after["sampled"] > after["greedy"]
