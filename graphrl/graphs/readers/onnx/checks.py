"""Checks of an ONNX model with inferred shapes: types and shapes that no runtime accepts, and tensors of unknown bytes.

ONNX's strict inference finds most impossible shapes; shapes that it accepts wrongly are checked here. Errors name the
op and its inputs, or the `dims` that would give an unknown size.
"""

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import onnx.defs
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from graphrl.errors import GraphError
from graphrl.graphs.readers.foreign import Foreign
from graphrl.graphs.readers.onnx.inference import shape_faults
from graphrl.graphs.readers.onnx.model import schema_of, standard, versions_of
from graphrl.graphs.readers.onnx.sequences import MAX_TENSORS, scope_of, sequence_fault
from graphrl.graphs.readers.onnx.values import UNKNOWN, Scope, Value, dimension, is_standard, reads_of, subgraphs
from graphrl.graphs.readers.onnx.work import node_attributes

_FAULT = re.compile(r"\(op_type:.*?, node name: (.*?)\): (.*)")
_INSIDE = "Inference error(s): "  # starts an error inside a body
_NOISE = re.compile(r"\[\w*InferenceError\] |Inference error\(s\): ")
_LONGEST = 160  # characters of a reason
_MAX_NAMES = 4  # of inputs that an error names

Shape = tuple[int, ...]
Shapes = Sequence[Shape | None]  # None if it is not known, or the tensor is omitted

# Returns the fault, from the attributes and the shapes of inputs and outputs; "" without a fault or if shapes are
# unknown.
_Rule = Callable[[Mapping[str, Any], Shapes, Shapes], str]


def check_model(model: ModelProto, foreign: Foreign) -> None:
    """Raises GraphError if no run of the model can have the inferred types and shapes."""
    versions = versions_of(model)
    _check_graph(model.graph, {}, {}, versions)
    scope = scope_of(model.graph)
    known = [
        node.name
        for node in model.graph.node
        if schema_of(node, versions) is None
        and all(scope.get(name, UNKNOWN).bytes is not None for name in node.output if name)
    ]
    nodes = {node.name: node for node in model.graph.node}
    for line in shape_faults(model, known, foreign).splitlines():
        match = _FAULT.search(line)
        node = nodes.get(match[1]) if match else None
        if match is None or node is None or (_INSIDE in match[2] and not _always_runs(node, match[2])):
            continue  # a part of another line, or a body that may not run
        raise _impossible(node, _NOISE.sub("", match[2]))


def bytes_of(name: str, scope: Scope, where: str) -> int:
    """Returns the size of a tensor in bytes.

    Raises:
      GraphError: the size is unknown; the message starts with `where` and states how to provide it.
    """
    value = scope.get(name, UNKNOWN)
    if value.bytes is not None:
        return value.bytes
    if value.kind == "unknown":
        raise GraphError(f"{where}: the type of {name!r} is unknown: declare it in the model, with its shape")
    if value.kind != "tensor":
        raise GraphError(f"{where}: {name!r} is of kind {value.kind}: {_unsized(value)}")
    if value.shape is None:
        raise GraphError(
            f"{where}: {name!r} has an unknown number of axes: give dims for all of them, such as {name}:0=1, "
            f"{name}:1=1 for two (--dim in commands), or declare its shape in the model"
        )
    sizes = ", ".join(f"{key}=1" for key in dict.fromkeys(_open(name, value)))
    raise GraphError(
        f"{where}: {name!r} has dimensions of unknown size: give dims, such as {sizes} (--dim in commands)"
    )


def check_inputs(inputs: Sequence[str], scope: Scope) -> None:
    """Raises GraphError if bytes of an input are unknown, with the open dimensions of all inputs in one message."""
    keys = dict.fromkeys(key for name in inputs for key in _open(name, scope.get(name, UNKNOWN)))
    if keys:
        sizes = ", ".join(f"{key}=1" for key in keys)
        raise GraphError(f"its inputs have dimensions of unknown size: give dims, such as {sizes} (--dim in commands)")
    for name in inputs:
        bytes_of(name, scope, f"input {name!r}")


