"""Bodies of loops and calls may recompute values too; the cost counts every trip."""

import functools
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recompute_programs import random_order
from xla_programs import plans, temporaries

import graphrl
from graphrl.graphs.readers.hlo.module import Computation, HloModule, as_program, parse_module, put_back
from graphrl.graphs.readers.hlo.reader import read_hlo
from graphrl.graphs.readers.hlo.work import runs_of
from graphrl.xla import hook
from graphrl.xla.callback import Answer
from graphrl.xla.donation import argument_writes, preserve_donation
from graphrl.xla.planning import planner
from graphrl.xla.planning.cache import DecisionCache, answer_of
from graphrl.xla.recompute.candidates import Clone, Routes, RunTimes, repeatable, wire_clones
from graphrl.xla.recompute.plan import recompute_everywhere
from graphrl.xla.recompute.rewrite import insert_clones

pytestmark = pytest.mark.usefixtures("plans", "quiet")

__all__ = ["plans"]

WIDTH, TRIPS = 256, 3


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches measure this process's CPU time, so that other load on the machine does not affect them."""
    monkeypatch.setattr(time, "perf_counter", time.process_time)


def layers(x: jax.Array, weights: jax.Array) -> jax.Array:
    """`[WIDTH]` -> scalar: a chain of wide layers, each with wide and cheap values."""
    wide = jnp.outer(x, jnp.repeat(x, 4))  # [WIDTH, 4 * WIDTH]
    for k in range(4):
        wide = jnp.tanh(jnp.tanh(wide) @ weights[k])
    return wide.sum()


