"""Superposition: factors of a graph or of its ops, near 1 before training."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filled import applied, filled

from graphrl.networks.decisions import Modulation, SegmentAttention, SegmentLayer

OPS, REAL = jax.random.normal(jax.random.key(0), (9, 4)), jnp.arange(9) < 8
OF: Any = {of: Modulation(SegmentLayer(SegmentAttention(4, heads=2, segment=3)), of) for of in ("graph", "ops")}


@pytest.mark.parametrize(
    ("of", "rows", "reached"), [("graph", 1, [True]), ("ops", 9, [i in (3, 4, 5, 6, 7, 8) for i in range(9)])]
)
def test_who_is_told_of_an_op(of: str, rows: int, reached: list[bool]) -> None:
    factors = jax.jit(functools.partial(applied, OF[of], filled(OF[of], OPS, REAL)))
    change = np.abs(np.asarray(factors(OPS.at[4, 0].add(1.0), REAL) - factors(OPS, REAL))).max(1)
    assert (change > 1e-5).tolist() == reached
    assert len(change) == rows
    padding = np.abs(np.asarray(factors(OPS.at[8, 0].add(1.0), REAL) - factors(OPS, REAL)))
    assert padding[:8].max() < 1e-6


def test_untrained_factors_are_near_one() -> None:
    params = jax.jit(OF["graph"].init)(jax.random.key(1), OPS, REAL)["params"]
    np.testing.assert_allclose(np.asarray(applied(OF["graph"], params, OPS, REAL)), 1.0, atol=0.3)
