"""Whole BRKGA runs to be timed, and their parts."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding

from graphrl.bench.cases import PARAMETERS, Work
from graphrl.bench.programs import BY_GRAPH, compile_program, over_and_over, spread
from graphrl.bench.timing import Program
from graphrl.costs.device.decisions import num_genes
from graphrl.costs.device.problem import DeviceProblem
from graphrl.graphs.padding import PaddedGraph, common_sizes, pad_batch
from graphrl.solvers.chromosomes import brkga
from graphrl.solvers.chromosomes.batch import run_batch
from graphrl.solvers.chromosomes.beta import BetaTable, beta_table


def graphrl_search(work: Work, *, proposals: bool = False) -> Program:
    """BRKGA on every graph with graphrl.

    Args:
      work: the case.
      proposals: draw every mutant gene from its own Beta distribution instead of the uniform one.
    """
    graphs, problem, settings = work.graphs, work.problem, work.settings
    mesh = work.mesh(len(graphs))
    genes = num_genes(common_sizes(graphs), problem.devices)
    shapes = np.random.default_rng(settings.seed).uniform(0.5, 5.0, (2, genes, len(graphs))).astype(np.float32)

    def run(graph: PaddedGraph, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
        table: BetaTable | None = beta_table(*jnp.asarray(shapes)) if proposals else None
        return run_batch(keys, graph, problem, PARAMETERS, settings.evaluations, table, mesh=mesh)

    each = PARAMETERS.generations(settings.evaluations) * PARAMETERS.offspring
    return search_program(run, pad_batch(graphs), each, mesh, settings.seed)


def own_work(work: Work) -> Program:
    """BRKGA's own work in such a run: the fitness is the sum of the genes."""
    generations, mesh = PARAMETERS.generations(work.settings.evaluations), work.mesh(len(work.graphs))

    def evolve(graph: PaddedGraph, keys: jax.Array, _: jax.Array) -> jax.Array:
        def generation(_: jax.Array, state: brkga.State) -> brkga.State:
            return brkga._next(state, state.offspring.sum(0), PARAMETERS, None)

        first = brkga.init(keys, graph, DeviceProblem.of(work.problem), PARAMETERS)
        state = lax.fori_loop(0, generations, generation, first)
        return brkga.best(state)[0].T

    alone, batch = spread(evolve, mesh), pad_batch(work.graphs)
    each = generations * PARAMETERS.offspring
    return search_program(lambda graph, keys: alone(graph, keys, 0), batch, each, mesh, work.settings.seed)


def search_program(
    run: Callable[[Any, jax.Array], Any], batch: Any, evaluations: int, mesh: Mesh, seed: int
) -> Program:
    """A program that searches from the same keys over and over; `evaluations` are those of one graph."""
    graphs = len(jax.tree.leaves(batch)[0])
    keys = jax.random.split(jax.random.key(seed), graphs)
    arguments = jax.device_put((batch, keys), NamedSharding(mesh, BY_GRAPH))
    compiled, compile_s = compile_program(run, *arguments)
    return Program(over_and_over(compiled, arguments, graphs * evaluations), compile_s)
