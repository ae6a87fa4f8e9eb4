"""`graphrl.checkpoint` under jax's transformations: the same values and gradients as without it."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from checkpoint_programs import WEIGHTS, X, assert_same, checkpointed, kept_bytes, mlp, nested, scanned
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import graphrl
from graphrl.xla.checkpoint.program import program_of
from graphrl.xla.checkpoint.rewrite import scan_in_stretches

quick = functools.partial(graphrl.checkpoint, budget=0.6, seconds=0.1, cache=False)
Loss = Callable[..., Any]


def hessian(fn: Loss) -> Loss:
    """The Hessian by one row of the inputs."""
    return jax.hessian(lambda weights, x: fn(weights, jnp.stack([x, x * 2.0])), argnums=1)


def penalty(fn: Loss) -> Loss:
    """The gradient of a gradient's square."""
    return jax.grad(lambda weights, x: jnp.square(jax.grad(fn)(weights, x)).sum())


def rows(fn: Loss) -> Loss:
    """A gradient through a function mapped over rows, which reads the mean of all rows."""

    def loss(weights: jax.Array, row: jax.Array) -> jax.Array:
        return fn(weights, row[None] - jax.lax.pmean(row, "rows")[None])

    return jax.value_and_grad(lambda weights, x: jax.vmap(loss, (None, 0), axis_name="rows")(weights, x).sum())


TAKEN: dict[str, tuple[Loss, Callable[[Loss], Loss]]] = {
    "second derivatives": (scanned, penalty),
    "hessian": (mlp, lambda fn: lambda weights, x: hessian(fn)(weights, x[0])),
    "jvp": (nested, lambda fn: lambda weights, x: jax.jvp(fn, (weights, x), (jnp.sin(weights), jnp.cos(x)))),
    "vmap of gradients": (scanned, lambda fn: jax.vmap(jax.value_and_grad(fn), (None, 0))),
    "gradient of vmap": (scanned, rows),
    "within its like": (mlp, lambda fn: jax.value_and_grad(quick(lambda w, x: jnp.sin(fn(w, x * 2.0)), budget=0.7))),
    "under the user's checkpoint": (scanned, lambda fn: jax.value_and_grad(jax.checkpoint(fn), (0, 1))),
}


@pytest.mark.parametrize("name", TAKEN)
def test_transformations_see_the_function(name: str) -> None:
    fn, take = TAKEN[name]
    assert_same(jax.jit(take(quick(fn)))(WEIGHTS, X), jax.jit(take(fn))(WEIGHTS, X))


def test_budgets_within_budgets_are_kept() -> None:
    """Policies apply to everything within a function; an inner plan must not react to an outer plan's names."""

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        h = x
        for w in weights:
            h = inner(w, h)
        return jnp.square(h).mean()

    def layer(w: jax.Array, h: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.tanh(jnp.tanh(h @ w) @ w) @ w)

    inner = quick(layer, budget=0.4)
    part = kept_bytes(loss, WEIGHTS, X)
    fn = quick(loss, budget=0.5)
    kept = kept_bytes(fn, WEIGHTS, X)
    assert 0 < kept <= 0.5 * part + 4  # the loss, for which the backward pass waits
    assert fn.report().planned.kept_bytes == pytest.approx(kept, rel=0.1, abs=16)


@pytest.fixture(scope="module", params=[AxisType.Auto, AxisType.Explicit], ids=str)
def sharded(request: pytest.FixtureRequest) -> tuple[jax.sharding.Mesh, jax.Array, jax.Array]:
    """Two devices; the weights on both, the rows of x halved."""
    mesh = jax.make_mesh((2,), ("data",), axis_types=(request.param,))
    put = functools.partial(jax.device_put)
    return mesh, put(WEIGHTS, NamedSharding(mesh, P())), put(X, NamedSharding(mesh, P("data")))


