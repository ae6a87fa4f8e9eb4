"""Shapes of the tensors of an ONNX model: ONNX's inference, alternating with steps that give it more information.

- `inferred` repeats inference and the other steps (listed in the package's docstring) until no shape is new.
- `fill_loops` gives loops the shapes of their results, which inference leaves open because a body might change them.
"""

from collections.abc import Mapping, Sequence

from onnx import GraphProto, ModelProto, TypeProto, ValueInfoProto

from graphrl.errors import GraphError
from graphrl.graphs.readers.foreign import Foreign
from graphrl.graphs.readers.onnx.bodies import inline_bodies
from graphrl.graphs.readers.onnx.checks import check_model
from graphrl.graphs.readers.onnx.declared import (
    Dims,
    add_sizes,
    adopt_types,
    clear_inferred_shapes,
    clear_negative_sizes,
    declared_sizes,
    drop_declared,
    pass_types,
    set_aside,
)
from graphrl.graphs.readers.onnx.inference import fold, infer_shapes
from graphrl.graphs.readers.onnx.model import check_and_sort, opset_of, versions_of
from graphrl.graphs.readers.onnx.sequences import has_sequences, scope_of
from graphrl.graphs.readers.onnx.values import (
    UNKNOWN,
    Scope,
    Value,
    bodies_in,
    dimension,
    subgraphs,
    trip_count,
    typed_scope,
)

_PRELIMINARY = "graphrl.preliminary"  # marks a state whose first value's shape was not fully known

_MAX_ROUNDS = 1000  # of inference: each layer whose shapes depend on those of the previous one can need one more


def inferred(model: ModelProto, dims: Mapping[str, int], foreign: Foreign) -> ModelProto:
    """Infers all shapes of a model that follow from its inputs and `dims` (see `parse_onnx`); returns the model.

    Inferred types take precedence over declared ones, which count only where inference gives nothing.

    Raises:
      GraphError: a size in `dims` is not an integer from 0 to 2^62 - 1, names no unknown dimension of the model or
        contradicts it; the model's shapes or types are impossible; inference fails.
    """
    sizes = Dims(dims)
    clear_negative_sizes(model.graph)
    set_aside(model.graph, versions_of(model), sizes)
    for info in model.graph.input:
        sizes.fill(info.name, info.type)
    model = _inferred(model, sizes, foreign)
    check_and_sort(model.graph)  # names and sorts the nodes of inlined bodies
    check_model(model, foreign)
    _check_dims(model.graph, sizes)
    drop_declared(model.graph)
    return model


def _inferred(model: ModelProto, dims: Dims, foreign: Foreign) -> ModelProto:
    """Repeats inference, followed by the first of the other steps that gives anything new, until none does."""
    opset = opset_of(model, "")
    inline_bodies(model.graph, opset)
    pass_types(model.graph)
    for _ in range(_MAX_ROUNDS):
        model = infer_shapes(model, foreign)
        graph = model.graph
        new = fill_loops(graph, {})
        new |= pass_types(graph)
        if new or _fill_sequences(graph, {}) or inline_bodies(graph, opset):
            continue
        if _has_unknown(graph) and fold(graph, opset):
            continue
        if not adopt_types(graph, {}, dims) and not adopt_types(graph, {}, dims, anywhere=True):
            break
    return model


def fill_loops(graph: GraphProto, outer: Scope) -> bool:
    """Adds the shapes of states and results of loops, also in bodies; returns True if any is new.

    A body's state is assumed to have the shape of its first value. A dimension in which the body's result differs is
    left open, for the state and for the loop's result: the result's is the size after the last iteration, which
    declared types or `dims` must give. In every iteration, the state then has the larger of its first and last size, an
    upper bound. The outputs of a body in each iteration are stacked, with the trip count as the first size.
    """
    scope, new = scope_of(graph, outer), False
    infos = {info.name: info for info in (*graph.value_info, *graph.output)}
    for node in graph.node:
        bodies = subgraphs(node)
        for body in bodies.values():
            new |= fill_loops(body, scope)
        if node.op_type != "Loop" or len(node.input) < 2 or "body" not in bodies:
            continue
        body, trips = bodies["body"], trip_count(node, scope)
        states = len(node.input) - 2
        for i, (name, result) in enumerate(zip(node.output, body.output[1:], strict=False)):
            info = infos.get(name, ValueInfoProto())
            if i < states and i + 2 < len(body.input):
                first = scope.get(node.input[i + 2], UNKNOWN)
                new |= _fill_sequence(body.input[i + 2].type, first, scope.get(name, UNKNOWN))
                new |= _fill_state(body, i + 2, scope_of(body, scope)[result.name], first, info, trips)
            elif i >= states and trips is not None:
                value = scope_of(body, scope)[result.name]
                if value.kind == "tensor" and value.bytes is not None and name in infos and scope[name].bytes is None:
                    new |= add_sizes(info.type, (trips, *value.sizes))
    return new


