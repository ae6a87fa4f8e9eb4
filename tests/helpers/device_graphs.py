"""Random graphs and decisions for the device code, all of one padded size, so that they share compiled programs."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from graphrl.costs import exact
from graphrl.costs.device.decisions import Decisions, DeviceProblem
from graphrl.costs.device.evaluate import DeviceCosts, evaluate
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.padding import PaddedGraph, Sizes, sizes

SIZES = Sizes(ops=24, tensors=40, slots=24 + 24, rows=72, uses=72, controls=40, shares=24)

# Every transfer model on 1-4 devices. Seconds and bytes per second are dyadic, so that float32 holds all sums exactly.
PROBLEMS = [
    Problem("makespan", devices, transfer, latency, bandwidth, resident_weights=devices % 2 == 0)  # type: ignore[arg-type]
    for devices in (1, 2, 3)
    for transfer, latency, bandwidth in (("rendezvous", 0.5, 4.0), ("free", 0.25, 8.0), ("link", 0.0, 2.0))
]


def problem_name(problem: Problem) -> str:
    return f"{problem.transfer}-{problem.devices}"


_evaluate = jax.jit(evaluate, static_argnames=("makespan", "memory", "form"))


def compiled(problem: Problem, form: str = "rows") -> Callable[..., DeviceCosts]:
    """`evaluate`, jitted; by default in the form of CPUs."""
    return functools.partial(_evaluate, problem=DeviceProblem.of(problem), form=form)


def random_graph(rng: np.random.Generator, max_ops: int = 20) -> ComputationGraph:
    """Random graphs with every feature of the cost model.

    Ops in any order with no, one or several outputs, zero bytes and seconds, hubs of data and control edges, both kinds
    of edges between the same ops, external inputs, kept tensors, workspace, weights, aliases and reuses.
    """
    ops: list[Op] = []
    tensors = [Tensor("x", 4), Tensor("y", 9)]
    producer: dict[str, str] = {}
    hub, many_wait = rng.random() < 0.4, rng.random() < 0.3
    for i in range(int(rng.integers(1, max_ops + 1))):
        recent = tensors[-6:] if rng.random() < 0.6 else tensors
        inputs = [recent[j] for j in rng.integers(0, len(recent), rng.integers(0, 4))]
        if hub and len(tensors) > 2 and rng.random() < 0.7:
            inputs.append(tensors[2])
        after = [ops[j].name for j in rng.integers(0, i, rng.choice([0, 0, 1, 2]))] if i else []
        after += [producer[tensor.name] for tensor in inputs if tensor.name in producer and rng.random() < 0.15]
        after += ["op0"] if i and many_wait else []
        outputs = _random_outputs(rng, i, inputs)
        producer |= {tensor.name: f"op{i}" for tensor in outputs}
        op = Op(
            name=f"op{i}",
            runtime=float(rng.choice([0.0, 0.5, 1.0, 2.0, 3.0])),
            inputs=tuple(tensor.name for tensor in inputs),
            outputs=tuple(outputs),
            after=tuple(after),
            workspace_bytes=int(rng.choice([0, 0, 1, 7])),
            weight_bytes=int(rng.choice([0, 3])),
        )
        ops.append(op)
        tensors += outputs
    kept = [tensor.name for tensor in tensors if rng.random() < 0.05]
    rng.shuffle(ops)
    return ComputationGraph("random", tuple(ops), (Tensor("x", 4), Tensor("y", 9)), tuple(kept))


def _random_outputs(rng: np.random.Generator, op: int, inputs: list[Tensor]) -> list[Tensor]:
    outputs: list[Tensor] = []
    for k in range(rng.choice([0, 1, 1, 1, 2, 3])):
        num_bytes, share = int(rng.choice([0, 1, 2, 3, 5, 8, 13])), rng.choice(["", "", "alias", "reuses"])
        source = inputs[rng.integers(len(inputs))] if inputs and share else None
        taken = {tensor.reuses for tensor in outputs}
        if source and share == "reuses" and (source.name in taken or source.bytes < num_bytes):
            source = None
        shared: dict[str, Any] = {str(share): source.name} if source else {}
        outputs.append(Tensor(f"t{op}.{k}", num_bytes, **shared))
    return outputs


def random_graphs(rng: np.random.Generator, count: int, to: Sizes = SIZES) -> list[ComputationGraph]:
    """Graphs that fit `to`."""
    graphs: list[ComputationGraph] = []
    while len(graphs) < count:
        graph = random_graph(rng)
        if fits(graph, to):
            graphs.append(graph)
    return graphs


def fits(graph: ComputationGraph, to: Sizes = SIZES) -> bool:
    real = sizes(graph)
    extra_slots = real.slots - real.ops
    return to.covers(real) and extra_slots <= to.slots - to.ops


def random_decisions(
    rng: np.random.Generator, graphs: int, lanes: int, devices: int, to: Sizes = SIZES, levels: int = 5
) -> Decisions:
    """Decisions as NumPy arrays; the keys of every second lane are of `levels` values, so that ties are common."""

    def keys(*shape: int) -> np.ndarray:
        fine = rng.random(shape, np.float32)
        return np.where(np.arange(lanes) % 2 == 0, np.floor(fine * levels) / np.float32(levels), fine)

    return Decisions(
        placement=rng.integers(0, devices, (to.ops, graphs, lanes)).astype(np.int32),  # type: ignore[arg-type]
        op_keys=keys(to.ops, graphs, lanes),  # type: ignore[arg-type]
        transfer_keys=keys(devices, to.tensors, graphs, lanes),  # type: ignore[arg-type]
    )


def resized(decisions: Decisions, to: Sizes, rng: np.random.Generator) -> Decisions:
    """The decisions for graphs padded to larger sizes; those of padding are random."""

    def grown(values: jax.Array, axis: int, size: int) -> np.ndarray:
        shape = list(np.shape(values))
        shape[axis] = size - shape[axis]
        return np.concatenate([values, rng.integers(0, 2, shape).astype(values.dtype) / 2], axis).astype(values.dtype)

    return Decisions(
        placement=grown(decisions.placement, 0, to.ops),  # type: ignore[arg-type]
        op_keys=grown(decisions.op_keys, 0, to.ops),  # type: ignore[arg-type]
        transfer_keys=grown(decisions.transfer_keys, 1, to.tensors),  # type: ignore[arg-type]
    )


def of_graph(
    decisions: Decisions, graph: ComputationGraph, index: int, lane: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A lane's decisions in the host's form: placement `[n]`, op keys `[n]`, transfer keys `[t, devices]`."""
    n, t = graph.arrays.num_ops, graph.arrays.num_tensors
    return (
        np.asarray(decisions.placement)[:n, index, lane],
        np.asarray(decisions.op_keys)[:n, index, lane],
        np.asarray(decisions.transfer_keys)[:, :t, index, lane].T,
    )


