"""The Graph U-Net, its actor and critic: padding changes nothing, renumbering permutes, pooling keeps the best."""

import functools
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filled import applied, drawn, filled
from toy_maps import CHOICES, OPTIONS, Seen, instance, observe, renumbered, start

from graphrl.errors import ProblemError
from graphrl.networks.base import network
from graphrl.networks.graph_unet import BidirectionalAttention, GraphUNet, best, senders_of, within_two
from graphrl.networks.heads import Acted, SubActionLogits, TwinValue

OPS = 13  # 13, 7, 4
UNET = GraphUNet(width=16, depth=2, heads=2)


def seen(padded: int = OPS) -> Seen:
    graph = instance(0, OPS, padded)
    observation: Seen = observe(graph, start(graph))
    return observation


def outputs(module: nn.Module, *observations: Any) -> list[np.ndarray]:
    """Outputs for all observations with the same parameters."""
    params, apply = filled(module, observations[0]), jax.jit(functools.partial(applied, module))
    return [np.asarray(apply(params, each)) for each in observations]


def acted(observation: Seen, order: np.ndarray | None = None) -> Acted:
    """The observation with a random action, the same for a padded and for a renumbered graph."""
    action = jax.random.normal(jax.random.key(3), (OPS, CHOICES, OPTIONS))
    action = action if order is None else action[order]
    return Acted(observation, jnp.pad(action, ((0, len(observation.mask) - OPS), (0, 0), (0, 0)), constant_values=7.0))


def test_padding_changes_nothing_and_renumbering_renumbers() -> None:
    order = np.random.default_rng(0).permutation(OPS)
    observations = seen(), seen(OPS + 8), renumbered(seen(), order)
    logits, padded, moved = outputs(SubActionLogits(UNET, CHOICES, OPTIONS), *observations)
    assert logits.shape == (OPS, CHOICES, OPTIONS)
    assert logits.std(0).min() > 1e-3
    np.testing.assert_allclose(padded[:OPS], logits, atol=1e-4)
    np.testing.assert_allclose(moved, logits[order], atol=1e-4)
    cases = acted(observations[0]), acted(observations[1]), acted(observations[2], order)
    value, of_padded, of_moved = outputs(TwinValue(UNET), *cases)
    assert value.shape == (2,)
    assert value[0] != value[1]
    np.testing.assert_allclose(of_padded, value, atol=1e-4)
    np.testing.assert_allclose(of_moved, value, atol=1e-4)


def test_the_best_nodes_are_kept_in_their_order() -> None:
    score = jnp.asarray([0.5, 9.0, 2.0, 2.0, -1.0, 8.0])
    mask = jnp.asarray([True, False, True, True, True, True])
    kept = np.asarray(best(score, mask))
    assert kept.shape == (3, 6)
    assert kept.argmax(1).tolist() == [5, 2, 3]
    assert (kept.sum(1) == 1).all()
    few = np.asarray(best(score, mask & (jnp.arange(6) < 3)))  # two real nodes: one is kept
    assert few.argmax(1).tolist() == [2, 0, 0]
    assert few.sum(1).tolist() == [1, 0, 0]


def test_levels_join_what_is_two_edges_apart() -> None:
    senders = np.asarray(senders_of(seen(OPS + 2)))
    assert senders[:4, :4].tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [1, 0, 1, 1]]
    assert senders[OPS:].sum() == senders[:, OPS:].sum() == 0
    expected = np.linalg.matrix_power(senders, 2) > 0
    np.testing.assert_array_equal(np.asarray(within_two(jnp.asarray(senders))), expected)


def test_attention_is_graph_attention_in_both_directions() -> None:
    """Against a loop over nodes, senders and heads by the formula."""
    rng = np.random.default_rng(0)
    nodes = rng.normal(size=(5, 3)).astype(np.float32)
    senders = np.triu(rng.random((5, 5)) < 0.5).astype(np.float32)
    np.fill_diagonal(senders, 1)
    module = BidirectionalAttention(8, 2)
    params = module.init(jax.random.key(0), nodes, senders)
    p = jax.tree.map(np.asarray, params["params"])
    expected = np.zeros((5, 4, 2), np.float32)
    values = (nodes @ p["value"]["kernel"]).reshape(5, 4, 2)
    for head, i in np.ndindex(4, 5):
        sees = np.flatnonzero(senders[i] if head < 2 else senders[:, i])
        raw = np.array([values[i, head] @ p["receiver"][head] + values[j, head] @ p["sender"][head] for j in sees])
        weights = np.exp(np.where(raw > 0, raw, 0.2 * raw))
        expected[i, head] = weights @ values[sees, head] / weights.sum()
    np.testing.assert_allclose(np.asarray(module.apply(params, nodes, senders)), expected.reshape(5, 8), atol=1e-4)


@pytest.mark.parametrize("scale", [1.0, 25.0])
def test_gradients_of_attention_are_those_of_a_softmax(scale: float) -> None:
    """Also for scores up to their bound, whose exponentials are large."""
    nodes, senders = jnp.asarray([[1.0, 0.0], [0.9, 0.5], [0.8, -0.5]]), jnp.tril(jnp.ones((3, 3)))
    weights, module = jnp.asarray([[1.0, 2.0], [3.0, -1.0], [0.5, 1.0]]), BidirectionalAttention(2, 1)
    ends = dict.fromkeys(("receiver", "sender"), jnp.full((2, 1), scale))
    params = {"value": {"kernel": jnp.asarray([[1.0, 1.0], [0.3, 0.3]])}, "bias": jnp.zeros(2), **ends}

    def plain(p: Any) -> jax.Array:
        values = (nodes @ p["value"]["kernel"]).T[:, :, None]
        receive, send = (jnp.einsum("hnc,hc->hn", values, p[end]) for end in ("receiver", "sender"))
        scores = jax.nn.leaky_relu(receive[:, :, None] + send[:, None, :], 0.2)
        masked = jnp.where(jnp.stack([senders, senders.T]) > 0, scores, -jnp.inf)
        return ((jax.nn.softmax(masked) @ values)[:, :, 0].T * weights).sum()

    def real(p: Any) -> jax.Array:
        out: Any = module.apply({"params": p}, nodes, senders)
        return (out * weights).sum()

    ours = jax.grad(real)(params)
    theirs = jax.grad(plain)(params)
    for name in ("sender", "receiver"):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-3, atol=1e-6)


def test_gradients_are_finite_and_populations_compile_once() -> None:
    observation, net = seen(OPS + 3), network(SubActionLogits(UNET, CHOICES, OPTIONS))
    population = drawn(
        jax.eval_shape(jax.vmap(net.init, (0, None)), jax.random.split(jax.random.key(0), 2), observation)
    )
    traced = chex.assert_max_traces(lambda p, o: jnp.square(jax.vmap(net.apply, (0, None))(p, o)[:, :OPS]).sum(), n=1)
    slope = jax.jit(jax.grad(traced))
    for key in range(2):
        moved = jax.tree.map(lambda leaf, key=key: leaf + 0.1 * key, population)
        leaves = jax.tree.leaves(slope(moved, observation))
        assert all(bool(jnp.isfinite(leaf).all()) for leaf in leaves)
        assert sum(float(jnp.abs(leaf).sum()) > 0 for leaf in leaves) > len(leaves) // 2


@pytest.mark.parametrize("wrong", [{"width": 12}, {"heads": 0}])
def test_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ProblemError, match="width is"):
        GraphUNet(**({"width": 16, "heads": 4} | wrong)).init(jax.random.key(0), seen())
