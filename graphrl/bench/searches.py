"""Whole BRKGA runs to be timed, and their parts."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding

from graphrl.bench.programs import BY_GRAPH, compile_program, spread
from graphrl.bench.timing import Program, timed
from graphrl.costs.device.decisions import num_genes
from graphrl.costs.device.problem import DeviceProblem
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import PaddedGraph, common_sizes, pad_batch
from graphrl.solvers.chromosomes import brkga
from graphrl.solvers.chromosomes.batch import run_batch
from graphrl.solvers.chromosomes.beta import BetaTable, beta_table


def graphrl_search(
    graphs: Sequence[ComputationGraph],
    problem: Problem,
    parameters: brkga.Parameters,
    evaluations: int,
    mesh: Mesh,
    seed: int,
    *,
    proposals: bool = False,
) -> Program:
    """BRKGA on every graph with graphrl.

    Args:
      proposals: draw every mutant gene from its own Beta distribution instead of the uniform one.
    """
    genes = num_genes(common_sizes(graphs), problem.devices)
    shapes = np.random.default_rng(seed).uniform(0.5, 5.0, (2, genes, len(graphs))).astype(np.float32)

    def run(graph: PaddedGraph, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
        table: BetaTable | None = beta_table(*jnp.asarray(shapes)) if proposals else None
        return run_batch(keys, graph, problem, parameters, evaluations, table, mesh=mesh)

    each = parameters.generations(evaluations) * parameters.offspring
    return search_program(run, pad_batch(graphs), each, parameters, mesh, seed)


def own_work(
    graphs: Sequence[ComputationGraph],
    problem: Problem,
    parameters: brkga.Parameters,
    evaluations: int,
    mesh: Mesh,
    seed: int,
) -> Program:
    """BRKGA's own work in such a run: the fitness is the sum of the genes."""
    generations = parameters.generations(evaluations)

    def evolve(graph: PaddedGraph, keys: jax.Array, _: jax.Array) -> jax.Array:
        def generation(_: jax.Array, state: brkga.State) -> brkga.State:
            return brkga._next(state, state.offspring.sum(0), parameters, None)

        first = brkga.init(keys, graph, DeviceProblem.of(problem), parameters)
        state = lax.fori_loop(0, generations, generation, first)
        return brkga.best(state)[0].T

    alone = spread(evolve, mesh)
    return search_program(
        lambda graph, keys: alone(graph, keys, 0),
        pad_batch(graphs),
        generations * parameters.offspring,
        parameters,
        mesh,
        seed,
    )


def search_program(
    run: Callable[[Any, jax.Array], Any],
    batch: Any,
    evaluations: int,
    parameters: brkga.Parameters,
    mesh: Mesh,
    seed: int,
) -> Program:
    """A program that searches from the same keys over and over; `evaluations` are those of one graph."""
    graphs = len(jax.tree.leaves(batch)[0])
    keys = jax.random.split(jax.random.key(seed), graphs)
    batch, keys = jax.device_put((batch, keys), NamedSharding(mesh, BY_GRAPH))
    compiled, compile_s = compile_program(run, batch, keys)

    def work(runs: int) -> int:
        for _ in range(runs):
            jax.block_until_ready(compiled(batch, keys))
        return runs * graphs * evaluations

    return Program(timed(work), compile_s, graphs, parameters.population)
