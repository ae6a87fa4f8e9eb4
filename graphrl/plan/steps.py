"""Entries of a plan's order, which name ops and tensors, and their conversion to indices of a graph."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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


class PlacedOps(Mapping[str, int]):
    """Mapping of op names to devices, in the graph's order; stored as an array, names are built on access.

    Attributes:
      graph: graph of n ops.
      devices: `[n] int64` device of each op.
    """

    def __init__(self, graph: ComputationGraph, devices: np.ndarray) -> None:
        self.graph, self.devices = graph, np.array(devices, np.int64)

    @functools.cached_property
    def _by_name(self) -> dict[str, int]:
        return {op.name: device for op, device in zip(self.graph.ops, self.devices.tolist(), strict=True)}

    def __getitem__(self, op: str) -> int:
        return self._by_name[op]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self.devices)

    def __repr__(self) -> str:
        return repr(self._by_name)


class Steps(Sequence[Step]):
    """Sequence of the steps of an order, equal to a tuple of them; stored as an array, names are built on access.

    Attributes:
      graph: graph with the ops and tensors.
      devices: number of devices.
      nodes: `[m] int64` node ids: op v is v, the transfer of tensor t to device b is `n + t * devices + b`.
    """

    def __init__(self, graph: ComputationGraph, devices: int, nodes: np.ndarray) -> None:
        self.graph, self.devices, self.nodes = graph, devices, np.array(nodes, np.int64)

    @functools.cached_property
    def _steps(self) -> tuple[Step, ...]:
        n, names = self.graph.arrays.num_ops, self.graph.tensor_names
        pairs = (divmod(node - n, self.devices) if node >= n else (node, -1) for node in self.nodes.tolist())
        return tuple(TransferStep(names[at], to) if to >= 0 else OpStep(self.graph.ops[at].name) for at, to in pairs)

    def __getitem__(self, at: Any) -> Any:
        return self._steps[at]

    def __len__(self) -> int:
        return len(self.nodes)

    def __eq__(self, other: object) -> bool:
        return self._steps == tuple(other) if isinstance(other, Steps | tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._steps)

    def __repr__(self) -> str:
        return repr(self._steps)


def order_array(order: Sequence[Step], graph: ComputationGraph, problem: Problem) -> np.ndarray:
    """Converts steps to node ids, `[m] int64`: op v is v, the transfer of tensor t to device b `n + t * devices + b`.

    Raises:
      PlanError: a step names an op, tensor or device that the graph or the problem does not have.
    """
    if isinstance(order, Steps) and order.graph is graph and order.devices == problem.devices:
        return order.nodes.copy()
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
    """Converts a placement by op name to an array: the device of each op, `[n] int64`.

    Raises:
      PlanError: an op has no device, or a name is not an op of the graph.
    """
    if isinstance(placement, PlacedOps) and placement.graph is graph:
        return placement.devices.copy()
    for op in graph.ops:
        if op.name not in placement:
            raise PlanError(f"placement misses op {op.name!r}: every op of graph {graph.name!r} needs a device")
    if len(placement) > len(graph.ops):
        names = {op.name for op in graph.ops}
        extra = next(name for name in placement if name not in names)
        raise PlanError(f"placement names op {extra!r}, which graph {graph.name!r} does not have")
    return np.array([placement[op.name] for op in graph.ops], np.int64)
