"""JAX programs made ready to be timed: compilation, repetition, and decoding and costing of a population.

All take a batch of graphs, spread over a mesh of devices by graph. On CPUs the graphs of a device follow one another,
on accelerators they run together.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from graphrl.bench.cases import DEVICES, PARAMETERS, Work, padded
from graphrl.bench.timing import Costs, Program, Sample, timed
from graphrl.costs.device.decisions import DeviceProblem, from_genes
from graphrl.costs.device.evaluate import evaluate
from graphrl.graphs.padding import PaddedGraph, common_sizes, pad_batch

BY_GRAPH, EVERYWHERE = PartitionSpec("graphs"), PartitionSpec()


def graphrl_evaluation(work: Work) -> Program:
    """Decoding and costing a population on every graph with graphrl."""
    graphs, problem, case, d = work.graphs, work.problem, work.case, DEVICES
    sizes = common_sizes(graphs)
    batch = pad_batch(graphs, sizes)
    genes = np.stack([padded(x, graph, sizes, d).T for x, graph in zip(work.chromosomes, graphs, strict=True)])

    def costs(group: PaddedGraph, genes: jax.Array) -> tuple[jax.Array, jax.Array]:
        decisions = from_genes(jnp.moveaxis(genes, 0, 1), sizes, d)
        cost = evaluate(group, decisions, DeviceProblem.of(problem), makespan=case.makespan, memory=case.memory)
        second_unit, byte_unit = group.second_unit[:, None], group.byte_unit[:, None, None]
        return cost.makespan * second_unit, jnp.moveaxis(cost.peak_memory, 0, -1) * byte_unit

    return evaluation_program(costs, batch, genes, work.mesh(len(graphs)))


def evaluation_program(
    costs: Callable[[Any, jax.Array], tuple[jax.Array, jax.Array]], batch: Any, genes: np.ndarray, mesh: Mesh
) -> Program:
    """A program that costs the same genes over and over.

    Args:
      costs: (graphs with leading axis s, genes `[s, ...]`) -> makespan `[s, p]` and peak `[s, p, d]`.
    """

    def repeated(group: Any, genes: jax.Array, runs: jax.Array) -> tuple[jax.Array, jax.Array]:
        def again(_: jax.Array, state: tuple) -> tuple:
            # one gene hangs on the last result: else XLA may compute everything once, before the loop
            genes, (makespan, peak) = state
            total = makespan.sum() + peak.sum()
            genes = genes.at[(0,) * genes.ndim].min(jnp.where(total < 0, 0.0, 1.0))
            return genes, costs(group, genes)

        return lax.fori_loop(0, runs, again, (genes, empty(group, genes)))[1]

    def empty(group: Any, genes: jax.Array) -> Any:
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(costs, group, genes))

    batch, genes = jax.device_put((batch, genes), NamedSharding(mesh, BY_GRAPH))
    compiled, compile_s = compile_program(spread(repeated, mesh), batch, genes, _replicated(1, mesh))
    makespan, peak = jax.device_get(compiled(batch, genes, _replicated(1, mesh)))

    def work(runs: int) -> int:
        jax.block_until_ready(compiled(batch, genes, _replicated(runs, mesh)))
        return runs * len(genes) * PARAMETERS.population

    return Program(timed(work), compile_s, Costs(makespan, peak))


def mapped_program(function: Callable[..., Any], arguments: tuple, mesh: Mesh, evaluations: int) -> Program:
    """Calls of a function of a batch with the same arguments over and over, their leading axes spread over the mesh;
    `evaluations` are those of one call.
    """
    local = jax.shard_map(function, mesh=mesh, in_specs=BY_GRAPH, out_specs=BY_GRAPH, check_vma=False)
    arguments = jax.device_put(arguments, NamedSharding(mesh, BY_GRAPH))
    compiled, compile_s = compile_program(local, *arguments)
    return Program(over_and_over(compiled, arguments, evaluations), compile_s)


def spread(function: Callable[..., Any], mesh: Mesh) -> Callable[..., Any]:
    """`function(graphs, per graph, replicated)` on a mesh: CPUs take their graphs one after the other."""

    def one_by_one(graphs: Any, per_graph: Any, replicated: Any) -> Any:
        singles = jax.tree.map(lambda x: x[:, None], (graphs, per_graph))
        results = lax.map(lambda single: function(*single, replicated), singles)
        return jax.tree.map(lambda x: x[:, 0], results)

    local = one_by_one if mesh.devices.flat[0].platform == "cpu" else function
    specs = (BY_GRAPH, BY_GRAPH, EVERYWHERE)
    return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=BY_GRAPH, check_vma=False)


def compile_program(function: Callable[..., Any], *arguments: Any) -> tuple[Callable[..., Any], float]:
    """The compiled program for such arguments, and the seconds of tracing and compiling it."""
    started = time.perf_counter()
    compiled = jax.jit(function).lower(*arguments).compile()
    return compiled, time.perf_counter() - started


def over_and_over(function: Callable[..., Any], arguments: Any, evaluations: int) -> Callable[[int], Sample]:
    """Calls of a function with the same arguments, to be timed; `evaluations` are those of one call."""

    def work(runs: int) -> int:
        for _ in range(runs):
            jax.block_until_ready(function(*arguments))
        return runs * evaluations

    return timed(work)


def _replicated(value: int, mesh: Mesh) -> jax.Array:
    return jax.device_put(jnp.int32(value), NamedSharding(mesh, EVERYWHERE))
