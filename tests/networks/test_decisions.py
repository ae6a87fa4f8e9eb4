"""Attention along segments: visible segments, gradients, memory linear in the sequence; superposition on it."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filled import applied, filled

from graphrl.networks.decisions import Modulation, SegmentAttention, SegmentLayer

WIDTH, SEGMENT = 4, 3
MODULES = {cached: SegmentAttention(WIDTH, heads=2, segment=SEGMENT, cached=cached) for cached in (True, False)}


def sequence(n: int) -> jax.Array:
    return jax.random.normal(jax.random.key(7), (n, WIDTH))


@functools.cache
def parameters(cached: bool = True) -> Any:
    return filled(MODULES[cached], sequence(8), jnp.ones(8, bool))


@functools.partial(jax.jit, static_argnames="cached")
def attended(x: jax.Array, mask: jax.Array, *, cached: bool = True) -> jax.Array:
    out: jax.Array = applied(MODULES[cached], parameters(cached), x, mask)
    return out


@functools.cache
def influence(*, cached: bool, by_gradient: bool) -> np.ndarray:
    """Dependence of output i on input j, of eight elements: `[8, 8]` bool."""
    x, real = sequence(8), jnp.ones(8, bool)
    if by_gradient:
        slope = jax.jit(jax.jacobian(lambda x: attended(x, real, cached=cached)))(x)
        return np.abs(np.asarray(slope)).sum((1, 3)) > 0
    moved = jax.vmap(lambda j: attended(x.at[j].add(1.0), real, cached=cached))(jnp.arange(8))
    return np.abs(np.asarray(moved - attended(x, real, cached=cached)[None])).sum(2).T > 1e-6


SEGMENT_OF = np.arange(8) // SEGMENT
SAME, BEFORE = (SEGMENT_OF[:, None] - by == SEGMENT_OF[None] for by in (0, 1))


def test_elements_see_their_segment_and_the_one_before() -> None:
    np.testing.assert_array_equal(influence(cached=True, by_gradient=False), SAME | BEFORE)
    np.testing.assert_array_equal(influence(cached=False, by_gradient=False), SAME)


def test_no_gradient_flows_into_the_cached_segment_but_into_the_weights_that_read_it() -> None:
    np.testing.assert_array_equal(influence(cached=True, by_gradient=True), SAME)
    x, real = sequence(6), jnp.arange(6) < 3  # the second segment sees the first alone

    def last(params: Any) -> jax.Array:
        return jnp.square(applied(MODULES[True], params, x, real)[3:]).sum()

    slope = jax.jit(jax.grad(last))(parameters())
    assert float(jnp.abs(slope["key_value"]["kernel"]).max()) > 0


def test_the_order_within_a_segment_does_not_matter() -> None:
    x, real = sequence(8), jnp.ones(8, bool)
    places = np.array([2, 0, 1, 4, 3, 5, 7, 6])
    out, mixed = attended(x, real), attended(x[places], real)
    np.testing.assert_allclose(np.asarray(out)[places], np.asarray(mixed), rtol=1e-4, atol=1e-5)


def test_one_segment_is_attention_as_it_is_written() -> None:
    x, params = sequence(3), parameters()
    out = attended(x, jnp.array([True, True, False]))
    query = np.einsum("nf,fhc->hnc", x, params["query"]["kernel"]) * 2**-0.5
    keys, values = np.einsum("nf,fkhc->khnc", x, params["key_value"]["kernel"])
    weights = np.exp(np.einsum("hqc,hkc->hqk", query, keys))[..., :2]
    weights /= weights.sum(-1, keepdims=True)
    heads = np.einsum("hqk,hkc->qhc", weights, values[:, :2]).reshape(3, -1)
    expected = heads @ params["out"]["kernel"] + params["out"]["bias"]
    np.testing.assert_allclose(np.asarray(out), expected, rtol=1e-4, atol=1e-5)


def test_each_layer_sees_one_segment_further_back() -> None:
    layer, real = SegmentLayer(MODULES[True]), jnp.ones(9, bool)
    params = filled(layer, sequence(9), real)

    @jax.jit
    def twice(x: jax.Array) -> jax.Array:
        return functools.reduce(lambda x, _: applied(layer, params, x, real), range(2), x)

    change = twice(sequence(9).at[0, 0].add(1.0)) - twice(sequence(9))
    assert (np.abs(np.asarray(change)).sum(1) > 1e-6).all()
    assert (np.abs(influence(cached=True, by_gradient=False)[6:, :3]) == 0).all(), "one layer alone sees one further"


def test_memory_is_linear_in_the_sequence_in_training_too() -> None:
    module = SegmentAttention(8, heads=2, segment=64)
    params = filled(module, jnp.zeros((64, 8)), jnp.ones(64, bool))

    def temporary(n: int) -> int:
        """Bytes that the gradient of a sequence takes in addition to its arguments."""

        def loss(params: Any, x: jax.Array) -> jax.Array:
            return jnp.square(applied(module, params, x, jnp.ones(n, bool))).sum()

        compiled = jax.jit(jax.grad(loss)).lower(params, jnp.zeros((n, 8))).compile()
        memory: Any = compiled.memory_analysis()
        return int(memory.temp_size_in_bytes)

    small, large = temporary(1024), temporary(8192)
    assert large < 9 * small
    assert large < 40 * (8192 * 8 * 4)  # arrays as large as the sequence; with all segments' weights: 87


# Superposition

OPS, REAL = jax.random.normal(jax.random.key(0), (9, 4)), jnp.arange(9) < 8
OF: Any = {of: Modulation(SegmentLayer(MODULES[True]), of) for of in ("graph", "ops")}


@pytest.mark.parametrize(
    ("of", "rows", "reached"), [("graph", 1, [True]), ("ops", 9, [i in (3, 4, 5, 6, 7, 8) for i in range(9)])]
)
def test_who_is_told_of_an_op(of: str, rows: int, reached: list[bool]) -> None:
    factors = jax.jit(functools.partial(applied, OF[of], filled(OF[of], OPS, REAL)))
    base = factors(OPS, REAL)
    change = np.abs(np.asarray(factors(OPS.at[4, 0].add(1.0), REAL) - base)).max(1)
    assert (change > 1e-5).tolist() == reached
    assert len(change) == rows
    padding = np.abs(np.asarray(factors(OPS.at[8, 0].add(1.0), REAL) - base))
    assert padding[:8].max() < 1e-6


def test_untrained_factors_are_near_one() -> None:
    params = jax.jit(OF["graph"].init)(jax.random.key(1), OPS, REAL)["params"]
    np.testing.assert_allclose(np.asarray(applied(OF["graph"], params, OPS, REAL)), 1.0, atol=0.3)
