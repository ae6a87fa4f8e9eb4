"""Costs of a population of candidate solutions on the device: decode, time, memory."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from graphrl.costs.device.decisions import Decisions
from graphrl.costs.device.decode import Schedule, schedule
from graphrl.costs.device.decode_dense import schedule_dense
from graphrl.costs.device.lanes import Lanes, implied
from graphrl.costs.device.memory import peak_memory
from graphrl.costs.device.tables import num_events
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.padding import PaddedGraph

Form = Literal["auto", "rows", "dense"]
DENSE_OPS = 1024  # up to here a GPU's dense steps are faster than the few more kernels of a step by rows


class Costs(NamedTuple):
    """Costs of p candidate solutions of each of g graphs, in the graph's units (see `PaddedGraph`)."""

    makespan: jax.Array  # [g, p] float32, second units; 0 if not asked for
    peak_memory: jax.Array  # [d, g, p] float32, byte units; 0 if not asked for
    events: jax.Array  # [c, g, p] int32, see `decode.Schedule`


def node_seconds(graph: PaddedGraph, problem: Problem) -> jax.Array:
    """Duration of every node of a batch of graphs: `[g, N + 1]` float32, second units; 0 for no node."""
    bytes_per_second = problem.bandwidth  # 1 / inf is 0
    transfer = problem.latency + graph.tensor_bytes * (graph.byte_unit[:, None] / bytes_per_second)
    copies = jnp.repeat(transfer / graph.second_unit[:, None], problem.devices - 1, axis=1)
    none = jnp.zeros((graph.runtime.shape[0], 1), jnp.float32)
    return jnp.concatenate([graph.runtime, copies.astype(jnp.float32), none], 1)


def evaluate(
    graph: PaddedGraph,
    decisions: Decisions,
    problem: Problem,
    *,
    makespan: bool = True,
    memory: bool = True,
    form: Form = "auto",
) -> Costs:
    """Decodes and costs a population on a batch of graphs.

    Args:
      graph: a batch of graphs (leading axis g).
      decisions: p candidate solutions of each graph, lanes last.
      problem: static.
      makespan, memory: what to compute.
      form: of the decoder: rows or dense (both give the same orders), or auto, the one that suits the default
        backend when this is traced: rows on CPUs, dense on TPUs and, up to `DENSE_OPS` ops, on GPUs. Static.
    """
    _, g, p = decisions.placement.shape
    _check_size(graph, problem.devices, g * p)
    lanes = implied(graph, decisions, problem.devices)
    durations = node_seconds(graph, problem) if makespan else None
    decoded = _decode(graph, lanes, problem, durations, form)
    peak = jnp.zeros((problem.devices, g, p), jnp.float32)
    if memory:
        peak = peak_memory(graph, lanes, decoded.events, problem.devices, resident_weights=problem.resident_weights)
    return Costs(decoded.makespan.reshape(g, p), peak, decoded.events.reshape(-1, g, p))


def _check_size(graph: PaddedGraph, devices: int, lanes: int) -> None:
    """Indices are int32: the largest flat array, of what is freed, must stay below 2^31 elements."""
    sizes = graph.sizes
    if devices * (num_events(sizes, devices) + 1) * lanes >= 2**31:
        raise ProblemError(
            f"{sizes.ops} ops on {devices} devices, {lanes} solutions at once, need arrays of over 2^31 elements: "
            "take fewer devices or a smaller population"
        )


def _decode(graph: PaddedGraph, lanes: Lanes, problem: Problem, durations: jax.Array | None, form: Form) -> Schedule:
    backend = jax.default_backend()
    if form == "auto":
        rows = backend == "cpu" or (backend == "gpu" and graph.sizes.ops > DENSE_OPS)
        form = "rows" if rows else "dense"
    if form == "dense":
        return schedule_dense(graph, lanes, problem.devices, problem.transfer, durations)
    # an accelerator whose host looks after each step whether it was the last is slower than one that idles at the end
    return schedule(graph, lanes, problem.devices, problem.transfer, durations, fixed_trips=backend != "cpu")
