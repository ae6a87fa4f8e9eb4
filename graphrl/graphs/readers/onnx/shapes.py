"""Shapes of the tensors of an ONNX model: ONNX's inference and the steps that help it on."""

from collections.abc import Mapping

from onnx import GraphProto, ModelProto

from graphrl.errors import GraphError
from graphrl.graphs.readers.foreign import Foreign
from graphrl.graphs.readers.onnx.bodies import inline_bodies
from graphrl.graphs.readers.onnx.checks import check_model
from graphrl.graphs.readers.onnx.declared import (
    Dims,
    add_sizes,
    adopt,
    clear_negative_sizes,
    declared_sizes,
    drop_declared,
    pass_types,
    set_aside,
)
from graphrl.graphs.readers.onnx.fold import fold
from graphrl.graphs.readers.onnx.functions import versions_of
from graphrl.graphs.readers.onnx.inference import infer_shapes
from graphrl.graphs.readers.onnx.loops import fill_loops
from graphrl.graphs.readers.onnx.model import check_and_sort, opset_of
from graphrl.graphs.readers.onnx.sequences import has_sequences, scope_of
from graphrl.graphs.readers.onnx.values import UNKNOWN, Scope, dimension, subgraphs, typed_scope

_MAX_ROUNDS = 1000  # of inference: each layer whose shapes are computed from those of the last can need one more


def inferred(model: ModelProto, dims: Mapping[str, int], foreign: Foreign) -> ModelProto:
    """The model with all shapes that follow from its inputs and `dims` (see `parse_onnx`).

    What inference knows outweighs what the model declares; that counts where inference does not know.

    Raises:
      GraphError: a size in `dims` is no integer from 0, names no unknown dimension of the model or contradicts it; the
        model's shapes or types are impossible; inference fails.
    """
    sizes = Dims(dims)
    clear_negative_sizes(model.graph)
    set_aside(model.graph, versions_of(model), sizes)
    for info in model.graph.input:
        sizes.fill(info.name, info.type)
    model = _inferred(model, sizes, foreign)
    check_and_sort(model.graph)  # names and sorts what came out of bodies
    check_model(model, foreign)
    _check_dims(model.graph, sizes)
    drop_declared(model.graph)
    return model


def _inferred(model: ModelProto, dims: Dims, foreign: Foreign) -> ModelProto:
    """Repeats inference, and after it the first of the other steps that gives anything new, until none does."""
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
        if not adopt(graph, {}, dims) and not adopt(graph, {}, dims, anywhere=True):
            break
    return model


def _fill_sequences(graph: GraphProto, outer: Scope) -> bool:
    """Shapes of tensors that come out of sequences and optionals; whether any is new."""
    if not has_sequences(graph):
        return False
    scope, typed = scope_of(graph, outer), typed_scope(graph, outer)
    filled = False
    for info in (*graph.value_info, *graph.output):
        value = scope.get(info.name, UNKNOWN)
        if value.kind == "tensor" and value.is_static and not typed[info.name].is_static:
            filled |= add_sizes(info.type, value.sizes)
    for node in graph.node:
        for body in subgraphs(node).values():
            filled |= _fill_sequences(body, scope)
    return filled


def _has_unknown(graph: GraphProto) -> bool:
    scope = scope_of(graph)
    return any(name and (name not in scope or scope[name].bytes is None) for node in graph.node for name in node.output)


def _check_dims(graph: GraphProto, dims: Dims) -> None:
    """Raises GraphError for sizes in `dims` that name nothing, or that contradict the model."""
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