def _fill_sequence(state: TypeProto, first: Value, last: Value) -> bool:
    """Gives a state the shape of the tensors of its first value, or else its last, if all are alike; True if it is new.

    `sequences.py` checks it against the last value.
    """
    tensors = set(first.elements or last.elements or ())
    element = state.sequence_type.elem_type if state.WhichOneof("value") == "sequence_type" else TypeProto()
    if len(tensors) != 1 or not element.tensor_type.elem_type or element.tensor_type.HasField("shape"):
        return False
    (tensor,) = tensors
    return tensor.is_static and add_sizes(element, tensor.sizes)


def _fill_state(
    body: GraphProto, index: int, result: Value, first: Value, info: ValueInfoProto, trips: int | None
) -> bool:
    """Infers the shape of one state of a loop, one step; returns True if it gave anything new.

    Args:
      body: body of the loop.
      index: index of the state among the inputs of the body.
      result: the state's value after one iteration.
      first: the state's value before the first iteration.
      info: declaration of the loop's result; without a name if it has no readers.
      trips: number of runs of the body; None if it is not known.
    """
    state = scope_of(body)[body.input[index].name]
    last = scope_of(GraphProto(output=[info])).get(info.name, UNKNOWN)
    if state.kind != "tensor":
        return False
    if last.bytes is not None:  # nothing can change it any more
        largest = last.sizes
        if first.bytes is not None and len(first.sizes) == len(last.sizes):
            largest = tuple(map(max, first.sizes, last.sizes))
        return state.shape != largest and _set_state(body, index, largest)
    given = body.input[index]
    if first.shape is not None and (
        state.shape is None or (given.doc_string == _PRELIMINARY and first.bytes is not None)
    ):
        given.doc_string = _PRELIMINARY if first.bytes is None else ""
        return _set_state(body, index, first.shape)
    if trips == 0 and first.bytes is not None:
        return last.kind == "tensor" and add_sizes(info.type, first.sizes)
    if state.shape is None or result.shape is None or len(result.shape) != len(state.shape):
        return False
    joined = tuple(a if a == b and isinstance(a, int) else "" for a, b in zip(state.shape, result.shape, strict=True))
    if any(isinstance(a, int) and a != b for a, b in zip(state.shape, joined, strict=True)):
        return _set_state(body, index, joined)
    return last.kind == "tensor" and add_sizes(info.type, joined)


def _set_state(body: GraphProto, index: int, shape: Sequence[int | str]) -> bool:
    """Sets the shape of a body's input, and clears the shapes inferred from another one."""
    clear_inferred_shapes(body)
    type = body.input[index].type
    type.tensor_type.ClearField("shape")
    return add_sizes(type, shape)


def _fill_sequences(graph: GraphProto, outer: Scope) -> bool:
    """Adds shapes of tensors that are taken out of sequences and optionals; returns True if any is new."""
    if not has_sequences(graph):
        return False
    scope, typed = scope_of(graph, outer), typed_scope(graph, outer)
    filled = False
    for info in (*graph.value_info, *graph.output):
        value = scope.get(info.name, UNKNOWN)
        if value.kind == "tensor" and value.is_static and not typed[info.name].is_static:
            filled |= add_sizes(info.type, value.sizes)
    for body in bodies_in(graph):
        filled |= _fill_sequences(body, scope)
    return filled


def _has_unknown(graph: GraphProto) -> bool:
    scope = scope_of(graph)
    return any(name and (name not in scope or scope[name].bytes is None) for node in graph.node for name in node.output)


def _check_dims(graph: GraphProto, dims: Dims) -> None:
    """Raises GraphError for sizes in `dims` that match no dimension, or that contradict the model."""
    if dims.used.issuperset(dims.sizes):
        return
    unknown = dict.fromkeys(dims.used)
    places: dict[str, list[tuple[str, int, str, int]]] = {}
    for tensor, axis, name, size in declared_sizes(graph, {}):
        if isinstance(size, str):
            unknown[dimension(tensor, axis, size)] = None
        else:
            for key in (name, f"{tensor}:{axis}"):
                places.setdefault(key, []).append((tensor, axis, name, size))
    scope = scope_of(graph)
    for key in dims.sizes.keys() - dims.used:
        tensor = key.rpartition(":")[0]
        if scope.get(tensor, UNKNOWN).kind == "unknown" and any(tensor in node.output for node in graph.node):
            raise GraphError(f"dims: the type of {tensor!r} is unknown: declare it in the model, with its shape")
        for tensor, axis, _, size in places.get(key, ()):
            if size != dims.sizes[key]:
                raise GraphError(
                    f"dims: {key!r} is {dims.sizes[key]}, but {tensor!r} has size {size} on axis {axis} in the model"
                )
        if not any(name for _, _, name, _ in places.get(key, ())):
            hint = f"unknown are {_listed(unknown)}" if unknown else "all are known"
            raise GraphError(f"dims: {key!r} names no unknown dimension of the model: {hint}")


def _listed(names: Mapping[str, None]) -> str:
    shown = [repr(name) for name in list(names)[:8]]
    return ", ".join(shown) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
