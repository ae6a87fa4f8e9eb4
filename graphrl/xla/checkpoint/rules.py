"""Equations with derivatives of their own, for which compilers need less memory.

**Products** (`product`). Each of a product's two gradients reads the other operand. Compilers compute them in any
order. If the gradient of the larger operand is there first, that operand still has to be kept for the other gradient.
Here the gradient of the smaller operand comes first: the larger one is no longer needed before as much is written
again. Not all products have this rule: see `is_of_sums`.

**Gathers and scatters** (`gathered`, `scattered`). What is scattered is added to zeros, or to another number. Nothing
has to be there before these, so XLA may write them at any time: it may write all of a program's in one kernel at its
begin. Here they wait for what is scattered.

`rule_of` selects the rule of an equation.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from graphrl.xla.checkpoint.fusion import is_fill, is_fused, is_of_variables, is_product
from graphrl.xla.checkpoint.primitives import together
from graphrl.xla.checkpoint.program import Piece, Program, variables
from graphrl.xla.checkpoint.sizes import holds


def product(equation: Any, smaller: int, left: Any, right: Any) -> Any:
    """The result of an equation that is linear in each of two operands.

    Args:
      equation: of a product or a convolution, of two different variables.
      smaller: which operand is the smaller one, 0 or 1.
      left, right: its operands.
    """
    multiply = Piece.of([equation])

    def bind(*operands: Any) -> Any:
        return multiply(*operands)[0]

    def tangent(primals: Any, tangents: Any) -> tuple[Any, Any]:
        """Of both terms the one by the larger operand's tangent waits, when it is transposed, for the other one's."""
        some = [k for k in (1 - smaller, smaller) if type(tangents[k]) is not SymbolicZero]
        terms: list[Any] = []
        for k in some:
            own = tangents[k]
            if terms:
                terms[0], own = together([terms[0], own])
            terms.append(bind(*(own if number == k else operand for number, operand in enumerate(primals))))
        return bind(*primals), sum(terms[1:], terms[0])

    run = jax.custom_jvp(bind)
    run.defjvp(tangent, symbolic_zeros=True)
    return run(left, right)


def gathered(equation: Any, operand: Any, indices: Any) -> Any:
    """The result of a gather; the operand's gradient is scattered to zeros that wait for the result's."""
    run = Piece.of([equation])
    params = {**equation.params, "fill_value": 0}  # of tangents, what lies outside is zero

    def gather(operand: Any, indices: Any) -> Any:
        return run(operand, indices)[0]

    def tangent(primals: Any, tangents: Any) -> tuple[Any, Any]:
        return gather(*primals), _GATHER.bind(tangents[0], primals[1], **params)

    custom = jax.custom_jvp(gather)
    custom.defjvp(tangent, symbolic_zeros=True)
    return custom(operand, indices) if _is_whole(operand) else gather(operand, indices)


def scattered(number: Any, equation: Any, operand: Any, indices: Any, updates: Any) -> Any:
    """The result of a scatter to an array that has one number everywhere; that is written once the updates are there.

    Args:
      number: it is.
      equation: of the scatter.
      operand, indices, updates: its operands.
    """
    if _is_whole(updates):
        operand = _filled(number, jax.typeof(operand), updates)
    return Piece.of([equation])(operand, indices, updates)[0]


def _filled(number: Any, aval: Any, value: Any) -> Any:
    """An array of a number, which waits for a value of floating-point numbers: by a choice that XLA does not see
    through, for it drops what only passes a barrier together with what is needed. Where the value is spread over
    devices, that is a small message between them.
    """
    if not holds(operator.ge, jax.typeof(value).size, 1):  # there may be nothing to wait for
        return jax.lax.full(aval.shape, number, aval.dtype)
    first = jax.lax.stop_gradient(value)[(0,) * jax.numpy.ndim(value)]
    never = (first != first) & (first == first)
    return jax.lax.full(aval.shape, jax.numpy.where(never, 1, number).astype(aval.dtype))


def _is_whole(value: Any) -> bool:
    """Whether an array of floating-point numbers is none that says how it is spread over devices."""
    aval = jax.typeof(value)
    return jax.numpy.issubdtype(aval.dtype, jax.numpy.floating) and aval.sharding.mesh.empty


def _gather(operand: Any, indices: Any, **params: Any) -> Any:
    return jax.lax.gather_p.bind(operand, indices, **params)


def _jvp(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    return _GATHER.bind(*primals, **params), _GATHER.bind(tangents[0], primals[1], **params)


def _transpose(cotangent: Any, operand: Any, indices: Any, **params: Any) -> list[Any]:
    if type(cotangent) is ad.Zero:
        return [ad.Zero(operand.aval), None]
    numbers = params["dimension_numbers"]
    how = jax.lax.ScatterDimensionNumbers(
        update_window_dims=numbers.offset_dims,
        inserted_window_dims=numbers.collapsed_slice_dims,
        scatter_dims_to_operand_dims=numbers.start_index_map,
        operand_batching_dims=numbers.operand_batching_dims,
        scatter_indices_batching_dims=numbers.start_indices_batching_dims,
    )
    options = {name: params[name] for name in ("indices_are_sorted", "unique_indices", "mode")}
    zeros = _filled(0, operand.aval, cotangent)
    return [jax.lax.scatter_add(zeros, indices, cotangent, how, **options), None]


def _batched(values: Any, dims: Any, **params: Any) -> Any:
    gather: Any = batching.primitive_batchers[jax.lax.gather_p]  # type: ignore[index]
    return gather(values, dims, **params)


_GATHER = core.Primitive("graphrl_gather")  # of tangents
_GATHER.def_impl(_gather)
_GATHER.def_abstract_eval(lambda *avals, **params: jax.lax.gather_p.abstract_eval(*avals, **params)[0])
mlir.register_lowering(_GATHER, mlir.lower_fun(_gather, multiple_results=False))
ad.primitive_jvps[_GATHER] = _jvp
ad.primitive_transposes[_GATHER] = _transpose
batching.primitive_batchers[_GATHER] = _batched


MANY = 4  # times as many elements


def rule_of(program: Program, eqn: Any) -> Callable[..., Any] | None:
    """What gives the result of a program's equation for its operands; None for most equations."""
    if is_product(eqn):
        return product_of(program, eqn)
    if not is_of_variables(eqn):
        return None
    if eqn.primitive.name == "gather":
        return functools.partial(gathered, eqn)
    if eqn.primitive.name == "scatter-add" and eqn.invars[0] in program.place_of:
        filled = program.equations[program.place_of[eqn.invars[0]]]
        if is_fill(filled) and isinstance(filled.invars[0], core.Literal):
            return functools.partial(scattered, filled.invars[0].val, eqn)
    return None


def product_of(program: Program, eqn: Any) -> Callable[..., Any] | None:
    """A function that gives the result of a product for its operands; None if it is made from sums."""
    left, right = map(program.size, eqn.invars)
    return None if is_of_sums(program, eqn) else functools.partial(product, eqn, 0 if left < right else 1)


def is_of_sums(program: Program, product: Any) -> bool:
    """Whether a product's larger operand is made from sums over many times as much, by what compilers fuse into one
    kernel: equations whose results one other equation reads.

    The gradient of what is summed reads its factors once more. If that does not wait for the operand, as it does in
    `product`, compilers read them once for both and never write what is summed.
    """
    larger = max(product.invars, key=program.size)
    waiting, seen = [larger], {larger}
    while waiting:
        atom = waiting.pop()
        place = program.place_of.get(atom)
        if place is None or program.readers[atom] > 1 or not is_fused(program.equations[place]):
            continue
        read = variables(program.equations[place].invars)
        if program.equations[place].primitive.name == "reduce_sum" and any(
            program.size(summed) >= MANY * program.size(larger) and summed in program.place_of for summed in read
        ):
            return True
        new = {other for other in read if program.size(other) >= program.size(larger)} - seen
        seen |= new
        waiting += new
    return False
