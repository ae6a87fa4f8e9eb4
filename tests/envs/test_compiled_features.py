"""The compiled walk over schedules against the loop in pure JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_graphs import SIZES, random_graphs

from graphrl.envs.compile import features
from graphrl.graphs.padding import pad_batch

GRAPHS, SCHEDULES = 6, 3


def schedules(seed: int) -> tuple:
    """Random graphs, and schedules of each with ops in a topological order."""
    rng = np.random.default_rng(seed)
    graphs = random_graphs(rng, GRAPHS)
    place = np.full((GRAPHS, SCHEDULES, SIZES.ops), SIZES.ops, np.int32)
    end = np.zeros((GRAPHS, SCHEDULES, SIZES.ops), np.float32)
    for g, graph in enumerate(graphs):
        for s in range(SCHEDULES):
            place[g, s, : len(graph.ops)] = graph.arrays.rank
            last = np.cumsum(graph.arrays.runtime[np.argsort(graph.arrays.rank)] + rng.random(len(graph.ops)))
            end[g, s, : len(graph.ops)] = last[graph.arrays.rank]
    placement = rng.integers(0, 2, place.shape).astype(np.int32)
    return pad_batch(graphs, SIZES), placement, place, end


@pytest.mark.parametrize("seed", [0, 1])
def test_features_are_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs, placement, place, end = schedules(seed)

    def of_all() -> features.PlanFeatures:
        def one(graph, *schedule: jax.Array) -> features.PlanFeatures:  # type: ignore[no-untyped-def]
            return features.schedule_features.__wrapped__(graph, *schedule, 2)  # type: ignore[attr-defined]

        each = jax.vmap(jax.vmap(one, (None, 0, 0, 0)))
        return jax.jit(each)(graphs, jnp.asarray(placement), jnp.asarray(place), jnp.asarray(end))

    compiled = of_all()
    monkeypatch.setattr(features, "is_compiled", lambda: False)
    jax.tree.map(np.testing.assert_array_equal, compiled, of_all())
