"""Appendix B's decoder: the past matters, padding and numbering do not (sums to 1: test_topoformer_orders.py)."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filled import drawn
from pair_observations import Pairs, pairs, renumbered

from graphrl.errors import ProblemError
from graphrl.graphs.datasets.layered import layered
from graphrl.networks.base import NEVER
from graphrl.networks.heads import AutoregressiveDecoder, Stepwise, stepwise
from graphrl.networks.topological_attention import encoder

GRAPH = layered(12, 0)
READY = np.isin(np.arange(14), [4, 6, 9])


@functools.cache
def net() -> Stepwise:
    module = AutoregressiveDecoder(encoder("topoformer", layers=1, width=8, head_width=4), 8, heads=2)
    decoder = stepwise(module)
    return Stepwise(decoder.init, jax.jit(decoder.prepare), jax.jit(decoder.step))


@functools.cache
def params() -> Any:
    return drawn(jax.eval_shape(net().init, jax.random.key(0), pairs(GRAPH)))


def logits(seen: Pairs, ready: np.ndarray, *ends: int) -> np.ndarray:
    """Of one step, after an order with these ends."""
    prepared = net().prepare(params(), seen)
    return np.asarray(net().step(params(), prepared, jnp.asarray(ends, jnp.int32), jnp.asarray(ready)))


def test_the_first_and_the_last_op_and_readiness_matter_and_neither_padding_nor_numbering_does() -> None:
    seen, order = pairs(GRAPH, 14), np.random.default_rng(0).permutation(14)
    place = np.argsort(order)
    base = logits(seen, READY, 0, 3)
    assert (base[~READY] == NEVER).all()
    assert (np.abs(base[READY]) <= 10).all()
    for ends in ((0, 2), (1, 3), (14, 14)):
        assert not np.allclose(base[READY], logits(seen, READY, *ends)[READY])
    np.testing.assert_allclose(logits(pairs(GRAPH), READY[:12], 0, 3), base[:12], rtol=1e-4, atol=1e-4)
    mixed = logits(renumbered(seen, order), READY[order], place[0], place[3])
    np.testing.assert_allclose(mixed, base[order], rtol=1e-4, atol=1e-4)


def test_gradients_reach_every_parameter() -> None:
    seen, ready = pairs(GRAPH, 14), jnp.asarray(READY)

    @jax.jit
    @jax.grad
    def slope(some: Any) -> jax.Array:
        prepared = net().prepare(some, seen)
        steps = [net().step(some, prepared, jnp.asarray(ends, jnp.int32), ready) for ends in ((14, 14), (0, 0))]
        return sum((jax.nn.log_softmax(logits)[4] for logits in steps), jnp.float32(0))

    for path, leaf in jax.tree_util.tree_leaves_with_path(slope(params())):
        assert bool(jnp.isfinite(leaf).all())
        assert bool((leaf != 0).any()) or "of_graph" in str(path), path


def test_heads_must_divide_the_width() -> None:
    module = AutoregressiveDecoder(encoder("mlp", layers=1, width=8), 8, heads=3)
    with pytest.raises(ProblemError, match="heads is 3: must divide the width, 8"):
        jax.eval_shape(module.init, jax.random.key(0), pairs(GRAPH))
