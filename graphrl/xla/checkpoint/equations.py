"""Kinds of equations, by their effect on memory when XLA compiles them for an accelerator.

| kind | predicate | effect on memory |
|---|---|---|
| kernels: products, convolutions, gathers, sorts, windows, collectives | `is_kernel` | read operands, write results |
| loops and branches | `is_body` | read operands, write results |
| reductions of more than rows | `is_reduction` | write results; their operands can be fused into them |
| views: the same bytes under another name or shape | `is_view` | none; the compiler chooses layouts |
| slices | `SLICES`, `part_read` | read the part that they take; strided ones read whole cache lines |
| arrays of one number | `is_fill` | are not written for the scatters that update them |
| updates: scatters, `dynamic_update_slice` | `is_update` | overwrite the first operand if nothing else reads it |
| all others, row reductions too | `is_fused` | fused into their readers; or overwrite an operand of equal size |

Equations that are fused into several readers run in each of them, unless that runs far more equations: see `is_once`
and `chained`, the chain of equations that one reader runs for a value.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend import core

from graphrl.graphs.readers.jaxpr.flatten import ELEMENT_BODIES
from graphrl.graphs.readers.jaxpr.work import PARTIAL_READS, inner_jaxprs

KERNELS = frozenset(
    str.split(
        """
        all_gather all_to_all approx_top_k cholesky conv_general_dilated cumlogsumexp cummax cummin cumprod
        cumsum custom_call dot_general dynamic_update_slice eig eigh fft gather geqrf graphrl_collective
        hessenberg householder_product lu ppermute psum psum_invariant qr ragged_all_to_all ragged_dot_general
        reduce_scatter reduce_window reduce_window_max reduce_window_min reduce_window_sum schur
        select_and_gather_add select_and_scatter select_and_scatter_add sort svd top_k triangular_solve
        tridiagonal tridiagonal_solve
        """
    )
)
PRODUCTS = frozenset({"conv_general_dilated", "dot_general"})
_REDUCTIONS = ("argmax", "argmin", "reduce")
_NOT_REDUCTIONS = ("reduce_precision", "reduce_window", "reduce_scatter")
# Results have the bytes of the operand under another name or shape; the compiler chooses layouts.
VIEWS = frozenset(
    str.split(
        """
        after bitcast_convert_type copy copy_p expand_dims graphrl_gathered loaded name optimization_barrier pvary
        reduce_precision reshape reshard sharding_constraint squeeze stop_gradient transpose
        """
    )
)
SLICES = PARTIAL_READS | {"split", "unstack"}
ONCE = frozenset({"tanh"})  # fused equations that cost more, by XLA's cost model, than writing and reading the result
LONGEST = 52  # most equations that each reader runs for a value on the fly: measured on associative scans
Chain = frozenset[tuple[int, ...]]  # equations: first the indices of slices that are taken of the result, then its own


def is_kernel(equation: Any) -> bool:
    return equation.primitive.name in KERNELS or is_scatter(equation)


def is_body(equation: Any) -> bool:
    return not equation.primitive.name.startswith(ELEMENT_BODIES) and bool(inner_jaxprs(equation.params))


def is_view(equation: Any) -> bool:
    """True if the result has the bytes of the operand. `reduce_precision` counts if it keeps the operand's precision:
    jax adds those to values that a checkpoint keeps.
    """
    if equation.primitive.name != "reduce_precision":
        return equation.primitive.name in VIEWS
    info = jnp.finfo(equation.invars[0].aval.dtype)
    return (equation.params["exponent_bits"], equation.params["mantissa_bits"]) == (info.nexp, info.nmant)


def is_product(equation: Any) -> bool:
    """True for a matrix product or convolution of two different variables; each gradient reads the other variable."""
    return equation.primitive.name in PRODUCTS and is_of_variables(equation)


def is_of_variables(equation: Any) -> bool:
    """True if all operands are variables, each different, and the equation's context sets no compute type."""
    operands = [atom for atom in equation.invars if not isinstance(atom, core.Literal)]
    return len({*operands}) == len(equation.invars) and getattr(equation.ctx, "compute_type", None) is None


def is_fill(equation: Any) -> bool:
    """True if all elements of the result are one number."""
    return equation.primitive.name == "broadcast_in_dim" and equation.invars[0].aval.size == 1


def is_scatter(equation: Any) -> bool:
    """True if it changes some elements of its first operand."""
    return equation.primitive.name.startswith("scatter")


def is_update(equation: Any) -> bool:
    """True if XLA writes the result over the first operand when nothing else reads that any more."""
    return is_scatter(equation) or equation.primitive.name == "dynamic_update_slice"


def is_in_place(equation: Any) -> bool:
    """True if XLA can write the result over an operand of equal size that nothing else reads any more."""
    return is_fused(equation) or is_update(equation)


def is_fused(equation: Any) -> bool:
    """True if its operands can be fused into it."""
    return not (is_body(equation) or is_kernel(equation) or equation.primitive.name == "device_put")


def is_reduction(equation: Any) -> bool:
    """True for reductions, except over the last axis alone: those are fused, as in a softmax, which reads only once."""
    return _reduces(equation) and not is_of_rows(equation)


def is_of_rows(equation: Any) -> bool:
    """True if it reduces rows: over the last axis alone, of an array with several axes."""
    dimensions = len(equation.invars[0].aval.shape) if _reduces(equation) else 0
    return dimensions > 1 and tuple(equation.params.get("axes", ())) == (dimensions - 1,)


def _reduces(equation: Any) -> bool:
    name = equation.primitive.name
    return bool(name.startswith(_REDUCTIONS)) and not name.startswith(_NOT_REDUCTIONS)


def part_read(equation: Any, whole: float, result: float) -> float:
    """Returns the share of its first operand that a slice reads, given the bytes of the operand (`whole`) and of the
    result. It is 1 for strided slices, which read whole cache lines.
    """
    strided = any(stride > 1 for stride in equation.params.get("strides") or ())
    return 1.0 if strided or not whole else min(1.0, result / whole)


def is_once(equation: Any, chain: Chain) -> bool:
    """True if XLA computes a value once for several readers, although computing it in each would move fewer bytes."""
    return len(chain) > LONGEST or equation.primitive.name in ONCE


def chained(last: int, equation: Any, chains: Sequence[Chain], most: int = LONGEST) -> Chain:
    """Returns the equations that a reader runs for a value: its own equation (number `last`) and the `chains` of its
    operands. If an operand's chain is longer than `most`, returns that chain.

    Two slices of one value have different elements, so equations that are run for both slices count twice.
    """
    longest = max(chains, key=len, default=Chain())
    if len(longest) > most:
        return longest
    run = longest.union(*chains)
    if equation.primitive.name in SLICES:
        run = Chain((last, *key) for key in run)
    return run.union([(last,)])


def key_of(equation: Any, operands: Sequence[Any]) -> Hashable:
    """Returns a key that is equal for equations which compute the same; operands are literals, or keys of values."""
    own = (id(equation),)
    read = tuple(_literal(atom) if isinstance(atom, core.Literal) else atom for atom in operands)
    key = (equation.primitive, tuple(sorted(equation.params.items(), key=lambda item: item[0])), read)
    try:
        hash(key)
    except TypeError:  # a parameter that only equals itself
        return own
    return own if equation.effects else key


def _literal(atom: core.Literal) -> Hashable:
    value = np.asarray(atom.val)
    return (value.item(), value.dtype.name) if value.ndim == 0 else id(atom)
