"""Values that a loop keeps for another loop are recomputed there: less memory, the same bits, within the limit."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from xla_programs import plans, temporaries

import graphrl
from graphrl.errors import PlanError
from graphrl.graphs.readers.hlo.module import HloModule, parse_module
from graphrl.xla import hook
from graphrl.xla.assignment import predicted_bytes
from graphrl.xla.callback import Answer, Rule, Unplanned
from graphrl.xla.donation import preserve_donation
from graphrl.xla.planning import planner
from graphrl.xla.planning.cache import DecisionCache, answer_of
from graphrl.xla.planning.planner import decide
from graphrl.xla.recompute.loops import Expressions, loops_of
from graphrl.xla.recompute.residuals import choose_residuals, named, numbered
from graphrl.xla.recompute.rewrite import without_residuals
from graphrl.xla.settings import Settings

pytestmark = pytest.mark.usefixtures("plans")

__all__ = ["plans"]

WIDTH, ROWS, DEPTH = 45, 251, 5  # no powers of two, so that products with them are rounded; no multiples of 8


def gelu(x: jax.Array, w: Any) -> jax.Array:
    return x + jax.nn.gelu(x @ w[0]) @ w[1]


def gated(x: jax.Array, w: Any) -> jax.Array:
    x = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)
    return x + (jax.nn.silu(x @ w[0]) * (x @ w[0])) @ w[1]


def attended(x: jax.Array, w: Any) -> jax.Array:
    return x + jax.nn.softmax(x @ x.T / 7) @ jnp.tanh(x @ w[0]) @ w[1]


LAYERS = {"gelu": gelu, "gated": gated, "attended": attended}


def step_of(layer: Any) -> Any:
    """A training step whose layers are in a scan."""

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        return jnp.square(lax.scan(lambda x, w: (layer(x, w), None), x, weights)[0]).sum()

    def step(weights: Any, x: jax.Array) -> Any:
        value, slopes = jax.value_and_grad(loss)(weights, x)
        return jax.tree.map(lambda w, g: w - 1e-3 * g, weights, slopes), value

    return step


@functools.cache
def arguments() -> tuple[Any, jax.Array]:
    rng = np.random.default_rng(0)
    up, down = rng.normal(size=(DEPTH, WIDTH, 4 * WIDTH)) / 7, rng.normal(size=(DEPTH, 4 * WIDTH, WIDTH)) / 14
    return (jnp.asarray(up, jnp.float32), jnp.asarray(down, jnp.float32)), jnp.asarray(
        rng.normal(size=(ROWS, WIDTH)), jnp.float32
    )


@functools.cache
def lowered(layer: str) -> jax.stages.Lowered:
    return jax.jit(step_of(LAYERS[layer]), donate_argnums=0).lower(*arguments())


@functools.cache
def module_of(layer: str) -> HloModule:
    return preserve_donation(hook.captured(lowered(layer))).module


def results(compiled: Any) -> list[bytes]:
    weights, x = arguments()
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(compiled(jax.tree.map(jnp.copy, weights), x))]


def dropping(limit: float, predicted: list[int]) -> Rule:
    """The rule that drops all residuals within a limit; appends XLA's predicted bytes to `predicted`."""

    def rule(module: HloModule) -> Answer:
        donation = preserve_donation(module)
        reduced = without_residuals(donation.module, choose_residuals(donation.module, limit).dropped)
        predicted.append(predicted_bytes(reduced))
        return Answer(answer_of(reduced), aliases=donation.aliases)

    return rule


@pytest.mark.parametrize("layer", ["gated", "attended"])
def test_same_bits_as_predicted_in_less_memory(layer: str) -> None:
    own, predicted = lowered(layer).compile(), list[int]()
    reduced = hook.compile_by(lowered(layer), dropping(1.0, predicted))
    assert results(reduced) == results(own)
    assert temporaries(reduced) == predicted[0] < 0.75 * temporaries(own)


