"""Primitives that copy values to the host, and that make values and gradients wait, and gathered operands.

**Copies to the host** (`send_to_host`, `wait_for`). jax's own policies copy a value to the host, but nothing in the
forward pass needs the copy. Starting a copy frees no memory, so XLA's scheduler delays it until the backward pass needs
the copy, and the value stays on the device until then. Here a later value of the forward pass waits for the copy, by a
barrier that XLA removes only after scheduling:

    x, copy = send_to_host(x, "x")  # under a policy that saves "x", later readers load it in the backward pass
    y = wait_for(y, [copy])

Both equal their operands, except where a gradient is taken of a `jax.checkpoint` around them: without one, nothing is
copied. In the backward pass, jax puts a barrier before each segment; copies come back from that barrier on.

**Gathered operands of products** (`gather_equation`). Under fully sharded weights a product needs the whole weight. The
equation that gathers it can be kept by name, as any other value of the program.

**Gradients that wait** (`join_gradients`, `finish_forward`). XLA may run an op that nothing waits for at any time:
gradients of weights, and a loss itself, often at the end of the step. Their operands stay in memory until then. If the
gradients of a segment are released together, none of the values that it read is needed any longer. If the backward pass
starts after the results are computed, no part of the forward pass is left for later.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend import core
from jax.extend.core.primitives import name_p
from jax.interpreters import ad, batching, mlir, partial_eval
from jax.sharding import AbstractMesh

from graphrl.errors import GraphrlError

HOST_LINK = "pcie-5"  # name in `graphs.roofline.INTERCONNECTS`
HOST, DEVICE = jax.memory.Space.Host, jax.memory.Space.Device

Rule = Callable[[Any], Any]  # equation -> equation with the same results


class Moved(NamedTuple):
    """A value for later readers, and its copy on the host."""

    value: Any
    copy: Any


def send_to_host(value: Any, name: str) -> Moved:
    """Starts a copy to the host, which a policy can save by `name`; later readers must use the returned `value`."""
    copy = jax.device_put(value, HOST)
    return Moved(_LOADED.bind(value, name_p.bind(copy, name=name)), jax.lax.stop_gradient(copy))


def wait_for(value: Any, copies: Sequence[Any]) -> Any:
    """Returns the value, available only once the copies have arrived."""
    return _AFTER.bind(value, *copies, waits=False) if copies else value


def _identity_primitive(name: str, lowered: Callable[..., Any], forward: Rule, recomputed: Rule) -> core.Primitive:
    """Creates a primitive that returns its first operand.

    Args:
      name: the primitive's name.
      lowered: implementation in compiled code: operands and parameters -> result.
      forward: replaces its equation in the forward pass of a gradient through `jax.checkpoint`.
      recomputed: replaces its equation where the backward pass computes it again.
    """

    def partial(_: Any, unknown: Sequence[bool], available: Sequence[bool], eqn: Any) -> Any:
        if unknown[0]:
            missing = [var for var, known in zip(eqn.invars, available, strict=True) if not known]
            return None, eqn, [True], [True], missing
        backward = recomputed(eqn)
        needed = {id(var) for var in backward.invars}
        missing = [var for var, known in zip(eqn.invars, available, strict=True) if not known and id(var) in needed]
        return forward(eqn), backward, [False], [True], missing

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
    """Returns the equation of the copy back to the device."""
    (put,) = jax.make_jaxpr(lambda copy: jax.device_put(copy, DEVICE))(eqn.invars[1].aval).jaxpr.eqns
    return eqn.replace(primitive=put.primitive, params=put.params, invars=eqn.invars[1:])


def _barrier(value: Any, *copies: Any, waits: bool) -> Any:
    return jax.lax.optimization_barrier((value, *copies))[0] if waits else value


_LOADED = _identity_primitive("loaded", lambda value, *_: value, _without_copies, _from_host)
_AFTER = _identity_primitive("after", _barrier, lambda eqn: eqn.replace(params={"waits": True}), _without_copies)


GATHERED = "graphrl_gathered"
COLLECTIVE = core.Primitive("graphrl_collective")  # of `collectives`, for estimates: it has seconds, and is never run
COLLECTIVE.multiple_results = True


def gather_equation(product: Any, operand: Any, result: Any, *, sharding: Any, back: Any) -> Any:
    """Returns an equation that gathers an operand of a product, which is split over devices otherwise than the product
    needs it. It is the identity: compilers decide how to gather, unless `pinned` is set.

    Args:
      product: the equation of the product.
      operand, result: variables.
      sharding, back: the operand's sharding in the product, and its own, in which its gradient is summed.
    """
    params = {"sharding": sharding, "back": back, "pinned": False}
    return product.replace(primitive=_GATHERED, invars=[operand], outvars=[result], params=params, effects=frozenset())


def pinned(gather: Any, operand: Any) -> Any:
    """Runs an equation of `gather_equation` on a value such that the result has the sharding."""
    return _GATHERED.bind(operand, **{**gather.params, "pinned": True})


def with_sharded_gradient(value: Any, sharding: Any) -> Any:
    """Returns a value whose gradient has the sharding, which the value has already."""
    return _GATHERED.bind(value, sharding=sharding, back=sharding, pinned=True)


def _constrained(value: Any, *, sharding: Any, pinned: bool, **_: Any) -> Any:
    return jax.lax.with_sharding_constraint(value, sharding) if pinned else value


def _check_mesh(mesh: Any, devices: int) -> None:
    """Checks that a computation on this number of devices can use a mesh.

    Raises:
      GraphrlError: the mesh is abstract and of another number of devices.
    """
    if isinstance(mesh, AbstractMesh) and devices != mesh.size:
        raise GraphrlError("mesh is abstract: call report(), or give the devices' mesh")


def _gathered_now(value: Any, **params: Any) -> Any:
    if params["pinned"]:
        _check_mesh(params["sharding"].mesh, 1)  # without a jit around, jax needs the devices
    return _constrained(value, **params)


def _gathered_lowered(ctx: Any, value: Any, **params: Any) -> Any:
    devices = getattr(ctx.module_context.axis_context, "num_devices", None)
    if params["pinned"] and devices not in (None, 1):  # on one device jax ignores shardings
        _check_mesh(params["sharding"].mesh, devices)
    return mlir.lower_fun(_constrained, multiple_results=False)(ctx, value, **params)


_GATHERED = core.Primitive(GATHERED)
_GATHERED.def_impl(_gathered_now)
_GATHERED.def_abstract_eval(lambda value, **_: value)
mlir.register_lowering(_GATHERED, _gathered_lowered)
ad.deflinear2(
    _GATHERED, lambda cotangent, _, *, back, pinned, **__: [_constrained(cotangent, sharding=back, pinned=pinned)]
)
batching.primitive_batchers[_GATHERED] = lambda args, dims, **params: (
    _GATHERED.bind(*args, **{**params, "pinned": False}),  # shardings have no axis for the batch
    dims[0],
)


NAME = "graphrl_barrier"


def join_gradients(values: Sequence[Any]) -> list[Any]:
    """Returns the values; in the backward pass, the gradients of all (except references) become available together."""
    return _bound(values, finished=False)


def finish_forward(results: Sequence[Any]) -> list[Any]:
    """Returns the results; the backward pass waits for scalar ones (it would keep larger ones in memory)."""
    return _bound(results, finished=True)


def _bound(values: Sequence[Any], finished: bool) -> list[Any]:
    arrays = [k for k, value in enumerate(values) if isinstance(jax.typeof(value), jax.core.ShapedArray)]
    if not arrays:
        return list(values)
    joined = _BARRIER.bind(*(values[k] for k in arrays), count=len(arrays), finished=finished, barrier=False)
    by_place = dict(zip(arrays, joined, strict=True))
    return [by_place.get(k, value) for k, value in enumerate(values)]


def _run(*operands: Any, count: int, finished: bool, barrier: bool) -> list[Any]:
    """Returns the first `count` operands; with `barrier`, they wait for all operands."""
    del finished
    return list(jax.lax.optimization_barrier(operands) if barrier else operands)[:count]


def _tangents(primals: Sequence[Any], tangents: Sequence[Any], *, count: int, **how: bool) -> tuple[Any, Any]:
    others = [value for value in primals if jax.typeof(value).size == 1] if how["finished"] else primals[count:]
    return list(primals[:count]), _bind_nonzero(tangents[:count], others, how["barrier"])


def _cotangents(cotangents: Sequence[Any], *operands: Any, count: int, **_: bool) -> list[Any]:
    others = operands[count:]
    results = _bind_nonzero(cotangents, others, barrier=True)
    return [*(None if type(each) is ad.Zero else each for each in results), *[None] * len(others)]


def _bind_nonzero(values: Sequence[Any], others: Sequence[Any], barrier: bool) -> list[Any]:
    """Makes the values that are not symbolic zeros wait for each other and for `others`; returns all values.

    A single value waits for nothing: a barrier would only keep compilers from fusing its op into its reader.
    """
    nonzero = [value for value in values if type(value) is not ad.Zero]
    if not nonzero or len(nonzero) + len(others) == 1:
        return list(values)
    bound = iter(_BARRIER.bind(*nonzero, *others, count=len(nonzero), finished=False, barrier=barrier))
    return [value if type(value) is ad.Zero else next(bound) for value in values]


def _batched(values: Sequence[Any], dims: Sequence[Any], *, count: int, **how: bool) -> tuple[Any, Any]:
    return _BARRIER.bind(*values, count=count, **how), dims[:count]


_BARRIER = core.Primitive(NAME)
_BARRIER.multiple_results = True
_BARRIER.def_impl(_run)
_BARRIER.def_abstract_eval(lambda *avals, count, **_: list(avals[:count]))
mlir.register_lowering(_BARRIER, mlir.lower_fun(_run, multiple_results=True))
ad.primitive_jvps[_BARRIER] = _tangents
ad.primitive_transposes[_BARRIER] = _cotangents
batching.primitive_batchers[_BARRIER] = _batched
