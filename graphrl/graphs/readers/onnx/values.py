"""What is known about the tensors of an ONNX graph, and how its nodes and bodies refer to them."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, TypeProto

_BITS = {"BOOL": 8, "FLOAT": 32, "DOUBLE": 64, "BFLOAT16": 16, "COMPLEX64": 64, "COMPLEX128": 128}


def _bits(name: str) -> int | None:
    """Bits of one element: UINT4 has 4, FLOAT8E4M3FN 8; None for text and undefined."""
    digits = name.removeprefix("UINT").removeprefix("INT").removeprefix("FLOAT").split("E")[0]
    return _BITS.get(name) or (int(digits) if digits.isdigit() else None)


ELEMENT_BITS = {number: bits for name, number in TensorProto.DataType.items() if (bits := _bits(name))}


class Value(NamedTuple):
    """What is known about one tensor before or after shape inference.

    Attributes:
      kind: "tensor", or what else it is ("sequence", "map", "optional", "sparse tensor", "text", "unknown").
      element_bits: bits of one element; 0 unless it is a tensor.
      shape: a size, or the name of an unknown one ("" if it has none), per dimension; None if the rank is unknown.
    """

    kind: str
    element_bits: int = 0
    shape: tuple[int | str, ...] | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape if all of it is known, else ()."""
        sizes = tuple(size for size in self.shape or () if isinstance(size, int))
        return sizes if len(sizes) == len(self.shape or ()) else ()

    @property
    def bytes(self) -> int | None:
        """Size in memory (elements of less than a byte are packed); None if it is unknown."""
        if self.kind != "tensor" or self.shape is None or len(self.sizes) < len(self.shape):
            return None
        return (math.prod(self.sizes) * self.element_bits + 7) // 8


Scope = Mapping[str, Value]

UNKNOWN = Value("unknown")


def scope_of(graph: GraphProto, outer: Scope | None = None) -> dict[str, Value]:
    """All values of a graph by name, those of the graphs around it (`outer`) included."""
    own: dict[str, Value] = {}
    for info in (*graph.input, *graph.output, *graph.value_info):
        # A result can stand in both lists, and inference completes only one of them.
        value = _value(info.type)
        if info.name not in own or _knows_more(value, own[info.name]):
            own[info.name] = value
    scope = {**(outer or {}), **own}
    for tensor in graph.initializer:
        scope[tensor.name] = _tensor(tensor.data_type, tuple(tensor.dims))
    for sparse in graph.sparse_initializer:
        stored = _tensor(sparse.values.data_type, tuple(sparse.values.dims))
        indices = math.prod(sparse.indices.dims) * 64
        scope[sparse.values.name] = stored._replace(
            element_bits=stored.element_bits + indices // max(1, math.prod(stored.sizes))
        )
    return scope


def _knows_more(value: Value, other: Value) -> bool:
    if other.bytes is not None:
        return False
    return value.bytes is not None or other.kind == "unknown" or (other.shape is None and value.shape is not None)


def _value(type: TypeProto) -> Value:
    kind = type.WhichOneof("value")
    if kind != "tensor_type":
        return Value("unknown" if kind is None else kind.removesuffix("_type").replace("_", " "))
    if not type.tensor_type.HasField("shape"):
        return _tensor(type.tensor_type.elem_type, None)
    dims = type.tensor_type.shape.dim
    return _tensor(type.tensor_type.elem_type, tuple(d.dim_param if is_unknown(d) else d.dim_value for d in dims))


def _tensor(element_type: int, shape: tuple[int | str, ...] | None) -> Value:
    if element_type in ELEMENT_BITS:
        return Value("tensor", ELEMENT_BITS[element_type], shape)
    return Value("text" if element_type == TensorProto.STRING else "unknown")


def is_unknown(dim: Any) -> bool:
    """Whether a dimension of a protobuf shape has no size."""
    return not dim.HasField("dim_value") or dim.dim_value < 0


def dimension(tensor: str, axis: int, name: str) -> str:
    """What users call an unknown dimension: its name in the model if it has one that inference did not make up."""
    return f"{tensor}:{axis}" if is_made_up(name) else name


def is_made_up(name: str) -> bool:
    """Whether an unknown dimension has no name, or one from inference."""
    return not name or name.startswith("unk__")


def subgraphs(node: NodeProto) -> dict[str, GraphProto]:
    """The bodies of a node, by attribute ("then_branch", "body", "graphs.0")."""
    bodies = {}
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH or attribute.HasField("g"):
            bodies[attribute.name] = attribute.g
        bodies |= {f"{attribute.name}.{i}": graph for i, graph in enumerate(attribute.graphs)}
    return bodies


def reads_of(node: NodeProto) -> list[str]:
    """Distinct names of what a node reads, what its bodies take from around it included."""
    names = dict.fromkeys(node.input)
    for body in subgraphs(node).values():
        names |= dict.fromkeys(captured(body))
    return [name for name in names if name]


def captured(body: GraphProto) -> list[str]:
    """Distinct names of what a body takes from around it."""
    own = {info.name for info in body.input} | set(weight_names(body))
    own |= {name for inner in body.node for name in inner.output}
    inside = [name for inner in body.node for name in reads_of(inner)] + [info.name for info in body.output]
    return list(dict.fromkeys(name for name in inside if name not in own))


def weight_names(graph: GraphProto) -> list[str]:
    """Names of the initializers, dense and sparse."""
    return [tensor.name for tensor in graph.initializer] + [tensor.values.name for tensor in graph.sparse_initializer]
