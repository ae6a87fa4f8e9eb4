"""Gradients that are handed on together.

XLA runs what nothing waits for when it likes: the gradients of weights often at the end, and what they are computed
from stays in memory until then. A segment whose gradients are handed on together has done with all of it.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend import core
from jax.interpreters import ad, batching, mlir

NAME = "graphrl_together"


def together(values: Sequence[Any]) -> list[Any]:
    """The values; in the backward pass the gradients of none are there before those of all."""
    return _TOGETHER.bind(*values, barrier=False) if values else []


def _run(*values: Any, barrier: bool) -> list[Any]:
    return list(jax.lax.optimization_barrier(values)) if barrier else list(values)


def _tangents(primals: Sequence[Any], tangents: Sequence[Any], *, barrier: bool) -> tuple[list[Any], list[Any]]:
    return list(primals), _of_some(tangents, barrier)


def _cotangents(cotangents: Sequence[Any], *_operands: Any, barrier: bool) -> list[Any]:
    del barrier  # of the pass that is transposed
    return [None if type(each) is ad.Zero else each for each in _of_some(cotangents, barrier=True)]


def _of_some(values: Sequence[Any], barrier: bool) -> list[Any]:
    """All that are not symbolically zero together, the others as they are."""
    some = [value for value in values if type(value) is not ad.Zero]
    bound = iter(_TOGETHER.bind(*some, barrier=barrier) if some else ())
    return [value if type(value) is ad.Zero else next(bound) for value in values]


def _batched(values: Sequence[Any], dims: Sequence[Any], *, barrier: bool) -> tuple[list[Any], Sequence[Any]]:
    return _TOGETHER.bind(*values, barrier=barrier), dims


_TOGETHER = core.Primitive(NAME)
_TOGETHER.multiple_results = True
_TOGETHER.def_impl(_run)
_TOGETHER.def_abstract_eval(lambda *avals, barrier: list(avals))
mlir.register_lowering(_TOGETHER, mlir.lower_fun(_run, multiple_results=True))
ad.primitive_jvps[_TOGETHER] = _tangents
ad.primitive_transposes[_TOGETHER] = _cotangents
batching.primitive_batchers[_TOGETHER] = _batched
