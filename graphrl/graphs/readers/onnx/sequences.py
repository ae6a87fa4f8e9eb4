"""Sequences and optionals in ONNX graphs: number and shapes of their tensors, which ONNX's types leave open.

The bytes of a sequence or an optional are the sum over its tensors. An op that puts tensors into a sequence or takes
them out copies them, as `Split`, `Concat` and `Identity` do: it computes nothing, and its result has its own bytes. A
loop is assumed to run its full trip count.
"""

from collections.abc import Callable

import numpy as np
import onnx.helper
from onnx import GraphProto, NodeProto, TensorProto, TypeProto

from graphrl.graphs.readers.onnx.values import (
    UNKNOWN,
    Scope,
    Value,
    is_standard,
    of_constant,
    reads_of,
    subgraphs,
    trip_count,
    typed_scope,
    value_of,
)

MAX_TENSORS = 4096  # limit on the tensors of a sequence, and on the runs of loop bodies that are simulated one by one

_CONTAINERS = ("sequence", "optional")
# Index of the position among the inputs of an operator, and the number of valid positions after the last tensor.
_POSITIONS = {"SequenceAt": (1, 0), "SequenceErase": (1, 0), "SequenceInsert": (2, 1)}


def scope_of(
    graph: GraphProto, outer: Scope | None = None, given: Scope | None = None, runs: int = MAX_TENSORS
) -> dict[str, Value]:
    """Collects types, shapes and constants of the values of a sorted graph and of the graphs around it, by name.

    Args:
      graph: with sorted nodes.
      outer: values of the graphs around it.
      given: values of its inputs, if more is known than the graph declares.
      runs: limit on the runs of bodies that may be simulated.
    """
    scope = {**typed_scope(graph, outer), **(given or {})}
    for node in graph.node:
        if not is_standard(node):
            continue
        values: list[Value | None] = []
        if node.op_type in _RULES:
            values = [_RULES[node.op_type](node, scope)]
        elif node.op_type in _BODIES and any(scope.get(name, UNKNOWN).kind in _CONTAINERS for name in node.output):
            values = _BODIES[node.op_type](node, scope, runs)
        for name, value in zip(node.output, values, strict=False):
            if name and value and value.kind != "unknown" and scope.get(name, UNKNOWN).bytes is None:
                scope[name] = value
    return scope


def has_sequences(graph: GraphProto) -> bool:
    """True if a graph or a body in it has nodes that put tensors into sequences and optionals or take them out."""
    return any(
        (node.op_type in _RULES and node.op_type != "Identity") or any(map(has_sequences, subgraphs(node).values()))
        for node in graph.node
    )


def static_result(node: NodeProto, scope: Scope) -> int | None:
    """Computes a `SequenceLength` or an `OptionalHasElement` (a bool); None if it is unknown, or for other ops."""
    if not is_standard(node) or node.op_type not in ("SequenceLength", "OptionalHasElement"):
        return None
    value = _input(node, 0, scope)
    if node.op_type == "SequenceLength":
        return None if value.elements is None else len(value.elements)
    if not any(node.input):
        return False
    if value.kind in ("optional", "unknown"):
        return None if value.elements is None else bool(value.elements)
    return True


def sequence_fault(node: NodeProto, scope: Scope) -> str:
    """States why a node's use of a sequence must fail (wrong position, tensors that do not fit); "" if it may work."""
    elements = _input(node, 0, scope).elements
    if not is_standard(node) or elements is None:
        return ""
    if node.op_type == "ConcatFromSequence":
        return _mismatch(node, elements)
    if node.op_type not in _POSITIONS:
        return ""
    index, past_end = _POSITIONS[node.op_type]
    array = _input(node, index, scope).array
    place = None if array is None or array.size != 1 else int(array.item())
    if place is None or -len(elements) <= place < len(elements) + past_end:
        return ""
    return f"position {place} of a sequence of length {len(elements)}"


def _mismatch(node: NodeProto, elements: tuple[Value, ...]) -> str:
    """States why tensors cannot be concatenated or stacked; "" if they can, or if shapes are unknown."""
    if not all(element.is_static for element in elements):
        return ""
    axis, stacks = _attribute(node, "axis", 0), _attribute(node, "new_axis", 0) != 0

    def other_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
        place = axis % max(1, len(shape))
        return shape if stacks else (*shape[:place], *shape[place + 1 :])

    shapes = [element.sizes for element in elements]
    mismatch = next((shape for shape in shapes if other_axes(shape) != other_axes(shapes[0])), None)
    return "" if mismatch is None else f"its tensors have shapes {list(shapes[0])} and {list(mismatch)}"


