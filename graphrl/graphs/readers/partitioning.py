"""Graphs of the repository msr-fiddle/dnn-partitioning: JSON objects with `nodes`, `edges` and the machine.

The format of "Efficient Algorithms for Device Placement of DNN Graph Operators" (Tarnawski et al. 2020). Node 7 with
the name "Add" becomes the op "7:Add" of one output, "7". Its times are in milliseconds: `fpgaLatency` is the op's run
time, `cpuLatency` that on a CPU, an edge's `cost` the duration of a transfer of its source's output. `size` becomes the
op's weights, resident on its accelerator for the whole run. An edge's own `size`, if given, is that of the output; the
largest applies. Fractions of a byte are rounded up, those of `maxSizePerFPGA` down. Keys that are not in the format are
ignored.
"""

import math
import os
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from graphrl.errors import GraphError
from graphrl.graphs.graph import MAX_BYTES, ComputationGraph, Machine, Op, Pipelined, Tensor
from graphrl.units import as_integer

MILLISECOND = 1e-3
SAME_COST = 1e-6  # milliseconds: tolerance between the costs of a node's edges

Amount = Annotated[float, msgspec.Meta(ge=0, lt=1e300)]
Size = Annotated[int, msgspec.Meta(ge=0)] | Amount  # integers stay exact
Count = Annotated[int, msgspec.Meta(ge=0)]
Flag = bool | Literal[0, 1]


class _Node(msgspec.Struct):
    id: int
    cpuLatency: Amount
    fpgaLatency: Any = None  # checked only if an accelerator can run the node
    supportedOnFpga: Flag = True
    isBackwardNode: Flag = False
    colorClass: int | None = None
    size: Size = 0
    name: Any = msgspec.UNSET


class _Edge(msgspec.Struct):
    sourceId: int
    destId: int
    cost: Amount
    size: Size = 0


class _File(msgspec.Struct):
    nodes: list[_Node]
    edges: list[_Edge]
    maxFPGAs: Count = 0
    maxCPUs: Count = 0
    maxSizePerFPGA: Size | None = None


MACHINE = frozenset(("maxFPGAs", "maxCPUs", "maxSizePerFPGA"))


class _Output(NamedTuple):
    """Transfer time and size of a node's output, from its outgoing edges."""

    cost: float  # milliseconds
    bytes: int


def partitioning_graph(value: Mapping[str, Any], source: str) -> ComputationGraph:
    """Converts a JSON object of the msr-fiddle/dnn-partitioning format to a graph.

    Args:
      value: a JSON object.
      source: the file, for messages and the graph's name.

    Raises:
      GraphError: one line that names the file and, if known, the node or edge.
    """
    try:
        file = msgspec.convert({key: _whole(item) for key, item in value.items()}, _File)
        inputs: dict[int, list[str]] = {node.id: [] for node in file.nodes}
        if len(inputs) < len(file.nodes):
            ids = [node.id for node in file.nodes]
            duplicate = next(number for number in ids if ids.count(number) > 1)
            raise GraphError(f"node {duplicate} appears twice: ids must be unique")
        outputs = _read_edges(file.edges, inputs)
        ops = tuple([_op(node, inputs[node.id], outputs.get(node.id, _Output(0.0, 0))) for node in file.nodes])
        name = os.path.basename(source).removesuffix(".gz").removesuffix(".json")
        machine = None if MACHINE.isdisjoint(value) else _machine(file)
        return ComputationGraph(name, ops, machine=machine)
    except (GraphError, msgspec.ValidationError) as error:
        raise GraphError(f"{source}: {error}") from None


def _whole(item: Any) -> Any:
    """Converts integral numbers to integers: the item, or the values of each object in a list."""
    if not isinstance(item, list):
        return as_integer(item)
    return [{key: as_integer(one) for key, one in row.items()} if isinstance(row, dict) else row for row in item]


def _machine(file: _File) -> Machine:
    if file.maxFPGAs + file.maxCPUs == 0:
        raise GraphError("maxFPGAs is 0 and maxCPUs 0: there must be a device")
    size = None if file.maxSizePerFPGA is None else min(math.floor(file.maxSizePerFPGA), MAX_BYTES)
    return Machine(file.maxFPGAs, file.maxCPUs, size)


def _read_edges(edges: Iterable[_Edge], inputs: dict[int, list[str]]) -> dict[int, _Output]:
    """Fills the inputs of every node; returns the outputs of the nodes that have outgoing edges, by node."""
    outputs: dict[int, _Output] = {}
    for place, edge in enumerate(edges):
        for key, number in (("sourceId", edge.sourceId), ("destId", edge.destId)):
            if number not in inputs:
                raise GraphError(f"edge number {place}: {key} is {number}: there is no such node")
        first = outputs.get(edge.sourceId, _Output(edge.cost, 0))
        if abs(first.cost - edge.cost) > SAME_COST:
            raise GraphError(
                f"edge {edge.sourceId} -> {edge.destId}: cost is {edge.cost}: must be {first.cost}, as of the other "
                f"edges of node {edge.sourceId}"
            )
        outputs[edge.sourceId] = _Output(first.cost, max(first.bytes, math.ceil(edge.size)))
        inputs[edge.destId].append(str(edge.sourceId))
    return outputs


def _op(node: _Node, inputs: list[str], output: _Output) -> Op:
    runtime = 0.0
    if node.supportedOnFpga:
        if node.fpgaLatency is None:
            raise GraphError(f"node {node.id} has no 'fpgaLatency': it is required")
        try:
            runtime = msgspec.convert(node.fpgaLatency, Amount)
        except msgspec.ValidationError as error:
            raise GraphError(f"node {node.id}: fpgaLatency: {error}") from None
    pipelined = Pipelined(
        cpu_runtime=node.cpuLatency * MILLISECOND,
        cpu_only=not node.supportedOnFpga,
        colocation=node.colorClass,
        backward=bool(node.isBackwardNode),
    )
    return Op(
        name=str(node.id) if node.name is msgspec.UNSET else f"{node.id}:{node.name}",
        runtime=runtime * MILLISECOND,
        inputs=tuple(inputs),
        outputs=(Tensor(str(node.id), output.bytes, transfer_seconds=output.cost * MILLISECOND),),
        weight_bytes=math.ceil(node.size),
        pipelined=pipelined,
    )
