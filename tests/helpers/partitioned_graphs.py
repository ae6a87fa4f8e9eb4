"""Graphs of pipelined execution for tests: in the form of dnn-partitioning, and drawn at random."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from graphrl.costs.exact import Costs, evaluate
from graphrl.costs.problem import Pipeline, Problem
from graphrl.errors import PlanError
from graphrl.graphs.graph import ComputationGraph, Op, Pipelined, Tensor
from graphrl.solvers.loads.groups import placed_order


def node(number: int, latency: float, **more: Any) -> dict[str, Any]:
    """A node: 10 times as slow on a CPU, of one byte."""
    return {
        "id": number,
        "name": f"node{number}",
        "supportedOnFpga": 1,
        "cpuLatency": 10 * latency,
        "fpgaLatency": latency,
        "isBackwardNode": 0,
        "size": 1.0,
        **more,
    }


def edge(source: int, reader: int, cost: float, **more: Any) -> dict[str, Any]:
    """An edge."""
    return {"sourceId": source, "destId": reader, "cost": cost, **more}


def file_of(
    nodes: list[dict[str, Any]], edges: list[dict[str, Any]], accelerators: int = 2, cpus: int = 1, size: float = 100.0
) -> dict[str, Any]:
    """The content of a file."""
    return {"maxSizePerFPGA": size, "maxFPGAs": accelerators, "maxCPUs": cpus, "nodes": nodes, "edges": edges}


# A training step of two layers: 1 -> 2 forward, 4 -> 3 backward; a layer's weights and gradients are colocated.
TRAINING = file_of(
    [
        node(1, 3.0, colorClass=1),
        node(2, 4.0, colorClass=2),
        node(3, 5.0, colorClass=1, isBackwardNode=1),
        node(4, 6.0, colorClass=2, isBackwardNode=True),
    ],
    [edge(1, 2, 1.0, size=8.5), edge(1, 3, 1.0), edge(2, 4, 0.25), edge(4, 3, 2.0)],
)


def random_pipeline(seed: int, ops: int, *, cpus: bool = True, training: bool = False) -> ComputationGraph:
    """A random graph with colocation, ops that only CPUs run or cannot run, and transfers with separate seconds.

    Times are multiples of 1/8, so that sums are exact.
    """
    rng = np.random.default_rng(seed)
    count = -(-ops // 2) if training else ops
    made = []
    for index in range(ops):
        if backward := index >= count:
            mirrored = ops - 1 - index
            colour: int | None = mirrored
            inputs = [f"t{index - 1}"] if index > count else [f"t{count - 1}"]
            inputs += [f"t{mirrored}"] if f"t{mirrored}" not in inputs else []
        else:
            colour = index if training else int(rng.integers(ops)) if rng.random() < 0.3 else None
            inputs = [f"t{other}" for other in range(index) if rng.random() < 2 / (index + 1)]
        only = cpus and rng.random() < 0.1 and not training
        cpu = float(rng.integers(0, 160)) / 8 if cpus and (only or training or rng.random() < 0.9) else None
        tensor = Tensor(f"t{index}", 4, transfer_seconds=float(rng.integers(0, 16)) / 8)
        made.append(
            Op(
                f"op{index}",
                runtime=float(rng.integers(0, 32)) / 8,
                inputs=tuple(inputs),
                outputs=(tensor,),
                weight_bytes=int(rng.integers(0, 10)),
                pipelined=Pipelined(cpu, only, colour, backward),
            )
        )
    return ComputationGraph(f"pipeline{seed}", tuple(made))


def costs_of(graph: ComputationGraph, problem: Problem, placement: list[int]) -> Costs:
    """The exact costs of a placement."""
    return evaluate(graph, problem, *placed_order(graph, problem, np.array(placement)))


def least(graph: ComputationGraph, problem: Problem, allowed: Callable[[np.ndarray], bool] = lambda _: True) -> float:
    """The least maximum load over all allowed placements `[n]`."""
    colocation = Pipeline.of(graph, problem).colocation
    values = [np.inf]
    for places in itertools.product(range(problem.devices), repeat=int(colocation.max()) + 1):
        placement = np.array(places)[colocation]
        if not allowed(placement):
            continue
        try:
            costs = costs_of(graph, problem, placement.tolist())
        except PlanError:
            continue
        if costs.feasible(problem):
            values.append(costs.objective(problem))
    return min(values)
