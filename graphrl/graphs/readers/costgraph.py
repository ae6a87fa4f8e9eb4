"""TensorFlow's CostGraphDef as protobuf text (`.pbtxt`): the format of REGAL's released data.

Fields of a node (tensorflow/core/framework/cost_graph.proto; absent means 0, as in all of proto3) and their meaning:

- `name`: op name; "node" and the id if empty. `id`: the number by which other nodes refer to it.
- `input_info {preceding_node preceding_port}`: it reads that output of that node.
- `output_info {size alias_input_port}`: a tensor "name:port" of `size` bytes. An `alias_input_port` of at least 0 means
  that the tensor uses that input's buffer (by index in `input_info`), -1 that it has its own. If absent, it means input
  0, which is ignored if the node has no inputs.
- `control_input`: control predecessor. `is_final`: all outputs of the node are outputs of the graph.
- `compute_cost`: microseconds of run time. `temporary_memory_size`: workspace bytes. `persistent_memory_size`: weight
  bytes. All other fields of the format are skipped; unknown fields are rejected.
"""

import os
from collections.abc import Mapping
from typing import Any

from google.protobuf import text_format  # type: ignore[import-untyped]

from graphrl.errors import GraphError, clipped
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.readers.messages import message_classes

_COSTS = ("compute_cost", "temporary_memory_size", "persistent_memory_size")
_TABLE = {
    "Dim": {"size": "1 int64", "name": "2 string"},
    "TensorShape": {"dim": "2 Dim*", "unknown_rank": "3 bool"},
    "InputInfo": {"preceding_node": "1 int32", "preceding_port": "2 int32"},
    "OutputInfo": {"size": "1 int64", "alias_input_port": "2 int64", "shape": "3 TensorShape", "dtype": "4 DataType"},
    "Node": {
        "name": "1 string",
        "device": "2 string",
        "id": "3 int32",
        "input_info": "4 InputInfo*",
        "output_info": "5 OutputInfo*",
        "temporary_memory_size": "6 int64",
        "is_final": "7 bool",
        "control_input": "8 int32*",
        "compute_cost": "9 int64",
        "host_temp_memory_size": "10 int64",
        "device_temp_memory_size": "11 int64",
        "persistent_memory_size": "12 int64",
        "compute_time": "14 int64",
        "memory_time": "15 int64",
        "device_persistent_memory_size": "16 int64",
        "inaccurate": "17 bool",
        "host_persistent_memory_size": "18 int64",  # of older versions
    },
    "AggregatedCost": {"cost": "1 float", "dimension": "2 string"},
    "CostGraphDef": {"node": "1 Node*", "cost": "2 AggregatedCost*"},  # costs are totals, which follow from the nodes
}
# tensorflow/core/framework/types.proto, in the order of its numbers; the values are not used.
_TYPES = str.split(
    """
    INVALID FLOAT DOUBLE INT32 UINT8 INT16 INT8 STRING COMPLEX64 INT64 BOOL QINT8 QUINT8 QINT32 BFLOAT16 QINT16 QUINT16
    UINT16 COMPLEX128 HALF RESOURCE VARIANT UINT32 UINT64 FLOAT8_E5M2 FLOAT8_E4M3FN FLOAT8_E4M3FNUZ FLOAT8_E4M3B11FNUZ
    FLOAT8_E5M2FNUZ INT4 UINT4 INT2 UINT2
    """
)
_ENUMS = {"DataType": [f"DT_{name}{suffix}" for suffix in ("", "_REF") for name in _TYPES]}
_CLASSES = message_classes("graphrl.costgraph", _TABLE, enums=_ENUMS, syntax="proto2")
_MICROSECOND = 1e-6


def parse_costgraph(data: bytes, source: str) -> ComputationGraph:
    """Parses the content `data` of the file `source`.

    Raises:
      GraphError: one line that names the file and the line or the node, if it breaks the format.
    """
    name = os.path.basename(source).removesuffix(".gz").removesuffix(".pbtxt")
    try:
        message = text_format.Parse(data.decode("utf-8-sig"), _CLASSES["CostGraphDef"]())
        return _graph(message.node, name)
    except UnicodeDecodeError as error:
        raise GraphError(f"{source}: not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}") from None
    except text_format.ParseError as error:
        raise GraphError(f"{source}{_fault(error)}") from None
    except GraphError as error:
        raise GraphError(f"{source}: {error}") from None


def _fault(error: Any) -> str:
    """Formats the line and reason of a protobuf error."""
    line, reason = error.GetLine(), str(error)
    if line is not None:
        reason = reason.partition(" : ")[2]
    reason = ascii(clipped(reason).replace('"graphrl.costgraph.', '"').rstrip("."))[1:-1].replace("\\'", "'")
    is_graphdef = any(f'named "{field}"' in reason for field in ("op", "attr", "input"))
    hint = ": this is a GraphDef, which has no costs" if is_graphdef else ""
    return f"{'' if line is None else f', line {line}'}: {reason}{hint}"


def _graph(messages: Any, name: str) -> ComputationGraph:
    nodes: dict[int, Any] = {}
    for node in messages:
        node.name = node.name or f"node{node.id}"
        for field in _COSTS:
            if getattr(node, field) < 0:
                raise GraphError(f"node {node.name!r}: {field} is {getattr(node, field)}: must be at least 0")
        if node.id in nodes:
            raise GraphError(f"node {node.name!r}: id {node.id} is that of {nodes[node.id].name!r} already")
        nodes[node.id] = node
    ops = tuple(_op(node, nodes) for node in nodes.values())
    final = tuple(
        tensor.name for op, node in zip(ops, nodes.values(), strict=True) if node.is_final for tensor in op.outputs
    )
    return ComputationGraph(name, ops, outputs=final)


def _op(node: Any, nodes: Mapping[int, Any]) -> Op:
    where = f"node {node.name!r}"
    inputs = []
    for read in node.input_info:
        port, before = read.preceding_port, _node(nodes, read.preceding_node, where)
        if not 0 <= port < len(before.output_info):
            writes = len(before.output_info)
            raise GraphError(f"{where}: preceding_port is {port}: {before.name!r} has {writes} outputs")
        inputs.append(f"{before.name}:{port}")
    outputs = []
    for port, output in enumerate(node.output_info):
        alias = output.alias_input_port
        if output.size < 0:
            raise GraphError(f"{where}: size is {output.size}: must be at least 0 bytes")
        if output.HasField("alias_input_port") and alias >= len(inputs):
            raise GraphError(f"{where}: alias_input_port is {alias}: it has {len(inputs)} inputs")
        shared = inputs[alias] if 0 <= alias < len(inputs) else None
        outputs.append(Tensor(f"{node.name}:{port}", output.size, shared))
    return Op(
        name=node.name,
        runtime=node.compute_cost * _MICROSECOND,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        after=tuple(_node(nodes, key, where).name for key in node.control_input),
        workspace_bytes=node.temporary_memory_size,
        weight_bytes=node.persistent_memory_size,
    )


def _node(nodes: Mapping[int, Any], key: int, where: str) -> Any:
    if key not in nodes:
        raise GraphError(f"{where}: no node has the id {key}")
    return nodes[key]