def check_branches(node: NodeProto, written: Iterable[str], scope: Scope) -> None:
    """Raises GraphError if the bytes of a result of an If are unknown because its branches give different ones."""
    branches = subgraphs(node) if node.op_type == "If" else {}
    inner = {body: scope_of(branch, scope) for body, branch in branches.items()}
    for i, name in enumerate(node.output if branches else ()):
        if name not in written or scope.get(name, UNKNOWN).bytes is not None:
            continue
        values = {
            body: inner[body].get(branch.output[i].name, UNKNOWN) if i < len(branch.output) else UNKNOWN
            for body, branch in branches.items()
        }
        if len(set(map(_described, values.values()))) > 1 and all(value.bytes is not None for value in values.values()):
            what = ", ".join(f"{_described(value)} in {body}" for body, value in values.items())
            raise GraphError(
                f"op {node.name!r}: {name!r} is {what}, and {node.input[0]!r} decides which when the model runs: make "
                f"that a constant{_advice(name, scope.get(name, UNKNOWN), list(values.values()))}"
            )


def check_bodies(node: NodeProto, scope: Scope, where: str) -> None:
    """Raises GraphError if the size of a tensor inside the bodies of a branch or loop is not known.

    Inference does not enter other bodies (`FlexAttention`); unknown sizes there count as 0.
    """
    if node.op_type not in ("If", "Loop", "Scan") or not is_standard(node):
        return
    for body in subgraphs(node).values():
        inner = scope_of(body, scope)
        read = {name for other in body.node for name in reads_of(other)} | {info.name for info in body.output}
        for other in body.node:
            for name in other.output:
                if name in read and inner.get(name, UNKNOWN).kind in ("tensor", "unknown"):
                    bytes_of(name, inner, f"{where}, in its body")
            check_bodies(other, inner, where)


def _impossible(node: NodeProto, reason: str) -> GraphError:
    shown = " ".join(reason.split())[:_LONGEST]
    names = ", ".join(repr(name) for name in list(filter(None, node.input))[:_MAX_NAMES])
    op = node.name or next(iter(node.output), "")
    return GraphError(f"op {op!r}: impossible {node.op_type}: {shown}" + (f" (it reads {names})" if names else ""))


def _always_runs(node: NodeProto, fault: str = "") -> bool:
    """True if the bodies of a node run with the known sizes, so that `fault` in them is a fault of the model.

    The branches of an `If` may be intended for other sizes, and if a state grows, sizes are bounds.
    """
    if node.op_type != "Loop":
        return node.op_type != "If" and "(op_type:If)" not in fault
    return "(op_type:If)" not in fault and not any(
        _grows(body, i) for body in subgraphs(node).values() for i in range(2, len(node.input))
    )


def _grows(body: GraphProto, index: int) -> bool:
    """True if a loop's body changes the shape of a state (by its index among the inputs of the body)."""
    if not index < len(body.input) or not index - 1 < len(body.output):
        return False
    scope = scope_of(body)
    return scope[body.input[index].name].shape != scope[body.output[index - 1].name].shape


def _check_graph(graph: GraphProto, outer: Scope, outer_types: Mapping[str, int], versions: Mapping[str, int]) -> None:
    """Checks all nodes of a graph and of its bodies."""
    scope, types = scope_of(graph, outer), {**outer_types, **_element_types(graph)}
    _check_signs(graph)
    for node in graph.node:
        if reason := sequence_fault(node, scope):
            raise _impossible(node, reason)
        schema = schema_of(node, versions)
        if schema is not None:
            _check_types(node, schema, types)
            if not schema.domain:
                _check_shapes(node, scope)
        if _always_runs(node):
            for body in subgraphs(node).values():
                _check_graph(body, scope, types, versions)


def _check_signs(graph: GraphProto) -> None:
    """Raises GraphError for results of negative size, e.g. of a window that is larger than its input."""
    makers = {name: node for node in graph.node for name in node.output}
    for info in (*graph.value_info, *graph.output):
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if dim.dim_value < 0 and info.name in makers:
                raise _impossible(makers[info.name], f"{info.name!r} would have size {dim.dim_value} on axis {axis}")


def _element_types(graph: GraphProto) -> dict[str, int]:
    """Collects the element types of all tensors whose type is known, by name."""
    infos = [info for info in (*graph.input, *graph.output, *graph.value_info) if info.type.tensor_type.elem_type]
    types = {info.name: info.type.tensor_type.elem_type for info in infos}
    return types | {tensor.name: tensor.data_type for tensor in graph.initializer}


