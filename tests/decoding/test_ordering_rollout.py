"""Orders from priorities: greedy, sampled or by beam, from one call of the policy or one each step; and their costs."""

from typing import NamedTuple

import chex
import compiled_modules as programs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_graphs import random_graphs
from ordering_graphs import SHARING, SIZES, all_orders, exact_peak, padded_orders, small_graphs

from graphrl.decoding.beam import beam, beam_with
from graphrl.decoding.likelihood import log_prob
from graphrl.decoding.rollout import (
    Context,
    Form,
    Rollout,
    greedy,
    log_prob_with,
    rollout_with,
    sample,
    sampled_orders,
)
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import PaddedGraph, pad_batch

GRAPHS = random_graphs(np.random.default_rng(0), 24, SHARING)
BATCH: PaddedGraph = jax.tree.map(jnp.asarray, pad_batch(GRAPHS, SHARING))
N = SHARING.ops
PRIORITIES = np.random.default_rng(1).normal(size=(len(GRAPHS), N)).astype(np.float32)
FORMS: tuple[Form, ...] = ("queue", "dense")
# one program for each shape (and form) that the tests below use, however often they run it
compiled_greedy = jax.jit(chex.assert_max_traces(greedy, n=2))
compiled_sample = jax.jit(chex.assert_max_traces(sample, n=5), static_argnames=("samples", "form"))
compiled_log_prob = jax.jit(log_prob)


def keys(count: int, seed: int = 0) -> jax.Array:
    return jax.random.split(jax.random.key(seed), count)


def plain_greedy(graph: ComputationGraph, y: np.ndarray) -> list[int]:
    source, target = graph.arrays.dependencies()
    order: list[int] = []
    while len(order) < graph.arrays.num_ops:
        waiting = set(target[~np.isin(source, order)].tolist()) | set(order)
        order.append(max((op for op in range(graph.arrays.num_ops) if op not in waiting), key=lambda op: (y[op], -op)))
    return order


def check_costs(graphs: list[ComputationGraph], batch: PaddedGraph, priorities: np.ndarray, rollout: Rollout) -> None:
    """Checks that peaks are the host's, and log-probabilities those of the orders; orders `[g, s, n]`."""
    np.testing.assert_allclose(
        rollout.log_prob, compiled_log_prob(batch, priorities, rollout.order), rtol=1e-4, atol=1e-4
    )
    for graph, orders, peaks, unit in zip(graphs, rollout.order, rollout.peak, batch.byte_unit, strict=True):
        assert np.all(np.asarray(orders)[:, graph.arrays.num_ops :] == batch.sizes.ops)
        for order, peak in zip(np.asarray(orders), np.asarray(peaks), strict=True):
            assert peak * unit == exact_peak(graph, order)


@pytest.mark.parametrize("levels", [1, None])
def test_greedy_takes_the_ready_op_of_highest_priority_and_the_lower_of_equals(levels: int | None) -> None:
    y = PRIORITIES if levels is None else np.floor(PRIORITIES * levels)
    rollout = compiled_greedy(BATCH, y)
    for graph, priorities, order in zip(GRAPHS, y, np.asarray(rollout.order), strict=True):
        assert order[: graph.arrays.num_ops].tolist() == plain_greedy(graph, priorities)
    check_costs(GRAPHS, BATCH, y, jax.tree.map(lambda x: x[:, None], rollout))


def test_greedy_tells_priorities_apart_that_differ_in_their_last_bit() -> None:
    graph = layered(100, 0)
    batch = pad_batch([graph])
    bits = np.random.default_rng(0).permutation(batch.sizes.ops).astype(np.int32)
    y = (np.float32(3).view(np.int32) + bits).view(np.float32)
    order = np.asarray(compiled_greedy(batch, y[None]).order)[0]
    assert order[:100].tolist() == plain_greedy(graph, y)


@pytest.mark.parametrize("form", FORMS)
def test_samples_are_orders_of_known_costs_and_of_each_graphs_own_key(form: Form) -> None:
    drawn = [BATCH, PRIORITIES, keys(len(GRAPHS))]
    rollout = compiled_sample(*drawn, 2, form=form)
    check_costs(GRAPHS, BATCH, PRIORITIES, rollout)
    turned = jax.tree.map(lambda x: jnp.roll(x, 5, 0), drawn)
    np.testing.assert_array_equal(jnp.roll(rollout.order, 5, 0), compiled_sample(*turned, 2, form=form).order)


