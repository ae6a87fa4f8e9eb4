"""Costs of a population by compiled code, as a part of a jitted program for CPUs.

`host_costs` is a custom call of XLA (see `compiled/custom_call.py`) with the operands and results of `arrays.py`. It
works under `jax.jit`, `jax.vmap`, `jax.lax.scan` and `jax.shard_map`; gradients are zero; `jax.export` refuses it. XLA
does not partition it: without `shard_map`, every device computes the whole of a sharded batch.
XLA compiles the program around it in a fraction of a second, where loops in pure JAX take several seconds, and numba
compiles it once for all sizes and problems.

`GRAPHRL_LOWERING=jax` in the environment makes CPUs run pure JAX, too. A jaxlib whose interface differs does the same,
with a warning.
"""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.compiled import announced, start_compile
from graphrl.compiled.custom_call import typed, works
from graphrl.costs.device.decisions import Decisions, DeviceProblem
from graphrl.costs.host.call import costs_of_lanes
from graphrl.costs.host.clocks import TRANSFERS
from graphrl.errors import GraphrlError
from graphrl.graphs.padding import PaddedGraph


@functools.cache
def is_compiled() -> bool:
    """Returns True if programs for CPUs call compiled functions.

    They do not if `GRAPHRL_LOWERING` is jax, if jaxlib or numba differ from the tested ones, or where jax computes on
    another device by default: tracing would compile them for nothing.

    Raises:
      GraphrlError: `GRAPHRL_LOWERING` is another value.
    """
    setting = os.environ.get("GRAPHRL_LOWERING", "auto")
    if setting not in ("auto", "jax"):
        raise GraphrlError(f"GRAPHRL_LOWERING is {setting!r}: must be auto or jax")
    return setting == "auto" and jax.default_backend() == "cpu" and works()


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
    prepare()
    n, g, p = decisions.placement.shape
    flags = (problem.devices, TRANSFERS[problem.transfer], makespan, memory, problem.resident_weights, orders)
    shape = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    call = jax.ffi.ffi_call(
        "graphrl_costs",
        (
            shape((g, p)),
            shape((problem.devices, g, p)),
            jax.ShapeDtypeStruct((steps if orders else 0, g, p), jnp.int32),
            shape((n if orders else 0, g, p)),
        ),
        vmap_method="expand_dims",
    )
    a, sizes, t = graph, graph.sizes, graph.sizes.tensors
    spans, peaks, events, ends = call(
        np.asarray(flags, np.int32),
        *typed(np.int32, (g,), a.num_ops, a.num_tensors),
        *typed(np.float32, (g, n), a.runtime, a.workspace, a.weight),
        *typed(np.int32, (g, t), a.producer),
        *typed(np.float32, (g, t), a.tensor_bytes, a.owned_bytes, transfer_seconds),
        *typed(np.bool_, (g, t), a.kept),
        *typed(np.int32, (g, sizes.uses), a.use_tensor, a.use_op),
        *typed(np.int32, (g, sizes.controls), a.control_source, a.control_target),
        *typed(np.int32, (g, sizes.shares), a.share_tensor, a.share_of),
        *typed(np.bool_, (g, sizes.shares), a.share_reuses),
        *typed(np.int32, (n, g, p), decisions.placement),
        *typed(np.float32, (n, g, p), decisions.op_keys),
        *typed(np.float32, (problem.devices, t, g, p), decisions.transfer_keys),
    )
    return spans, peaks, events, ends
