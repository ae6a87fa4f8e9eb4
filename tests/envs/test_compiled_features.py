"""Steps of `Compile-v0`, compiled, against those in pure JAX: runs of choices, and features of schedules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_graphs import SIZES, random_graphs

from graphrl.costs.device import evaluate
from graphrl.costs.problem import Problem, Transfer
from graphrl.envs.compile import features, reward
from graphrl.envs.compile.generator import Choices, CompileInstance, make_instance
from graphrl.envs.compile.sends import Sends
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
    np.testing.assert_allclose(compiled.ops, in_jax.ops, atol=1e-5)
    # shares of short times: those in pure JAX are differences of sums of float32
    np.testing.assert_allclose(compiled.devices, in_jax.devices, atol=1e-3)


@pytest.mark.parametrize("transfer", ["rendezvous", "link"])
@pytest.mark.parametrize("sends", ["urgent", "rule"])
def test_runs_are_the_same(transfer: Transfer, sends: Sends, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random choices on random graphs: makespans, ends and places have the same bits as in pure JAX."""
    rng = np.random.default_rng(0)
    problem = Problem("makespan", DEVICES, transfer, latency=0.5, bandwidth=4.0, memory_limit=25)
    each = [make_instance(graph, problem, SIZES, levels=4) for graph in random_graphs(rng, GRAPHS)]
    instances = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
    shape = (GRAPHS, SCHEDULES, SIZES.ops)
    choices = Choices(*(jnp.asarray(rng.integers(0, most, shape), jnp.int32) for most in (DEVICES, 4)))

    def of_all() -> reward.Run:
        def one(params: CompileInstance, chosen: Choices) -> reward.Run:
            return reward.run.__wrapped__(params, reward.possible_choices(params, chosen), sends)  # type: ignore[attr-defined]

        results = jax.jit(jax.vmap(jax.vmap(one, (None, 0))))(instances, choices)
        return results._replace(graph=None)

    compiled = of_all()
    assert len(np.unique(compiled.makespan)) > GRAPHS
    assert 0 < compiled.valid.sum() < compiled.valid.size
    for module in (reward, evaluate):
        monkeypatch.setattr(module, "is_compiled", lambda: False)
    jax.tree.map(np.testing.assert_array_equal, compiled, of_all())
