"""Appendix B's decoder: probabilities of orders sum to 1, the past matters, padding and numbering do not."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pair_observations import Pairs, pairs, renumbered

from graphrl.errors import ProblemError
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.networks.base import NEVER
from graphrl.networks.heads import AutoregressiveDecoder, Stepwise, stepwise
from graphrl.networks.topological_attention import encoder

SMALL = ComputationGraph(
    "small",
    (
        Op("a", outputs=(Tensor("a0", 3),)),
        Op("b", outputs=(Tensor("b0", 1),)),
        Op("c", inputs=("a0",), outputs=(Tensor("c0", 2),)),
        Op("d", inputs=("a0", "b0"), outputs=(Tensor("d0", 2),)),
        Op("e", inputs=("c0",)),
    ),
)


@functools.cache
def net() -> Stepwise:
    module = AutoregressiveDecoder(encoder("topoformer", layers=1, width=8, head_width=4), 8, heads=2)
    decoder = stepwise(module)
    return Stepwise(decoder.init, jax.jit(decoder.prepare), jax.jit(decoder.step))


@functools.cache
def params() -> Any:
    shapes = jax.eval_shape(net().init, jax.random.key(0), pairs(SMALL))
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.asarray(0.25 * rng.standard_normal(leaf.shape), jnp.float32), shapes)


def ends(order: tuple[int, ...], n: int) -> jax.Array:
    return jnp.asarray([order[0], order[-1]] if order else [n, n], jnp.int32)


def log_prob(seen: Pairs, graph: ComputationGraph, order: tuple[int, ...]) -> float:
    """Of an order of the graph's ops; -inf of one that is none."""
    n = len(seen.mask)
    before: list[set[int]] = [set() for _ in range(n)]
    for source, target in zip(*(side.tolist() for side in graph.arrays.dependencies()), strict=True):
        before[target].add(source)
    prepared, total = net().prepare(params(), seen), 0.0
    for step, op in enumerate(order):
        done = set(order[:step])
        ready = [i < len(graph.ops) and i not in done and before[i] <= done for i in range(n)]
        if not ready[op]:
            return -np.inf
        logits = np.asarray(net().step(params(), prepared, ends(order[:step], n), jnp.asarray(ready)))
        assert (logits[~np.asarray(ready)] == NEVER).all()
        assert (np.abs(logits[ready]) <= 10).all()
        total += float(logits[op] - np.log(np.exp(logits[ready]).sum()))
    return total


def test_probabilities_of_all_orders_sum_to_one_with_and_without_padding() -> None:
    orders = list(itertools.permutations(range(5)))
    plain, padded = ([log_prob(seen, SMALL, order) for order in orders] for seen in (pairs(SMALL), pairs(SMALL, 7)))
    assert np.exp(plain).sum() == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(plain, padded, rtol=1e-4, atol=1e-4)
    assert np.exp(plain).max() < 0.9  # no order is certain


def test_the_first_and_the_last_op_and_readiness_matter_and_numbering_does_not() -> None:
    graph = layered(12, 0)
    seen, order = pairs(graph, 14), np.random.default_rng(0).permutation(14)
    place = np.argsort(order)
    prepared, mixed = net().prepare(params(), seen), net().prepare(params(), renumbered(seen, order))
    ready = np.zeros(14, bool)
    ready[[4, 6, 9]] = True

    def logits(first: int, last: int) -> np.ndarray:
        return np.asarray(net().step(params(), prepared, jnp.asarray([first, last], jnp.int32), jnp.asarray(ready)))

    base = logits(0, 3)
    assert not np.allclose(base[ready], logits(0, 2)[ready])
    assert not np.allclose(base[ready], logits(1, 3)[ready])
    assert not np.allclose(base[ready], logits(14, 14)[ready])
    ends_there = jnp.asarray([place[0], place[3]], jnp.int32)
    other = net().step(params(), mixed, ends_there, jnp.asarray(ready[order]))
    np.testing.assert_allclose(np.asarray(other), base[order], rtol=1e-4, atol=1e-4)


def test_gradients_reach_every_parameter() -> None:
    seen = pairs(SMALL)
    ready = jnp.asarray([False, True, True, False, False])

    @jax.jit
    @jax.grad
    def slope(some: Any) -> jax.Array:
        prepared = net().prepare(some, seen)
        steps = [net().step(some, prepared, ends(order, 5), ready) for order in ((), (0,))]
        return sum((jax.nn.log_softmax(logits)[1] for logits in steps), jnp.float32(0))

    for path, leaf in jax.tree_util.tree_leaves_with_path(slope(params())):
        assert bool(jnp.isfinite(leaf).all())
        assert bool((leaf != 0).any()) or "of_graph" in str(path), path


def test_heads_must_divide_the_width() -> None:
    module = AutoregressiveDecoder(encoder("mlp", layers=1, width=8), 8, heads=3)
    with pytest.raises(ProblemError, match="heads is 3: must divide the width, 8"):
        jax.eval_shape(module.init, jax.random.key(0), pairs(SMALL))