@pytest.mark.parametrize("form", FORMS)
def test_samples_have_the_distribution_of_eq_8(form: Form) -> None:
    graphs, drawn = small_graphs(4), 4000
    batch = pad_batch(graphs, SIZES)
    scale = np.array([[1], [1], [4], [4]], np.float32)
    y = np.random.default_rng(2).normal(size=(4, SIZES.ops)).astype(np.float32) * scale
    orders = np.asarray(compiled_sample(batch, y, keys(4), drawn, form=form).order)
    for i, graph in enumerate(graphs):
        every = padded_orders(list(all_orders(graph)), SIZES.ops)
        one: PaddedGraph = jax.tree.map(lambda x, i=i: x[i : i + 1], batch)
        expected = drawn * np.exp(np.asarray(compiled_log_prob(one, y[i : i + 1], every[None]))[0])
        number = {tuple(order): k for k, order in enumerate(every.tolist())}
        counts = np.bincount([number[tuple(order)] for order in orders[i].tolist()], minlength=len(every))
        often = expected > 5
        chi2 = ((counts - expected) ** 2 / expected)[often].sum()
        freedom = max(1, int(often.sum()) - 1)
        assert chi2 < freedom + 4 * np.sqrt(2 * freedom) + 4
        assert counts[~often].sum() < expected[~often].sum() + 5 * np.sqrt(expected[~often].sum() + 1)


@pytest.mark.parametrize("spread", [1, 500])
def test_large_graphs_whatever_the_priorities(spread: float) -> None:
    """Several levels of sums, weights from 0 to the largest, and a single lane, which does not draw at every step."""
    graph = layered(700, 1)
    batch = pad_batch([graph])
    y = np.random.default_rng(0).normal(size=(1, batch.sizes.ops)).astype(np.float32) * np.float32(spread)
    rollout = compiled_sample(batch, y, keys(1), 1, form="queue")
    check_costs([graph], batch, y, rollout)
    assert np.isfinite(rollout.log_prob).all()


def nearest_after_the_last(graph: ComputationGraph) -> list[int]:
    source, target = graph.arrays.dependencies()
    order: list[int] = []
    for _ in range(graph.arrays.num_ops):
        waiting = set(target[~np.isin(source, order)].tolist()) | set(order)
        distance = {(op - (order[-1] if order else N)) % N: op for op in range(graph.arrays.num_ops)}
        order.append(next(distance[d] for d in sorted(distance) if distance[d] not in waiting))
    return order


def constant(y: jax.Array | np.ndarray, samples: int) -> jax.Array:
    return jnp.broadcast_to(jnp.asarray(y)[:, None], (len(y), samples, N))


def test_a_policy_that_is_asked_at_every_step_gives_the_same() -> None:
    rollout = jax.jit(lambda batch, y: rollout_with(batch, lambda _: constant(y, 1)))(BATCH, PRIORITIES)
    np.testing.assert_array_equal(rollout.order[:, 0], compiled_greedy(BATCH, PRIORITIES).order)
    check_costs(GRAPHS, BATCH, PRIORITIES, rollout)


def test_the_gradient_through_the_steps_is_that_of_eq_8() -> None:
    order = compiled_sample(BATCH, PRIORITIES, keys(len(GRAPHS)), 2, form="queue").order

    @jax.jit
    def both(batch: PaddedGraph, y: jax.Array) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
        stepwise = jax.value_and_grad(lambda y: log_prob_with(batch, lambda _: constant(y, 2), order).sum())(y)
        return stepwise, jax.value_and_grad(lambda y: log_prob(batch, y, order).sum())(y)

    stepwise, direct = both(BATCH, jnp.asarray(PRIORITIES))
    np.testing.assert_allclose(stepwise[0], direct[0], rtol=1e-5)
    np.testing.assert_allclose(stepwise[1], direct[1], atol=1e-4)


def test_a_policy_is_told_what_has_run() -> None:
    """The policy prefers the op right after the last op, and starts at the first op's number."""

    def logits(context: Context) -> jax.Array:
        n = context.ready.shape[-1]
        index = jnp.arange(n, dtype=jnp.int32)
        started = jnp.where(context.step == 0, (context.first == n) & (context.last == n), context.first < n)
        distance = (index[None, None] - context.last[..., None]) % n
        return jnp.where(started[..., None], -distance.astype(jnp.float32), jnp.nan)

    rollout = jax.jit(lambda batch: rollout_with(batch, logits))(BATCH)
    for graph, order in zip(GRAPHS, np.asarray(rollout.order)[:, 0], strict=True):
        assert order[: graph.arrays.num_ops].tolist() == nearest_after_the_last(graph)


