"""Types and sizes that an ONNX model declares and that the user gives in `dims`, compared with inferred ones.

ONNX's inference trusts the declarations of `value_info` and outputs, even if a model was changed and they were not.
Therefore the declared types of computed tensors are set aside first, and used only where inference gives nothing: for
operators that it does not know, for shapes that depend on data, and for loops whose state grows.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence

import onnx.helper
from onnx import GraphProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

from graphrl.errors import GraphError
from graphrl.graphs.readers.onnx.inference import has_stand_in
from graphrl.graphs.readers.onnx.model import schema_of
from graphrl.graphs.readers.onnx.sequences import scope_of
from graphrl.graphs.readers.onnx.values import (
    UNKNOWN,
    Scope,
    bodies_in,
    dimension,
    is_made_up,
    is_unknown,
    reads_of,
    replace,
    subgraphs,
)

HIDDEN = "declared type of "  # prefix of the name of a declared type in value_info


class Dims:
    """Sizes that the user gives for open dimensions: by the name of a dimension, or by tensor and axis.

    Attributes:
      sizes: size of each named dimension or axis.
      used: names whose size has been used.

    Raises:
      GraphError: a size is not an integer from 0 to 2^62 - 1.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        for key, size in sizes.items():
            if type(size) is not int or not 0 <= size < 2**62:
                raise GraphError(f"dims: the size of {key!r} must be an integer from 0 to 2^62")
        self.sizes = sizes
        self.used: set[str] = set()

    def fill(self, name: str, type: TypeProto) -> None:
        """Fills the type of a tensor with the sizes: unknown dimensions, or all of them if its rank is unknown.

        Raises:
          GraphError: the rank is unknown, and an axis is missing.
        """
        if type.WhichOneof("value") != "tensor_type":
            return
        if not type.tensor_type.HasField("shape"):
            self._fill_rank(name, type)
        for axis, dim in enumerate(type.tensor_type.shape.dim):
            key = next((key for key in (dim.dim_param, f"{name}:{axis}") if key in self.sizes), None)
            if is_unknown(dim) and key is not None:
                dim.dim_value = self.sizes[key]
                self.used.add(key)

    def _fill_rank(self, name: str, type: TypeProto) -> None:
        axes = self.axes_of(name)
        missing = next((axis for axis in range(len(axes)) if axis not in axes), None)
        if missing is not None:
            raise GraphError(
                f"dims: {name!r} has an unknown number of axes: give the sizes of all of them, also '{name}:{missing}'"
            )
        for _ in axes:
            type.tensor_type.shape.dim.add()

    def axes_of(self, name: str) -> set[int]:
        """Returns the axes of a tensor for which the user gives a size."""
        keys = [key.removeprefix(f"{name}:") for key in self.sizes if key.startswith(f"{name}:")]
        return {int(axis) for axis in keys if axis.isdecimal() and str(int(axis)) == axis}


def clear_negative_sizes(graph: GraphProto) -> None:
    """Clears dimensions of negative size, which exporters write for unknown ones; in bodies too."""
    for info in (*graph.input, *graph.value_info, *graph.output):
        for dim in _dims_of(info.type):
            if dim.dim_value < 0:
                dim.Clear()
    for body in bodies_in(graph):
        clear_negative_sizes(body)


def _dims_of(type: TypeProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    kind = type.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        yield from getattr(type, kind).shape.dim
    elif kind in ("sequence_type", "optional_type"):
        yield from _dims_of(getattr(type, kind).elem_type)
    elif kind == "map_type":
        yield from _dims_of(type.map_type.value_type)


def set_aside(graph: GraphProto, versions: Mapping[str, int], dims: Dims) -> None:
    """Hides the declared types of all computed values from inference, in bodies too.

    Args:
      graph: the model's graph; changed in place.
      versions: version of each operator set.
      dims: the user's sizes.

    Raises:
      GraphError: the declared type of an input contradicts the weight of its name, or a result has two different
        declarations.
    """
    results = {name for node in graph.node for name in node.output if name}
    infos = [info for info in (*graph.value_info, *graph.output) if info.name in results]
    _replace_infos(graph, infos)
    weights = {tensor.name: _weight_type(tensor) for tensor in graph.initializer}
    _type_inputs(graph, weights)
    for info in graph.output:
        if info.name in results:
            info.ClearField("type")
        elif info.name in weights:
            info.type.CopyFrom(weights[info.name])
    for node in graph.node:
        for body in subgraphs(node).values():
            set_aside(body, versions, dims)
            _hide_inputs(body, _first_set_aside(node))
    tensors = _Tensors(graph)
    for node in graph.node:
        if not _is_inferred(node, versions):
            for name in node.output:
                tensors.complete(name, dims)


def pass_types(graph: GraphProto) -> bool:
    """Copies the types of inputs to outputs that are inputs, in bodies too; returns True if any type changed."""
    inputs, new = {info.name: info.type for info in graph.input}, False
    for info in graph.output:
        if info.name in inputs and info.type != inputs[info.name]:
            info.type.CopyFrom(inputs[info.name])
            new = True
    for body in bodies_in(graph):
        new |= pass_types(body)
    return new


def _replace_infos(graph: GraphProto, infos: Sequence[ValueInfoProto]) -> None:
    """Keeps only the types of `infos`, under names that inference ignores."""
    hidden = [ValueInfoProto(name=HIDDEN + info.name, type=info.type) for info in infos if _kind(info.type)]
    replace(graph, value_info=hidden)


def _hide_inputs(body: GraphProto, first: int) -> None:
    """Hides the declared types of a body's inputs, which follow from the loop's inputs."""
    infos = body.input[first:]
    hidden = (ValueInfoProto(name=HIDDEN + info.name, type=info.type) for info in infos if _kind(info.type))
    body.value_info.extend(hidden)
    for info in infos:
        info.ClearField("type")


def _type_inputs(graph: GraphProto, weights: Mapping[str, TypeProto]) -> None:
    """Gives inputs that are weights the type of the weight; raises GraphError if their declarations contradict it."""
    for info in graph.input:
        weight = weights.get(info.name)
        if weight is None:
            continue
        if _contradict(info.type, weight):
            raise GraphError(
                f"input {info.name!r}: declared as {_describe(info.type)}, but its weight is {_describe(weight)}"
            )
        info.type.CopyFrom(weight)


def _weight_type(tensor: TensorProto) -> TypeProto:
    return onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)


