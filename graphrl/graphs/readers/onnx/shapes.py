"""Shapes of the tensors of an ONNX model: ONNX's inference, and what it needs to be told."""

from collections.abc import Mapping

from onnx import GraphProto, ModelProto, NodeProto, TypeProto

from graphrl.errors import GraphError
from graphrl.graphs.readers.foreign import Foreign
from graphrl.graphs.readers.onnx.bodies import inline_bodies
from graphrl.graphs.readers.onnx.fold import fold
from graphrl.graphs.readers.onnx.model import check_and_sort, native, opset_of
from graphrl.graphs.readers.onnx.sequences import scope_of
from graphrl.graphs.readers.onnx.values import Scope, declared, dimension, is_unknown, subgraphs, trip_count

_MAX_ROUNDS = 1000  # of inference: each layer whose shapes are computed from those of the last can need one more


def inferred(model: ModelProto, dims: Mapping[str, int], foreign: Foreign) -> ModelProto:
    """The model with all shapes that follow from its inputs and `dims` (see `parse_onnx`).

    Raises:
      GraphError: a size in `dims` is no positive integer, or names no unknown dimension of the model; inference fails.
    """
    for key, size in dims.items():
        if type(size) is not int or not 1 <= size < 2**62:
            raise GraphError(f"dims: the size of {key!r} must be an integer from 1 to 2^62")
    used: set[str] = set()
    unknown: dict[str, None] = {}
    opset = opset_of(model, "")
    _fill(model.graph, dims, used, unknown)
    _inline(model.graph, opset)
    for _ in range(_MAX_ROUNDS):
        model = native("infer_shapes", model, foreign)
        filled = _fill(model.graph, dims, used, unknown)
        filled |= _fill_loops(model.graph)
        filled |= _fill_sequences(model.graph)
        filled |= _inline(model.graph, opset)
        if not filled and not (_has_unknown(model.graph) and fold(model.graph, opset)):
            break
    for key in dims:
        if key not in used:
            hint = f"unknown are {_listed(unknown)}" if unknown else "all are known"
            raise GraphError(f"dims: {key!r} names no unknown dimension of the model: {hint}")
    return model


def _inline(graph: GraphProto, opset: int) -> bool:
    """Puts bodies into the graph (see `inline_bodies`), whose nodes stay sorted and named; whether there were any."""
    inlined = inline_bodies(graph, opset)
    if inlined:
        check_and_sort(graph)
    return inlined


def _has_unknown(graph: GraphProto) -> bool:
    scope = scope_of(graph)
    return any(name and (name not in scope or scope[name].bytes is None) for node in graph.node for name in node.output)


def _listed(names: Mapping[str, None]) -> str:
    shown = [repr(name) for name in list(names)[:8]]
    return ", ".join(shown) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _fill(graph: GraphProto, dims: Mapping[str, int], used: set[str], unknown: dict[str, None]) -> bool:
    """Puts the sizes in `dims` into the graph; whether there were any. Notes what was used, and what was unknown."""
    filled = False
    for info in (*graph.input, *graph.value_info, *graph.output):
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if not is_unknown(dim):
                continue
            unknown[dimension(info.name, axis, dim.dim_param)] = None
            for key in (dim.dim_param, f"{info.name}:{axis}"):
                if key in dims:
                    dim.dim_value = dims[key]
                    used.add(key)
                    filled = True
                    break
    for node in graph.node:
        for body in subgraphs(node).values():
            filled |= _fill(body, dims, used, unknown)
    return filled


def _fill_loops(graph: GraphProto) -> bool:
    """Shapes of the results of loops, which inference leaves open because a body might change them; whether any is new.

    A body's state is taken to have the shape of its first value; where the body's result then has the same, so has
    the loop's. What a body gives out per iteration is stacked as often as it runs.
    """
    scope = scope_of(graph)
    infos = {info.name: info for info in (*graph.value_info, *graph.output)}
    filled = False
    for node in graph.node:
        if node.op_type != "Loop" or len(node.input) < 2 or "body" not in (bodies := subgraphs(node)):
            continue
        body, states = bodies["body"], node.input[2:]
        for name, state in zip(states, body.input[2:], strict=False):
            first = scope.get(name)
            known = first is not None and first.kind == "tensor" and first.bytes is not None
            if known and not state.type.tensor_type.HasField("shape"):
                filled |= _set_shape(state.type.tensor_type, first.sizes)
        filled |= _fill_carried(node, body, scope)
        results = scope_of(body, scope)
        for i, (name, result) in enumerate(zip(node.output, body.output[1:], strict=False)):
            value, trips = results[result.name], trip_count(node, scope)
            known = value.kind == "tensor" and value.bytes is not None
            if name not in infos or not known or scope[name].bytes is not None:
                continue
            if i < len(states):
                same = states[i] in scope and scope[states[i]].shape == value.shape
                filled |= same and _set_shape(infos[name].type.tensor_type, value.sizes)
            elif trips is not None:
                filled |= _set_shape(infos[name].type.tensor_type, (trips, *value.sizes))
    return filled


def _fill_carried(node: NodeProto, body: GraphProto, scope: Scope) -> bool:
    """Shapes in the sequences that a Loop carries, which are taken to be those of its first or else its last value."""
    filled = False
    for first, last, state in zip(node.input[2:], node.output, body.input[2:], strict=False):
        held = [scope[name].elements for name in (first, last) if name in scope and scope[name].elements]
        tensors = set(held[0] or ()) if held else set()
        type = state.type.sequence_type.elem_type.tensor_type
        if len(tensors) == 1 and type.elem_type and not type.HasField("shape"):
            (tensor,) = tensors
            filled |= tensor.is_static and _set_shape(type, tensor.sizes)
    return filled


def _fill_sequences(graph: GraphProto, outer: Scope | None = None) -> bool:
    """Shapes of tensors that come out of sequences and optionals; whether any is new."""
    scope, known = scope_of(graph, outer), declared(graph, outer)
    filled = False
    for info in (*graph.value_info, *graph.output):
        value = scope[info.name]
        if value.kind == "tensor" and value.is_static and not known[info.name].is_static:
            filled |= _set_shape(info.type.tensor_type, value.sizes)
    for node in graph.node:
        for body in subgraphs(node).values():
            filled |= _fill_sequences(body, scope)
    return filled


def _set_shape(tensor: TypeProto.Tensor, sizes: tuple[int, ...]) -> bool:
    tensor.ClearField("shape")
    tensor.shape.SetInParent()
    for size in sizes:
        tensor.shape.dim.add().dim_value = size
    return True