@settings(max_examples=20, deadline=None)
@given(layer=st.sampled_from(sorted(LAYERS)), limit=st.floats(0, 1))
def test_the_limit_holds_and_more_of_it_drops_more(layer: str, limit: float) -> None:
    module = module_of(layer)
    choice, less = choose_residuals(module, limit), choose_residuals(module, limit / 2)
    assert 0 <= choice.cost <= limit
    assert choice.bytes >= less.bytes or choice.cost < limit  # greedy: at worst slightly less
    pairs = named(module, choice.dropped)
    assert numbered(module, pairs) == choice.dropped
    assert choice.bytes == sum(one.bytes for residuals in pairs.values() for one in residuals)


def written_twice(x: jax.Array, length: int) -> jax.Array:
    """A loop of 5 trips that keeps a row of each, and another that reads 5 of `length` rows, from the last on."""
    rows = jnp.ones((length, x.size))
    at = functools.partial(lax.dynamic_update_slice, allow_negative_indices=False)
    rows = lax.fori_loop(0, 5, lambda k, rows: at(rows, jnp.tanh(x * k)[None], (k, 0)), rows)
    return lax.fori_loop(0, 5, lambda k, y: y * jnp.cos(x + rows[length - 1 - k]), x)


@pytest.mark.parametrize(("length", "count"), [(5, 1), (6, 0)])
def test_an_array_that_is_not_all_written_is_no_residual(length: int, count: int) -> None:
    step = functools.partial(written_twice, length=length)
    module = hook.captured(jax.jit(step).lower(jnp.ones(2**16)))
    assert sum(len(loops.residuals) for loops in loops_of(module)) == count


def result_too(weights: jax.Array, x: jax.Array) -> Any:
    """A value that the forward loop keeps is also a result."""
    rows = lax.scan(lambda x, w: (jnp.tanh(x * w),) * 2, x, weights)[1]
    return rows, lax.scan(lambda y, row: (y * jnp.cos(row), None), x, rows)[0]


def test_residuals_that_are_results_are_kept() -> None:
    module = hook.captured(jax.jit(result_too).lower(jnp.ones(6), jnp.ones(2**16)))
    (loops,) = loops_of(module)
    (residual,) = loops.residuals
    assert not loops.readings(residual)
    assert choose_residuals(module, 1.0).dropped == ()


def test_plan_of_another_program_is_refused() -> None:
    module = module_of("gelu")
    with pytest.raises(PlanError, match="drops residuals that its loops do not have"):
        without_residuals(module, ((0, 0, 0, (1,)),))


FUSED = """HloModule fused, is_scheduled=true, entry_computation_layout={(f32[8]{0}, f32[8]{0})->f32[8]{0}}

%product (p: f32[8], q: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %q = f32[8]{0} parameter(1)
  ROOT %m = f32[8]{0} multiply(%p, %q)
}

%sum (p.1: f32[8], q.1: f32[8]) -> f32[8] {
  %p.1 = f32[8]{0} parameter(0)
  %q.1 = f32[8]{0} parameter(1)
  %m.1 = f32[8]{0} multiply(%p.1, %q.1)
  ROOT %s = f32[8]{0} add(%m.1, %q.1)
}

%halved (p.3: f32[8], q.3: f32[8]) -> f32[8] {
  %p.3 = f32[8]{0} parameter(0)
  %q.3 = f32[8]{0} parameter(1)
  %c = f32[] constant(FACTOR)
  %b = f32[8]{0} broadcast(%c), dimensions={}
  %h = f32[8]{0} multiply(%p.3, %b)
  ROOT %d = f32[8]{0} subtract(%q.3, %h)
}

ENTRY %main (x: f32[8], y: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %y = f32[8]{0} parameter(1)
  %one = f32[8]{0} fusion(%x, %y), kind=kLoop, calls=%product
  %two = f32[8]{0} fusion(%x, %y), kind=kLoop, calls=%sum
  %three = f32[8]{0} fusion(%x, %y), kind=kLoop, calls=%sum
  %four = f32[8]{0} fusion(%two, %three), kind=kLoop, calls=%halved
  ROOT %five = f32[8]{0} add(%one, %four)
}
"""