def _is_inferred(node: NodeProto, versions: Mapping[str, int]) -> bool:
    """True if ONNX's inference knows the operator."""
    schema = schema_of(node, versions)
    if schema is None:
        return False
    return schema.has_type_and_shape_inference_function or has_stand_in(node) or bool(schema.function_body.node)


def adopt_types(graph: GraphProto, outer: Scope, dims: Dims, *, anywhere: bool = False) -> bool:
    """Adopts declared types and `dims` for values that inference cannot determine; returns True if anything is new.

    Only results of nodes without unknown inputs are adopted, because inference may then determine the others. With
    `anywhere`, the first input or node that gives anything new is adopted.

    Args:
      graph: changed in place, with its bodies.
      outer: known values outside of the graph.
      dims: the user's sizes.
      anywhere: see above; for graphs where no node qualifies.

    Raises:
      GraphError: the declared types of a tensor contradict each other, or `dims` gives only some axes of a tensor.
    """
    scope, tensors = scope_of(graph, outer), _Tensors(graph)
    unknown: set[str] = set()
    new = False
    if anywhere:
        new = any(_is_open(scope, info.name) and tensors.complete(info.name, dims) for info in graph.input)
    for node in graph.node:
        if new and anywhere:
            break
        names = [name for name in node.output if name and _is_open(scope, name)]
        if anywhere or unknown.isdisjoint(reads_of(node)):
            for body in subgraphs(node).values():
                new |= adopt_types(body, scope, dims, anywhere=anywhere)
            for name in names:
                new |= tensors.complete(name, dims)
        unknown.update(names)
    return new


def _is_open(scope: Scope, name: str) -> bool:
    return scope.get(name, UNKNOWN).bytes is None


class _Tensors:
    """The types of a graph's tensors: known ones, and declared ones that are set aside."""

    def __init__(self, graph: GraphProto) -> None:
        self._graph = graph
        self._infos: dict[str, list[ValueInfoProto]] = {}
        for info in (*graph.value_info, *graph.output, *graph.input):
            self._infos.setdefault(info.name, []).append(info)

    def complete(self, name: str, dims: Dims) -> bool:
        """Adds the declared types and given sizes of a tensor to its known type; returns True if the type changed."""
        declared = [info.type for info in self._infos.get(HIDDEN + name, ())]
        type = TypeProto()
        for info in self._infos.get(name, ()):
            _merge(info.type, type)
        before = type.SerializeToString(deterministic=True)
        if len(declared) > 1 and _contradict(declared[0], declared[1]):
            first, second = map(_describe, declared[:2])
            raise GraphError(f"{name!r} is declared twice, as {first} and as {second}, and only one can be")
        for other in declared:
            _merge(other, type)
        dims.fill(name, type)
        if type.SerializeToString(deterministic=True) == before:
            return False
        if name not in self._infos:
            self._infos[name] = [self._graph.value_info.add(name=name)]
        for info in self._infos[name]:
            info.type.CopyFrom(type)
        return True


def _merge(other: TypeProto, type: TypeProto) -> None:
    """Adds to `type` the parts that it leaves open and `other` defines."""
    kind = _kind(type)
    if not kind:
        type.CopyFrom(other)
    elif kind == _kind(other) == "tensor_type":
        _merge_tensors(other.tensor_type, type.tensor_type)
    elif kind == _kind(other) and kind in ("sequence_type", "optional_type"):
        _merge(getattr(other, kind).elem_type, getattr(type, kind).elem_type)


