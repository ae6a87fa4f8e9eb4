"""What fusion may do with an op, by its type: one table for the names of JAX's primitives, HLO and ONNX."""

from graphrl.graphs.layers.kinds import LIGHT, REDUCTIONS

_SEPARATE = frozenset(str.split("get-tuple-element optimization_barrier tuple"))
_HLO_ARITHMETIC = """
    count-leading-zeros exponential-minus-one is-finite log-plus-one popcnt reduce-precision round-nearest-afz
    round-nearest-even shift-left shift-right-arithmetic shift-right-logical stochastic-convert
"""
_MOVES = """
    Gather GatherElements GatherND
    dynamic_slice gather random_unwrap random_wrap
    bitcast-convert dynamic-slice
"""

# Each output element comes from few input elements, or is moved.
ELEMENTWISE = (LIGHT - _SEPARATE) | frozenset(_HLO_ARITHMETIC.split()) | frozenset(_MOVES.split())
# What takes inlined ops in.
TAKES_IN = ELEMENTWISE | REDUCTIONS
# Another name for the same bytes.
RENAMES = frozenset(
    str.split(
        """
        Flatten Identity Reshape Squeeze Unsqueeze
        bitcast_convert_type expand_dims random_unwrap random_wrap reshape squeeze stop_gradient
        bitcast bitcast-convert
        variable
        """
    )
)  # a variable is where parameters lie
