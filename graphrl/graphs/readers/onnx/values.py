"""Types, shapes and constants of the values in an ONNX graph; names that its nodes and bodies read."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx.helper
import onnx.numpy_helper
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, TypeProto

_BITS = {"BOOL": 8, "FLOAT": 32, "DOUBLE": 64, "BFLOAT16": 16, "COMPLEX64": 64, "COMPLEX128": 128}


def _bits(name: str) -> int | None:
    """Returns the bits of one element of a type: 4 for UINT4, 8 for FLOAT8E4M3FN; None for text and undefined."""
    digits = name.removeprefix("UINT").removeprefix("INT").removeprefix("FLOAT").split("E")[0]
    return _BITS.get(name) or (int(digits) if digits.isdigit() else None)


ELEMENT_BITS = {number: bits for name, number in TensorProto.DataType.items() if (bits := _bits(name))}
MAX_ELEMENTS = 1024  # limit on the constants that are evaluated: shapes, axes, and indices into them are smaller
_MAX_TRIPS = 2**31  # exporters write "until the condition fails" as the largest integer


class Value(NamedTuple):
    """Type, shape and contents of one value, as far as they are known.

    Attributes:
      kind: "tensor" (with numbers), "text" (a tensor of strings), "sequence", "optional", or another kind ("map",
        "sequence of maps", "sparse tensor", "unknown").
      element_bits: bits of one element; 0 unless it is a tensor.
      shape: a size, or the name of an unknown one ("" if it has none), per dimension; None if the rank is unknown.
      elements: tensors of a sequence, in order, or of an optional, at most one; None if unknown.
      constant: the constant tensor of the model, if the value is one.
    """

    kind: str
    element_bits: int = 0
    shape: tuple[int | str, ...] | None = None
    elements: "tuple[Value, ...] | None" = None
    constant: TensorProto | None = None

    @property
    def is_static(self) -> bool:
        """True for a tensor, of numbers or text, of known shape."""
        return self.shape is not None and all(isinstance(size, int) for size in self.shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape if all of it is known, else ()."""
        return tuple(size for size in self.shape or () if isinstance(size, int)) if self.is_static else ()

    @property
    def bytes(self) -> int | None:
        """Size in memory (elements of less than a byte are packed; text has its UTF-8); None if it is unknown."""
        if self.elements is not None:
            sizes = [element.bytes for element in self.elements]
            return None if None in sizes else sum(size or 0 for size in sizes)
        if self.kind == "text" and self.constant is not None:
            return sum(map(len, self.constant.string_data))
        if self.kind != "tensor" or not self.is_static:
            return None
        return (math.prod(self.sizes) * self.element_bits + 7) // 8

    @property
    def array(self) -> np.ndarray | None:
        """Value of a small numeric constant; None for all other values."""
        tensor = self.constant
        if tensor is None or tensor.data_location == TensorProto.EXTERNAL or math.prod(tensor.dims) > MAX_ELEMENTS:
            return None
        try:
            array = onnx.numpy_helper.to_array(tensor)
        except (KeyError, TypeError, ValueError):
            return None
        return array if array.dtype.kind in "biuf" else None


Scope = Mapping[str, Value]

UNKNOWN = Value("unknown")


def typed_scope(graph: GraphProto, outer: Scope | None = None) -> dict[str, Value]:
    """Collects the values that a graph's types and constants declare, and those around it (`outer`), by name."""
    own: dict[str, Value] = {}
    for info in (*graph.input, *graph.output, *graph.value_info):
        # A result can be in both lists, and inference completes only one of them.
        value = value_of(info.type)
        if info.name not in own or _is_more_specific(value, own[info.name]):
            own[info.name] = value
    scope = {**(outer or {}), **own}
    for tensor in graph.initializer:
        scope[tensor.name] = of_constant(tensor)
    for node in graph.node:
        if node.op_type == "Constant" and len(node.attribute) == len(node.output) == 1:
            constant = constant_of(node.attribute[0])
            if constant is not None:
                scope[node.output[0]] = of_constant(constant)
    for sparse in graph.sparse_initializer:
        stored = _tensor(sparse.values.data_type, tuple(sparse.values.dims))
        indices = math.prod(sparse.indices.dims) * 64
        scope[sparse.values.name] = stored._replace(
            element_bits=stored.element_bits + indices // max(1, math.prod(stored.sizes))
        )
    return scope


def _is_more_specific(value: Value, other: Value) -> bool:
    if other.bytes is not None:
        return False
    return value.bytes is not None or other.kind == "unknown" or (other.shape is None and value.shape is not None)


def of_constant(tensor: TensorProto) -> Value:
    """Converts a constant tensor to a `Value`."""
    return _tensor(tensor.data_type, tuple(tensor.dims))._replace(constant=tensor)