def _check_types(node: NodeProto, schema: onnx.defs.OpSchema, types: Mapping[str, int]) -> None:
    """Raises GraphError for an input of a type that the operator rejects, or that must equal another input's."""
    allowed, newest = _allowed(schema), _newest(node)
    bound: dict[tuple[str, str], tuple[str, str]] = {}
    for formal, name in _formal_inputs(node, schema):
        type = _type_text(types.get(name, 0))
        choices = allowed.get(formal.type_str, {formal.type_str})
        if not type or not any(choice.startswith("tensor(") for choice in choices):
            continue
        variable, newer = newest.get(formal.name, ("", {type}))
        if type not in choices | newer:
            raise _impossible(node, f"{name!r} is a {type}")
        other, first = bound.setdefault((formal.type_str, variable), (name, type))
        if type != first and formal.is_homogeneous:
            raise _impossible(node, f"{other!r} is a {first}, but {name!r} a {type}")


def _allowed(schema: onnx.defs.OpSchema) -> dict[str, set[str]]:
    """Returns the types that an operator allows for each of its type variables."""
    return {constraint.type_param_str: set(constraint.allowed_type_strs) for constraint in schema.type_constraints}


def _newest(node: NodeProto) -> dict[str, tuple[str, set[str]]]:
    """Returns each input's type variable and types in the operator's newest version, which runtimes may accept."""
    try:
        schema = onnx.defs.get_schema(node.op_type, standard(node.domain))
    except onnx.defs.SchemaError:
        return {}
    allowed = _allowed(schema)
    return {formal.name: (formal.type_str, allowed.get(formal.type_str, {formal.type_str})) for formal in schema.inputs}


def _formal_inputs(
    node: NodeProto, schema: onnx.defs.OpSchema
) -> Iterable[tuple[onnx.defs.OpSchema.FormalParameter, str]]:
    """Pairs the node's inputs with their declarations in the operator's schema."""
    for i, name in enumerate(node.input):
        if name and schema.inputs:
            formal = schema.inputs[min(i, len(schema.inputs) - 1)]
            if i < len(schema.inputs) or formal.option == formal.option.Variadic:
                yield formal, name


def _type_text(element_type: int) -> str:
    """Returns the name of a type as in operator schemas, such as "tensor(float16)"; "" if it is unknown."""
    if not element_type or element_type not in TensorProto.DataType.values():
        return ""
    return f"tensor({TensorProto.DataType.Name(element_type).lower()})"


def _check_shapes(node: NodeProto, scope: Scope) -> None:
    """Raises GraphError for sizes that do not fit, if all of them are known."""
    rule = _RULES.get(node.op_type)
    if rule is None:
        return
    inputs, outputs = (
        [scope[name].sizes if name in scope and scope[name].bytes is not None else None for name in names]
        for names in (node.input, node.output)
    )
    reason = rule(node_attributes(node), inputs, outputs)
    if reason:
        raise _impossible(node, reason)


def _get(shapes: Shapes, index: int) -> Shape | None:
    return shapes[index] if index < len(shapes) else None


def _elements(_: Mapping[str, Any], inputs: Shapes, outputs: Shapes) -> str:
    """Checks that a view has as many elements as its input."""
    first, result = _get(inputs, 0), _get(outputs, 0)
    if first is None or result is None or math.prod(first) == math.prod(result):
        return ""
    return f"{list(first)} has {math.prod(first)} elements, {list(result)} has {math.prod(result)}"


def _convolution(weights: int, bias: int, *, transposed: bool = False) -> _Rule:
    """Makes a check of the channels of image, weights (output channels first, or second if transposed) and bias."""

    def rule(attributes: Mapping[str, Any], inputs: Shapes, _: Shapes) -> str:
        image, kernel, offsets = _get(inputs, 0), _get(inputs, weights), _get(inputs, bias)
        if image is None or kernel is None or len(image) < 2 or len(kernel) < 2:
            return ""
        groups = max(1, attributes.get("group", 1))
        taken, given = (kernel[0], kernel[1] * groups) if transposed else (kernel[1] * groups, kernel[0])
        if image[1] != taken:
            return f"its input has {image[1]} channels, its weights take {taken}"
        if kernel[0] % groups:
            return f"its {kernel[0]} channels are not divisible by {groups} groups"
        if offsets is not None and math.prod(offsets) != given:
            return f"its bias has {math.prod(offsets)} elements, its output {given} channels"
        return ""

    return rule


