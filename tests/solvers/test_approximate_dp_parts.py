"""What approximate dynamic programming is made of: greedy ends, equal sets, thresholds, members, units."""

import jax
import jax.numpy as jnp
import numpy as np
from approximate_dp_tasks import ONE, scaled
from hypothesis import given, settings
from hypothesis import strategies as st
from search_graphs import random_dag

from graphrl.costs.exact import evaluate
from graphrl.graphs.datasets.layered import layered
from graphrl.solvers.flow import Flow
from graphrl.solvers.orders.approximate_dp import program
from graphrl.solvers.orders.approximate_dp.model import LAST, Keys, model
from graphrl.solvers.orders.approximate_dp.program import least_of_equals
from graphrl.solvers.rules.memory_orders import greedy


def test_greedy_goes_on_from_any_start() -> None:
    flow = Flow(layered(60, 0))
    whole = greedy(flow)
    assert all(greedy(flow, whole[:k]) == whole for k in (0, 1, 59, 60))
    for seed in range(20):
        start = np.random.default_rng(seed).integers(1, 60)
        order = greedy(flow, flow.topological[:start])
        assert order[:start] == flow.topological[:start]
        evaluate(flow.graph, ONE, np.zeros(60, np.int64), np.array(order))  # checks that the order is valid


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), st.booleans()), min_size=1, max_size=60))
def test_equal_sets_become_one(candidates: list[tuple[int, int, bool]]) -> None:
    names, peak, real = (np.array(column) for column in zip(*candidates, strict=True))
    size = 60 - len(names)  # one shape: one program
    hashes = np.random.default_rng(0).integers(0, 2**32, (2, 5), dtype=np.uint32)[:, np.pad(names, (0, size))]
    kept = np.asarray(
        jax.jit(least_of_equals)(
            jnp.asarray(hashes), jnp.asarray(np.pad(peak, (0, size)), jnp.int32), jnp.asarray(np.pad(real, (0, size)))
        )
    )[: len(names)]
    assert all(real[kept])
    assert sorted(names[kept].tolist()) == sorted(set(names[real].tolist()))
    assert all(peak[i] == min(peak[(names == names[i]) & real]) for i in np.flatnonzero(kept))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=40, max_size=40), st.integers(1, 45))
def test_the_threshold_is_the_first_with_enough_before_it(keys: list[tuple[int, int]], goal: int) -> None:
    first, second = np.array(keys).T
    threshold = jax.jit(program.threshold_after)(
        Keys(jnp.int32(first), jnp.uint32(second), jnp.int32(first)), jnp.int32(goal)
    )
    place = int(threshold.first), int(threshold.second)
    assert place == (sorted(keys)[goal - 1] if goal <= 40 else (LAST - 1, 2**32 - 1))


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 5]), st.floats(0, 1))
@settings(max_examples=30)
def test_members_of_sets(seed: int, words: int, density: float) -> None:
    ran = np.random.default_rng(seed).random((7, 32 * words)) < density
    sets = (ran.reshape(7, words, 32) << np.arange(32)).sum(-1).astype(np.uint32)
    state, op, count = jax.jit(program.members, static_argnums=1)(jnp.asarray(sets.T), 100)
    expected = np.argwhere(ran)[:100]
    assert int(count) == ran.sum()
    place = np.stack([np.asarray(state), np.asarray(op)], 1)
    np.testing.assert_array_equal(place[: len(expected)], expected)


def test_units_leave_nothing_out() -> None:
    flow = Flow(scaled(random_dag(0, 14), 3 * 2**34))
    rounded = model(flow, 0)
    assert rounded.unit % (3 * 2**34) == 0
    assert np.asarray(rounded.tables.allocated).sum() * rounded.unit == sum(flow.size) + sum(
        flow.graph.arrays.workspace_bytes.tolist()
    )