def loop_states(node: NodeProto, scope: Scope, times: int, runs: int = MAX_TENSORS) -> dict[str, Value]:
    """Simulates a Loop; returns the sequences and optionals that it carries after `times` runs, by names in its body.

    Each may still be unknown. The result is empty if the body does not fit the node, or if `times` exceeds `runs`.
    """
    scope = _read_scope(node, scope)
    states, run = _first_states(node, scope) if times <= runs else {}, 0
    while states and run < times:
        counter = of_constant(onnx.helper.make_tensor("", TensorProto.INT64, (), [run]))
        states = _next_states(node, scope, states, counter, runs // times)
        run += 1
    types = {info.name: info.type for info in subgraphs(node)["body"].input} if states else {}
    return {name: value if _fits(types[name], value) else UNKNOWN for name, value in states.items()}


def _loop(node: NodeProto, scope: Scope, runs: int) -> list[Value | None]:
    trips = trip_count(node, scope)
    states = {} if trips is None else loop_states(node, scope, trips, runs)
    if not states:  # known only if they never change
        scope = _read_scope(node, scope)
        first = _first_states(node, scope)
        states = first if first and _next_states(node, scope, first, UNKNOWN, runs) == first else {}
    return [states.get(info.name) for info in subgraphs(node)["body"].input[2:]] if states else []


def _read_scope(node: NodeProto, scope: Scope) -> Scope:
    """Returns the part of a scope that a node reads; each run of its body copies it."""
    return {name: scope[name] for name in reads_of(node) if name in scope}


def _first_states(node: NodeProto, scope: Scope) -> dict[str, Value]:
    body = subgraphs(node).get("body")
    if body is None or len(body.input) != len(node.input) or len(body.output) < len(node.input) - 1:
        return {}
    pairs = zip(body.input[2:], node.input[2:], strict=True)
    return {info.name: scope[name] for info, name in pairs if name in scope and scope[name].kind in _CONTAINERS}


def _next_states(node: NodeProto, scope: Scope, states: Scope, counter: Value, runs: int) -> dict[str, Value]:
    """Computes the states after another run of a Loop's body."""
    body = subgraphs(node)["body"]
    after = scope_of(body, scope, {**states, body.input[0].name: counter}, runs)
    results = zip(body.input[2:], body.output[1:], strict=False)
    return {state.name: after.get(info.name, UNKNOWN) for state, info in results if state.name in states}


def _fits(type: TypeProto, value: Value) -> bool:
    """True if the tensors of a sequence have the shape that its type declares, which determines the body's shapes."""
    element = value_of(type.sequence_type.elem_type)
    return not element.is_static or all(tensor.shape == element.shape for tensor in value.elements or ())


def _if(node: NodeProto, scope: Scope, runs: int) -> list[Value | None]:
    """Returns the results of an If that are the same in both branches, None for others."""
    bodies = list(subgraphs(node).values())
    scopes = [scope_of(body, scope, runs=runs) for body in bodies]
    results = [[inner.get(info.name) for info in body.output] for body, inner in zip(bodies, scopes, strict=True)]
    return [values[0] if values.count(values[0]) == len(values) else None for values in zip(*results, strict=False)]


def _construct(node: NodeProto, scope: Scope) -> Value | None:
    return _container("sequence", tuple(_element(_input(node, i, scope)) for i in range(len(node.input))))


def _empty(node: NodeProto, scope: Scope) -> Value | None:
    return _container("sequence", ())


def _insert(node: NodeProto, scope: Scope) -> Value | None:
    elements, tensor = _input(node, 0, scope).elements, _element(_input(node, 1, scope))
    if elements is None or len(elements) >= MAX_TENSORS or tensor.kind == "unknown":
        return None
    place = _position(node, 2, scope, len(elements), len(elements))
    if place is None:
        if elements.count(tensor) < len(elements):
            return None
        place = 0  # all positions give the same result
    return Value("sequence", elements=(*elements[:place], tensor, *elements[place:]))


def _erase(node: NodeProto, scope: Scope) -> Value | None:
    elements = _input(node, 0, scope).elements
    if not elements:
        return None
    place = _place_among(node, scope, elements)
    return None if place is None else Value("sequence", elements=elements[:place] + elements[place + 1 :])


def _at(node: NodeProto, scope: Scope) -> Value | None:
    elements = _input(node, 0, scope).elements
    if not elements:
        return None
    place = _place_among(node, scope, elements)
    return None if place is None else elements[place]


def _split(node: NodeProto, scope: Scope) -> Value | None:
    source, axis = _input(node, 0, scope), _attribute(node, "axis", 0)
    if not source.is_static or not -len(source.sizes) <= axis < len(source.sizes):
        return None
    axis %= len(source.sizes)
    size, given = source.sizes[axis], len(node.input) > 1 and bool(node.input[1])
    lengths = _lengths(size, _input(node, 1, scope).array) if given else [1] * min(size, MAX_TENSORS + 1)
    if lengths is None:
        return None
    keep = given or _attribute(node, "keepdims", 1) != 0
    before, after = source.sizes[:axis], source.sizes[axis + 1 :]
    shapes = [(*before, *((length,) if keep else ()), *after) for length in lengths]
    return _container("sequence", tuple(source._replace(shape=shape, constant=None) for shape in shapes))


def _lengths(size: int, split: np.ndarray | None) -> list[int] | None:
    """Returns the lengths of the parts of a split axis: `split` has all, or the common one of all but the last."""
    if split is None or split.dtype.kind not in "iu" or split.size == 0 or split.min() < 0:
        return None
    if split.ndim:
        return split.ravel().tolist() if split.sum() == size else None
    length = int(split)
    if not 0 < length * MAX_TENSORS >= size:
        return None
    return [min(length, size - start) for start in range(0, size, length)]


def _concat(node: NodeProto, scope: Scope) -> Value | None:
    elements, stacks = _input(node, 0, scope).elements, _attribute(node, "new_axis", 0) != 0
    if not elements or not all(element.is_static for element in elements):
        return None
    shapes = [element.sizes for element in elements]
    rank = len(shapes[0]) + stacks
    axis = _attribute(node, "axis", rank)
    if not -rank <= axis < rank or any(len(shape) + stacks != rank for shape in shapes):
        return None
    axis %= rank
    total = len(shapes) if stacks else sum(shape[axis] for shape in shapes)
    return elements[0]._replace(shape=(*shapes[0][:axis], total, *shapes[0][axis + (not stacks) :]))


def _optional(node: NodeProto, scope: Scope) -> Value | None:
    return _container("optional", (_element(_input(node, 0, scope)),) if any(node.input) else ())


def _get(node: NodeProto, scope: Scope) -> Value | None:
    value = _input(node, 0, scope)
    if value.kind != "optional":
        return value
    return value.elements[0] if value.elements else None


def _same(node: NodeProto, scope: Scope) -> Value | None:
    return _input(node, 0, scope)


def _container(kind: str, elements: tuple[Value, ...]) -> Value | None:
    if len(elements) > MAX_TENSORS or any(element.kind == "unknown" for element in elements):
        return None
    return Value(kind, elements=elements)


def _element(value: Value) -> Value:
    """Returns a value as an element of a sequence: its type and shape, not its constant."""
    return value._replace(constant=None)


def _input(node: NodeProto, index: int, scope: Scope) -> Value:
    return scope.get(node.input[index], UNKNOWN) if index < len(node.input) else UNKNOWN


def _place_among(node: NodeProto, scope: Scope, elements: tuple[Value, ...]) -> int | None:
    """Returns the element index that the second input gives, by default the last; 0 if unknown and all are equal."""
    place = _position(node, 1, scope, len(elements) - 1, len(elements))
    return 0 if place is None and elements.count(elements[0]) == len(elements) else place


def _position(node: NodeProto, index: int, scope: Scope, last: int, count: int) -> int | None:
    """Returns the position, 0 to `last`, that an input gives, or `last` without it; None if unknown or out of range.

    Negative ones count from `count`.
    """
    if index >= len(node.input) or not node.input[index]:
        return last
    array = _input(node, index, scope).array
    if array is None or array.size != 1 or array.dtype.kind not in "iu":
        return None
    place = int(array.item())
    return place % max(1, count) if -count <= place < 0 else place if 0 <= place <= last else None


def _attribute(node: NodeProto, name: str, default: int) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == name), default)


_RULES: dict[str, Callable[[NodeProto, Scope], Value | None]] = {
    "ConcatFromSequence": _concat,
    "Identity": _same,
    "Optional": _optional,
    "OptionalGetElement": _get,
    "SequenceAt": _at,
    "SequenceConstruct": _construct,
    "SequenceEmpty": _empty,
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SplitToSequence": _split,
}
_BODIES: dict[str, Callable[[NodeProto, Scope, int], list[Value | None]]] = {"If": _if, "Loop": _loop}
