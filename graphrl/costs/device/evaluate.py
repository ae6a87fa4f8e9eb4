"""Costs of a population of candidate solutions on the device: decode, time, memory."""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from graphrl.costs.device.decisions import Decisions
from graphrl.costs.device.decode import Schedule, schedule
from graphrl.costs.device.decode_dense import num_events as num_dense_events
from graphrl.costs.device.decode_dense import schedule_dense
from graphrl.costs.device.lanes import implied, node_count
from graphrl.costs.device.memory import peak_memory
from graphrl.costs.device.problem import DeviceProblem
from graphrl.costs.device.tables import num_events
from graphrl.errors import ProblemError
from graphrl.graphs.padding import PaddedGraph, Sizes

Form = Literal["auto", "rows", "dense"]
DENSE_OPS = 1024  # up to here a GPU's dense steps are faster than the few more kernels of a step by rows


class DeviceCosts(NamedTuple):
    """Costs of p candidate solutions of each of g graphs, in the graph's units (see `PaddedGraph`)."""

    makespan: jax.Array  # [g, p] float32, second units; 0 if not asked for
    peak_memory: jax.Array  # [d, g, p] float32, byte units; 0 if not asked for
    events: jax.Array  # [c, g, p] int32, see `decode.Schedule`
    end: jax.Array  # [n, g, p] float32, second units, of each op; 0 for padding, and where no makespan is asked for


def node_seconds(graph: PaddedGraph, problem: DeviceProblem) -> jax.Array:
    """Duration of every node of a batch of graphs: `[g, N + 1]` float32, second units; 0 for no node."""
    latency, seconds_per_byte = (jnp.reshape(x, (-1, 1)) for x in (problem.latency, problem.seconds_per_byte))
    transfer = latency + graph.tensor_bytes * (graph.byte_unit[:, None] * seconds_per_byte)
    copies = jnp.repeat(transfer / graph.second_unit[:, None], problem.devices - 1, axis=1)
    none = jnp.zeros((graph.runtime.shape[0], 1), jnp.float32)
    return jnp.concatenate([graph.runtime, copies, none], 1)


def evaluate(
    graph: PaddedGraph,
    decisions: Decisions,
    problem: DeviceProblem,
    *,
    makespan: bool = True,
    memory: bool = True,
    form: Form = "auto",
) -> DeviceCosts:
    """Decodes and costs a population on a batch of graphs.

    Args:
      graph: a batch of graphs (leading axis g).
      decisions: p candidate solutions of each graph, lanes last.
      problem: what the solutions are for.
      makespan, memory: what to compute.
      form: of the decoder: rows or dense (both give the same orders), or auto, the one that suits the platform that the
        program is lowered for: rows on CPUs, dense on TPUs and, up to `DENSE_OPS` ops, on GPUs. Static.
    """
    n, g, p = decisions.placement.shape
    _check_size(graph, problem.devices, g * p)
    durations = node_seconds(graph, problem) if makespan else None
    lanes = implied(graph, decisions, problem.devices)

    def costs(decoder: Callable[..., Schedule]) -> Callable[[], DeviceCosts]:
        def costed() -> DeviceCosts:
            events, latest, end = decoder(graph, lanes, problem.devices, problem.transfer, durations)
            peak = jnp.zeros((problem.devices, g, p), jnp.float32)
            if memory:
                peak = peak_memory(graph, lanes, events, problem.devices, resident_weights=problem.resident_weights)
            events = events if form != "auto" else _lengthened(events, graph.sizes, problem.devices)
            return DeviceCosts(latest.reshape(g, p), peak, events.reshape(-1, g, p), end.reshape(n, g, p))

        return costed

    # an accelerator whose host looks after each step whether it was the last is slower than one that idles at the end
    by_rows = {"cpu": costs(schedule), "default": costs(functools.partial(schedule, fixed_trips=True))}
    dense = costs(schedule_dense)
    if form == "dense":
        return dense()
    if form == "auto":
        by_rows |= {"tpu": dense} if graph.sizes.ops > DENSE_OPS else {"default": dense}
    return lax.platform_dependent(**by_rows)


def _lengthened(events: jax.Array, sizes: Sizes, devices: int) -> jax.Array:
    """Events `[c, L]` of either form with as many steps as the longer one has; those after the last run no node."""
    steps = max(num_events(sizes, devices), num_dense_events(sizes, devices))
    idle = node_count(sizes, devices) * devices
    return jnp.pad(events, ((0, steps - len(events)), (0, 0)), constant_values=idle)


def _check_size(graph: PaddedGraph, devices: int, lanes: int) -> None:
    """Indices are int32: the largest flat array, of what is freed, must stay below 2^31 elements."""
    sizes = graph.sizes
    if devices * (num_events(sizes, devices) + 1) * lanes >= 2**31:
        raise ProblemError(
            f"{sizes.ops} ops on {devices} devices, {lanes} solutions at once, need arrays of over 2^31 elements: "
            "take fewer devices or a smaller population"
        )
