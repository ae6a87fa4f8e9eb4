"""Gradients passed between segments: prices of choices equal the seconds of the traced gradient."""

import functools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from budget_costs import cotangent_seconds

from graphrl.graphs.roofline import find_chip
from graphrl.xla.checkpoint.derivative import gradient_jaxpr
from graphrl.xla.checkpoint.gradient import NamedGradient, gradient_of
from graphrl.xla.checkpoint.plans import plan_of
from graphrl.xla.checkpoint.program import Program, program_of
from graphrl.xla.checkpoint.rewrite import evaluate
from graphrl.xla.checkpoint.seconds import gradient_seconds
from graphrl.xla.checkpoint.solvers.choice import Choice, Cut, Pricing

CHIP, LAYERS = find_chip("h200"), 4
SHAPES = (LAYERS, 512, 512), (8192, 512)


def residual(weights: jax.Array, x: jax.Array) -> jax.Array:
    """The gradient of each layer's operand is a sum, which the kernels before it compute on the way."""
    for w in weights:
        x = x + jnp.sin(jnp.cos(x @ w))
    return jnp.square(x).mean()


def scanned(weights: jax.Array, x: jax.Array) -> jax.Array:
    """Each layer adds up slices of slices, each with several readers."""

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


@functools.cache
def task(loss: Callable[..., jax.Array] = residual) -> tuple[Program, NamedGradient, Pricing]:
    program = program_of(jax.make_jaxpr(loss)(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in SHAPES)))
    named = gradient_of(program, [True, True], CHIP)
    return program, named, Pricing(named.gradient)


def choice_of(begins: list[int], recomputed: bool, loss: Callable[..., jax.Array] = residual) -> Choice:
    """Segments that start at these places and keep nothing; jax decides for those that are not computed again."""
    level = task(loss)[1].gradient.levels[0]
    starts = np.zeros(len(level.separate), np.int64)
    starts[[place for place in begins if place]] = 1
    segment = np.cumsum(starts)
    return (Cut(np.zeros(len(level.bytes), np.int64), segment, np.full(int(segment[-1]) + 1, recomputed)),)


def seconds_both(choice: Choice, loss: Callable[..., jax.Array] = residual) -> tuple[float, float]:
    """Seconds that a choice adds to the step: by its price, and by its traced gradient."""
    program, named, pricing = task(loss)
    run = functools.partial(evaluate, program, plan_of(named, choice, pricing))
    traced = gradient_seconds(gradient_jaxpr(program, [True, True], run)[0], CHIP)
    return pricing(choice).seconds - pricing.plain.seconds, traced - gradient_seconds(named.traced, CHIP)


def places_of(name: str, loss: Callable[..., jax.Array] = residual) -> list[int]:
    return [place for place, eqn in enumerate(task(loss)[0].equations) if eqn.primitive.name == name]


@pytest.mark.parametrize("loss", [scanned, split, halved])
def test_slices_are_read_separately_and_equal_ones_once(loss: Callable[..., jax.Array]) -> None:
    priced, traced = seconds_both(choice_of(places_of("dot_general", loss), True, loss), loss)
    assert priced == pytest.approx(traced, rel=0.05)


@pytest.mark.parametrize("before", ["dot_general", "cos"])
def test_segments_cost_the_gradients_that_they_wait_for(before: str) -> None:
    choice = choice_of(places_of(before), recomputed=True)
    priced, traced = seconds_both(choice)
    array = 4 * SHAPES[1][0] * SHAPES[1][1] / CHIP.bytes_per_second  # seconds to read or write one array
    wait_seconds = cotangent_seconds(task()[1].gradient.levels[0], choice[0])
    assert wait_seconds > array
    assert priced == pytest.approx(traced, rel=0.1)
    assert abs(priced - traced) < abs(priced - wait_seconds - traced)


def test_sums_outside_of_segments_wait_for_nothing() -> None:
    """The gradients of values that all layers read are added up after the layers, not in them."""

    def scaled(x: jax.Array, scale: jax.Array) -> jax.Array:
        scale = jnp.cumsum(scale, axis=0)
        for _ in range(LAYERS):
            x = jnp.sin(x) * scale
        return x.sum()

    array = jax.ShapeDtypeStruct(SHAPES[1], jnp.float32)
    program = program_of(jax.make_jaxpr(scaled)(array, array))
    level = gradient_of(program, [True, True], CHIP).gradient.levels[0]
    reads = np.diff(level.cotangent_from)
    pairs = rows(reads, level.cotangent_to, level.cotangent_home)
    is_summand = np.array([(pair != home).all() for pair, home in pairs])
    assert is_summand.any()
    level = level._replace(cotangent_seconds=level.cotangent_seconds * is_summand)
    layers = np.array([place for place, eqn in enumerate(program.equations) if eqn.primitive.name == "sin"])

    def wait_seconds(begins: np.ndarray) -> float:
        segment = np.cumsum(np.isin(np.arange(len(level.separate)), begins))
        keep = np.zeros(len(level.bytes), np.int64)
        return cotangent_seconds(level, Cut(keep, segment, np.ones(int(segment[-1]) + 1, bool)))

    assert wait_seconds(layers) == 0
    assert wait_seconds(layers[2:]) > 0  # the first layers and their operands are one segment


def rows(sizes: np.ndarray, *arrays: np.ndarray) -> Iterator[list[np.ndarray]]:
    """Splits all arrays into parts of these sizes."""
    return map(list, zip(*(np.split(array, np.cumsum(sizes)[:-1]) for array in arrays), strict=True))
