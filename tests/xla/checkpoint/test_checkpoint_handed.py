"""Gradients that segments hand on: what the pricing of choices says of them is what the traced gradient takes."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from budget_costs import handed_seconds

from graphrl.graphs.roofline import find_chip
from graphrl.xla.checkpoint.derivative import gradient_jaxpr
from graphrl.xla.checkpoint.gradient import NamedGradient, gradient_of
from graphrl.xla.checkpoint.planner import plan_of
from graphrl.xla.checkpoint.program import Program, program_of
from graphrl.xla.checkpoint.rewrite import evaluate
from graphrl.xla.checkpoint.seconds import gradient_seconds
from graphrl.xla.checkpoint.solvers.choice import Choice, Cut, Pricing

CHIP, LAYERS = find_chip("h200"), 4
SHAPES = (LAYERS, 512, 512), (8192, 512)


def residual(weights: jax.Array, x: jax.Array) -> jax.Array:
    """The gradient of each layer's operand is a sum that what is before it computes on the way."""
    for w in weights:
        x = x + jnp.sin(jnp.cos(x @ w))
    return jnp.square(x).mean()


def scanned(weights: jax.Array, x: jax.Array) -> jax.Array:
    """Each layer adds up slices of slices, which many read."""

    def combined(a: tuple[jax.Array, jax.Array], b: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return a[0] * b[0], a[1] * b[0] + b[1]

    for w in weights[:2]:
        y = x @ w
        x = x + jax.lax.associative_scan(combined, (jnp.exp(-jnp.abs(y)), y))[1]
    return jnp.square(x).mean()


def split(weights: jax.Array, x: jax.Array) -> jax.Array:
    """Each layer computes with parts of different sizes."""
    for w in weights[:2]:
        large, small = jnp.split(jnp.sin(x @ w), [480], -1)
        x = x + jnp.concatenate([small, jnp.cos(large)], -1) * jnp.concatenate([jnp.exp(small), large], -1)
    return jnp.square(x).mean()


def halved(weights: jax.Array, x: jax.Array) -> jax.Array:
    """Each layer takes the same slice several times."""
    for w in weights[:2]:
        y = x @ w
        half = [jnp.sin(y[:, :256]) * jnp.cos(y[:, :256]), jnp.exp(y[:, :256]) + y[:, 256:]]
        x = x + jnp.concatenate(half, -1)
    return jnp.square(x).mean()


def scaled(weights: jax.Array, x: jax.Array) -> jax.Array:
    """The gradients of what all layers read are added up behind the layers, which wait for none of them."""
    scale = jnp.cumsum(x, axis=0)
    for _ in range(LAYERS):
        x = jnp.sin(x) * scale
    return x.sum() + weights.sum()


@functools.cache
def task(loss: Callable[..., jax.Array] = residual) -> tuple[Program, NamedGradient, Pricing]:
    program = program_of(jax.make_jaxpr(loss)(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in SHAPES)))
    named = gradient_of(program, [True, True], CHIP)
    return program, named, Pricing(named.gradient)


def choice_of(begins: list[int], again: bool, loss: Callable[..., jax.Array] = residual) -> Choice:
    """Segments from these places on, that keep nothing; those that are not computed again are left to jax."""
    level = task(loss)[1].gradient.levels[0]
    starts = np.zeros(len(level.apart), np.int64)
    starts[[place for place in begins if place]] = 1
    segment = np.cumsum(starts)
    return (Cut(np.zeros(len(level.bytes), np.int64), segment, np.full(int(segment[-1]) + 1, again)),)


def seconds_both(choice: Choice, loss: Callable[..., jax.Array] = residual) -> tuple[float, float]:
    """What a choice adds to the step's seconds: as it is priced, and as its gradient is traced."""
    program, named, pricing = task(loss)
    run = functools.partial(evaluate, program, plan_of(named, choice, pricing))
    traced = gradient_seconds(gradient_jaxpr(program, [True, True], run)[0], CHIP)
    return pricing(choice).seconds - pricing.plain.seconds, traced - gradient_seconds(named.traced, CHIP)


def places_of(name: str, loss: Callable[..., jax.Array] = residual) -> list[int]:
    return [place for place, eqn in enumerate(task(loss)[0].equations) if eqn.primitive.name == name]


@pytest.mark.parametrize(
    ("loss", "begin"), [(scanned, "dot_general"), (split, "dot_general"), (halved, "dot_general"), (scaled, "sin")]
)
def test_slices_and_sums_are_priced_as_they_are_traced(loss: Callable[..., jax.Array], begin: str) -> None:
    """Slices are read beside one another, and equal ones once."""
    priced, traced = seconds_both(choice_of(places_of(begin, loss), True, loss), loss)
    assert priced == pytest.approx(traced, rel=0.05)


@pytest.mark.parametrize("before", ["dot_general", "cos"])
def test_segments_cost_the_gradients_that_they_wait_for(before: str) -> None:
    choice = choice_of(places_of(before), again=True)
    priced, traced = seconds_both(choice)
    array = 4 * SHAPES[1][0] * SHAPES[1][1] / CHIP.bytes_per_second  # to read or write one
    waited = handed_seconds(task()[1].gradient.levels[0], choice[0])
    assert waited > array
    assert priced == pytest.approx(traced, rel=0.1)
    assert abs(priced - traced) < abs(priced - waited - traced)
