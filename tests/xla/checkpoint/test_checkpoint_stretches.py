"""Loops in stretches: number of steps, the resulting scans, and the bytes that these keep, by jax's own figures."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoint_programs import KEY, WEIGHTS, X, assert_same, kept_bytes, nested
from jax import lax

import graphrl
from graphrl.graphs.roofline import find_chip
from graphrl.xla.checkpoint.gradient import gradient_of
from graphrl.xla.checkpoint.plans import plan_of
from graphrl.xla.checkpoint.program import CheckpointPlan, Program, Region, program_of
from graphrl.xla.checkpoint.rewrite import evaluate, fits
from graphrl.xla.checkpoint.solvers.choice import Pricing, State, stretches_of

STEPS = 12
XS = jax.random.normal(jax.random.key(5), (STEPS, *X.shape))
quick = functools.partial(graphrl.checkpoint, seconds=0.3, cache=False, chip="h200")


def recurrent(weights: jax.Array, xs: jax.Array, *, reverse: bool = False) -> jax.Array:
    """A loop that carries a state, a number, a key and a sum that no backward pass needs, and returns results."""

    def step(carry: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        h, count, key, total = carry
        key, own = jax.random.split(key)
        h = jnp.tanh((h + x) @ weights[0]) * jax.random.uniform(own, h.shape) + jnp.sin(h) * count.astype(jnp.float32)
        return (h, (count + 1) % 3, key, total + x), jnp.sin(h).sum(0)

    carry, sums = lax.scan(step, (xs[0], jnp.int32(0), KEY, xs[0]), xs, reverse=reverse)
    return jnp.square(sums).sum() + (carry[0] * carry[3]).sum()


def without_slices(weights: jax.Array, x: jax.Array) -> jax.Array:
    """A loop over nothing, unrolled by two."""
    return lax.scan(lambda h, _: (jnp.sin(h @ weights[0]), None), x, None, length=STEPS, unroll=2)[0].sum()


def traced(fn: Callable[..., Any], *args: Any) -> Program:
    return program_of(jax.make_jaxpr(fn)(*args))


def grouped(program: Program, stretch: int, *, unrolled: bool = False, again: bool = False) -> CheckpointPlan:
    """A plan with all loops in such stretches, nested ones too; `again` recomputes each step in one more region."""
    bodies = {}
    for place, body in program.bodies.items():
        regions = (Region(0, len(body.equations)),) if again else ()
        steps = min(stretch, program.equations[place].params["length"])
        inner = grouped(body, stretch, unrolled=unrolled, again=again).bodies
        bodies[place] = CheckpointPlan(regions, bodies=inner, stretch=steps, unrolled=unrolled)
    return CheckpointPlan(bodies=bodies)


LOSSES: dict[str, tuple[Callable[..., Any], Any]] = {
    "recurrent": (recurrent, XS),
    "from the end": (functools.partial(recurrent, reverse=True), XS),
    "over nothing": (without_slices, X),
    "loops in loops": (nested, X),
}


@pytest.mark.parametrize(
    ("name", "stretch", "kind"),
    [
        ("recurrent", 5, "again"),
        ("recurrent", 12, "loops"),
        ("from the end", 4, "loops"),
        ("over nothing", 5, "again"),
        ("loops in loops", 5, "unrolled"),
    ],
)
def test_loops_in_stretches_compute_the_same(name: str, stretch: int, kind: str) -> None:
    loss, x = LOSSES[name]
    program = traced(loss, WEIGHTS, x)
    plan = grouped(program, stretch, unrolled=kind == "unrolled", again=kind == "again")
    assert fits(program, plan)

    def ours(weights: jax.Array, x: jax.Array) -> jax.Array:
        return evaluate(program, plan, [weights, x])[0]

    assert_same(*(jax.jit(jax.value_and_grad(fn, (0, 1)))(WEIGHTS, x) for fn in (ours, loss)))
    if (name, stretch) == ("recurrent", 5):
        both = jnp.stack([x, 0.5 * x])
        assert_same(*(jax.jit(jax.vmap(jax.grad(fn), (None, 0)))(WEIGHTS, both) for fn in (ours, loss)))


def test_second_derivatives_and_nothing_to_differentiate() -> None:
    program = traced(recurrent, WEIGHTS, XS)

    def ours(weights: jax.Array, xs: jax.Array) -> jax.Array:
        return evaluate(program, grouped(program, 5), [weights, xs])[0]

    def penalty(fn: Any) -> Any:
        return jax.grad(lambda weights, xs: jnp.square(jax.grad(fn)(weights, xs)).sum())

    for got, want in zip(jax.jit(penalty(ours))(WEIGHTS, XS), jax.jit(penalty(recurrent))(WEIGHTS, XS), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * float(np.abs(want).max()))
    assert_same(jax.jit(ours)(WEIGHTS, XS), jax.jit(recurrent)(WEIGHTS, XS))


@pytest.mark.parametrize("stretch", [0, STEPS + 1])
def test_plans_for_other_lengths_do_not_fit(stretch: int) -> None:
    program = traced(recurrent, WEIGHTS, XS)
    ((place, _),) = program.bodies.items()
    assert not fits(program, CheckpointPlan(bodies={place: CheckpointPlan(stretch=stretch)}))


@pytest.mark.parametrize("unrolled", [0, STEPS])
def test_jax_keeps_what_prices_say(unrolled: int) -> None:
    """Each stretch keeps the state and the number at its start, not the sum, which no backward pass needs."""
    program = traced(recurrent, WEIGHTS, XS)
    named = gradient_of(program, [True, False], find_chip("h200"))
    (number, loop), *_ = named.gradient.stretchable().items()
    loop = loop._replace(unrolled=unrolled, stretches=(1, 2, 3, 4, 5, 6, 12))
    gradient = named.gradient._replace(loops=({number: loop}, *named.gradient.loops[1:]))
    pricing, named = Pricing(gradient), named._replace(gradient=gradient)
    state_bytes = X.nbytes + 4 + 8  # a number, a key
    assert loop.begin_bytes == state_bytes
    kept_bytes_outside = set()
    for stretch in loop.stretches[1:]:
        state = State.plain(gradient)
        state.stretches[number] = stretch
        state.changed(number)
        price, plan = pricing(state.choice()), plan_of(named, state.choice(), pricing)
        kept = kept_bytes(lambda *args, p=plan: evaluate(program, p, args)[0], WEIGHTS, XS)
        states = -(-STEPS // stretch) * state_bytes
        in_blocks, cut = XS.nbytes * (stretch < STEPS), XS.nbytes * (STEPS % stretch > 0)  # another array only if cut
        kept_bytes_outside.add((kept - states - in_blocks, price.kept - states - cut))
    theirs, ours = zip(*kept_bytes_outside, strict=True)  # of the function around the loop
    assert max(theirs) - min(theirs) <= 4  # the first number is a constant
    assert max(ours) == min(ours) >= 0


def test_stretches_are_about_the_root_and_divide_the_steps_where_they_can() -> None:
    assert stretches_of(256) == (1, 2, 4, 8, 16, 32, 64, 128, 256)
    assert stretches_of(6) == (1, 2, 6)
    for trips in (0, 1, 2, 3, 31, 100, 1000, 5040, 8191):
        kinds = stretches_of(trips)
        assert kinds[0] == 1
        assert kinds[-1] == max(1, trips)
        assert len(kinds) <= 2 + 2 * max(1, trips).bit_length()
        assert trips < 4 or any(0.6 < kind / trips**0.5 < 1.6 for kind in kinds)
    assert all(1000 % kind == 0 for kind in stretches_of(1000))


def test_loops_keep_less_than_their_states() -> None:
    """No choice of each step's values alone keeps as little."""

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        return lax.scan(lambda h, _: (jnp.tanh(h @ weights[0]), None), x, None, length=64)[0].sum()

    fn = quick(loss, slowdown=0.5)
    report = fn.report(WEIGHTS, X)
    (loop,) = report.stretches
    assert (loop.trips, len(loop.place)) == (64, 1)
    assert 1 < loop.steps < 64
    assert report.planned.kept_bytes < 32 * X.nbytes
    assert f"in stretches of {loop.steps} steps" in str(report)
    assert "test_checkpoint_stretches.py" in loop.line
    assert_same(*(jax.jit(jax.value_and_grad(each, (0, 1)))(WEIGHTS, X) for each in (fn, loss)))


def test_limits_below_nothing_are_met_or_named() -> None:
    with pytest.raises(graphrl.GraphrlError, match=r"slowdown is -0\.9: no plan was found that saves this part"):
        quick(recurrent, slowdown=-0.9).report(WEIGHTS, XS)
    fastest = quick(recurrent, slowdown=0.0).report(WEIGHTS, XS).slowdown
    if fastest < -0.02:
        assert quick(recurrent, slowdown=-0.01).report(WEIGHTS, XS).slowdown <= -0.01
