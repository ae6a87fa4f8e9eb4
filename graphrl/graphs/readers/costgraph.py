"""TensorFlow's CostGraphDef as protobuf text (`.pbtxt`): the format of REGAL's released data.

Fields of a node (tensorflow/core/framework/cost_graph.proto; absent means 0, as in all of proto3) and what they become:

- `name`: the op's; "node" and its id if empty. `id`: what other nodes call it.
- `input_info {preceding_node preceding_port}`: it reads that output of that node.
- `output_info {size alias_input_port}`: a tensor "name:port" of `size` bytes. An `alias_input_port` of at least 0 says
  that it is that input's buffer (by place in `input_info`), -1 that it has its own. Absent it means input 0, which is
  ignored where the node has no inputs.
- `control_input`: control edge. `is_final`: all its outputs are the graph's.
- `compute_cost`: microseconds of run time. `temporary_memory_size`: workspace bytes. `persistent_memory_size`: weight
  bytes. All other fields of the format are read over; one that it does not have is refused.
"""

import os
import re

from graphrl.errors import GraphError
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.readers import text_proto
from graphrl.graphs.readers.text_proto import Field

_HEAD = re.compile(rb"(?:#[^\n]*\n|\s)*(?:node|cost)\s*:?\s*[{<]")
_SCALARS = ("id", "compute_cost", "temporary_memory_size", "persistent_memory_size")
_IGNORED = frozenset(("device", "compute_time", "memory_time", "inaccurate")).union(
    f"{where}_{kind}_memory_size" for where in ("host", "device") for kind in ("temp", "persistent")
)
_TRUTH = {"true": True, "True": True, "t": True, "1": True, "false": False, "False": False, "f": False, "0": False}
_MICROSECOND = 1e-6


class _Node:
    """A node as its fields say, before ids are resolved."""

    def __init__(self, field: Field) -> None:
        self.line = field.line
        self.name = ""
        self.numbers = dict.fromkeys(_SCALARS, 0)
        self.is_final = False
        self.inputs: list[tuple[int, int, int]] = []  # node, port, line
        self.outputs: list[tuple[int, int | None, int]] = []  # bytes, alias, line
        self.controls: list[tuple[int, int]] = []  # node, line
        for inner in field.fields():
            self._take(inner)
        self.name = self.name or f"node{self.numbers['id']}"

    def _take(self, field: Field) -> None:
        if field.name == "name":
            self.name = field.text()
        elif field.name in _SCALARS:
            self.numbers[field.name] = field.integer()
            if self.numbers[field.name] < 0:
                raise GraphError(f"line {field.line}: {field.name} is {field.text()}: must be at least 0")
        elif field.name == "is_final":
            if field.text() not in _TRUTH:
                raise GraphError(f"line {field.line}: is_final is {field.text()[:30]!a}: must be true or false")
            self.is_final = _TRUTH[field.text()]
        elif field.name == "control_input":
            self.controls.append((field.integer(), field.line))
        elif field.name == "input_info":
            values = _integers(field, ("preceding_node", "preceding_port"))
            self.inputs.append((values.get("preceding_node", 0), values.get("preceding_port", 0), field.line))
        elif field.name == "output_info":
            values = _integers(field, ("size", "alias_input_port"), ("shape", "dtype"))
            self.outputs.append((values.get("size", 0), values.get("alias_input_port"), field.line))
        elif field.name not in _IGNORED:
            hint = ": this is a GraphDef, which has no costs" if field.name in ("op", "attr", "input") else ""
            raise GraphError(f"line {field.line}: {field.name!a} is no field of a CostGraphDef's node{hint}")


def is_costgraph(head: bytes) -> bool:
    """Whether a file that starts with `head` may be a CostGraphDef as text."""
    return _HEAD.match(head) is not None


def parse_costgraph(data: bytes, source: str) -> ComputationGraph:
    """The graph that the file `source` of content `data` holds.

    Raises:
      GraphError: one line that names the file and the line or the op, if it breaks the format.
    """
    name = os.path.basename(source).removesuffix(".gz").removesuffix(".pbtxt")
    try:
        return _graph(text_proto.parse(data.decode("utf-8-sig")), name)
    except UnicodeDecodeError as error:
        raise GraphError(f"{source}: not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}") from None
    except GraphError as error:
        separator = ", " if str(error).startswith("line ") else ": "
        raise GraphError(f"{source}{separator}{error}") from None


def _graph(fields: list[Field], name: str) -> ComputationGraph:
    nodes: dict[int, _Node] = {}
    for field in fields:
        if field.name == "cost":  # totals, which follow from the nodes
            continue
        if field.name != "node":
            raise GraphError(f"line {field.line}: {field.name!a} is no field of a CostGraphDef: node and cost are")
        node = _Node(field)
        key = node.numbers["id"]
        if key in nodes:
            raise GraphError(f"line {node.line}: id {key} is that of the node in line {nodes[key].line} already")
        nodes[key] = node
    ops = tuple(_op(node, nodes) for node in nodes.values())
    final = tuple(
        tensor.name for op, node in zip(ops, nodes.values(), strict=True) if node.is_final for tensor in op.outputs
    )
    return ComputationGraph(name, ops, outputs=final)


def _op(node: _Node, nodes: dict[int, _Node]) -> Op:
    inputs = []
    for key, port, line in node.inputs:
        writes = len(_node(nodes, key, line).outputs)
        if not 0 <= port < writes:
            raise GraphError(f"line {line}: preceding_port is {port}: {nodes[key].name!r} has {writes} outputs")
        inputs.append(f"{nodes[key].name}:{port}")
    outputs = []
    for port, (size, alias, line) in enumerate(node.outputs):
        if size < 0:
            raise GraphError(f"line {line}: size is {size}: must be at least 0 bytes")
        if alias is not None and alias >= len(inputs):
            raise GraphError(f"line {line}: alias_input_port is {alias}: {node.name!r} has {len(inputs)} inputs")
        shared = 0 if alias is None else alias
        outputs.append(Tensor(f"{node.name}:{port}", size, inputs[shared] if 0 <= shared < len(inputs) else None))
    return Op(
        name=node.name,
        runtime=node.numbers["compute_cost"] * _MICROSECOND,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        after=tuple(_node(nodes, key, line).name for key, line in node.controls),
        workspace_bytes=node.numbers["temporary_memory_size"],
        weight_bytes=node.numbers["persistent_memory_size"],
    )


def _node(nodes: dict[int, _Node], key: int, line: int) -> _Node:
    if key not in nodes:
        raise GraphError(f"line {line}: no node has the id {key}")
    return nodes[key]


def _integers(field: Field, names: tuple[str, ...], ignored: tuple[str, ...] = ()) -> dict[str, int]:
    """The integers of a small message."""
    values = {}
    for inner in field.fields():
        if inner.name in names:
            values[inner.name] = inner.integer()
        elif inner.name not in ignored:
            raise GraphError(f"line {inner.line}: {inner.name!a} is no field of {field.name}: {', '.join(names)} are")
    return values