def _merge_tensors(other: TypeProto.Tensor, type: TypeProto.Tensor) -> None:
    if not type.elem_type:
        type.elem_type = other.elem_type
    if not other.HasField("shape"):
        return
    if not type.HasField("shape"):
        type.shape.CopyFrom(other.shape)
    if len(type.shape.dim) == len(other.shape.dim):
        for dim, known in zip(type.shape.dim, other.shape.dim, strict=True):
            if is_unknown(dim) and (known.HasField("dim_value") or is_made_up(dim.dim_param)):
                dim.CopyFrom(known)


def _contradict(first: TypeProto, second: TypeProto) -> bool:
    """True if no tensor can have both types."""
    kind = _kind(first)
    if not kind or not _kind(second):
        return False
    if kind != _kind(second):
        return True
    if kind != "tensor_type":
        return False
    one, other = first.tensor_type, second.tensor_type
    if one.elem_type and other.elem_type and one.elem_type != other.elem_type:
        return True
    if not one.HasField("shape") or not other.HasField("shape"):
        return False
    pairs = list(zip(one.shape.dim, other.shape.dim, strict=False))
    return len(one.shape.dim) != len(other.shape.dim) or any(
        not is_unknown(a) and not is_unknown(b) and a.dim_value != b.dim_value for a, b in pairs
    )


def _kind(type: TypeProto) -> str:
    return type.WhichOneof("value") or ""


def _describe(type: TypeProto) -> str:
    """Formats a type for messages, such as "FLOAT [8, batch]"."""
    if _kind(type) != "tensor_type":
        return _kind(type).removesuffix("_type").replace("_", " ")
    tensor = type.tensor_type
    element = TensorProto.DataType.Name(tensor.elem_type) if tensor.elem_type in TensorProto.DataType.values() else "?"
    if not tensor.HasField("shape"):
        return element
    return (
        f"{element} [{', '.join(d.dim_param or '?' if is_unknown(d) else str(d.dim_value) for d in tensor.shape.dim)}]"
    )


def declared_sizes(graph: GraphProto, outer: Scope) -> Iterator[tuple[str, int, str, int | str]]:
    """Yields (tensor, axis, name of an unknown size, size) for every dimension in a graph and its bodies.

    The name is "" if the model gives an input's size. The size is the inferred size, or a name. A tensor of unknown
    rank has one dimension of unknown size.
    """
    scope = scope_of(graph, outer)
    results = {name for node in graph.node for name in node.output}
    for info in (*graph.input, *graph.value_info, *graph.output):
        name = info.name.removeprefix(HIDDEN)
        value = scope.get(name, UNKNOWN)
        if value.kind == "tensor" and value.shape is None:
            yield name, 0, dimension(name, 0, ""), ""
        for axis, (dim, size) in enumerate(zip(_dims_of(info.type), value.shape or (), strict=False)):
            is_given = name not in results and not is_unknown(dim)
            yield name, axis, "" if is_given else dimension(name, axis, dim.dim_param), size
    for body in bodies_in(graph):
        yield from declared_sizes(body, scope)


def add_sizes(type: TypeProto, shape: Sequence[int | str]) -> bool:
    """Adds the known sizes of a shape of the same rank to the type of a tensor; returns True if the type changed."""
    before, other = type.SerializeToString(deterministic=True), TypeProto()
    other.tensor_type.shape.SetInParent()
    for size in shape:
        dim = other.tensor_type.shape.dim.add()
        if isinstance(size, int):
            dim.dim_value = size
    _merge(other, type)
    return type.SerializeToString(deterministic=True) != before


def clear_inferred_shapes(body: GraphProto) -> None:
    """Clears the shapes of all values that a body computes, in bodies inside it too."""
    results = {name for node in body.node for name in node.output}
    for info in (*body.value_info, *body.output):
        if info.name in results:
            _clear_shape(info.type)
    for node in body.node:
        for inner in subgraphs(node).values():
            clear_inferred_shapes(inner)
            for info in inner.input[_first_set_aside(node) :]:
                _clear_shape(info.type)


def _clear_shape(type: TypeProto) -> None:
    kind = _kind(type)
    if kind == "tensor_type":
        type.tensor_type.ClearField("shape")
    elif kind in ("sequence_type", "optional_type"):
        _clear_shape(getattr(type, kind).elem_type)


def _first_set_aside(node: NodeProto) -> int:
    """Returns the index of the first input of a node's body whose type follows from the node's inputs."""
    return {"Loop": 2, "Scan": 0}.get(node.op_type, sys.maxsize)


def drop_declared(graph: GraphProto) -> None:
    """Removes the declared types that were set aside, in bodies too."""
    replace(graph, value_info=[info for info in graph.value_info if not info.name.startswith(HIDDEN)])
    for body in bodies_in(graph):
        drop_declared(body)
