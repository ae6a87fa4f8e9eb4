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
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.compiled import inlined, integer, part
from graphrl.compiled.custom_call import (
    MANY,
    count_outer,
    custom_call,
    data,
    operand,
    own_address,
    result,
    run_items,
    size,
    typed,
)
from graphrl.compiled.pointers import array
from graphrl.costs.device.decisions import Decisions, DeviceProblem
from graphrl.costs.host.arrays import (
    CONTROL_TARGET,
    CONTROLS,
    F32,
    GRAPH,
    HEADER,
    I32,
    I64,
    LANES,
    MAKESPAN,
    OPS,
    OUTER,
    PEAK,
    PLACEMENT,
    PRODUCER,
    RUNTIME,
    SCALE,
    SETTINGS,
    TENSORS,
    TRANSFER_KEYS,
    USE_OP,
    USES,
    WEIGHT,
    WORKING,
    decisions_at,
    graph_at,
    read_decisions,
    read_graph,
    row,
    write_orders,
)
from graphrl.costs.host.clocks import TRANSFERS
from graphrl.costs.host.decode import simulate
from graphrl.costs.host.sends import set_keys
from graphrl.graphs.padding import PaddedGraph

NAME = "costs"
FEW = 2000  # ops times lanes that one thread computes alone: scheduling another takes as long


def host_costs(
    graph: PaddedGraph,
    decisions: Decisions,
    problem: DeviceProblem,
    transfer_seconds: jax.Array,
    steps: int,
    *,
    makespan: bool,
    memory: bool,
    ops: bool,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """Decodes and costs a population on a batch of graphs.

    Args:
      graph: a batch of graphs (leading axis g).
      decisions: p candidate solutions of each graph. With transfer keys `[0, t, g, p]`, transfers follow from the order
        of ops on one device by the rule of `envs/compile/sends.py`.
      problem: the planning problem.
      transfer_seconds: `[g, t]` float32, second units.
      steps: c, length of the orders; 0 for no events.
      makespan, memory: whether to compute each of them.
      ops: whether to compute ends and positions of ops; if not, these have no rows.

    Returns:
      Makespan `[g, p]`, peaks `[d, g, p]`, events `[c, g, p]` and ends `[n, g, p]`, as `evaluate.DeviceCosts`; and the
      position of each op among the ops, `[n, g, p]` int32, n for padding.
    """
    n, g, p = decisions.placement.shape
    flags = (problem.devices, TRANSFERS[problem.transfer], makespan, memory, problem.resident_weights)
    shape = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    results = [shape((g, p)), shape((problem.devices, g, p))]
    rows = n if ops else 0
    results += [jax.ShapeDtypeStruct((steps, g, p), jnp.int32), shape((rows, g, p))]
    results += [jax.ShapeDtypeStruct((rows, g, p), jnp.int32)]
    a, sizes, t = graph, graph.sizes, graph.sizes.tensors
    spans, peaks, events, ends, places = costs_of_lanes(
        results,
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
        *typed(np.float32, (len(decisions.transfer_keys) and problem.devices, t, g, p), decisions.transfer_keys),
    )
    return spans, peaks, events, ends, places


@custom_call("graphrl_costs", NAME)
def costs_of_lanes(pointer: Any) -> Any:
    """Costs of all lanes of a population on a batch of graphs: the operands and results of `arrays.py`."""
    return run_items(pointer, own_address(), _plan, _cost_block)


@inlined
def _plan(call: int) -> tuple[int, int, int]:
    """Number of blocks, largest number of threads, and bytes that a thread needs for a graph of the padded sizes."""
    n, t = size(operand(call, RUNTIME), -1), size(operand(call, PRODUCER), -1)
    e, f = size(operand(call, USE_OP), -1), size(operand(call, CONTROL_TARGET), -1)
    end = graph_at(call, decisions_at(call, integer(0)).end, n, t, e, f, integer(1)).end
    like = result(call, MAKESPAN)
    few = count_outer(like, 0) * size(operand(call, PLACEMENT), -3) < FEW
    return _count_blocks(call) * count_outer(like, 2), integer(1 if few else MANY), end


@inlined
def _block(call: int) -> int:
    """Lanes of a block: fewer than `LANES` where else there would be too few blocks for several threads."""
    like, block = result(call, MAKESPAN), integer(LANES)
    lanes, outer = size(like, -2) * size(like, -1), count_outer(like, 2)
    while block > 1 and outer * ((lanes + block - 1) // block) < 8:
        block //= 2
    return block


@inlined
def _count_blocks(call: int) -> int:
    like, block = result(call, MAKESPAN), _block(call)
    return (size(like, -2) * size(like, -1) + block - 1) // block


@part
def _cost_block(call: int, block: int, memory: int) -> None:
    """Costs the lanes of a block."""
    like, width = result(call, MAKESPAN), _block(call)
    graphs, population = size(like, -2), size(like, -1)
    lanes, blocks = graphs * population, _count_blocks(call)
    outer, first = block // blocks, block % blocks * width
    count = min(width, lanes - first)
    decisions, words = decisions_at(call, memory), array(memory, HEADER, I64)
    read_decisions(call, decisions, outer, first, count)
    makespan = array(data(like) + 4 * outer * lanes, lanes, F32)
    peak = array(data(result(call, PEAK)), size(result(call, PEAK), -3) * lanes * (outer + 1), F32)
    settings = array(data(operand(call, SETTINGS)), integer(5), I32)
    for lane in range(count):
        graph = (first + lane) // population
        if words[OUTER] != outer or words[GRAPH] != graph:
            read_graph(call, decisions.end, words, outer, graph)
        g = graph_at(call, decisions.end, words[OPS], words[TENSORS], words[USES], words[CONTROLS], words[WORKING])
        weight = row(call, WEIGHT, outer, graph) if settings[4] != 0 else integer(0)
        if size(operand(call, TRANSFER_KEYS), -4) == 0:
            set_keys(g, decisions, lane)
        latest = simulate(g, decisions, lane, settings[2] != 0, weight)
        makespan[first + lane] = latest if settings[2] != 0 else F32(0)
        for device in range(g.devices):
            at = (outer * g.devices + device) * lanes + first + lane
            peak[at] = F32(g.peak[device] / SCALE) if g.memory else F32(0)
    write_orders(call, decisions, outer, first, count)
