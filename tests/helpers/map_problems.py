"""Chips and map problems that exercise every feature, and the cost of a map, rule by rule from the graph's names."""

import dataclasses

import numpy as np
from hypothesis import strategies as st
from random_graphs import graphs

from graphrl.costs.maps.chip import ChipMemory, MemoryChip
from graphrl.costs.maps.problem import MapProblem, map_problem
from graphrl.graphs.graph import ComputationGraph, Op, Tensor

WORKED_CHIP = MemoryChip("worked", 1.0, (ChipMemory("big", None, 1, 1), ChipMemory("small", 8, 4, 4)), page=1)
WORKED_GRAPH = ComputationGraph(
    "worked",
    (
        Op("a", flops=2, weight_bytes=4, outputs=(Tensor("a0", 4),)),
        Op("b", flops=1, inputs=("a0",), outputs=(Tensor("b0", 4),)),
    ),
)


@st.composite
def chips(draw: st.DrawFn) -> MemoryChip:
    """Chips of one to four memories, small enough that capacity binds on small graphs."""
    capacities = sorted(draw(st.lists(st.sampled_from([0, 4, 8, 13, 21, 34]), max_size=3)), reverse=True)
    memories = [
        ChipMemory(
            f"m{i}",
            capacity,
            draw(st.sampled_from([1.0, 2.0, 3.0])) * 4**i,
            draw(st.sampled_from([1.0, 2.0])) * 4**i,
            draw(st.sampled_from([0.0, 0.5])),
        )
        for i, capacity in enumerate([None, *capacities])
    ]
    launch, page = draw(st.sampled_from([0.0, 1.0])), draw(st.sampled_from([1, 4]))
    return MemoryChip("drawn", draw(st.sampled_from([0.5, 4.0])), tuple(memories), launch, page)


@st.composite
def problems(draw: st.DrawFn, max_ops: int = 8) -> MapProblem:
    """A map problem of a graph with random FLOPs on a chip, in the graph's order or in another."""
    graph = draw(graphs(max_ops))
    ops = tuple(dataclasses.replace(op, flops=draw(st.integers(0, 20))) for op in graph.ops)
    graph = dataclasses.replace(graph, ops=ops)
    return map_problem(graph, draw(chips()), draw(st.sampled_from([None, another_order(graph)])))


def another_order(graph: ComputationGraph) -> list[int]:
    """An order that always runs the ready op of highest index."""
    order: list[int] = []
    before = graph.arrays.predecessors
    while len(order) < len(graph.ops):
        order.append(max(i for i in range(len(graph.ops)) if i not in order and set(before[i]) <= set(order)))
    return order


@st.composite
def asked(draw: st.DrawFn, problem: MapProblem) -> tuple[np.ndarray, np.ndarray]:
    """A map by step, valid or not."""
    part = st.lists(st.integers(0, problem.memories - 1), min_size=problem.steps, max_size=problem.steps)
    return np.array(draw(part)), np.array(draw(part))


def naive_latency(problem: MapProblem, weights: np.ndarray, outputs: np.ndarray) -> float:
    """The latency of a map from the graph's names."""
    graph, chip = problem.graph, problem.chip
    memory_of = {tensor.name: 0 for tensor in graph.inputs}
    size_of = {tensor.name: tensor.bytes for tensor in graph.inputs}
    total = 0.0
    for step, index in enumerate(problem.order):
        op = graph.ops[index]
        seconds = [0.0] * len(chip.memories)
        for name in sorted(set(op.inputs)):
            memory = chip.memories[memory_of[name]]
            seconds[memory_of[name]] += memory.setup + size_of[name] / memory.read
        if op.weight_bytes:
            memory = chip.memories[weights[step]]
            seconds[weights[step]] += memory.setup + op.weight_bytes / memory.read
        for tensor in op.outputs:
            size_of[tensor.name] = tensor.bytes
            memory_of[tensor.name] = int(outputs[step]) if tensor.alias is None else memory_of[tensor.alias]
            if tensor.alias is None:
                memory = chip.memories[outputs[step]]
                seconds[outputs[step]] += memory.setup + tensor.bytes / memory.write
        total += chip.launch + max(op.flops / chip.peak, *seconds)
    return total


def naive_pages(problem: MapProblem, weights: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Pages in every memory at every step: `[M, n]` int64, from the graph's names."""
    graph, page, n = problem.graph, problem.chip.page, problem.steps
    pages = np.zeros((problem.memories, n), np.int64)
    step_of = {graph.ops[index].name: step for step, index in enumerate(problem.order)}
    owner = {tensor.name: tensor.name for tensor in graph.inputs}
    for index in problem.order:
        for tensor in graph.ops[index].outputs:
            owner[tensor.name] = tensor.name if tensor.alias is None else owner[tensor.alias]
    for op in graph.ops:
        step = step_of[op.name]
        pages[weights[step]] += -(-op.weight_bytes // page)
        for tensor in op.outputs:
            if owner[tensor.name] != tensor.name:
                continue
            last = max(
                [step, *(step_of[r.name] for r in graph.ops if tensor.name in {owner[name] for name in r.inputs})]
            )
            if any(owner[name] == tensor.name for name in graph.outputs):
                last = n - 1
            pages[outputs[step], step : last + 1] += -(-tensor.bytes // page)
    return pages