def descended(x: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Each trip is a step of gradient descent, forward and backward in one body, so that activations stay inside."""

    def step(x: jax.Array, k: Any) -> tuple[jax.Array, jax.Array]:
        value, slope = jax.value_and_grad(layers)(x, weights)
        return x - 0.01 * slope * k, value

    return jax.lax.scan(step, x, jnp.arange(TRIPS, dtype=jnp.float32))


def arguments() -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.normal(size=WIDTH), jnp.float32), jnp.asarray(
        rng.normal(size=(4, 4 * WIDTH, 4 * WIDTH)) / 32, jnp.float32
    )


@pytest.fixture(scope="module")
def module() -> HloModule:
    return hook.captured(jax.jit(descended).lower(*arguments()))


def body_of(module: HloModule) -> Any:
    return max(module.sequential, key=lambda c: len(c.instructions))


def test_less_memory_the_same_bits_and_the_limit_also_in_the_next_process(monkeypatch: pytest.MonkeyPatch) -> None:
    args = arguments()
    compiled = jax.jit(descended).lower(*args).compile()
    ordered = graphrl.compile(descended, *args, seconds=2)
    again = graphrl.compile(descended, *args, seconds=4, recompute=0.1)
    report = again.report()
    assert 0 < report.recomputed <= 0.1
    assert temporaries(again) == report.graphrl_bytes
    assert temporaries(again) < 0.85 * temporaries(ordered)
    for a, b in zip(jax.tree.leaves(again(*args)), jax.tree.leaves(compiled(*args)), strict=True):
        assert np.array_equal(a, b)
    monkeypatch.setattr(planner, "_SHARED", DecisionCache(on_disk=True))
    monkeypatch.setattr(planner, "decide", lambda *_: pytest.fail("searched"))
    assert temporaries(graphrl.compile(descended, *args, seconds=4, recompute=0.1)) == temporaries(again)


def test_a_body_s_cost_is_that_of_all_its_trips(module: HloModule) -> None:
    body = body_of(module)
    assert body is not module.entry
    assert runs_of(module)[body.name] == TRIPS
    costs = RunTimes(module)
    inside = costs.of_computation(body.name)
    (loop,) = (i for i in module.entry.instructions if i.opcode == "while")
    assert costs.of(loop) == pytest.approx(TRIPS * (inside + costs.of_computation(loop.called[1])))
    assert RunTimes(as_program(module, body)).of_computation(body.name) == inside


def test_each_trip_keeps_the_limit_if_the_number_of_trips_is_unknown() -> None:
    """A body's share of the program's time may be small in one trip, and nearly all of it in many."""

    def settled(x: jax.Array, weights: jax.Array) -> jax.Array:
        products = functools.reduce(jnp.matmul, [*weights] * 4)  # most of the time, if the loop ended immediately
        end = jax.lax.while_loop(
            lambda x: jnp.abs(x).max() < 10.0, lambda x: x - 0.01 * jax.grad(layers)(x, weights), x
        )
        return end * products[0, 0]

    module = hook.captured(jax.jit(settled).lower(*arguments()))
    body = as_program(module, body_of(module))
    assert runs_of(module)[body.entry.name] == math.inf
    again = recompute_everywhere(module, limit=0.1, seconds=2, seed=0)
    copies = again.clones[body.entry.name]
    costs = RunTimes(body)
    views = ("bitcast", "get-tuple-element")
    spent = sum(costs.of(i) for c in copies if (i := body.entry.by_name[c.original]).opcode not in views)
    assert 0 < spent <= 0.1 * costs.of_computation(body.entry.name)
    assert spent / costs.of_computation(body.entry.name) <= again.cost <= 0.1


CALLED = """
HloModule loop, is_scheduled=true

callee {
  a = f32[1024]{0} parameter(0)
  b = f32[1024]{0} parameter(1)
  ROOT sum = f32[1024]{0} add(a, b)
}

body {
  s = (s32[], f32[1024]{0}, f32[1024]{0}) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  x = f32[1024]{0} get-tuple-element(s), index=1
  w = f32[1024]{0} get-tuple-element(s), index=2
  y = f32[1024]{0} multiply(x, w)
  v = f32[1024]{0} sine(w)
  u = f32[1024]{0} add(y, v)
  z = f32[1024]{0} call(u, u), to_apply=callee
  ROOT r = (s32[], f32[1024]{0}, f32[1024]{0}) tuple(next, z, w)
}

condition {
  t = (s32[], f32[1024]{0}, f32[1024]{0}) parameter(0)
  k = s32[] get-tuple-element(t), index=0
  end = s32[] constant(3)
  ROOT more = pred[] compare(k, end), direction=LT
}

ENTRY main {
  p = f32[1024]{0} parameter(0)
  q = f32[1024]{0} parameter(1)
  zero = s32[] constant(0)
  start = s32[] copy(zero)
  c = f32[1024]{0} copy(p)
  init = (s32[], f32[1024]{0}, f32[1024]{0}) tuple(start, c, q)
  loop = (s32[], f32[1024]{0}, f32[1024]{0}) while(init), condition=condition, body=body
  ROOT result = f32[1024]{0} get-tuple-element(loop), index=1
}
"""


@pytest.mark.parametrize(("last", "may_read"), [("call(u, u), to_apply=callee", False), ("add(u, u)", True)])
def test_values_that_may_be_overwritten_at_any_time_are_not_read_again(last: str, may_read: bool) -> None:
    """`y` reads `x`, whose buffer the next trip's `x` overwrites.

    The overwriting instruction can wait for readers of the clone, or is inside of a call and cannot. `v` reads a value
    that stays.
    """
    module = parse_module(CALLED.replace("call(u, u), to_apply=callee", last))
    program = read_hlo(as_program(module, module.computations["body"]))
    ops = {op.name: may for op, may in zip(program.graph.ops, repeatable(program), strict=True)}
    assert ops["v"]
    assert ops["y"] == may_read
    assert ("y" in argument_writes(program.module).readers.get("z", ())) == may_read


def test_readers_of_a_clone_still_wait_for_the_original() -> None:
    """`next` overwrites `i`, which `start` reads; without the clone `next` waits for `start` only as its reader."""
    text = CALLED.replace("next = s32[] add(i, one)", "start = s32[] copy(i)\n  next = s32[] add(start, one)")
    module = parse_module(text.replace("v = f32[1024]{0} sine(w)", "v = f32[1024]{0} broadcast(start)"))
    body = as_program(module, module.computations["body"])
    again = insert_clones(body, [Clone("start.again", "start", ("next",))])
    assert {"start", "start.again"} <= {*again.entry.by_name["next"].control_predecessors}


TWO_AT_ONCE = """
HloModule both, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }

fused {
  a = f32[64]{0} parameter(0)
  b = f32[64]{0} parameter(1)
  c = f32[64]{0} parameter(2)
  one = f32[1]{0} slice(c), slice={[0:1]}
  first = s32[] constant(0)
  updated = f32[64]{0} dynamic-update-slice(b, one, first)
  sum = f32[64]{0} add(a, c)
  ROOT t = (f32[64]{0}, f32[64]{0}) tuple(sum, updated)
}

