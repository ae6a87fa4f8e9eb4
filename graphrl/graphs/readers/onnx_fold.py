"""Values of the small tensors in an ONNX model that shapes are computed with, known before the model runs.

Exporters write `x.reshape(x.shape[0], -1)` as a chain of Shape, Gather, Div, Concat, ... whose results other shapes
depend on. ONNX's own data propagation follows some of these ops; `fold` computes the rest and puts the values into the
model, where inference finds them.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx.helper
import onnx.numpy_helper
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

from graphrl.graphs.readers.onnx_values import Scope, scope_of

MAX_ELEMENTS = 1024  # of a value: shapes, axes, and indices into them are smaller

Arrays = list[np.ndarray]
Attributes = Mapping[str, Any]


def fold(graph: GraphProto) -> bool:
    """Replaces the nodes of a sorted graph whose results follow from constants and shapes by those results.

    Returns whether there were any. Nodes that need large values, or that do what they must not, stay.
    """
    scope, nodes, values = scope_of(graph), [], _initial(graph)
    folded: dict[str, np.ndarray] = {}
    for node in graph.node:
        result = _value(node, values, scope)
        if result is None:
            nodes.append(node)
        else:
            values[node.output[0]] = folded[node.output[0]] = result
    found = 0 < len(nodes) < len(graph.node)
    if found:
        graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in folded.items())
        # What inference noted about them may have open dimensions, and would outweigh the initializers.
        infos = [info for info in graph.value_info if info.name not in folded]
        copy = GraphProto(node=nodes, value_info=infos)
        for field in ("node", "value_info"):
            graph.ClearField(field)
            getattr(graph, field).extend(getattr(copy, field))
    return found


def _initial(graph: GraphProto) -> dict[str, np.ndarray]:
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    tensors |= {
        node.output[0]: attribute.t
        for node in graph.node
        for attribute in node.attribute
        if node.op_type == "Constant" and attribute.name == "value" and node.output
    }
    return {name: array for name, tensor in tensors.items() if (array := _array(tensor)) is not None}


def _array(tensor: TensorProto) -> np.ndarray | None:
    if tensor.data_location == TensorProto.EXTERNAL or math.prod(tensor.dims) > MAX_ELEMENTS:
        return None
    try:
        array = onnx.numpy_helper.to_array(tensor)
    except (KeyError, TypeError, ValueError):
        return None
    return array if array.dtype.kind in "biuf" else None


def _value(node: NodeProto, values: Mapping[str, np.ndarray], scope: Scope) -> np.ndarray | None:
    """The only result of a node if it can be known, else None."""
    if node.domain not in ("", "ai.onnx") or len(node.output) != 1 or not node.output[0]:
        return None
    if node.op_type in ("Shape", "Size"):
        source = scope.get(node.input[0]) if node.input else None
        if source is None or source.bytes is None:
            return None
        inputs = [np.array(source.sizes, np.int64)]
    elif all(not name or name in values for name in node.input):
        inputs = [values[name] if name else np.empty(0, np.int64) for name in node.input]
    else:
        return None
    rule = _RULES.get(node.op_type)
    try:
        with np.errstate(all="ignore"):
            result = None if rule is None else np.asarray(rule(_attributes(node), inputs))
    except (ArithmeticError, IndexError, KeyError, TypeError, ValueError):
        return None
    return result if result is not None and result.size <= MAX_ELEMENTS and result.dtype.kind in "biuf" else None


def _attributes(node: NodeProto) -> dict[str, Any]:
    kinds = (AttributeProto.INT, AttributeProto.INTS, AttributeProto.TENSOR)
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if a.type in kinds}


def _listed(attributes: Attributes, inputs: Arrays, name: str, index: int) -> list[int] | None:
    """A list of integers that newer operator sets take as an input, older ones as an attribute; None if left out."""
    if index < len(inputs) and inputs[index].size:
        return [int(item) for item in inputs[index].ravel()]
    return attributes.get(name)


def _bounded(shape: list[int]) -> list[int]:
    if math.prod(max(1, size) for size in shape) > MAX_ELEMENTS:
        raise ValueError("too large for a shape")
    return shape


def _shape(attributes: Attributes, inputs: Arrays) -> np.ndarray:
    return inputs[0][slice(attributes.get("start"), attributes.get("end"))]


def _divide(attributes: Attributes, inputs: Arrays) -> np.ndarray:
    left, right = inputs
    if left.dtype.kind == "f":
        return left / right
    return np.sign(left) * np.sign(right) * (np.abs(left) // np.abs(right))  # integers round towards zero


def _slice(attributes: Attributes, inputs: Arrays) -> np.ndarray:
    starts, ends = (_listed(attributes, inputs, name, i) or [] for i, name in enumerate(("starts", "ends"), 1))
    axes = _listed(attributes, inputs, "axes", 3) or list(range(len(starts)))
    steps = _listed(attributes, inputs, "steps", 4) or [1] * len(starts)
    taken = [slice(None)] * inputs[0].ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        # The smallest integer as an end means "past the first element", which Python calls None.
        taken[axis] = slice(start, None if step < 0 and end < -inputs[0].shape[axis] else end, step)
    return inputs[0][tuple(taken)]


def _squeeze(attributes: Attributes, inputs: Arrays) -> np.ndarray:
    axes = _listed(attributes, inputs, "axes", 1)
    return np.squeeze(inputs[0], None if axes is None else tuple(axes))


def _unsqueeze(attributes: Attributes, inputs: Arrays) -> np.ndarray:
    return np.expand_dims(inputs[0], tuple(_listed(attributes, inputs, "axes", 1) or ()))


def _reshape(attributes: Attributes, inputs: Arrays) -> np.ndarray:
    sizes = inputs[1].tolist()
    if not attributes.get("allowzero"):
        sizes = [inputs[0].shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    return inputs[0].reshape(sizes)


def _reduce(function: Callable[..., np.ndarray]) -> Callable[[Attributes, Arrays], np.ndarray]:
    def rule(attributes: Attributes, inputs: Arrays) -> np.ndarray:
        axes = _listed(attributes, inputs, "axes", 1)
        if axes is None and attributes.get("noop_with_empty_axes"):
            return inputs[0]
        keep = bool(attributes.get("keepdims", 1))
        return function(inputs[0], axis=None if axes is None else tuple(axes), keepdims=keep).astype(inputs[0].dtype)

    return rule


def _constant(attributes: Attributes, inputs: Arrays) -> np.ndarray:
    if "value_int" in attributes or "value_ints" in attributes:
        return np.asarray(attributes.get("value_int", attributes.get("value_ints")), np.int64)
    raise ValueError("its tensor is known already, or is no shape")


def _constant_of_shape(attributes: Attributes, inputs: Arrays) -> np.ndarray:
    fill = onnx.numpy_helper.to_array(attributes["value"]) if "value" in attributes else np.zeros(1, np.float32)
    return np.full(_bounded(inputs[0].tolist()), fill.item(), fill.dtype)


def _expand(attributes: Attributes, inputs: Arrays) -> np.ndarray:
    return np.broadcast_to(inputs[0], np.broadcast_shapes(inputs[0].shape, _bounded(inputs[1].tolist())))


def _range(attributes: Attributes, inputs: Arrays) -> np.ndarray:
    start, limit, step = (item.item() for item in inputs)
    _bounded([math.ceil((limit - start) / step)])
    return np.arange(start, limit, step, dtype=inputs[0].dtype)


def _cast(attributes: Attributes, inputs: Arrays) -> np.ndarray:
    return inputs[0].astype(onnx.helper.tensor_dtype_to_np_dtype(attributes["to"]))


def _fold_left(function: Callable[..., np.ndarray]) -> Callable[[Attributes, Arrays], np.ndarray]:
    return lambda attributes, inputs: functools.reduce(function, inputs)


def _call(function: Callable[..., np.ndarray]) -> Callable[[Attributes, Arrays], np.ndarray]:
    return lambda attributes, inputs: function(*inputs)


_RULES: dict[str, Callable[[Attributes, Arrays], np.ndarray]] = {
    "Abs": _call(np.abs),
    "Add": _call(np.add),
    "And": _call(np.logical_and),
    "Cast": _cast,
    "CastLike": lambda attributes, inputs: inputs[0].astype(inputs[1].dtype),
    "Ceil": _call(np.ceil),
    "Constant": _constant,
    "Concat": lambda attributes, inputs: np.concatenate(inputs, attributes["axis"]),
    "ConstantOfShape": _constant_of_shape,
    "Div": _divide,
    "Equal": _call(np.equal),
    "Expand": _expand,
    "Floor": _call(np.floor),
    "Gather": lambda attributes, inputs: np.take(inputs[0], inputs[1], attributes.get("axis", 0)),
    "Greater": _call(np.greater),
    "GreaterOrEqual": _call(np.greater_equal),
    "Identity": _call(np.asarray),
    "Less": _call(np.less),
    "LessOrEqual": _call(np.less_equal),
    "Max": _fold_left(np.maximum),
    "Min": _fold_left(np.minimum),
    "Mod": lambda attributes, inputs: (np.fmod if attributes.get("fmod") else np.mod)(*inputs),
    "Mul": _call(np.multiply),
    "Neg": _call(np.negative),
    "Not": _call(np.logical_not),
    "Or": _call(np.logical_or),
    "Range": _range,
    "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min),
    "ReduceProd": _reduce(np.prod),
    "ReduceSum": _reduce(np.sum),
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": lambda attributes, inputs: np.asarray(np.prod(inputs[0], dtype=np.int64)),
    "Slice": _slice,
    "Sqrt": _call(np.sqrt),
    "Squeeze": _squeeze,
    "Sub": _call(np.subtract),
    "Unsqueeze": _unsqueeze,
    "Where": _call(np.where),
}
