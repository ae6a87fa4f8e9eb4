"""BRKGA on many graphs at once, spread over the devices of this process.

Each device takes its share of the graphs (`jax.shard_map` over one axis). On an accelerator a device runs its share
as one program. On a CPU it runs a few graphs at a time: more lanes than the caches hold cost more than shared kernels
save (512 ops: 11,600 evaluations a second in one program, 20,900 one graph at a time). A graph's result depends on its
key alone, not on how the batch is cut.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from graphrl.costs.device.decisions import DeviceProblem
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.padding import PaddedGraph, Sizes
from graphrl.mesh import make_mesh, most_that_share
from graphrl.solvers.chromosomes import brkga
from graphrl.solvers.chromosomes.brkga import BetaTable

_CPU_STATE = 2**17  # lanes times slots that share a program on a CPU: state of some megabytes


def run_batch(
    keys: jax.Array,
    graph: PaddedGraph,
    problem: Problem,
    parameters: brkga.Parameters,
    evaluations: int,
    proposals: BetaTable | None = None,
    *,
    elite_bias: jax.Array | None = None,
    mesh: Mesh | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The best solutions of a batch of graphs after a number of evaluations each.

    Args:
      keys: `[g]` typed keys, one a graph.
      graph: a batch of graphs (leading axis g), on the host or a device.
      problem: what is planned for.
      parameters: static.
      evaluations: of each graph; as many whole generations as fit are made, at least one.
      proposals: the Beta distribution of each gene, of shape `[k, g]`; None is uniform.
      elite_bias: `[g]` float32, in place of that of `parameters`.
      mesh: one axis of devices to spread the graphs over; by default all local devices whose number divides g.

    Returns:
      Genes `[k, g]` float32 (`costs.device.decisions` has their layout) and fitness `[g]` float32, in the graph's
      units.

    Raises:
      ProblemError: the mesh has more than one axis, or its size does not divide g.
    """
    graphs = keys.shape[0]
    if mesh is None:
        devices = jax.local_devices()
        mesh = make_mesh(graphs, devices[: most_that_share(graphs, len(devices))])
    if len(mesh.axis_names) != 1 or graphs % mesh.size:
        raise ProblemError(
            f"a mesh of shape {dict(mesh.shape)} cannot share {graphs} graphs: needs one axis that divides"
        )
    generations = parameters.generations(evaluations)
    return _sharded(keys, graph, proposals, elite_bias, DeviceProblem.of(problem), parameters, generations, mesh)


@functools.partial(jax.jit, static_argnames=("parameters", "generations", "mesh"))
def _sharded(
    keys: jax.Array,
    graph: PaddedGraph,
    proposals: BetaTable | None,
    elite_bias: jax.Array | None,
    problem: DeviceProblem,
    parameters: brkga.Parameters,
    generations: int,
    mesh: Mesh,
) -> tuple[jax.Array, jax.Array]:
    axis = mesh.axis_names[0]
    specs: Any = PartitionSpec(axis), PartitionSpec(None, axis), PartitionSpec()
    by_graph, by_gene, whole = specs
    of_proposals = None if proposals is None else BetaTable(whole, whole, whole, by_gene)
    return jax.shard_map(
        functools.partial(run_grouped, parameters=parameters, generations=generations),
        mesh=mesh,
        in_specs=(by_graph, by_graph, of_proposals, by_graph, whole),
        out_specs=(by_gene, by_graph),
        check_vma=False,
    )(keys, graph, proposals, elite_bias, problem)


def run_grouped(
    keys: jax.Array,
    graph: PaddedGraph,
    proposals: BetaTable | None,
    elite_bias: jax.Array | None,
    problem: DeviceProblem,
    parameters: brkga.Parameters,
    generations: int,
) -> tuple[jax.Array, jax.Array]:
    """`run_batch` on one device, for a traced caller: all graphs at once or, on a CPU, some at a time."""

    def run(group: tuple[jax.Array, PaddedGraph, jax.Array | None, jax.Array | None]) -> tuple[jax.Array, jax.Array]:
        keys, graph, choice, elite_bias = group
        table = None if proposals is None or choice is None else proposals._replace(choice=choice.T)
        state = brkga.init(keys, graph, problem, parameters, table, elite_bias=elite_bias)
        return brkga.best(brkga.evolve(state, graph, problem, parameters, generations, table))

    whole = keys, graph, None if proposals is None else proposals.choice.T, elite_bias
    size = _group_size(keys.shape[0], graph.sizes, parameters)

    def in_groups() -> tuple[jax.Array, jax.Array]:
        groups = jax.tree.map(lambda x: x.reshape(x.shape[0] // size, size, *x.shape[1:]), whole)
        genes, value = lax.map(run, groups)
        return jnp.moveaxis(genes, 0, 1).reshape(genes.shape[1], -1), value.reshape(-1)

    if size == keys.shape[0]:
        return run(whole)
    return lax.platform_dependent(cpu=in_groups, default=lambda: run(whole))


def _group_size(graphs: int, sizes: Sizes, parameters: brkga.Parameters) -> int:
    """Graphs that run together on a CPU: the largest divisor whose state is small enough."""
    fitting = max(1, _CPU_STATE // (parameters.offspring * sizes.slots))
    return max(n for n in range(1, graphs + 1) if graphs % n == 0 and n <= fitting)