def _broadcast(index: int, *, to_output: bool) -> _Rule:
    """Makes a check of an input that is broadcast to the output, or to the first input."""

    def rule(_: Mapping[str, Any], inputs: Shapes, outputs: Shapes) -> str:
        small, large = _get(inputs, index), _get(outputs if to_output else inputs, 0)
        if small is None or large is None:
            return ""
        fits = len(small) <= len(large) and all(
            a in (1, b) for a, b in zip(reversed(small), reversed(large), strict=False)
        )
        return "" if fits else f"{list(small)} cannot be broadcast to {list(large)}"

    return rule


def _recurrent(_: Mapping[str, Any], inputs: Shapes, __: Shapes) -> str:
    sequence, weights, recurrence = (_get(inputs, i) for i in range(3))
    if sequence is None or weights is None or recurrence is None:
        return ""
    if (len(sequence), len(weights), len(recurrence)) != (3, 3, 3):
        return "its input and weights must have three axes"
    if sequence[2] != weights[2]:
        return f"its input has {sequence[2]} features, its weights take {weights[2]}"
    if weights[1] != recurrence[1]:
        return f"its weights are of {weights[1]} rows, its recurrence weights of {recurrence[1]}"
    return ""


def _einsum(attributes: Mapping[str, Any], inputs: Shapes, _: Shapes) -> str:
    """Checks that each letter of an einsum has one size, or 1."""
    terms = attributes.get("equation", b"").decode("utf-8", "replace").replace(" ", "").split("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, inputs, strict=False):
        head, _dots, tail = term.partition("...")
        pairs = [*zip(head, shape or (), strict=False), *zip(reversed(tail), reversed(shape or ()), strict=False)]
        for letter, size in pairs:
            if size != 1 and sizes.setdefault(letter, size) != size:
                return f"{letter!r} is {sizes[letter]} and {size}"
    return ""


_RULES: dict[str, _Rule] = {
    **dict.fromkeys(
        ["Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "DepthToSpace", "SpaceToDepth"], _elements
    ),
    "Conv": _convolution(weights=1, bias=2),
    "ConvInteger": _convolution(weights=1, bias=sys.maxsize),
    "QLinearConv": _convolution(weights=3, bias=8),
    "ConvTranspose": _convolution(weights=1, bias=2, transposed=True),
    "Gemm": _broadcast(2, to_output=True),
    "Expand": _broadcast(0, to_output=True),
    "LayerNormalization": _broadcast(1, to_output=False),
    "RMSNormalization": _broadcast(1, to_output=False),
    **dict.fromkeys(["RNN", "GRU", "LSTM"], _recurrent),
    "Einsum": _einsum,
}


def _open(name: str, value: Value) -> list[str]:
    """Lists the keys in `dims` that would give a tensor's unknown sizes."""
    shape = value.shape if value.kind == "tensor" else None
    return [dimension(name, axis, size) for axis, size in enumerate(shape or ()) if isinstance(size, str)]


def _advice(name: str, known: Value, values: list[Value]) -> str:
    """Suggests `dims` that give a result of an If the shape of its largest branch; "" if a branch gives no tensor."""
    largest = max(values, key=lambda value: value.bytes or 0).sizes
    if any(value.kind != "tensor" for value in values):
        return ""
    shape = known.shape if known.shape is not None and len(known.shape) == len(largest) else ("",) * len(largest)
    sizes = [
        f"{dimension(name, axis, size)}={largest[axis]}" for axis, size in enumerate(shape) if isinstance(size, str)
    ]
    return f", or give dims for the larger, such as {', '.join(sizes)} (--dim in commands)"


def _described(value: Value) -> str:
    if value.elements is None:
        return str(list(value.sizes))
    return f"{value.kind} of {len(value.elements)} with {value.bytes} bytes"


def _unsized(value: Value) -> str:
    """States why a value that is not a tensor of numbers has no known bytes, with a remedy."""
    if value.kind == "sequence":
        return (
            f"the number (at most {MAX_TENSORS}) and the shapes of its tensors must be known: give tensors as inputs, "
            "and splits, positions and trip counts as constants"
        )
    if value.kind == "optional":
        return "it must be known whether it has a value, and which: make it a tensor, or leave it out"
    if value.kind in ("map", "sequence of maps"):
        return "ONNX does not define its memory layout: export classifiers with zipmap=False"
    return "only tensors of numbers, sequences of them and constants have a size to plan with"
