"""Gradients that wait: for one another, and for the results of the forward pass.

XLA runs what nothing waits for when it likes: gradients of weights, and a loss itself, often at the end of the step.
What they are computed from stays in memory until then. A segment whose gradients are handed on together has done with
all that it read; a backward pass that begins once the results are there leaves no forward pass behind.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend import core
from jax.interpreters import ad, batching, mlir

NAME = "graphrl_tied"


def together(values: Sequence[Any]) -> list[Any]:
    """The values; in the backward pass the gradients of none are there before those of all, but for references."""
    return _bound(values, finished=False)


def finished(results: Sequence[Any]) -> list[Any]:
    """The results; the backward pass begins once those are there that are single numbers: others it would keep."""
    return _bound(results, finished=True)


def _bound(values: Sequence[Any], finished: bool) -> list[Any]:
    arrays = [k for k, value in enumerate(values) if isinstance(jax.typeof(value), jax.core.ShapedArray)]
    if not arrays:
        return list(values)
    tied = _TIED.bind(*(values[k] for k in arrays), count=len(arrays), finished=finished, barrier=False)
    own = dict(zip(arrays, tied, strict=True))
    return [own.get(k, value) for k, value in enumerate(values)]


def _run(*operands: Any, count: int, finished: bool, barrier: bool) -> list[Any]:
    """The first `count` operands; the others are waited for."""
    del finished
    return list(jax.lax.optimization_barrier(operands) if barrier else operands)[:count]


def _tangents(primals: Sequence[Any], tangents: Sequence[Any], *, count: int, **how: bool) -> tuple[Any, Any]:
    others = [value for value in primals if jax.typeof(value).size == 1] if how["finished"] else primals[count:]
    return list(primals[:count]), _of_some(tangents[:count], others, how["barrier"])


def _cotangents(cotangents: Sequence[Any], *operands: Any, count: int, **_: bool) -> list[Any]:
    others = operands[count:]
    given = _of_some(cotangents, others, barrier=True)
    return [*(None if type(each) is ad.Zero else each for each in given), *[None] * len(others)]


def _of_some(values: Sequence[Any], others: Sequence[Any], barrier: bool) -> list[Any]:
    """Those that are not symbolically zero, once all of them and the others are there; zeros as they are. One alone
    waits for nothing: a barrier would only keep compilers from fusing what computes it into who reads it.
    """
    some = [value for value in values if type(value) is not ad.Zero]
    if not some or len(some) + len(others) == 1:
        return list(values)
    bound = iter(_TIED.bind(*some, *others, count=len(some), finished=False, barrier=barrier))
    return [value if type(value) is ad.Zero else next(bound) for value in values]


def _batched(values: Sequence[Any], dims: Sequence[Any], *, count: int, **how: bool) -> tuple[Any, Any]:
    return _TIED.bind(*values, count=count, **how), dims[:count]


_TIED = core.Primitive(NAME)
_TIED.multiple_results = True
_TIED.def_impl(_run)
_TIED.def_abstract_eval(lambda *avals, count, **_: list(avals[:count]))
mlir.register_lowering(_TIED, mlir.lower_fun(_run, multiple_results=True))
ad.primitive_jvps[_TIED] = _tangents
ad.primitive_transposes[_TIED] = _cotangents
batching.primitive_batchers[_TIED] = _batched
