"""`Layer`: an op's shapes as a layer of a network (EGRL, table 1); and which op types are light or reductions.

Networks observe these shapes in addition to bytes. Op types are the names used in ONNX, JAX's primitives and HLO. A
light op computes each output element from few input elements, or moves data. Every type that is not listed is heavy.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

_MAX = 2**31 - 1


class Window(NamedTuple):
    """The sliding window of a convolution or pooling; stride, padding and dilation are those along x."""

    groups: int
    kernel_x: int
    kernel_y: int
    stride: int
    padding: int
    dilation: int


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    """Shapes of an op's first input and first output, and the window of a convolution or pooling.

    Images have width x, height y and channels z; a matrix has its rows as x and its columns as z. 0 means unknown or
    not applicable.
    """

    batch: int = 0
    input_x: int = 0
    input_y: int = 0
    input_z: int = 0
    output_x: int = 0
    output_y: int = 0
    output_z: int = 0
    groups: int = 0
    kernel_x: int = 0
    kernel_y: int = 0
    stride: int = 0
    padding: int = 0
    dilation: int = 0

    @staticmethod
    def of(input: Sequence[int], output: Sequence[int], window: Window | None = None) -> "Layer":
        """Builds a layer from the shapes of an op's first input and output, with batch first and channels last."""
        batch, *read = _axes(input)
        _, *written = _axes(output)
        values = batch, *read, *written, *((0,) * 6 if window is None else window)
        return Layer(*(min(max(0, int(value)), _MAX) for value in values))


def _axes(shape: Sequence[int]) -> tuple[int, int, int, int]:
    """Returns a shape's batch, x, y and z; beyond four dimensions, those between batch and x are multiplied into y."""
    if len(shape) < 3:
        return 1, shape[0] if len(shape) == 2 else 1, 1, shape[-1] if shape else 1
    batch, *between, x, z = shape
    return batch, x, math.prod(between), z


REDUCTIONS = frozenset(
    str.split(
        """
        ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
        ReduceSumSquare
        argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_xor
        reduce
        """
    )
)
_ARITHMETIC = """
    Abs Acos Acosh Add And Asin Asinh Atan Atanh BatchNormalization BiasGelu BitShift BitwiseAnd BitwiseNot BitwiseOr
    BitwiseXor Ceil Celu Clip Cos Cosh DequantizeLinear Div DynamicQuantizeLinear Elu Equal Erf Exp FastGelu Floor Gelu
    Greater GreaterOrEqual HardSigmoid HardSwish IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul
    Neg Not Or PRelu Pow QuantizeLinear QuickGelu Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus
    Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Xor
    abs acos acosh add add_any and asin asinh atan atan2 atanh cbrt ceil clamp complex conj copysign cos cosh digamma
    div eq erf erf_inv erfc exp exp2 expm1 floor ge gt imag integer_pow is_finite le lgamma log log1p logistic lt max
    min mul ne neg nextafter not one_minus_square or pow real reduce_precision rem round rsqrt select_n
    shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square sub tan tanh xor
    atan2 compare cosine divide exponential maximum minimum multiply negate power remainder select sine subtract
"""
_MOVES = """
    Cast CastLike Concat ConstantOfShape DepthToSpace Dropout Expand EyeLike Flatten Identity Pad Reshape Slice
    SpaceToDepth Split Squeeze Tile Transpose Trilu Unsqueeze Where
    bitcast_convert_type broadcast broadcast_in_dim concatenate convert_element_type copy copy_p expand_dims iota
    optimization_barrier pad reshape rev slice split squeeze stack stop_gradient tile transpose unstack
    bitcast constant convert get-tuple-element reverse tuple
"""
LIGHT = frozenset(_ARITHMETIC.split()) | frozenset(_MOVES.split())
