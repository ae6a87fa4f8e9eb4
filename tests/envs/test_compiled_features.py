"""Features of schedules, compiled, against those in pure JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_graphs import SIZES, random_graphs

from graphrl.envs.compile import features
from graphrl.graphs.padding import pad_batch

GRAPHS, SCHEDULES, DEVICES = 6, 3, 3


def schedules(seed: int) -> tuple:
    """Random graphs, and schedules of each with ops in a topological order."""
    rng = np.random.default_rng(seed)
    graphs = random_graphs(rng, GRAPHS)
    padded = pad_batch(graphs, SIZES)
    place = np.full((GRAPHS, SCHEDULES, SIZES.ops), SIZES.ops, np.int32)
    end = np.zeros((GRAPHS, SCHEDULES, SIZES.ops), np.float32)
    for g, graph in enumerate(graphs):
        for s in range(SCHEDULES):
            place[g, s, : len(graph.ops)] = graph.arrays.rank
            runtime = np.asarray(padded.runtime[g, : len(graph.ops)])
            last = np.cumsum(runtime[np.argsort(graph.arrays.rank)] + rng.random(len(graph.ops)))
            end[g, s, : len(graph.ops)] = last[graph.arrays.rank]
    placement = rng.integers(0, DEVICES, place.shape).astype(np.int32)
    return padded, placement, place, end


@pytest.mark.parametrize("seed", [0, 1])
def test_features_are_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs, placement, place, end = schedules(seed)

    def of_all() -> features.PlanFeatures:
        def one(graph, *schedule: jax.Array) -> features.PlanFeatures:  # type: ignore[no-untyped-def]
            return features.schedule_features.__wrapped__(graph, *schedule, DEVICES)  # type: ignore[attr-defined]

        each = jax.vmap(jax.vmap(one, (None, 0, 0, 0)))
        return jax.jit(each)(graphs, jnp.asarray(placement), jnp.asarray(place), jnp.asarray(end))

    compiled = of_all()
    monkeypatch.setattr(features, "is_compiled", lambda: False)
    in_jax = of_all()
    np.testing.assert_allclose(compiled.ops, in_jax.ops, atol=1e-6)
    # shares of short times: those in pure JAX are differences of sums of float32
    np.testing.assert_allclose(compiled.devices, in_jax.devices, atol=1e-3)
