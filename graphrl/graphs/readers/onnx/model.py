"""ONNX models read without their weights, checked, and with their functions inlined.

- `load`: the model of a file's bytes, its functions inlined; `check_and_sort` checks and sorts its nodes.
- `without_weights`: `onnx.load(load_external_data=False)` still reads every embedded byte, and parses it into a second
  copy. Here the file is mapped, a pass over the protobuf wire format touches only the headers of large tensors, and the
  parsed message has no weights. Small tensors stay whole: shape inference needs their values, such as shapes and axes.
  (Encoding: protobuf.dev, "Encoding"; field numbers: onnx/onnx.proto.)
- `prepare_inlining`: a function may be written for another operator set than the model. Each of its nodes keeps that
  version: a node whose operator differs in the model's version (`Squeeze` had an attribute that is an input now) is
  tagged with its own version.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx
import onnx.defs
import onnx.helper
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from graphrl.errors import GraphError
from graphrl.files import Content
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.readers.foreign import Foreign
from graphrl.graphs.readers.onnx.values import constant_of, is_standard, reads_of, replace, subgraphs, weight_names

_TAG = "graphrl.opset"  # in a node's metadata: the version of its operator set, if it is not the model's
# Their versions differ only in the allowed element types; Constant's also in attributes, see `plain_constants`.
_ONLY_TYPES = ("Constant", "If", "Loop")

Identity = tuple[str, str, str]

MAX_VALUES = 4096  # limit on the bytes of a tensor's values that are kept

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
_IS_EXTERNAL = bytes((14 << 3, 1))  # data_location = EXTERNAL: the values are in another file
_MAX_DEPTH = 100  # protobuf's own limit

_BYTES_PER_BYTE = 100  # memory of our objects per byte of a model of many small nodes (measured: 93)
_EQUATION = re.compile(rb"[A-Za-z., ]*(->[A-Za-z. ]*)?")


def load(data: Content, foreign: Foreign) -> ModelProto:
    """Loads a model without weights and inlines its functions; raises GraphError if this `onnx` does not support it."""
    model = _parsed(without_weights(data))
    if not model.HasField("graph") or not model.ir_version:
        raise GraphError("not an ONNX model: it has no graph or no ir_version")
    if model.ir_version > onnx.IR_VERSION:
        raise GraphError(f"ONNX IR version {model.ir_version}: onnx {onnx.__version__} takes up to {onnx.IR_VERSION}")
    newest, opset = onnx.defs.onnx_opset_version(), opset_of(model, "")
    if not 1 <= opset <= newest:
        raise GraphError(f"ONNX opset version {opset}: onnx {onnx.__version__} takes 1 to {newest}")
    clear_versions(model)
    if not model.functions:
        return model
    prepare_inlining(model)
    model = native("inline_functions", model, foreign)
    plain_constants(model)
    return model


def check_and_sort(graph: GraphProto) -> None:
    """Names and sorts nodes topologically; raises GraphError if they are not an acyclic graph of known tensors.

    Runs before shape inference, which accepts any graph and then infers less.
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


def native(function: str, model: ModelProto, foreign: Foreign) -> ModelProto:
    """Calls a function of ONNX's C++ and returns the resulting model.

    Raises:
      GraphError: it rejects the model, crashes or exceeds the limits.
    """
    growth = foreign.limits.memory // _BYTES_PER_BYTE
    return _parsed(foreign.call(function, model.SerializeToString(), growth=growth))


def without_weights(data: Content) -> bytes:
    """Returns the ONNX model `data` without the values of large tensors, which are marked as external.

    Raises:
      GraphError: `data` is not a complete protobuf message.
    """
    return _copy(data, 0, len(data), "model", 0)


def standard(domain: str) -> str:
    """Returns the operator domain; "" for both names of the standard one."""
    return "" if domain == "ai.onnx" else domain


def versions_of(proto: ModelProto | FunctionProto) -> dict[str, int]:
    """Returns the version of each operator set that a model or function imports."""
    return {standard(entry.domain): entry.version for entry in proto.opset_import}


def own_version(node: NodeProto) -> int | None:
    """Returns the version of the node's operator set if it differs from the model's, else None."""
    values = [entry.value for entry in node.metadata_props if entry.key == _TAG]
    return int(values[0]) if values else None


def clear_versions(model: ModelProto) -> None:
    """Removes metadata that a file itself has under the key of our tags."""
    functions = (node for function in model.functions for node in function.node)
    for node in all_nodes((*model.graph.node, *functions)):
        if any(entry.key == _TAG for entry in node.metadata_props):
            kept = [entry for entry in node.metadata_props if entry.key != _TAG]
            del node.metadata_props[:]
            node.metadata_props.extend(kept)