def host_order(events: np.ndarray, graph: ComputationGraph, devices: int, ops: int, tensors: int) -> np.ndarray:
    """A lane's events `[c]`, of a graph padded to `ops` and `tensors`, as the node ids of `costs/exact`."""
    node, device = events // devices, events % devices
    ran = node < ops + tensors * (devices - 1)
    node, device = node[ran], device[ran]
    tensor = (node - ops) // max(1, devices - 1)
    return np.where(node < ops, node, graph.arrays.num_ops + tensor * devices + device)


def check(graph: ComputationGraph, costs: DeviceCosts, padded: PaddedGraph, at: tuple[int, int], want: tuple) -> None:
    """Checks one lane of device costs against the host's; `want` is problem, placement, op keys and transfer keys."""
    problem, placement, op_keys, transfer_keys = want
    order = exact.decode(graph, problem, placement, op_keys, transfer_keys)
    events = np.asarray(costs.events)[:, *at]
    ops, tensors = padded.sizes.ops, padded.sizes.tensors
    np.testing.assert_array_equal(host_order(events, graph, problem.devices, ops, tensors), order)
    expected = exact.evaluate(graph, problem, placement, order)  # raises if the order is not topological
    assert float(costs.makespan[at]) * float(padded.second_unit[at[0]]) == expected.makespan
    peaks = np.asarray(costs.peak_memory)[:, *at] * np.asarray(padded.byte_unit)[at[0]]
    assert tuple(peaks.tolist()) == expected.peak_memory
