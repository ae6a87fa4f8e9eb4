"""Beam search with state collapsing, against the same in plain Python, and its memory against the host's."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_graphs import random_graphs
from ordering_graphs import SHARING, SIZES, all_orders, exact_peak, small_graphs

from graphrl.decoding.beam import beam, beam_with
from graphrl.decoding.likelihood import log_prob
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import PaddedGraph, pad_batch

compiled = jax.jit(beam, static_argnames="width")


class State(NamedTuple):
    score: float
    order: tuple[int, ...]


def plain_beam(graph: ComputationGraph, y: np.ndarray, width: int) -> tuple[int, ...]:
    """By sets, dictionaries and whole prefixes: graphs of one output an op, none shared."""
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


@pytest.mark.parametrize("width", [2, 4])
def test_it_keeps_the_states_that_a_plain_one_keeps(width: int) -> None:
    graphs = small_graphs(12, seed=3)
    y = np.random.default_rng(4).normal(size=(len(graphs), SIZES.ops)).astype(np.float32)
    rollout = compiled(pad_batch(graphs, SIZES), y, width=width)
    for graph, priorities, order in zip(graphs, y, np.asarray(rollout.order), strict=True):
        assert order[: graph.arrays.num_ops].tolist() == list(plain_beam(graph, priorities, width))


def test_a_wide_one_finds_the_optimum() -> None:
    """At most 35 sets of k of 7 ops: a width of 40 drops none, and collapsing keeps the best order of each."""
    graphs = small_graphs(12, seed=3)
    batch = pad_batch(graphs, SIZES)
    peak = np.asarray(compiled(batch, np.zeros((len(graphs), SIZES.ops), np.float32), width=40).peak) * batch.byte_unit
    for graph, lowest in zip(graphs, peak, strict=True):
        assert lowest == min(exact_peak(graph, np.array(order)) for order in all_orders(graph))


def test_its_peaks_and_log_probabilities_are_those_of_its_orders() -> None:
    graphs = random_graphs(np.random.default_rng(0), 30, SHARING)
    batch: PaddedGraph = jax.tree.map(jnp.asarray, pad_batch(graphs, SHARING))
    y = np.random.default_rng(1).normal(size=(len(graphs), SHARING.ops)).astype(np.float32)
    rollout = compiled(batch, y, width=6)
    np.testing.assert_allclose(rollout.log_prob, jax.jit(log_prob)(batch, y, rollout.order), rtol=1e-4, atol=1e-4)
    for graph, order, peak, unit in zip(graphs, np.asarray(rollout.order), rollout.peak, batch.byte_unit, strict=True):
        assert np.all(order[graph.arrays.num_ops :] == SHARING.ops)
        assert peak * unit == exact_peak(graph, order)


def test_a_policy_that_is_asked_at_every_step_gives_the_same() -> None:
    graphs = small_graphs(4)
    batch = pad_batch(graphs, SIZES)
    y = np.random.default_rng(0).normal(size=(4, SIZES.ops)).astype(np.float32)

    def stepwise_orders(batch: PaddedGraph, y: jax.Array) -> jax.Array:
        return beam_with(batch, lambda context: y[:, None] + context.step.astype(jnp.float32), 4).order

    np.testing.assert_array_equal(jax.jit(stepwise_orders)(batch, y), compiled(batch, y, width=4).order)