def all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yields the nodes and those of their bodies, in a fixed order."""
    for node in nodes:
        yield node
        for body in subgraphs(node).values():
            yield from all_nodes(body.node)


def prepare_inlining(model: ModelProto) -> None:
    """Converts all functions to the operator sets of the model, so that ONNX's own code inlines each.

    Raises:
      GraphError: a function has an operator set that this `onnx` does not know, or a node with a body of an operator
        that has another meaning in the model's.
    """
    functions = _called(model)
    versions = versions_of(model)
    for function in functions:
        versions = {**versions_of(function), **versions}
        _check_version(function)
    known = versions_of(model)
    for domain in versions.keys() - known.keys():
        model.opset_import.add(domain=domain, version=versions[domain])
    names = {_identity(function) for function in functions}
    for function in functions:
        _tag_nodes(function, versions, names)
        del function.opset_import[:]
        function.opset_import.extend(model.opset_import)
    defaults = {_identity(function): function.attribute_proto for function in functions}
    for node in all_nodes((*model.graph.node, *(node for function in functions for node in function.node))):
        given = {attribute.name for attribute in node.attribute}
        node.attribute.extend(a for a in defaults.get(_call(node), ()) if a.name not in given)
    copies = [FunctionProto.FromString(function.SerializeToString()) for function in functions]
    del model.functions[:]
    model.functions.extend(copies)


def plain_constants(model: ModelProto) -> None:
    """Writes the value of each `Constant` as a tensor.

    Before opset 12, `Constant` has no attributes for numbers and texts (`value_ints`), but inlined functions may use
    them.
    """
    for node in all_nodes(model.graph.node):
        if node.op_type == "Constant" and is_standard(node) and len(node.attribute) == 1:
            tensor = constant_of(node.attribute[0])
            if tensor is not None:
                node.attribute[0].CopyFrom(onnx.helper.make_attribute("value", tensor))


def _identity(function: FunctionProto) -> Identity:
    return standard(function.domain), function.name, function.overload


def _call(node: NodeProto) -> Identity:
    return standard(node.domain), node.op_type, node.overload


def _called(model: ModelProto) -> list[FunctionProto]:
    """Returns the functions that the graph needs; all others are ignored."""
    functions = {_identity(function): function for function in model.functions}
    needed: dict[Identity, None] = {}
    pending = [_call(node) for node in all_nodes(model.graph.node)]
    while pending:
        name = pending.pop()
        if name in functions and name not in needed:
            needed[name] = None
            pending += [_call(node) for node in all_nodes(functions[name].node)]
    return [functions[name] for name in needed]


def _check_version(function: FunctionProto) -> None:
    newest, version = onnx.defs.onnx_opset_version(), versions_of(function).get("", 1)
    if not 1 <= version <= newest:
        name = ".".join(filter(None, _identity(function)))
        raise GraphError(
            f"function {name!r}: ONNX opset version {version}: onnx {onnx.__version__} takes 1 to {newest}"
        )


def _tag_nodes(function: FunctionProto, versions: dict[str, int], functions: set[Identity]) -> None:
    """Tags each node whose operator differs in the model's version with the function's version."""
    own = versions_of(function)
    for node in all_nodes(function.node):
        domain = standard(node.domain)
        version = own.get(domain, versions.get(domain, 1))
        if _call(node) in functions or not _differs(node, version, versions.get(domain, version)):
            continue
        if subgraphs(node):
            name = ".".join(filter(None, _identity(function)))
            raise GraphError(
                f"function {name!r}: its {node.op_type} is of opset {version}, which means something else than that of "
                f"the model's opset {versions[domain]}: both must be of one opset"
            )
        node.metadata_props.add(key=_TAG, value=str(version))


def _differs(node: NodeProto, version: int, other: int) -> bool:
    if node.op_type in _ONLY_TYPES or version == other:
        return False
    since = [_since_version(node, v) for v in (version, other)]
    return since[0] != since[1] and not (node.op_type == "Scan" and min(since) >= 9)


def _since_version(node: NodeProto, version: int) -> int:
    """Returns the version that last changed the operator, up to `version`; 0 if it is unknown."""
    schema = schema_of(node, {standard(node.domain): version})
    return 0 if schema is None else schema.since_version


def schema_of(node: NodeProto, versions: Mapping[str, int]) -> onnx.defs.OpSchema | None:
    """Returns the operator's schema, in the node's own version or that of `versions`; None if this `onnx` has none."""
    domain = standard(node.domain)
    try:
        return onnx.defs.get_schema(node.op_type, own_version(node) or versions.get(domain, 1), domain)
    except onnx.defs.SchemaError:
        return None


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
    """Parses the protobuf field at `position`: returns its number, the start of its value, and its end."""
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
    """Parses the protobuf integer at `position`; returns it and its end."""
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


def _parsed(message: bytes) -> ModelProto:
    model = ModelProto()
    try:
        model.ParseFromString(message)
    except Exception:  # protobuf's own exception is in a module without types
        raise GraphError("broken ONNX: a message inside does not parse") from None
    return model


def opset_of(model: ModelProto, domain: str) -> int:
    """Returns a model's version of an operator set; the standard domain is "" and "ai.onnx"."""
    same = ("", "ai.onnx") if domain in ("", "ai.onnx") else (domain,)
    return max((entry.version for entry in model.opset_import if entry.domain in same), default=1)


def _names(nodes: Sequence[NodeProto]) -> list[str]:
    """Gives nodes unique names: their own if they have one, else made of type and index."""
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
    """Raises GraphError for names that are not text, and for equations on which shape inference does not return."""
    for node in graph.node:
        names = (node.name, node.op_type, node.domain, *node.input, *node.output)
        if not all(isinstance(name, str) for name in names):  # protobuf returns bytes that it cannot decode
            raise GraphError("broken ONNX: a name is not UTF-8 text")
        for attribute in node.attribute:
            if attribute.name == "equation" and not _EQUATION.fullmatch(attribute.s):
                raise GraphError(
                    f"op {node.name!r}: equation {attribute.s!r}: must be of letters, commas, '.' and '->'"
                )
        for body in subgraphs(node).values():
            _check_text(body)
