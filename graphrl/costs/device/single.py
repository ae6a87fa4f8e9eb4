"""Costs of one candidate solution as a pure function that `jax.vmap` may map over solutions, graphs, problems or all.

Mapped, it runs as one population (lanes last) instead of what batching each of its operations would give, which on a
CPU is some tens of times slower. So a caller writes the plain function and still gets the fast program.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from graphrl.costs.device.decisions import Decisions
from graphrl.costs.device.evaluate import evaluate
from graphrl.costs.device.problem import DeviceProblem
from graphrl.graphs.padding import PaddedGraph


class SolutionCosts(NamedTuple):
    """Costs of one solution, float32 (exact ones: `costs.exact`)."""

    makespan: jax.Array  # [] seconds
    peak_memory: jax.Array  # [d] bytes


_ALL: Any = SolutionCosts(True, True)  # type: ignore[arg-type]  # every output is batched
GraphProblem = tuple[PaddedGraph, DeviceProblem]  # of a batch, all arrays have a leading axis g


def solution_costs(
    graph: PaddedGraph, placement: jax.Array, op_keys: jax.Array, transfer_keys: jax.Array, problem: DeviceProblem
) -> SolutionCosts:
    """Decodes one solution of one graph, and costs it.

    Args:
      graph: `graphs.padding.pad` of a graph.
      placement: `[n]` int32, device of each op (n, t: padded sizes; what stands at padding does not matter).
      op_keys: `[n]` float32 in [0, 1).
      transfer_keys: `[t, d]` float32 in [0, 1), key of each tensor's transfer to each device.
      problem: with arrays `[]`.
    """
    return _of_one((graph, problem), placement, op_keys, transfer_keys)


@jax.custom_batching.custom_vmap
def _of_batch(posed: GraphProblem, placement: jax.Array, op_keys: jax.Array, transfer_keys: jax.Array) -> Any:
    """A batch `[g, p, ...]`."""
    graph, problem = posed
    decisions = Decisions(
        jnp.moveaxis(placement, -1, 0), jnp.moveaxis(op_keys, -1, 0), jnp.transpose(transfer_keys, (3, 2, 0, 1))
    )
    costs = evaluate(graph, decisions, problem)
    seconds = costs.makespan * graph.second_unit[:, None]
    return SolutionCosts(seconds, jnp.moveaxis(costs.peak_memory, 0, -1) * graph.byte_unit[:, None, None])


@_of_batch.def_vmap
def _of_batches(size: int, batched: list, *arguments: Any) -> Any:
    """`[b, g, p, ...]`: more solutions of each problem or, where these differ too, a batch of b * g problems."""
    if not any(jax.tree.leaves(batched[0])):
        posed, *rest = arguments
        solutions = _spread(size, batched[1:], tuple(rest))
        costs = _of_batch(posed, *(_merge(jnp.moveaxis(x, 0, 1), 1) for x in solutions))
        split = jax.tree.map(lambda x: x.reshape(x.shape[0], size, -1, *x.shape[2:]), costs)
        return jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), split), _ALL
    costs = _of_batch(*jax.tree.map(_merge, _spread(size, batched, arguments)))
    return jax.tree.map(lambda x: x.reshape(size, -1, *x.shape[1:]), costs), _ALL


@jax.custom_batching.custom_vmap
def _of_population(posed: GraphProblem, placement: jax.Array, op_keys: jax.Array, transfer_keys: jax.Array) -> Any:
    """Solutions `[p, ...]` of one problem."""
    one = jax.tree.map(lambda x: x[None], (posed, placement, op_keys, transfer_keys))
    return jax.tree.map(lambda x: x[0], _of_batch(*one))


@_of_population.def_vmap
def _of_populations(size: int, batched: list, *arguments: Any) -> Any:
    """`[b, p, ...]`: more solutions of one problem, or p of each of b problems."""
    if any(jax.tree.leaves(batched[0])):
        return _of_batch(*_spread(size, batched, arguments)), _ALL
    posed, *rest = arguments
    solutions = _spread(size, batched[1:], tuple(rest))
    costs = _of_population(posed, *(_merge(x) for x in solutions))
    return jax.tree.map(lambda x: x.reshape(size, -1, *x.shape[1:]), costs), _ALL


@jax.custom_batching.custom_vmap
def _of_one(posed: GraphProblem, placement: jax.Array, op_keys: jax.Array, transfer_keys: jax.Array) -> Any:
    costs = _of_population(posed, placement[None], op_keys[None], transfer_keys[None])
    return jax.tree.map(lambda x: x[0], costs)


@_of_one.def_vmap
def _of_many(size: int, batched: list, *arguments: Any) -> Any:
    if any(jax.tree.leaves(batched[0])):
        posed, *solutions = _spread(size, batched, arguments)
        costs = _of_batch(posed, *(x[:, None] for x in solutions))
        return jax.tree.map(lambda x: x[:, 0], costs), _ALL
    posed, *solutions = arguments
    return _of_population(posed, *_spread(size, batched[1:], tuple(solutions))), _ALL


def _merge(array: jax.Array, axis: int = 0) -> jax.Array:
    """Two neighbouring axes as one."""
    shape = array.shape
    return array.reshape(*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])


def _spread(size: int, batched: Any, arguments: tuple) -> tuple:
    """Every argument with a leading axis of `size`: repeated where it has none."""
    return jax.tree.map(
        lambda is_batched, x: x if is_batched else jnp.broadcast_to(x, (size, *jnp.shape(x))),
        tuple(batched),
        arguments,
    )
