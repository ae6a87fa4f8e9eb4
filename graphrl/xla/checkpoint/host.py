"""Values that wait in the memory of the host between the passes, and what waits for their copies.

jax's own policies copy a value to the host, but nothing of the forward pass needs the copy: XLA's scheduler, which sees
nothing freed by the start of a copy, begins it where the backward pass asks for it, and the value stays on the device
until then. Here a later value of the forward pass waits for the copy, by a barrier that lasts until XLA has scheduled.

    x, copy = moved(x, "x")  # under a policy that saves "x", later readers load it in the backward pass
    y = after(y, [copy])

Both are their operands but where a gradient is taken of a `jax.checkpoint` around them: without one, nothing is copied.
In the backward pass copies come back from the barrier on that jax puts before each segment.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend import core
from jax.extend.core.primitives import name_p
from jax.interpreters import ad, batching, mlir, partial_eval

HOST_LINK = "pcie-5"  # of `graphs.interconnects`
HOST, DEVICE = jax.memory.Space.Host, jax.memory.Space.Device

Rule = Callable[[Any], Any]  # an equation -> another one with the same results


class Moved(NamedTuple):
    """A value, as later readers should have it, and its copy on the host."""

    value: Any
    copy: Any


def moved(value: Any, name: str) -> Moved:
    """A value that waits on the host, where a policy saves what has that name."""
    copy = jax.device_put(value, HOST)
    return Moved(_LOADED.bind(value, name_p.bind(copy, name=name)), jax.lax.stop_gradient(copy))


def after(value: Any, copies: Sequence[Any]) -> Any:
    """A value that is there only once the copies are."""
    return _AFTER.bind(value, *copies, waits=False) if copies else value


def _first(name: str, lowered: Callable[..., Any], known: Rule, again: Rule) -> core.Primitive:
    """A primitive that is its first operand.

    Args:
      name: of it.
      lowered: operands and parameters -> result.
      known: what stands for its equation in the forward pass of a gradient through `jax.checkpoint`.
      again: likewise where the backward pass computes it again.
    """

    def partial(_: Any, unknown: Sequence[bool], there: Sequence[bool], eqn: Any) -> Any:
        if unknown[0]:
            missing = [var for var, here in zip(eqn.invars, there, strict=True) if not here]
            return None, eqn, [True], [True], missing
        second = again(eqn)
        needed = {id(var) for var in second.invars}
        missing = [var for var, here in zip(eqn.invars, there, strict=True) if not here and id(var) in needed]
        return known(eqn), second, [False], [True], missing

    primitive = core.Primitive(name)
    primitive.def_impl(lambda value, *_, **__: value)
    primitive.def_abstract_eval(lambda value, *_, **__: value)
    mlir.register_lowering(primitive, mlir.lower_fun(lowered, multiple_results=False))
    ad.primitive_jvps[primitive] = lambda primals, tangents, **params: (primitive.bind(*primals, **params), tangents[0])
    batching.primitive_batchers[primitive] = lambda args, dims, **params: (primitive.bind(*args, **params), dims[0])
    partial_eval.partial_eval_jaxpr_custom_rules[primitive] = partial
    return primitive


def _without_copies(eqn: Any) -> Any:
    return eqn.replace(invars=eqn.invars[:1])


def _from_host(eqn: Any) -> Any:
    """The copy back to the device."""
    (put,) = jax.make_jaxpr(lambda copy: jax.device_put(copy, DEVICE))(eqn.invars[1].aval).jaxpr.eqns
    return eqn.replace(primitive=put.primitive, params=put.params, invars=eqn.invars[1:])


def _barrier(value: Any, *copies: Any, waits: bool) -> Any:
    return jax.lax.optimization_barrier((value, *copies))[0] if waits else value


_LOADED = _first("loaded", lambda value, *_: value, _without_copies, _from_host)
_AFTER = _first("after", _barrier, lambda eqn: eqn.replace(params={"waits": True}), _without_copies)
