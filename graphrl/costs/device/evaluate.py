"""Costs of a population of candidate solutions on the device: decode, time, memory.

`evaluate` returns all costs of every candidate, `fitness` the single number to minimise.
"""

import functools
import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from graphrl.compiled.custom_call import is_compiled
from graphrl.costs.device.decisions import Decisions, DeviceProblem
from graphrl.costs.device.decode import Schedule, num_events, schedule
from graphrl.costs.device.decode_dense import num_events as num_dense_events
from graphrl.costs.device.decode_dense import schedule_dense
from graphrl.costs.device.lanes import implied, node_count
from graphrl.costs.device.memory import peak_memory
from graphrl.costs.host.lowering import host_costs
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.padding import PaddedGraph

Form = Literal["auto", "host", "rows", "dense"]
DENSE_OPS = 1024  # up to this size dense steps are faster on a GPU than steps by rows, which launch a few more kernels


class DeviceCosts(NamedTuple):
    """Costs of p candidate solutions of each of g graphs, in the graph's units (see `PaddedGraph`)."""

    makespan: jax.Array  # [g, p] float32, second units; 0 if not requested
    peak_memory: jax.Array  # [d, g, p] float32, byte units; 0 if not requested
    events: jax.Array  # [c, g, p] int32, see `decode.Schedule`; any value if not requested
    end: jax.Array  # [n, g, p] float32, second units, of each op; 0 for padding; any value if not requested


def node_seconds(graph: PaddedGraph, problem: DeviceProblem) -> jax.Array:
    """Duration of every node of a batch of graphs: `[g, N + 1]` float32, second units; 0 for no node."""
    copies = jnp.repeat(transfer_seconds(graph, problem), problem.devices - 1, axis=1)
    none = jnp.zeros((graph.runtime.shape[0], 1), jnp.float32)
    return jnp.concatenate([graph.runtime, copies, none], 1)


def transfer_seconds(graph: PaddedGraph, problem: DeviceProblem) -> jax.Array:
    """Duration of a transfer of every tensor of a batch of graphs: `[g, t]` float32, second units."""
    latency, seconds_per_byte = (jnp.reshape(x, (-1, 1)) for x in (problem.latency, problem.seconds_per_byte))
    transfer = latency + graph.tensor_bytes * (graph.byte_unit[:, None] * seconds_per_byte)
    return transfer / graph.second_unit[:, None]


def evaluate(
    graph: PaddedGraph,
    decisions: Decisions,
    problem: DeviceProblem,
    *,
    makespan: bool = True,
    memory: bool = True,
    orders: bool = True,
    form: Form = "auto",
) -> DeviceCosts:
    """Decodes and costs a population on a batch of graphs.

    Args:
      graph: a batch of graphs (leading axis g).
      decisions: p candidate solutions of each graph, lanes last.
      problem: the planning problem.
      makespan, memory: whether to compute each of them.
      orders: whether to compute events and ends, which a fitness does not need.
      form: of the decoder: host, rows or dense (all give the same orders), or auto, which depends on the platform that
        the program is lowered for: host on CPUs (rows under `GRAPHRL_LOWERING=jax`, see `host/lowering.py`), dense on
        TPUs and, up to `DENSE_OPS` ops, on GPUs, else rows. Static.
    """
    n, g, p = decisions.placement.shape
    sizes, devices = graph.sizes, problem.devices
    steps = max(num_events(sizes, devices), num_dense_events(sizes, devices))

    def on_host() -> DeviceCosts:
        seconds = transfer_seconds(graph, problem)
        rows = steps if orders else 0
        latest, peaks, events, end, _ = host_costs(
            graph, decisions, problem, seconds, rows, makespan=makespan, memory=memory, ops=orders
        )
        if not orders:
            events, end = jnp.zeros((steps, g, p), jnp.int32), jnp.zeros((n, g, p), jnp.float32)
        return DeviceCosts(latest, peaks, events, end)

    def by(decoder: Callable[..., Schedule]) -> Callable[[], DeviceCosts]:
        def costs() -> DeviceCosts:
            _check_size(graph, devices, g * p)
            lanes = implied(graph, decisions, devices)
            durations = node_seconds(graph, problem) if makespan else None
            events, latest, end = decoder(graph, lanes, devices, problem.transfer, durations)
            peak = jnp.zeros((devices, g, p), jnp.float32)
            if memory:
                peak = peak_memory(graph, lanes, events, devices, resident_weights=problem.resident_weights)
            idle = node_count(sizes, devices) * devices
            events = jnp.pad(events, ((0, steps - len(events)), (0, 0)), constant_values=idle)
            return DeviceCosts(latest.reshape(g, p), peak, events.reshape(-1, g, p), end.reshape(n, g, p))

        return costs

    # on accelerators a check by the host after each step costs more than idle steps at the end
    rows, fixed_rows, dense = by(schedule), by(functools.partial(schedule, fixed_trips=True)), by(schedule_dense)
    if form != "auto":
        return {"host": on_host, "rows": rows, "dense": dense}[form]()
    small = {"default": dense} if sizes.ops <= DENSE_OPS else {"default": fixed_rows, "tpu": dense}
    return lax.platform_dependent(cpu=on_host if is_compiled() else rows, **small)


def _check_size(graph: PaddedGraph, devices: int, lanes: int) -> None:
    """Checks that indices fit into int32: the largest flat array, that of freed bytes, has fewer than 2^31 elements."""
    sizes = graph.sizes
    if devices * (num_events(sizes, devices) + 1) * lanes >= 2**31:
        raise ProblemError(
            f"{sizes.ops} ops on {devices} devices, {lanes} solutions in parallel, need arrays of over 2^31 elements: "
            "use fewer devices or a smaller population"
        )


_SHORTEST = 2.0**-100  # second units: replaces a makespan of 0


def fitness(graph: PaddedGraph, decisions: Decisions, problem: DeviceProblem) -> jax.Array:
    """The value to minimise, in the graph's units: `[g, p]` float32; `ranked` defines it under a memory limit."""
    return ranked(graph, measured(graph, decisions, problem, orders=False), problem)


def measured(graph: PaddedGraph, decisions: Decisions, problem: DeviceProblem, *, orders: bool = True) -> DeviceCosts:
    """The costs that the objective depends on; the others are 0. `orders`: see `evaluate`."""
    makespan = problem.objective == "makespan"
    return evaluate(
        graph,
        decisions,
        problem,
        makespan=makespan,
        memory=not makespan or problem.memory_limit is not None,
        orders=orders,
    )


def ranked(graph: PaddedGraph, costs: DeviceCosts, problem: DeviceProblem) -> jax.Array:
    """Reduces costs to one number to minimise, `[g, p]` float32, in the graph's units.

    The objective itself or, under a memory limit, -1 / makespan if the solution fits, else the bytes by which the
    largest peak exceeds the limit. So every feasible schedule ranks above every infeasible one, infeasible ones rank by
    their excess, and neither part loses precision to the other.
    """
    if problem.objective == "peak_memory":
        return costs.peak_memory.max(0)
    if problem.memory_limit is None:
        return costs.makespan
    limit = problem.memory_limit / graph.byte_unit
    excess = costs.peak_memory.max(0) - limit[:, None]
    return jnp.where(excess > 0, excess, -1 / jnp.maximum(costs.makespan, _SHORTEST))


def objective(value: float, problem: Problem) -> float:
    """The objective that a fitness encodes, in the graph's units; inf if the solution exceeds the memory limit."""
    if problem.memory_limit is None:
        return value
    return -1 / value if value < 0 else math.inf