ENTRY main {
  p = f32[64]{0} parameter(0)
  q = f32[64]{0} parameter(1)
  r = f32[64]{0} sine(q)
  both = (f32[64]{0}, f32[64]{0}) fusion(p, q, r), kind=kLoop, calls=fused
  x = f32[64]{0} get-tuple-element(both), index=0
  y = f32[64]{0} get-tuple-element(both), index=1
  z = f32[64]{0} multiply(r, x)
  ROOT end = (f32[64]{0}, f32[64]{0}, f32[64]{0}) tuple(x, y, z)
}
"""


def test_writers_over_two_arguments_wait_for_clones_that_read_either() -> None:
    """One argument is overwritten in place in any schedule, the other by an added dependency."""
    module = preserve_donation(parse_module(TWO_AT_ONCE)).module
    again = insert_clones(module, [Clone("r.again", "r", ("z",))])
    assert "r.again" in again.entry.by_name["both"].control_predecessors


SIDE = 8


Pair = tuple[jax.Array, jax.Array]


def reset(a: jax.Array, b: jax.Array) -> Any:
    """The counter and a carried value are read until after their overwriting instruction could run."""

    def step(k: Any, carried: tuple[jax.Array, jax.Array, jax.Array]) -> Any:
        a, b, m = carried
        e = jnp.sin(a) + m
        f = jnp.exp(-e * e) @ b
        return jnp.zeros_like(a) + k, e + f, jnp.where(k % 2 == 0, e, f)

    return jax.lax.fori_loop(0, 4, step, (a, b, a))


def swapped(a: jax.Array, b: jax.Array) -> Pair:
    """Carried values swap places, and one is updated in place."""

    def step(carried: Pair, k: Any) -> tuple[Pair, jax.Array]:
        a, b = carried
        e = jnp.cos(jnp.sin(a) + b)
        return (b.at[k].set(jnp.tanh(e)[k]), a * e.mean()), e @ a

    (a, b), rows = jax.lax.scan(step, (a, b), jnp.arange(5))
    return a + rows.sum(0), b


def all_again(module: HloModule, computation: Computation) -> HloModule:
    """The module with a clone of every repeatable instruction in a computation for each of its readers."""
    program = read_hlo(as_program(module, computation))
    ops, routes, may = program.graph.ops, Routes(program), repeatable(program, expensive=True)
    clones = [
        (k, frozenset([reader]))
        for k, op in enumerate(ops)
        for reader, other in enumerate(ops)
        if may[k] and op.outputs[0].name in other.inputs and routes.may_read_clone(other.name, op.name)
    ]
    assert clones
    return put_back(module, insert_clones(program.module, wire_clones(program, routes, clones)[1]))


def shuffled(module: HloModule, computation: Computation, seed: int) -> tuple[str, ...]:
    """A random order of a computation's instructions."""
    program = read_hlo(as_program(module, computation))
    return program.sequence(np.array(random_order(program, seed)))


@pytest.mark.parametrize(("function", "seed"), [(reset, 2), (swapped, 0)])
def test_the_same_bits(function: Callable[..., Any], seed: int) -> None:
    rng = np.random.default_rng(seed)
    args = [jnp.asarray(rng.normal(size=(SIDE, SIDE)), jnp.float32) for _ in range(2)]

    def rule(module: HloModule) -> Answer:
        donation = preserve_donation(module)
        again, bodies = (
            donation.module,
            {i.called[0] for c in module.sequential for i in c.instructions if i.opcode == "while"},
        )
        for name in sorted(bodies):
            again = all_again(again, again.computations[name])
        again = again.with_orders({name: shuffled(again, again.computations[name], seed) for name in sorted(bodies)})
        return Answer(answer_of(again), "default", donation.aliases)

    lowered = jax.jit(function, donate_argnums=0).lower(*args)
    theirs = jax.tree.leaves(jax.jit(function)(*args))
    ours = hook.compile_by(lowered, rule)
    for a, b in zip(jax.tree.leaves(ours(*args)), theirs, strict=True):
        assert np.array_equal(a, b)
