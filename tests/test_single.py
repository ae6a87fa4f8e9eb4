"""One solution's costs as a function that vmap may map over solutions, graphs or both."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from search_graphs import SIZES, random_dag

from graphrl.costs import exact
from graphrl.costs.device.problem import DeviceProblem
from graphrl.costs.device.single import SolutionCosts, solution_costs
from graphrl.costs.problem import Problem
from graphrl.graphs.padding import PaddedGraph, pad, pad_batch

PROBLEM = Problem("makespan", 2, "link", latency=0.5, bandwidth=16.0)


def test_every_way_to_map_gives_the_exact_costs() -> None:
    rng = np.random.default_rng(0)
    graphs, solutions = [random_dag(seed) for seed in range(3)], 4
    placement = rng.integers(0, 2, (3, solutions, SIZES.ops)).astype(np.int32)
    op_keys = rng.random((3, solutions, SIZES.ops), np.float32)
    transfer_keys = rng.random((3, solutions, SIZES.tensors, 2), np.float32)
    arrays = (placement, op_keys, transfer_keys)
    costs = functools.partial(solution_costs, problem=DeviceProblem.of(PROBLEM))
    batch = pad_batch(graphs, SIZES)
    both = jax.jit(jax.vmap(jax.vmap(costs, in_axes=(None, 0, 0, 0))))(batch, *arrays)
    other = jax.jit(jax.vmap(jax.vmap(costs), in_axes=(None, 1, 1, 1), out_axes=1))(batch, *arrays)
    pairs = jax.jit(jax.vmap(costs))(batch, *(x[:, 0] for x in arrays))
    for g, graph in enumerate(graphs):
        padded = pad(graph, SIZES)
        population = jax.jit(jax.vmap(costs, in_axes=(None, 0, 0, 0)))(padded, *(x[g] for x in arrays))
        for p in range(solutions):
            n, t = graph.arrays.num_ops, graph.arrays.num_tensors
            order = exact.decode(graph, PROBLEM, placement[g, p, :n], op_keys[g, p, :n], transfer_keys[g, p, :t])
            true = exact.evaluate(graph, PROBLEM, placement[g, p, :n], order)
            for found in (
                jax.tree.map(lambda x, g=g, p=p: x[g, p], both),
                jax.tree.map(lambda x, g=g, p=p: x[g, p], other),
                jax.tree.map(lambda x, p=p: x[p], population),
                jax.jit(costs)(padded, *(x[g, p] for x in arrays)),
            ):
                np.testing.assert_allclose(found.makespan, true.makespan, rtol=1e-6)
                np.testing.assert_array_equal(found.peak_memory, true.peak_memory)
        np.testing.assert_array_equal(jnp.asarray(pairs.peak_memory[g]), both.peak_memory[g, 0])


def test_a_mixed_set_of_graphs_in_one_bucket_compiles_once() -> None:
    traces = []

    @jax.jit
    def costs(graph: PaddedGraph, placement: jax.Array, op_keys: jax.Array, transfer_keys: jax.Array) -> SolutionCosts:
        traces.append(1)
        return solution_costs(graph, placement, op_keys, transfer_keys, DeviceProblem.of(PROBLEM))

    zeros = (np.zeros(SIZES.ops, np.int32), np.zeros(SIZES.ops, np.float32), np.zeros((SIZES.tensors, 2), np.float32))
    for ops in (1, 7, 30):
        costs(pad(random_dag(ops, ops), SIZES), *zeros)
    assert len(traces) == 1
