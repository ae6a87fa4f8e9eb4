"""Shapes and windows of jaxpr equations. Arrays count as batch first and channels last, but for convolutions, which say
what their dimensions are.
"""

from typing import Any

from graphrl.graphs.layers.layer import Layer, Window


def equation_layer(equation: Any) -> Layer | None:
    """The shapes of an equation's first operand and result; None where there are none."""
    shapes: list[Any] = [getattr(atom.aval, "shape", None) for atom in (*equation.invars[:1], *equation.outvars[:1])]
    if not shapes or None in shapes:
        return None
    if equation.primitive.name == "conv_general_dilated":
        return _convolution(equation.params, equation.invars[1].aval.shape, *shapes)
    return Layer.of(shapes[0], shapes[-1], _pooling(equation.params))


def _convolution(params: Any, kernel: Any, read: Any, written: Any) -> Layer:
    numbers = params["dimension_numbers"]
    (batch, channels, *spatial), (batch_out, channels_out, *spatial_out) = numbers.lhs_spec, numbers.out_spec
    size = [kernel[axis] for axis in numbers.rhs_spec[2:]]
    window = Window(
        params["feature_group_count"],
        *_across(size),
        _across(params["window_strides"])[0],
        _first(params["padding"]),
        _across(params["rhs_dilation"])[0],
    )
    inner = [read[axis] for axis in (batch, *spatial, channels)]
    return Layer.of(inner, [written[axis] for axis in (batch_out, *spatial_out, channels_out)], window)


def _pooling(params: Any) -> Window | None:
    if "window_dimensions" not in params or len(params["window_dimensions"]) < 3:
        return None
    keys = ("window_dimensions", "window_strides", "padding")
    size, strides, padding = (params[key][1:-1] for key in keys)  # without batch and channels
    return Window(1, *_across(size), _across(strides)[0], _first(padding), 1)


def _across(values: Any) -> tuple[Any, Any]:
    """Along x and along y, of the spatial dimensions."""
    return (values[-1], values[-2] if len(values) > 1 else 1) if len(values) else (1, 1)


def _first(padding: Any) -> Any:
    """Before the input along x, of pairs for the spatial dimensions."""
    return padding[-1][0] if len(padding) else 0
