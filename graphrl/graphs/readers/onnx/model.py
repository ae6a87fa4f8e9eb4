"""ONNX models read without their weights and checked: meaning known to this `onnx`, and a graph at all.

`onnx.load(load_external_data=False)` still reads every byte that is embedded, and parses it into a second copy. Here
the file is mapped, a walk over the protobuf wire format touches only the headers of large tensors, and what is parsed
afterwards has no weights. Small tensors stay whole: shape inference needs the shapes and axes that they carry.
(Encoding: protobuf.dev, "Encoding"; field numbers: onnx/onnx.proto.)
"""

import re
from collections.abc import Sequence

import onnx
import onnx.defs
from onnx import GraphProto, ModelProto, NodeProto

from graphrl.errors import GraphError
from graphrl.files import Content
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.readers.foreign import Foreign
from graphrl.graphs.readers.onnx.functions import clear_versions, plain_constants, prepare_inlining
from graphrl.graphs.readers.onnx.values import reads_of, replace, subgraphs, weight_names

MAX_VALUES = 4096  # bytes of one tensor's values that are kept

_CHILDREN = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse tensor", 23: "sparse tensor"},
    "sparse tensor": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
_VALUES = frozenset((4, 5, 7, 9, 10, 11))  # float_data, int32_data, int64_data, raw_data, double_data, uint64_data
_IS_EXTERNAL = bytes((14 << 3, 1))  # data_location = EXTERNAL: "the values are elsewhere"
_MAX_DEPTH = 100  # what protobuf itself allows


def without_weights(data: Content) -> bytes:
    """The ONNX model `data` with the values of all large tensors dropped and marked as external.

    Raises:
      GraphError: `data` is no whole protobuf message.
    """
    return _copy(data, 0, len(data), "model", 0)


def _copy(data: Content, position: int, end: int, kind: str, depth: int) -> bytes:
    if depth > _MAX_DEPTH:
        raise GraphError(f"broken ONNX: messages nested more than {_MAX_DEPTH} deep")
    children = _CHILDREN[kind]
    parts, copied, dropped = [], position, False
    while position < end:
        start = position
        field, start_of_value, position = _field(data, position, end)
        if position - start_of_value <= MAX_VALUES:
            continue
        if kind == "tensor" and field in _VALUES:
            parts.append(data[copied:start])
            copied, dropped = position, True
        elif field in children:
            body = _copy(data, start_of_value, position, children[field], depth + 1)
            parts += [data[copied:start], _encoded(field << 3 | 2), _encoded(len(body)), body]
            copied = position
    parts.append(data[copied:end])
    return b"".join(parts) + (_IS_EXTERNAL if dropped else b"")


def _field(data: Content, position: int, end: int) -> tuple[int, int, int]:
    """Number, start of the value and end of the field at `position`."""
    tag, value = _varint(data, position, end)
    field, wire = tag >> 3, tag & 7
    if wire == 0:
        stop = _varint(data, value, end)[1]
    elif wire == 2:
        length, value = _varint(data, value, end)
        stop = value + length
    elif wire in (1, 5):
        stop = value + (8 if wire == 1 else 4)
    else:
        raise GraphError(f"broken ONNX: byte {position} starts no protobuf field")
    if field == 0:
        raise GraphError(f"broken ONNX: byte {position} starts no protobuf field")
    if stop > end:
        raise GraphError(f"truncated or broken ONNX: the field at byte {position} ends at {stop}, its message at {end}")
    return field, value, stop


def _varint(data: Content, position: int, end: int) -> tuple[int, int]:
    """The integer at `position`, and where it ends."""
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
    raise GraphError(f"truncated or broken ONNX: no whole number at byte {position}")


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_BYTES_PER_BYTE = 100  # of memory that our objects take for one byte of a model of many small nodes (measured: 93)
_EQUATION = re.compile(rb"[A-Za-z., ]*(->[A-Za-z. ]*)?")