def expressions(factor: str, function: str = "multiply(%p.3, %b)") -> Expressions:
    module = parse_module(FUSED.replace("FACTOR", factor).replace("multiply(%p.3, %b)", function))
    return Expressions(module, module.entry)


def test_equal_products_have_one_number_and_their_sums_separate_ones() -> None:
    values = expressions("0.3")
    assert values.number["one", "m"] == values.number["two", "m.1"] == values.number["", "one"]
    assert values.number["", "two"] != values.number["", "three"]  # either may be rounded once or twice
    assert ("four", "d") in values.contracted
    # By a power of two, too: it underflows or overflows alone, but not inside of a contracted sum.
    assert ("four", "d") in expressions("-4").contracted
    # An error function ends in a product.
    assert ("four", "d") in expressions("1", "erf(%p.3)").contracted


def read_outside(table: jax.Array, x: jax.Array) -> jax.Array:
    """A loop of 5 trips that keeps a row of each, of a table of 10, and another that reads behind the last row."""
    write = functools.partial(lax.dynamic_update_slice, allow_negative_indices=False)
    row = functools.partial(lax.dynamic_slice, slice_sizes=(1, x.size), allow_negative_indices=False)
    rows = jnp.zeros((5, x.size))
    rows = lax.fori_loop(0, 5, lambda k, rows: write(rows, jnp.tanh(row(table, (k, 0))), (k, 0)), rows)
    return lax.fori_loop(0, 5, lambda k, y: y * jnp.cos(y + row(rows, (k + 3, 0))[0]) + row(table, (k, 0))[0], x)


def test_a_slice_outside_is_the_last_one() -> None:
    values = jnp.asarray(np.random.default_rng(0).normal(size=(11, 2**14)), jnp.float32)
    given = values[:10], values[10]
    step, predicted = jax.jit(read_outside).lower(*given), list[int]()
    reduced = hook.compile_by(step, dropping(1.0, predicted))
    assert temporaries(reduced) < temporaries(step.compile())
    assert np.array_equal(reduced(*given), step.compile()(*given))


def test_compile_takes_it_and_finds_it_on_disk(plans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = jax.jit(step_of(gelu), donate_argnums=0)
    own = lowered("gelu").compile()
    first = graphrl.compile(step, *arguments(), recompute=0.05, seconds=4)
    report = first.report()
    assert 0 < report.recomputed <= 0.05
    assert temporaries(first) < 0.7 * temporaries(own)
    assert results(first) == results(own)
    monkeypatch.setattr(planner, "_SHARED", DecisionCache(on_disk=True))
    again = graphrl.compile(step, *arguments(), recompute=0.05, seconds=4)
    assert again.report().from_cache
    assert (temporaries(again), results(again)) == (temporaries(first), results(first))
    assert again.plan is not None


def test_the_plain_order_runs_if_recomputation_needs_more_than_predicted() -> None:
    settings = Settings(recompute=0.05, seconds=4, cache=False)
    module = hook.captured(lowered("gelu"))
    recomputing = decide(lowered("gelu"), Unplanned(module), settings, None)
    assert recomputing.dropped
    assert recomputing.plain is not None
    planning = planner.Planner(settings)
    planning._decisions.store(dataclasses.replace(recomputing, graphrl_bytes=1000, plain=(recomputing.plain[0], 2000)))
    compiled = hook.compile_by(lowered("gelu"), planning.rule)
    decision = planning.decision(module)
    assert decision is not None
    assert (decision.dropped, decision.clones, decision.recomputed) == ((), (), 0.0)
    assert results(compiled) == results(lowered("gelu").compile())
    memory = temporaries(hook.compile_in_order(lowered("gelu"), "memory", quick=True))
    assert temporaries(compiled) <= min(memory, temporaries(lowered("gelu").compile()))
