"""Hypothesis strategies for graphs, problems and plans that exercise every feature of the cost model."""

import dataclasses
import random
from typing import Any

import numpy as np
from hypothesis import strategies as st

from graphrl.costs import exact
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph, Op, Pipelined, Tensor

BYTES = st.sampled_from([0, 1, 2, 3, 5, 8, 13])
SECONDS = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0])
KEYS = st.sampled_from([0.0, 0.25, 0.5, 0.75, 0.96875])  # few, so that ties are common


@st.composite
def graphs(draw: st.DrawFn, max_ops: int = 8, sharing: bool = True) -> ComputationGraph:
    """Graphs with several or no outputs per op, zero bytes, control edges, external inputs, kept tensors, ops in any
    order, and (if `sharing`) aliases and reuses.
    """
    tensors: list[Tensor] = [Tensor("x", 4)]
    ops: list[Op] = []
    for i in range(draw(st.integers(1, max_ops))):
        inputs = draw(st.lists(st.sampled_from(tensors), max_size=3))
        outputs: list[Tensor] = []
        for k in range(draw(st.sampled_from([0, 1, 1, 1, 2, 3]))):
            num_bytes, share = draw(BYTES), draw(st.sampled_from(["", "", "alias", "reuses"] if sharing else [""]))
            source = draw(st.sampled_from(inputs)) if inputs and share else None
            taken = any(source and output.reuses == source.name for output in outputs)
            if source and share == "reuses" and (taken or source.bytes < num_bytes):
                source = None
            shared: dict[str, Any] = {share: source.name} if source else {}
            outputs.append(Tensor(f"t{i}.{k}", num_bytes, **shared))
        ops.append(
            Op(
                name=f"op{i}",
                runtime=draw(SECONDS),
                inputs=tuple(tensor.name for tensor in inputs),
                outputs=tuple(outputs),
                after=tuple(draw(st.lists(st.sampled_from([op.name for op in ops]), max_size=1))) if ops else (),
                workspace_bytes=draw(BYTES),
                weight_bytes=draw(BYTES),
            )
        )
        tensors += outputs
    kept = draw(st.lists(st.sampled_from(tensors), max_size=2, unique=True)) if draw(st.booleans()) else []
    random.Random(draw(st.integers(0, 99))).shuffle(ops)
    return ComputationGraph("random", tuple(ops), (tensors[0],), tuple(tensor.name for tensor in kept))


@st.composite
def colocated(draw: st.DrawFn, graph: ComputationGraph) -> ComputationGraph:
    """The graph with some of its ops in up to three groups."""
    group = draw(st.lists(st.sampled_from([None, None, 0, 1, 2]), min_size=len(graph.ops), max_size=len(graph.ops)))
    ops = (
        dataclasses.replace(op, pipelined=Pipelined(colocation=number))
        for op, number in zip(graph.ops, group, strict=True)
    )
    return dataclasses.replace(graph, ops=tuple(ops))


@st.composite
def problems(draw: st.DrawFn, max_devices: int = 4) -> Problem:
    """Problems of every transfer model and objective, without a memory limit."""
    return Problem(
        objective=draw(st.sampled_from(["peak_memory", "makespan"])),
        devices=draw(st.integers(1, max_devices)),
        transfer=draw(st.sampled_from(["rendezvous", "free", "link"])),
        latency=draw(st.sampled_from([0.0, 0.5])),
        bandwidth=draw(st.sampled_from([float("inf"), 4.0])),
        resident_weights=draw(st.booleans()),
    )


@st.composite
def decisions(draw: st.DrawFn, graph: ComputationGraph, problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A placement `[n]`, op keys `[n]` and transfer keys `[t, devices]`."""
    n, t = graph.arrays.num_ops, graph.arrays.num_tensors
    devices = np.array(draw(st.lists(st.integers(0, problem.devices - 1), min_size=n, max_size=n)))
    placement = devices if graph.colocation is None else devices[graph.colocation]
    keys = draw(st.lists(KEYS, min_size=n + t * problem.devices, max_size=n + t * problem.devices))
    op_keys, transfer_keys = np.split(np.array(keys, np.float32), [n])
    return placement, op_keys, transfer_keys.reshape(t, problem.devices)


@st.composite
def plans(draw: st.DrawFn, graph: ComputationGraph, problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """A placement `[n]` and a valid order `[m]`: every order can be drawn."""
    placement, op_keys, transfer_keys = draw(decisions(graph, problem))
    return placement, exact.decode(graph, problem, placement, op_keys, transfer_keys)


def grouped(graph: ComputationGraph, groups: dict[str, int]) -> ComputationGraph:
    """The graph with these ops colocated."""
    ops = (
        dataclasses.replace(op, pipelined=Pipelined(colocation=groups[op.name])) if op.name in groups else op
        for op in graph.ops
    )
    return dataclasses.replace(graph, ops=tuple(ops))
