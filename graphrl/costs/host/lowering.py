"""Costs of a population by compiled code, as a part of a jitted program for CPUs.

`host_costs` is a custom call of XLA (see `compiled/custom_call.py`) with the operands and results of `arrays.py`;
`host_peaks` is the same call for given orders. Both work under `jax.jit`, `jax.vmap`, `jax.lax.scan` and
`jax.shard_map`; gradients are zero; `jax.export` refuses them. XLA compiles the program around a call in a fraction of
a second, where loops in pure JAX take several seconds, and numba compiles it once for all sizes and problems.

`GRAPHRL_LOWERING=jax` in the environment makes CPUs run pure JAX, too. A jaxlib whose interface differs does the same,
with a warning.
"""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.compiled import announced, start_compile
from graphrl.compiled.custom_call import works
from graphrl.costs.device.decisions import Decisions, DeviceProblem
from graphrl.costs.host.call import costs_of_lanes
from graphrl.costs.host.clocks import FREE, TRANSFERS
from graphrl.errors import GraphrlError
from graphrl.graphs.padding import PaddedGraph


@functools.cache
def is_compiled() -> bool:
    """True if programs for CPUs call compiled functions; False, if `GRAPHRL_LOWERING` is jax or jaxlib does not fit.

    Raises:
      GraphrlError: `GRAPHRL_LOWERING` is another value.
    """
    setting = os.environ.get("GRAPHRL_LOWERING", "auto")
    if setting not in ("auto", "jax"):
        raise GraphrlError(f"GRAPHRL_LOWERING is {setting!r}: must be auto or jax")
    return setting == "auto" and works()


NAME = "costs"


def prepare() -> None:
    """Compiles the costs, or loads them from disk."""
    with announced(costs_of_lanes, NAME):
        costs_of_lanes.register()


def prepare_in_background() -> None:
    """Starts to compile the costs in another process, if they are not on disk and CPUs are used."""
    if os.environ.get("GRAPHRL_LOWERING") != "jax" and jax.default_backend() == "cpu":
        start_compile(costs_of_lanes, NAME, prepare)


def host_costs(
    graph: PaddedGraph,
    decisions: Decisions,
    problem: DeviceProblem,
    transfer_seconds: jax.Array,
    steps: int,
    *,
    makespan: bool,
    memory: bool,
    orders: bool,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Decodes and costs a population on a batch of graphs.

    Args:
      graph: a batch of graphs (leading axis g).
      decisions: p candidate solutions of each graph.
      problem: the planning problem.
      transfer_seconds: `[g, t]` float32, second units.
      steps: c, length of the orders.
      makespan, memory: whether to compute each of them.
      orders: whether to write orders and ends; if not, these have no rows.

    Returns:
      Makespan `[g, p]`, peaks `[d, g, p]`, events `[c, g, p]` and ends `[n, g, p]`, as `evaluate.DeviceCosts`.
    """
    flags = (problem.devices, TRANSFERS[problem.transfer], makespan, memory, problem.resident_weights, orders, False)
    return _call(graph, decisions, transfer_seconds, flags, steps if orders else 0)


def host_peaks(graph: PaddedGraph, orders: jax.Array) -> jax.Array:
    """Peaks of given orders on one device, without resident weights: `[g, p]` float32, byte units.

    Args:
      graph: a batch of graphs (leading axis g).
      orders: `[n, g, p]` int32, complete topological orders of the ops; n after the last op.
    """
    none = jnp.zeros((0, *orders.shape[1:]), jnp.float32)
    flags = (1, FREE, False, True, False, False, True)
    return _call(graph, Decisions(orders, none, none[None]), jnp.zeros_like(graph.tensor_bytes), flags, 0)[1][0]


def _call(
    graph: PaddedGraph, decisions: Decisions, transfer_seconds: jax.Array, flags: tuple[int, ...], steps: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """The custom call.

    Args:
      graph, decisions, transfer_seconds: see `host_costs`.
      flags: the settings of `arrays.py`.
      steps: c; 0 without orders.
    """
    prepare()
    n, g, p = decisions.placement.shape
    shape = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    call = jax.ffi.ffi_call(
        "graphrl_costs",
        (
            shape((g, p)),
            shape((flags[0], g, p)),
            jax.ShapeDtypeStruct((steps, g, p), jnp.int32),
            shape((n if steps else 0, g, p)),
        ),
        vmap_method="expand_dims",
    )
    operands = (
        np.asarray(flags, np.int32),
        *(graph.num_ops, graph.num_tensors, graph.runtime, graph.workspace, graph.weight, graph.producer),
        *(graph.tensor_bytes, graph.owned_bytes, transfer_seconds, graph.kept, graph.use_tensor, graph.use_op),
        *(graph.control_source, graph.control_target, graph.share_tensor, graph.share_of, graph.share_reuses),
        *(decisions.placement, decisions.op_keys, decisions.transfer_keys),
    )
    spans, peaks, events, ends = call(*map(jax.lax.stop_gradient, operands))
    return spans, peaks, events, ends
