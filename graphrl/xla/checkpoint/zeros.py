"""Zeros that are written late.

What is scattered is added to zeros, or to another number. Nothing has to be there before these, so that XLA writes them
when it likes: all of a program's in one kernel at its begin, for one. Here they wait for what is scattered.
"""

import operator
from typing import Any

import jax
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from graphrl.xla.checkpoint.program import Piece
from graphrl.xla.checkpoint.sizes import holds


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