def test_shard_map(sharded: tuple[jax.sharding.Mesh, jax.Array, jax.Array]) -> None:
    mesh, weights, x = sharded

    def within(fn: Loss) -> Loss:
        def shard(weights: jax.Array, x: jax.Array) -> Any:
            return jax.lax.pmean(fn(weights, x), "data")

        return jax.value_and_grad(jax.shard_map(shard, mesh=mesh, in_specs=(P(), P("data")), out_specs=P()))

    def gradients(fn: Loss) -> Loss:
        def shard(weights: jax.Array, x: jax.Array) -> Any:
            return jax.tree.map(lambda value: jax.lax.pmean(value, "data"), jax.value_and_grad(fn, 0)(weights, x))

        return jax.shard_map(shard, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())

    def around(make: Callable[[Loss], Loss]) -> Loss:
        def shard(weights: jax.Array, x: jax.Array) -> Any:
            return jax.lax.pmean(mlp(weights, jnp.tanh(x)), "data")

        return jax.value_and_grad(make(jax.shard_map(shard, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())))

    def all_of(make: Callable[[Loss], Loss]) -> Loss:
        return lambda *args: (within(make(scanned))(*args), gradients(make(mlp))(*args), around(make)(*args))

    assert_same(jax.jit(all_of(quick))(weights, x), jax.jit(all_of(lambda fn: fn))(weights, x))


def test_sharded_arguments(sharded: tuple[jax.sharding.Mesh, jax.Array, jax.Array]) -> None:
    mesh, weights, x = sharded
    explicit = mesh.axis_types == (AxisType.Explicit,)

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        h = jnp.tanh(jnp.tanh(x @ weights[0]) @ weights[1])
        h = jax.sharding.reshard(h, P()) if explicit else jax.lax.with_sharding_constraint(h, NamedSharding(mesh, P()))
        return scanned(weights, h)

    with jax.set_mesh(mesh):
        ours, theirs = (jax.jit(jax.value_and_grad(fn, (0, 1)))(weights, x) for fn in (quick(loss), loss))
    assert_same(ours, theirs)
    assert ours[1][1].sharding == theirs[1][1].sharding


def named(x: jax.Array) -> jax.Array:
    return checkpoint_name(jnp.sin(x), "graphrl6:0.0")


def with_rule(x: jax.Array) -> jax.Array:
    """A function with a custom derivative."""
    fn = jax.custom_vjp(named)
    fn.defvjp(lambda x: (named(x), x), lambda x, g: (g * jnp.cos(x),))
    return fn(x)


def test_labels_are_others_than_those_within() -> None:
    def looped(x: jax.Array) -> jax.Array:
        return lax.scan(lambda c, _: (jax.checkpoint(named)(c), None), x, None, 3)[0]

    for around in (named, with_rule, looped, lambda x: lax.cond(x.sum() > 0, jnp.cos, jax.jit(named), x)):
        assert program_of(jax.make_jaxpr(around)(X)).label == "graphrl7"
    assert program_of(jax.make_jaxpr(jnp.sin)(X)).label == "graphrl0"


# jax_remat3, jax's new implementation of `jax.checkpoint`


REMAT3 = pytest.mark.skipif(not hasattr(jax.config, "jax_remat3"), reason="jax before 0.10.2 has no jax_remat3")


@contextlib.contextmanager
def remat3() -> Iterator[None]:
    """Switches to the new implementation."""
    jax.config.update("jax_remat3", True)
    try:
        yield
    finally:
        jax.config.update("jax_remat3", False)


@REMAT3
@pytest.mark.parametrize(("loss", "offload"), [(mlp, False), (scanned, True), (nested, False)])
def test_a_plan_keeps_the_same_bytes(loss: Loss, offload: bool) -> None:
    fn = quick(loss, offload=offload)
    fn.report(WEIGHTS, X)  # one search serves both
    before = kept_bytes(fn, WEIGHTS, X), str(jax.make_jaxpr(jax.grad(fn))(WEIGHTS, X))
    with remat3():
        assert (kept_bytes(fn, WEIGHTS, X), str(jax.make_jaxpr(jax.grad(fn))(WEIGHTS, X))) == before


@REMAT3
def test_the_users_own_checkpoints_compute_the_same() -> None:
    with remat3():
        fn = quick(checkpointed)
        assert_same(jax.value_and_grad(fn)(WEIGHTS, X), jax.value_and_grad(checkpointed)(WEIGHTS, X))


@REMAT3
def test_loops_in_stretches_compute_the_same_steps_again() -> None:
    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        (h,), _ = scan_in_stretches(
            lambda carry, w: ([jnp.tanh(carry[0] @ w[0])], []), [x], [weights], 3,
            unrolled=False, length=len(weights), reverse=False, unroll=1,
        )  # fmt: skip
        return h.sum()

    before = str(jax.make_jaxpr(jax.grad(loss))(WEIGHTS, X))
    with remat3():
        assert str(jax.make_jaxpr(jax.grad(loss))(WEIGHTS, X)) == before
