"""Shapes and windows of ONNX nodes. Tensors of four dimensions and more have their channels second, others last."""

from collections.abc import Sequence

import onnx.helper
from onnx import AttributeProto, NodeProto

from graphrl.graphs.layers.layer import Layer, Window
from graphrl.graphs.readers.onnx.values import Scope

_INTEGERS = AttributeProto.AttributeType.INTS


def node_layer(node: NodeProto, scope: Scope) -> Layer | None:
    """The shapes of a node's first input and output; None where they are not known."""
    names = [*node.input[:1], *node.output[:1]]
    values = [scope.get(name) for name in names]
    if not names or any(value is None or value.kind != "tensor" or not value.is_static for value in values):
        return None
    shapes = [value.sizes for value in values if value is not None]
    return Layer.of(_channels_last(shapes[0]), _channels_last(shapes[-1]), _window(node, scope))


def _channels_last(shape: Sequence[int]) -> Sequence[int]:
    return (shape[0], *shape[2:], shape[1]) if len(shape) > 3 else shape


def _window(node: NodeProto, scope: Scope) -> Window | None:
    lists = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if a.type == _INTEGERS}
    kernel = lists.get("kernel_shape")
    if kernel is None and node.op_type.startswith("Conv") and len(node.input) > 1 and node.input[1] in scope:
        kernel = scope[node.input[1]].sizes[2:]
    if not kernel:
        return None
    groups = next((a.i for a in node.attribute if a.name == "group"), 1)
    y = kernel[-2] if len(kernel) > 1 else 1
    stride, dilation = ((lists.get(key) or [1])[-1] for key in ("strides", "dilations"))
    pads = lists.get("pads", [])
    padding = pads[len(kernel) - 1] if len(pads) == 2 * len(kernel) else 0  # operators of others may mean it otherwise
    return Window(groups, kernel[-1], y, stride, padding, dilation)
