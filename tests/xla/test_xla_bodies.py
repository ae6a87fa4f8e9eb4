"""What loops, branches and calls run is planned too."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from xla_programs import branches, plans, temporaries, vector

import graphrl
from graphrl.graphs.readers.hlo.module import parse_module
from graphrl.xla import hook
from graphrl.xla.hook import SCHEDULERS

pytestmark = pytest.mark.usefixtures("plans")

__all__ = ["plans"]


def scanned(x: jax.Array) -> Any:
    return jax.lax.scan(lambda c, _: (jnp.tanh(branches(c)), c.sum()), x, None, length=3)


def nested(x: jax.Array) -> Any:
    def outer(carry: jax.Array) -> jax.Array:
        return jnp.tanh(jax.lax.fori_loop(0, 2, lambda _, c: jnp.tanh(branches(c)), carry))

    return jax.lax.while_loop(lambda c: c[0] > 2.0, outer, x), branches(x)


def chosen(x: jax.Array) -> Any:
    return jax.lax.cond(x[0] > 0, lambda y: branches(y), lambda y: branches(y * 2.0) + 1.0, x)


def learned(x: jax.Array) -> Any:
    return jax.grad(lambda y: scanned(y)[0].sum())(x)


@pytest.mark.parametrize("function", [scanned, nested, chosen, learned])
def test_less_memory_and_the_same_bits(function: Callable[[jax.Array], Any]) -> None:
    x = vector()
    ours, theirs = graphrl.compile(function, x, seconds=1), jax.jit(function).lower(x).compile()
    memory = hook.compile_in_order(jax.jit(function).lower(x), "memory", quick=True)
    assert temporaries(ours) < 0.75 * temporaries(theirs)
    assert temporaries(ours) <= temporaries(memory)
    assert ours.report().graphrl_bytes == temporaries(ours)
    for a, b in zip(jax.tree.leaves(ours(x)), jax.tree.leaves(theirs(x)), strict=True):
        assert np.array_equal(a, b)


def test_the_body_runs_in_the_order_that_was_found() -> None:
    lowered = jax.jit(scanned).lower(vector())
    default, memory = (hook.captured(lowered, which) for which in SCHEDULERS)
    assert [c.name for c in default.sequential] == [c.name for c in memory.sequential]
    body = max(default.sequential, key=lambda c: len(c.instructions))
    assert body is not default.entry
    order = memory.order(memory.computations[body.name])
    assert order != default.order(body)
    final = parse_module(hook.compile_by(lowered, lambda _: {body.name: order}))
    assert final.order(final.computations[body.name]) == order


def test_the_next_process_finds_the_orders_of_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    from graphrl.xla.planning import planner
    from graphrl.xla.planning.cache import DecisionCache

    once = temporaries(graphrl.compile(scanned, vector(), seconds=0.5))
    monkeypatch.setattr(planner, "_SHARED", DecisionCache(on_disk=True))
    monkeypatch.setattr(planner, "decide", lambda *_: pytest.fail("searched"))
    assert temporaries(graphrl.compile(scanned, vector(), seconds=0.5)) == once
