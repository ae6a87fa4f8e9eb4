"""What an op's type says of its work, for the names of ONNX, JAX's primitives and HLO: heavy, light or a reduction.

A light op computes each output element from few input elements, or moves data. Whatever is not here is heavy.
"""

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
