"""`graphrl.jit` is `jax.jit` with less memory: all that jax.jit takes, under transformations and threads."""

import functools
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import util
from jax.sharding import NamedSharding, PartitionSpec
from jit_searches import jit, same, searches
from xla_programs import N, branches, chain, plans, temporaries, vector

import graphrl
from graphrl.xla import callback

pytestmark = pytest.mark.usefixtures("plans")

__all__ = ["plans", "searches"]


def test_less_memory_the_same_bits_and_one_search(searches: list[str]) -> None:
    traced = []

    def program(x: jax.Array) -> jax.Array:
        traced.append(x)
        return branches(x)

    fn, x = jit(program), vector()
    assert all(same(fn(x), jax.jit(branches)(x)) for _ in range(3))
    assert searches == ["jit_program"]
    assert len(traced) == 1
    (report,) = fn.reports
    assert report.planned
    assert report.xla_bytes is not None
    assert report.temp_bytes is not None
    assert report.temp_bytes < 0.3 * report.xla_bytes
    assert temporaries(fn._call.lower(x).compile()) == report.temp_bytes
    assert temporaries(fn.lower(x).compile()) == report.xla_bytes  # what `lower` gives is jax's own
    assert same(fn(vector(1)), jax.jit(branches)(vector(1)))
    fn(jnp.concatenate([x, x]))
    assert len(searches) == 2


def test_calls_of_planned_programs_take_jax_s_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    fn, events = jit(branches), list[str]()
    fn(vector())
    monkeypatch.setattr(util, "test_event", lambda name, *_: events.append(name))
    fn(vector(1))
    assert events == []
    assert [report.planned for report in fn.reports] == [True]
    fn(jnp.ones(3))  # too small to plan
    assert "jit_cpp_cache_miss" in events


def test_two_functions_of_one_program_share_the_plan(searches: list[str]) -> None:
    a, b = jit(branches), jit(branches)
    assert same(a(vector()), b(vector()))
    assert len(searches) == 1
    assert a.reports == b.reports


def test_decorators_with_and_without_arguments() -> None:
    @graphrl.jit
    def plain(x: jax.Array) -> jax.Array:
        """Doubles."""
        return x * 2

    @graphrl.jit(seconds=0.2, static_argnames="k")
    def scaled(x: jax.Array, k: int) -> jax.Array:
        return x * k

    assert plain(jnp.int32(2)) == 4
    assert scaled(jnp.int32(2), k=3) == 6
    assert scaled(jnp.int32(2), 5) == 10
    assert plain.__name__ == "plain"
    assert plain.__doc__ == "Doubles."
    assert isinstance(plain, jax.stages.Wrapped)


def test_methods_and_partial_functions() -> None:
    class Model:
        scale = 3

        @functools.partial(graphrl.jit, static_argnums=0)
        def step(self, x: jax.Array) -> jax.Array:
            return x * self.scale

    assert Model().step(jnp.int32(2)) == 6
    model = Model()
    assert jit(functools.partial(lambda k, x: k * x, 2))(jnp.int32(2)) == 4
    assert jit(model.__class__.step._fn, static_argnums=0)(model, jnp.int32(1)) == 3


def test_pytrees_keywords_weak_types_and_numpy() -> None:
    def program(tree: dict[str, Any], *, scale: Any) -> dict[str, Any]:
        return {"a": [branches(tree["x"]) * scale], "b": (tree["n"] + 1, None)}

    fn, plain = jit(program), jax.jit(program)
    tree = {"x": np.asarray(vector()), "n": 3}
    ours, theirs = fn(tree, scale=2.0), plain(tree, scale=2.0)
    assert same(ours, theirs)
    assert ours["b"][0].weak_type == theirs["b"][0].weak_type
    assert [report.planned for report in fn.reports] == [True]


def test_donated_arguments_are_intact_until_the_planned_program_takes_them() -> None:
    def update(state: dict[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
        return {"s": state["s"] + branches(x)}

    fn, x = jit(update, donate_argnums=0), vector()
    state = {"s": jnp.zeros(N)}
    for _ in range(3):
        state = fn(state, x)
    assert same(state, {"s": branches(x) + branches(x) + branches(x)}) or np.allclose(state["s"], 3 * branches(x))
    assert [report.planned for report in fn.reports] == [True]


def test_shardings() -> None:
    mesh = jax.make_mesh((2,), ("d",), devices=jax.devices()[:2])
    rows, whole = NamedSharding(mesh, PartitionSpec("d")), NamedSharding(mesh, PartitionSpec())

    def program(xs: jax.Array) -> jax.Array:
        return jax.vmap(branches)(xs).sum(0)

    xs = jax.device_put(jnp.stack([vector(k) for k in range(2)]), rows)
    fn = jit(program, in_shardings=(rows,), out_shardings=whole)
    ours = fn(xs)
    assert same(ours, jax.jit(program, in_shardings=(rows,), out_shardings=whole)(xs))
    assert ours.sharding == whole
    assert [report.planned for report in fn.reports] == [True]


def test_transformations_are_jax_s(searches: list[str]) -> None:
    def wave(x: jax.Array) -> jax.Array:
        """Not small: [N, N] intermediates that a dot keeps apart."""
        for k in range(1, 4):
            x = jnp.sin(jnp.outer(x, x) @ jnp.outer(x, x) * k).sum(0)
        return x

    fn, plain, x = jit(wave), jax.jit(wave), vector()

    def total(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: f(x).sum()

    assert same(jax.grad(total(fn))(x), jax.grad(total(plain))(x))
    assert same(jax.vmap(fn)(x[None]), jax.vmap(plain)(x[None]))
    assert same(jax.jit(total(fn))(x), jax.jit(total(wave))(x))
    assert jax.eval_shape(fn, x).shape == (N,)
    assert not searches
    step = jit(jax.grad(total(fn)))
    assert same(step(x), jax.jit(jax.grad(total(wave)))(x))
    assert len(searches) == 1


def test_threads_with_one_program_and_with_others(searches: list[str]) -> None:
    fn, other, results = jit(branches), jit(chain), {}

    def work(k: int) -> None:
        results[k] = fn(vector(k)) if k % 2 else other(vector(k))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(searches) == ["jit_branches", "jit_chain"]
    assert all(same(results[k], jax.jit(branches if k % 2 else chain)(vector(k))) for k in range(6))
    assert not callback._reasons


def test_rules_go_with_their_functions() -> None:
    before = len(callback._rules)
    fn = jit(lambda x: x + 1)
    fn(vector())
    assert len(callback._rules) == before + 1
    del fn
    assert len(callback._rules) == before
