"""Compiled jax programs to be timed: graphrl's own, and the plain yardstick's.

All take a batch of graphs, spread over a mesh of devices by graph. On CPUs the graphs of a device follow one another,
on accelerators they run together.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from graphrl.bench import plain
from graphrl.bench.chromosomes import padded
from graphrl.bench.plain_graph import PlainGraph, plain_batch
from graphrl.bench.timing import Sample, timed
from graphrl.costs.device.decisions import from_genes
from graphrl.costs.device.evaluate import evaluate
from graphrl.costs.device.problem import DeviceProblem
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import PaddedGraph, common_sizes, pad_batch

BY_GRAPH, EVERYWHERE = PartitionSpec("graphs"), PartitionSpec()


class Costs(NamedTuple):
    """What a program says of the chromosomes that it was given; 0 where it was not asked."""

    makespan: np.ndarray  # [g, p] seconds
    peak: np.ndarray  # [g, p, d] bytes


class Program(NamedTuple):
    """Something to time."""

    method: str
    run: Callable[[int], Sample]  # runs it so many times over
    graphs: int
    population: int
    compile_s: float | None = None
    costs: Costs | None = None


def graphrl_evaluation(
    graphs: Sequence[ComputationGraph],
    chromosomes: Sequence[np.ndarray],
    problem: Problem,
    mesh: Mesh,
    *,
    makespan: bool,
    memory: bool,
) -> Program:
    """Decoding and costing a population on every graph with graphrl.

    Args:
      chromosomes: `[p, genes]` of each graph (chromosomes.py).
    """
    sizes, d = common_sizes(graphs), problem.devices
    batch = pad_batch(graphs, sizes)
    genes = np.stack([padded(x, graph, sizes, d).T for x, graph in zip(chromosomes, graphs, strict=True)])

    def costs(group: PaddedGraph, genes: jax.Array) -> tuple[jax.Array, jax.Array]:
        decisions = from_genes(jnp.moveaxis(genes, 0, 1), sizes, d)
        found = evaluate(group, decisions, DeviceProblem.of(problem), makespan=makespan, memory=memory)
        second_unit, byte_unit = group.second_unit[:, None], group.byte_unit[:, None, None]
        return found.makespan * second_unit, jnp.moveaxis(found.peak_memory, 0, -1) * byte_unit

    return _evaluation("graphrl", costs, batch, genes, genes.shape[2], mesh)


def plain_evaluation(
    graphs: Sequence[ComputationGraph],
    chromosomes: Sequence[np.ndarray],
    problem: Problem,
    mesh: Mesh,
    *,
    makespan: bool,
    memory: bool,
) -> Program:
    """The same with the plain yardstick."""
    sizes = common_sizes(graphs)
    batch = plain_batch(graphs, problem)
    genes = np.stack([padded(x, g, sizes, problem.devices) for x, g in zip(chromosomes, graphs, strict=True)])

    def costs(group: PlainGraph, genes: jax.Array) -> tuple[jax.Array, jax.Array]:
        def one(graph: PlainGraph, genes: jax.Array) -> tuple[jax.Array, jax.Array]:
            return plain.costs(graph, genes, problem, makespan=makespan, memory=memory)

        return jax.vmap(jax.vmap(one, (None, 0)))(group, genes)

    return _evaluation("plain", costs, batch, genes, genes.shape[1], mesh)


def _evaluation(
    method: str,
    costs: Callable[[Any, jax.Array], tuple[jax.Array, jax.Array]],
    batch: Any,
    genes: np.ndarray,
    population: int,
    mesh: Mesh,
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
    specs = (BY_GRAPH, BY_GRAPH, EVERYWHERE)
    shared = jax.shard_map(by_group(repeated, mesh), mesh=mesh, in_specs=specs, out_specs=BY_GRAPH, check_vma=False)
    compiled, compile_s = compile_program(shared, batch, genes, _replicated(1, mesh))
    makespan, peak = jax.device_get(compiled(batch, genes, _replicated(1, mesh)))

    def work(runs: int) -> int:
        jax.block_until_ready(compiled(batch, genes, _replicated(runs, mesh)))
        return runs * len(genes) * population

    return Program(method, timed(work), len(genes), population, compile_s, Costs(makespan, peak))


def by_group(function: Callable[..., Any], mesh: Mesh) -> Callable[..., Any]:
    """`function(graphs, per graph, replicated)` for one device's share: its graphs one after the other on a CPU."""

    def local(graphs: Any, per_graph: Any, replicated: Any) -> Any:
        if mesh.devices.flat[0].platform != "cpu":
            return function(graphs, per_graph, replicated)
        singles = jax.tree.map(lambda x: x[:, None], (graphs, per_graph))
        found = lax.map(lambda single: function(*single, replicated), singles)
        return jax.tree.map(lambda x: x[:, 0], found)

    return local


def compile_program(function: Callable[..., Any], *arguments: Any) -> tuple[Callable[..., Any], float]:
    """The compiled program for such arguments, and the seconds of tracing and compiling it."""
    started = time.perf_counter()
    compiled = jax.jit(function).lower(*arguments).compile()
    return compiled, time.perf_counter() - started


def _replicated(value: int, mesh: Mesh) -> jax.Array:
    return jax.device_put(jnp.int32(value), NamedSharding(mesh, EVERYWHERE))