def constant_of(attribute: AttributeProto) -> TensorProto | None:
    """Returns the tensor that an attribute of a Constant defines; None if it is sparse or of a wrong type."""
    if attribute.name == "value" and attribute.HasField("t"):
        return attribute.t
    values = {
        "value_int": (TensorProto.INT64, (), [attribute.i]),
        "value_ints": (TensorProto.INT64, (len(attribute.ints),), attribute.ints),
        "value_float": (TensorProto.FLOAT, (), [attribute.f]),
        "value_floats": (TensorProto.FLOAT, (len(attribute.floats),), attribute.floats),
        "value_string": (TensorProto.STRING, (), [attribute.s]),
        "value_strings": (TensorProto.STRING, (len(attribute.strings),), attribute.strings),
    }
    if attribute.name not in values:
        return None
    return onnx.helper.make_tensor("", *values[attribute.name])


def value_of(type: TypeProto) -> Value:
    """Converts a declared type to a `Value`, which has no constant."""
    kind = type.WhichOneof("value")
    if kind == "sequence_type" and type.sequence_type.elem_type.WhichOneof("value") == "map_type":
        return Value("sequence of maps")
    if kind != "tensor_type":
        return Value("unknown" if kind is None else kind.removesuffix("_type").replace("_", " "))
    if not type.tensor_type.HasField("shape"):
        return _tensor(type.tensor_type.elem_type, None)
    dims = type.tensor_type.shape.dim
    return _tensor(type.tensor_type.elem_type, tuple(d.dim_param if is_unknown(d) else d.dim_value for d in dims))


def _tensor(element_type: int, shape: tuple[int | str, ...] | None) -> Value:
    if element_type in ELEMENT_BITS:
        return Value("tensor", ELEMENT_BITS[element_type], shape)
    return Value("text", 0, shape) if element_type == TensorProto.STRING else Value("unknown")


def is_unknown(dim: Any) -> bool:
    """True if a dimension of a protobuf shape has no size."""
    return not dim.HasField("dim_value") or dim.dim_value < 0


def dimension(tensor: str, axis: int, name: str) -> str:
    """Returns the key in `dims` of an unknown dimension: its name in the model, or tensor and axis without one."""
    return f"{tensor}:{axis}" if is_made_up(name) else name


def is_made_up(name: str) -> bool:
    """True if an unknown dimension has no name, or one from inference."""
    return not name or name.startswith("unk__")


def is_standard(node: NodeProto) -> bool:
    """True if a node is of ONNX's own operators."""
    return node.domain in ("", "ai.onnx")


def subgraphs(node: NodeProto) -> dict[str, GraphProto]:
    """Returns the bodies of a node, by attribute ("then_branch", "body", "graphs.0")."""
    bodies = {}
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH or attribute.HasField("g"):
            bodies[attribute.name] = attribute.g
        bodies |= {f"{attribute.name}.{i}": graph for i, graph in enumerate(attribute.graphs)}
    return bodies


def bodies_in(graph: GraphProto) -> Iterator[GraphProto]:
    """Yields the bodies of a graph's nodes, without the bodies inside them."""
    return (body for node in graph.node for body in subgraphs(node).values())


def reads_of(node: NodeProto) -> list[str]:
    """Returns the distinct names of the values that a node reads, including outer values that its bodies read."""
    names = dict.fromkeys(node.input)
    for body in subgraphs(node).values():
        names |= dict.fromkeys(captured(body))
    return [name for name in names if name]


def captured(body: GraphProto) -> list[str]:
    """Returns the distinct names of the values outside a body that it reads."""
    own = {info.name for info in body.input} | set(weight_names(body))
    own |= {name for inner in body.node for name in inner.output}
    inside = [name for inner in body.node for name in reads_of(inner)] + [info.name for info in body.output]
    return list(dict.fromkeys(name for name in inside if name not in own))


def weight_names(graph: GraphProto) -> list[str]:
    """Returns the names of a graph's weights (ONNX initializers), dense and sparse."""
    return [tensor.name for tensor in graph.initializer] + [tensor.values.name for tensor in graph.sparse_initializer]


def trip_count(node: NodeProto, scope: Scope) -> int | None:
    """Returns the largest number of runs of a Loop, if it is a constant; else None."""
    value = scope.get(node.input[0]) if node.input else None
    array = None if value is None else value.array
    trips = int(array.item()) if array is not None and array.size == 1 and array.dtype.kind in "iu" else -1
    return trips if 0 <= trips < _MAX_TRIPS else None


def replace(graph: GraphProto, **lists: Any) -> None:
    """Replaces lists of messages of a graph; the new messages may be the graph's own."""
    copy = GraphProto(**lists)
    for name in lists:
        graph.ClearField(name)
        getattr(graph, name).extend(getattr(copy, name))
