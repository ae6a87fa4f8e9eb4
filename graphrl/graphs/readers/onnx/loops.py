"""Shapes of the results of ONNX loops, which inference leaves open because a body might change them."""

from collections.abc import Sequence

from onnx import GraphProto, TypeProto, ValueInfoProto

from graphrl.graphs.readers.onnx.declared import add_sizes, clear_inferred_shapes
from graphrl.graphs.readers.onnx.sequences import scope_of
from graphrl.graphs.readers.onnx.values import UNKNOWN, Scope, Value, subgraphs, trip_count

_PRELIMINARY = "graphrl.preliminary"  # marks a state whose first value's shape was not all known


def fill_loops(graph: GraphProto, outer: Scope) -> bool:
    """Gives the states and results of loops, those in bodies included, the shapes that follow; whether any is new.

    A body's state is taken to have the shape of its first value. A dimension in which the body's result differs is
    left open, for the state and for the loop's result: the result's is the size after the last iteration, which
    declared types or `dims` have to give. In every iteration, the state then has the larger of its first and last
    size, an upper bound. What a body gives out per iteration is stacked as often as it runs.
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
    """Gives a state the shape of the tensors of its first value, or else its last, if all are alike; whether it is new.

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
    """One step for one state of a loop; whether it gave anything new.

    Args:
      body: of the loop.
      index: of the state among the inputs of the body.
      result: of one iteration.
      first: value of the state.
      info: of the loop's result; without a name if nobody reads it.
      trips: how often the body runs; None if it is not known.
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


def grows(body: GraphProto, index: int) -> bool:
    """Whether a loop's body gives a state (by its place among the inputs of the body) another shape than it gets."""
    if not index < len(body.input) or not index - 1 < len(body.output):
        return False
    scope = scope_of(body)
    return scope[body.input[index].name].shape != scope[body.output[index - 1].name].shape


def _set_state(body: GraphProto, index: int, shape: Sequence[int | str]) -> bool:
    """Gives a body's input a shape, and clears the shapes inferred from another one."""
    clear_inferred_shapes(body)
    type = body.input[index].type
    type.tensor_type.ClearField("shape")
    return add_sizes(type, shape)
