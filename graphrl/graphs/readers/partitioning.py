"""Graphs of "Efficient Algorithms for Device Placement of DNN Graph Operators" (Tarnawski et al. 2020): JSON objects
with `nodes`, `edges` and the machine, as in the repository msr-fiddle/dnn-partitioning.

Node 7 called "Add" becomes the op "7:Add" of one output, "7". Its times are milliseconds: `fpgaLatency` is the op's run
time, `cpuLatency` that on a CPU, an edge's `cost` the seconds of a transfer of its source's output. `size` becomes the
op's weights: what it holds on its accelerator all the time. An edge's own `size` is the output's, where it is given.
Fractions of a byte are rounded up, of `maxSizePerFPGA` down. Keys that the format does not have are passed over.
"""

import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from graphrl.errors import GraphError
from graphrl.graphs.graph import MAX_BYTES, ComputationGraph, Machine, Op, Pipelined, Tensor
from graphrl.units import whole

MILLISECOND = 1e-3
SAME_COST = 1e-6  # milliseconds: what the costs of a node's edges may differ by
MACHINE = "maxFPGAs", "maxCPUs", "maxSizePerFPGA"


class _Output(NamedTuple):
    """What the edges out of a node say of its output."""

    cost: float  # milliseconds
    bytes: int


def is_partitioning(value: object) -> bool:
    """Whether a JSON value means to be such a graph: it has nodes, and names a machine or a node's time."""
    if not isinstance(value, dict) or "format" in value or "nodes" not in value:
        return False
    nodes = value["nodes"]
    first = nodes[0] if isinstance(nodes, list) and nodes else None
    timed = isinstance(first, dict) and ("cpuLatency" in first or "fpgaLatency" in first)
    return timed or any(key in value for key in MACHINE)


def partitioning_graph(value: Mapping[str, Any], source: str) -> ComputationGraph:
    """The graph of such a value.

    Args:
      value: as `is_partitioning` takes it.
      source: the file, for messages and the graph's name.

    Raises:
      GraphError: one line that names the file and, where there is one, the node or edge.
    """
    try:
        nodes = _nodes(value)
        inputs: dict[int, list[str]] = {number: [] for number in nodes}
        outputs = _edges(value, inputs)
        ops = tuple([_op(number, node, inputs[number], outputs.get(number)) for number, node in nodes.items()])
        name = os.path.basename(source).removesuffix(".gz").removesuffix(".json")
        return ComputationGraph(name, ops, machine=_machine(value))
    except GraphError as error:
        raise GraphError(f"{source}: {error}") from None


def _machine(value: Mapping[str, Any]) -> Machine | None:
    if not any(key in value for key in MACHINE):
        return None
    accelerators, cpus = (_integer(value.get(key, 0), key) for key in MACHINE[:2])
    if accelerators < 0 or cpus < 0 or accelerators + cpus == 0:
        raise GraphError(f"maxFPGAs is {accelerators} and maxCPUs {cpus}: there must be a device")
    if MACHINE[2] not in value:
        return Machine(accelerators, cpus)
    size = math.floor(_checked(value[MACHINE[2]], MACHINE[2]))
    return Machine(accelerators, cpus, min(size, MAX_BYTES))


def _nodes(value: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Nodes by id."""
    nodes: dict[int, dict[str, Any]] = {}
    for place, node in enumerate(_objects(value, "nodes")):
        number = _integer(_needed(node, "id", f"node number {place}"), f"node number {place}: id")
        if number in nodes:
            raise GraphError(f"node {number} appears twice: ids must be unique")
        nodes[number] = node
    return nodes


def _edges(value: Mapping[str, Any], inputs: dict[int, list[str]]) -> dict[int, _Output]:
    """Writes the inputs of every node; gives what is said of the outputs that are read."""
    outputs: dict[int, _Output] = {}
    for place, edge in enumerate(_objects(value, "edges")):
        where = f"edge number {place}"
        source, reader = (_integer(_needed(edge, key, where), f"{where}: {key}") for key in ("sourceId", "destId"))
        for key, number in (("sourceId", source), ("destId", reader)):
            if number not in inputs:
                raise GraphError(f"{where}: {key} is {number}: there is no such node")
        where = f"edge {source} -> {reader}"
        cost = _number(_needed(edge, "cost", where), f"{where}: cost")
        first = outputs.get(source, _Output(cost, 0))
        if abs(first.cost - cost) > SAME_COST:
            raise GraphError(f"{where}: cost is {cost}: must be {first.cost}, as of the other edges of node {source}")
        size = _bytes(edge.get("size", 0), f"{where}: size")
        outputs[source] = _Output(first.cost, max(first.bytes, size))
        inputs[reader].append(str(source))
    return outputs


def _op(number: int, node: Mapping[str, Any], inputs: list[str], output: _Output | None) -> Op:
    where = f"node {number}"
    supported = _flag(node.get("supportedOnFpga", True), f"{where}: supportedOnFpga")
    runtime = _number(_needed(node, "fpgaLatency", where), f"{where}: fpgaLatency") if supported else 0.0
    colour = node.get("colorClass")
    pipelined = Pipelined(
        cpu_runtime=_number(_needed(node, "cpuLatency", where), f"{where}: cpuLatency") * MILLISECOND,
        cpu_only=not supported,
        colocation=None if colour is None else _integer(colour, f"{where}: colorClass"),
        backward=_flag(node.get("isBackwardNode", False), f"{where}: isBackwardNode"),
    )
    cost, num_bytes = _Output(0.0, 0) if output is None else output
    return Op(
        name=f"{number}:{node['name']}" if "name" in node else str(number),
        runtime=runtime * MILLISECOND,
        inputs=tuple(inputs),
        outputs=(Tensor(str(number), num_bytes, transfer_seconds=cost * MILLISECOND),),
        weight_bytes=_bytes(node.get("size", 0), f"{where}: size"),
        pipelined=pipelined,
    )


def _objects(value: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    entries = _needed(value, key, "the file")
    if not isinstance(entries, list):
        raise GraphError(f"{key} is {_shown(entries)}: must be a list of objects")
    for place, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise GraphError(f"{key[:-1]} number {place} is {_shown(entry)}: must be an object")
    return entries


def _needed(owner: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in owner:
        raise GraphError(f"{where} has no {key!r}: it is needed")
    return owner[key]


def _number(value: object, where: str) -> float:
    """A finite number of at least 0."""
    return float(_checked(value, where))


def _bytes(value: object, where: str) -> int:
    return math.ceil(_checked(value, where))


def _checked(value: object, where: str) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e300:
        raise GraphError(f"{where} is {_shown(value)}: must be a finite number of at least 0")
    return value


def _integer(value: object, where: str) -> int:
    value = whole(value)
    if type(value) is not int or abs(value) >= 2**63:
        raise GraphError(f"{where} is {_shown(value)}: must be an integer")
    return value


def _flag(value: object, where: str) -> bool:
    if value not in (0, 1):
        raise GraphError(f"{where} is {_shown(value)}: must be true or false, or 1 or 0")
    return bool(value)


def _shown(value: object) -> str:
    if isinstance(value, list | dict):
        return "an object" if isinstance(value, dict) else "a list"
    text = "a huge integer" if isinstance(value, int) and value.bit_length() > 100 else repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
