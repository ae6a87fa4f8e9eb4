"""BRKGA for many environments at once: what `jax.vmap` of it runs is one program on a batch of graphs.

`jax.vmap` alone would give each of the decoder's gathers and loops one more axis. A batch of graphs is what BRKGA is
written for, so a mapped axis is folded into that one; on a CPU, the batch is then run some graphs at a time
(solvers/chromosomes/batch.py).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from graphrl.costs.device.problem import DeviceProblem
from graphrl.envs.proposal.coding import Coding, chosen
from graphrl.graphs.padding import PaddedGraph
from graphrl.solvers.chromosomes import brkga
from graphrl.solvers.chromosomes.batch import run_grouped


@functools.cache
def search(
    parameters: brkga.Parameters, generations: int, coding: Coding
) -> Callable[[DeviceProblem, jax.Array, PaddedGraph, jax.Array | None], jax.Array]:
    """The jitted function of a problem, keys `[g]`, graphs (leading axis g) and choices `[g, k]` int32 to the best
    fitness `[g]` float32.

    The choices are those of `gene_choices`, or None: all uniform. Mapped as often as you like, but for the problem; a
    graph that is mapped over in vain is repeated.
    """

    @jax.custom_batching.custom_vmap
    def best(problem: DeviceProblem, keys: jax.Array, graph: PaddedGraph, choice: jax.Array | None) -> jax.Array:
        table = None if choice is None else chosen(choice.T, coding)
        return run_grouped(keys, graph, table, None, problem, parameters, generations)[1]

    @best.def_vmap
    def rule(size: int, mapped: Sequence[Any], problem: DeviceProblem, *arguments: Any) -> tuple[jax.Array, bool]:
        def fold(is_mapped: bool, x: jax.Array) -> jax.Array:
            x = x if is_mapped else jnp.broadcast_to(x[None], (size, *x.shape))
            return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])  # -1 would not do: an axis may be empty

        values = best(problem, *jax.tree.map(fold, tuple(mapped[1:]), arguments))
        return values.reshape(size, -1), True

    return jax.jit(best)
