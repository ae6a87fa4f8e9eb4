"""What a review of `graphrl.checkpoint` found: values that have no names, numbers, closures, plans and time limits."""

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src.ad_checkpoint import saved_residuals
from jax.ad_checkpoint import checkpoint_name

import graphrl
from graphrl.xla.checkpoint import planner
from graphrl.xla.checkpoint.gradient import gradient_of
from graphrl.xla.checkpoint.program import program_of
from graphrl.xla.checkpoint.settings import Settings
from graphrl.xla.checkpoint.solvers.choice import Pricing
from graphrl.xla.checkpoint.solvers.goal import Goal
from graphrl.xla.checkpoint.solvers.starts import again, greedy, whole

quick = functools.partial(graphrl.checkpoint, budget=0.4, seconds=0.1, cache=False)
WEIGHTS = jax.random.normal(jax.random.key(0), (4, 8, 8)) / 3.0
X = jax.random.normal(jax.random.key(1), (16, 8))


def mlp(weights: jax.Array, x: jax.Array) -> jax.Array:
    for w in weights:
        x = jnp.tanh(jnp.sin(x @ w))
    return jnp.square(x).mean()


def kept_bytes(fn: Callable[..., Any], *args: Any) -> int:
    """Bytes that jax keeps between the passes, beside arguments."""
    residuals: list[Any] = saved_residuals(fn, *args)
    return sum(aval.size * aval.dtype.itemsize for aval, why in residuals if not why.startswith("from the argument"))


def test_complex_values_are_not_kept_by_name() -> None:
    def loss(x: jax.Array) -> jax.Array:
        return jnp.abs(jnp.exp(jnp.sin(x @ x.T)) @ x).sum()

    x = (X * 0.1).astype(jnp.complex64) * (1 + 2j)
    for part in (0.6, 0.4):
        ours, theirs = (jax.jit(jax.grad(fn))(x) for fn in (quick(loss, budget=part), loss))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_references_within_a_function() -> None:
    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        cell = jax.new_ref(jnp.zeros_like(x))
        cell[...] = jnp.sin(jnp.tanh(x @ weights[0]))
        read = cell[...]
        return jnp.sin(jnp.sin(jax.freeze(cell)) * read).sum()

    ours, theirs = (jax.jit(jax.value_and_grad(fn))(WEIGHTS, X) for fn in (quick(loss), loss))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6), ours, theirs)


@pytest.mark.parametrize("given", [np.ones(3), 2.0, 2, True, np.int64(3), 1j])
def test_results_that_are_arguments_have_the_types_of_jax(given: Any) -> None:
    result = quick(lambda x: x)(given)
    assert isinstance(result, jax.Array)
    assert jax.typeof(result) == jax.typeof(jax.jit(lambda x: x)(given))


def test_budgets_hold_for_gradients_by_what_is_closed_over() -> None:
    def by_arguments(make: Callable[..., Any]) -> Callable[..., Any]:
        return lambda weights: make(lambda x: mlp(weights, x))(X)

    def by_tokens(make: Callable[..., Any]) -> Callable[..., Any]:
        return lambda weights: make(lambda tokens: mlp(weights, jnp.sin(weights[0])[tokens]))(jnp.arange(8))

    for around in (by_arguments, by_tokens):
        ours, theirs = around(quick), around(lambda fn: fn)
        assert kept_bytes(ours, WEIGHTS) <= 0.4 * kept_bytes(theirs, WEIGHTS)
        np.testing.assert_allclose(jax.grad(ours)(WEIGHTS), jax.grad(theirs)(WEIGHTS), rtol=1e-5, atol=1e-7)


def test_cached_plans_bear_the_name_of_the_function(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "cache_folder", lambda name: tmp_path / name)

    def first(weights: jax.Array) -> jax.Array:
        return mlp(weights, X)

    def second(weights: jax.Array) -> jax.Array:
        return mlp(weights, X)

    reports = [quick(fn, cache=True).report(WEIGHTS) for fn in (first, second)]
    assert [report.function for report in reports] == ["first", "second"]
    assert [report.from_cache for report in reports] == [False, True]


def test_greedy_without_time_gives_what_it_got() -> None:
    closed = jax.make_jaxpr(mlp)(WEIGHTS, X)
    pricing = Pricing(gradient_of(program_of(closed), [True, True], Settings(budget=0.5).figures).gradient)
    level = pricing.gradient.levels[0]
    start = again(pricing.gradient, whole(level), [level.named & ~level.free & level.solid])
    goal = Goal(kept=0.0)
    for until, changed in ((time.monotonic(), False), (time.monotonic() + 60.0, True)):
        state = greedy(pricing, goal, start, until)
        assert (state.keep[0] != start.keep[0]).any() == changed


def named(x: jax.Array) -> jax.Array:
    return checkpoint_name(jnp.sin(x), "graphrl6:0.0")


def with_rule(x: jax.Array) -> jax.Array:
    """A function with a derivative of its own."""
    fn = jax.custom_vjp(named)
    fn.defvjp(lambda x: (named(x), x), lambda x, g: (g * jnp.cos(x),))
    return fn(x)


@pytest.mark.parametrize(
    "around",
    [
        named,
        jax.jit(named),
        jax.checkpoint(named),
        with_rule,
        lambda x: lax.cond(x.sum() > 0, jnp.cos, jax.jit(named), x),
        lambda x: lax.scan(lambda c, _: (jax.checkpoint(named)(c), None), x, None, 3)[0],
    ],
    ids=["plain", "call", "checkpoint", "rule", "branch", "loop"],
)
def test_labels_are_others_than_those_within(around: Callable[[jax.Array], jax.Array]) -> None:
    assert program_of(jax.make_jaxpr(around)(X)).label == "graphrl7"
    assert program_of(jax.make_jaxpr(jnp.sin)(X)).label == "graphrl0"