def test_a_step_writes_its_state_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampling loop as XLA compiles it (see test_compiled_loops.py)."""
    monkeypatch.setattr("graphrl.decoding.rollout.is_compiled", lambda: False)
    graph, samples = programs.padded(), programs.LANES
    n = graph.sizes.ops
    priorities, keys = np.zeros((programs.GRAPHS, n), np.float32), jax.random.split(jax.random.key(0), programs.GRAPHS)
    run = jax.jit(lambda graph, y, keys: sampled_orders(graph, y, keys, samples))
    module = programs.Module(run.lower(graph, priorities, keys))
    (loop,) = module.loops(f"s32[{(n + 1) * programs.L}]")
    assert module.made_anew(loop, (n + 1) // 4 * programs.L) == []


compiled_beam = jax.jit(beam, static_argnames="width")


class State(NamedTuple):
    score: float
    order: tuple[int, ...]


def plain_beam(graph: ComputationGraph, y: np.ndarray, width: int) -> tuple[int, ...]:
    """Beam search by sets, dictionaries and whole prefixes: graphs of one output an op, none shared."""
    a = graph.arrays
    before: dict[int, set[int]] = {op: set() for op in range(a.num_ops)}
    for source, target in zip(*a.dependencies(), strict=True):
        before[int(target)].add(int(source))
    states = [State(0.0, ())]
    for _ in range(a.num_ops):
        best: dict[frozenset[int], tuple[float, float, State]] = {}
        for state in states:
            done = set(state.order)
            ready = [op for op in before if op not in done and before[op] <= done]
            total = np.logaddexp.reduce(y[ready].astype(np.float64))
            for op in ready:
                new = State(state.score + float(y[op]) - float(total), (*state.order, op))
                key = (prefix_peak(graph, new.order), -new.score, new)
                best[frozenset(new.order)] = min(best.get(frozenset(new.order), key), key)
        states = sorted((state for _, _, state in best.values()), reverse=True)[:width]
    return min(states, key=lambda state: (prefix_peak(graph, state.order), -state.score)).order


def prefix_peak(graph: ComputationGraph, prefix: tuple[int, ...]) -> int:
    a = graph.arrays
    uses = [set(a.use_op[a.use_tensor == tensor].tolist()) for tensor in range(a.num_tensors)]
    live: set[int] = set()
    peak, done = 0, set()
    for op in prefix:
        live |= set(np.flatnonzero(a.producer == op).tolist())
        peak = max(peak, int(a.tensor_bytes[list(live)].sum() + a.workspace_bytes[op]))
        done.add(op)
        live = {tensor for tensor in live if a.kept[tensor] or not uses[tensor] <= done}
    return peak


def test_a_beam_keeps_the_states_that_a_plain_one_keeps() -> None:
    graphs = small_graphs(12, seed=3)
    y = np.random.default_rng(4).normal(size=(len(graphs), SIZES.ops)).astype(np.float32)
    rollout = compiled_beam(pad_batch(graphs, SIZES), y, width=4)
    for graph, priorities, order in zip(graphs, y, np.asarray(rollout.order), strict=True):
        assert order[: graph.arrays.num_ops].tolist() == list(plain_beam(graph, priorities, 4))


def test_a_wide_beam_finds_the_optimum() -> None:
    """7 ops have at most 35 subsets of k ops: a width of 40 drops none, and collapsing keeps the best order of each."""
    graphs = small_graphs(12, seed=3)
    batch = pad_batch(graphs, SIZES)
    peak = (
        np.asarray(compiled_beam(batch, np.zeros((len(graphs), SIZES.ops), np.float32), width=40).peak)
        * batch.byte_unit
    )
    for graph, lowest in zip(graphs, peak, strict=True):
        assert lowest == min(exact_peak(graph, np.array(order)) for order in all_orders(graph))


def test_peaks_and_log_probabilities_of_a_beam_are_those_of_its_orders() -> None:
    rollout = compiled_beam(BATCH, PRIORITIES, width=6)
    check_costs(GRAPHS, BATCH, PRIORITIES, jax.tree.map(lambda x: x[:, None], rollout))


def test_a_beam_that_asks_a_policy_at_every_step_gives_the_same() -> None:
    graphs = small_graphs(4)
    batch = pad_batch(graphs, SIZES)
    y = np.random.default_rng(0).normal(size=(4, SIZES.ops)).astype(np.float32)

    def stepwise_orders(batch: PaddedGraph, y: jax.Array) -> jax.Array:
        return beam_with(batch, lambda context: y[:, None] + context.step.astype(jnp.float32), 4).order

    np.testing.assert_array_equal(jax.jit(stepwise_orders)(batch, y), compiled_beam(batch, y, width=4).order)