def load(data: Content, foreign: Foreign) -> ModelProto:
    """The model without weights, its functions inlined; raises if this `onnx` cannot know what it means."""
    model = _parsed(without_weights(data))
    if not model.HasField("graph") or not model.ir_version:
        raise GraphError("no ONNX model: it has no graph or no ir_version")
    if model.ir_version > onnx.IR_VERSION:
        raise GraphError(f"ONNX IR version {model.ir_version}: onnx {onnx.__version__} knows up to {onnx.IR_VERSION}")
    newest, opset = onnx.defs.onnx_opset_version(), opset_of(model, "")
    if not 1 <= opset <= newest:
        raise GraphError(f"ONNX opset version {opset}: onnx {onnx.__version__} knows 1 to {newest}")
    clear_versions(model)
    if not model.functions:
        return model
    prepare_inlining(model)
    model = native("inline_functions", model, foreign)
    plain_constants(model)
    return model


def native(function: str, model: ModelProto, foreign: Foreign) -> ModelProto:
    """The model that a function of ONNX's C++ returns.

    Raises:
      GraphError: it refuses the model, crashes or takes too much.
    """
    growth = foreign.limits.memory // _BYTES_PER_BYTE
    return _parsed(foreign.call(function, model.SerializeToString(), growth=growth))


def _parsed(message: bytes) -> ModelProto:
    model = ModelProto()
    try:
        model.ParseFromString(message)
    except Exception:  # protobuf has its own, in a module without types
        raise GraphError("broken ONNX: a message inside does not parse") from None
    return model


def opset_of(model: ModelProto, domain: str) -> int:
    """Version of an operator set; the standard one is "" and "ai.onnx"."""
    same = ("", "ai.onnx") if domain in ("", "ai.onnx") else (domain,)
    return max((entry.version for entry in model.opset_import if entry.domain in same), default=1)


def check_and_sort(graph: GraphProto) -> None:
    """Raises GraphError if the nodes are no acyclic graph of known tensors; else names and sorts them topologically.

    It stands before shape inference, which takes anything and then knows less.
    """
    if not graph.node:
        raise GraphError("the model has no nodes: there is nothing to plan")
    _check_text(graph)
    for node, name in zip(graph.node, _names(graph.node), strict=True):
        node.name = name
    ops = [
        Op(node.name, inputs=tuple(reads_of(node)), outputs=tuple(Tensor(output) for output in node.output if output))
        for node in graph.node
    ]
    inputs = dict.fromkeys([*(info.name for info in graph.input), *weight_names(graph)])
    outputs = tuple(info.name for info in graph.output)
    checked = ComputationGraph(graph.name, tuple(ops), tuple(map(Tensor, inputs)), outputs)
    order = checked.arrays.topological.tolist()
    if order != sorted(order):
        replace(graph, node=[graph.node[i] for i in order])


def _names(nodes: Sequence[NodeProto]) -> list[str]:
    """Unique names: the nodes' own where they have one, else after their type and place."""
    given, taken, names = {node.name for node in nodes}, set(), []
    for index, node in enumerate(nodes):
        name = node.name
        if not name or name in taken:
            name = f"{name or node.op_type}.{index}"
            while name in given or name in taken:
                name += "'"
        taken.add(name)
        names.append(name)
    return names


def _check_text(graph: GraphProto) -> None:
    """Raises GraphError for names that are no text, and for equations on which shape inference does not return."""
    for node in graph.node:
        names = (node.name, node.op_type, node.domain, *node.input, *node.output)
        if not all(isinstance(name, str) for name in names):  # protobuf gives bytes for what it cannot decode
            raise GraphError("broken ONNX: a name is not UTF-8 text")
        for attribute in node.attribute:
            if attribute.name == "equation" and not _EQUATION.fullmatch(attribute.s):
                raise GraphError(
                    f"op {node.name!r}: equation {attribute.s!r}: must be of letters, commas, '.' and '->'"
                )
        for body in subgraphs(node).values():
            _check_text(body)
