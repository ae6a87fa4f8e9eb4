"""The entries of a plan's order by name, and what they are as indices of a graph."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from graphrl.costs.problem import Problem
from graphrl.errors import PlanError
from graphrl.graphs.graph import ComputationGraph


@dataclasses.dataclass(frozen=True, slots=True)
class OpStep:
    """An entry of the order: run `op` on its device."""

    op: str


@dataclasses.dataclass(frozen=True, slots=True)
class TransferStep:
    """An entry of the order: copy `tensor` from its producer's device to device `to`."""

    tensor: str
    to: int


Step = OpStep | TransferStep


def steps(graph: ComputationGraph, problem: Problem, order: np.ndarray) -> tuple[Step, ...]:
    """The steps of an order `[m]` of node ids that are known to be the graph's."""
    n, names = graph.arrays.num_ops, graph.tensor_names
    result: list[Step] = []
    for node in order.tolist():
        if node < n:
            result.append(OpStep(graph.ops[node].name))
        else:
            tensor, device = divmod(node - n, problem.devices)
            result.append(TransferStep(names[tensor], device))
    return tuple(result)


def order_array(order: Sequence[Step], graph: ComputationGraph, problem: Problem) -> np.ndarray:
    """Node ids of steps, `[m] int64`: op v is v, the transfer of tensor t to device b is `n + t * devices + b`.

    Raises:
      PlanError: a step names what the graph or the problem does not have.
    """
    op_index = {op.name: index for index, op in enumerate(graph.ops)}
    tensor_index = {name: index for index, name in enumerate(graph.tensor_names)}
    nodes = []
    for step in order:
        if isinstance(step, OpStep):
            if step.op not in op_index:
                raise PlanError(f"order names op {step.op!r}, which graph {graph.name!r} does not have")
            nodes.append(op_index[step.op])
            continue
        if step.tensor not in tensor_index:
            raise PlanError(f"order moves tensor {step.tensor!r}, which no op of graph {graph.name!r} writes")
        if not 0 <= step.to < problem.devices:
            raise PlanError(f"order moves {step.tensor!r} to device {step.to}: must be from 0 to {problem.devices - 1}")
        nodes.append(len(op_index) + tensor_index[step.tensor] * problem.devices + step.to)
    return np.array(nodes, np.int64)


def placement_array(placement: Mapping[str, int], graph: ComputationGraph) -> np.ndarray:
    """Device of each op, `[n] int64`.

    Raises:
      PlanError: an op has no device, or there is one for no op of the graph.
    """
    for op in graph.ops:
        if op.name not in placement:
            raise PlanError(f"placement misses op {op.name!r}: every op of graph {graph.name!r} needs a device")
    if len(placement) > len(graph.ops):
        names = {op.name for op in graph.ops}
        extra = next(name for name in placement if name not in names)
        raise PlanError(f"placement names op {extra!r}, which graph {graph.name!r} does not have")
    return np.array([placement[op.name] for op in graph.ops], np.int64)
