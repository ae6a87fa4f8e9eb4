"""REINFORCE: probabilities of masked choices, the gradient against the exact one, and a bandit that it learns."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphrl.learning import reinforce
from graphrl.learning.reinforce import Batch, Weights

PLAIN = Weights("learned", entropy_coefficient=0.0, value_coefficient=1.0, clip=1e9)
REAL = np.array([True, True, False])
BOTH = np.array([True, True])


def logits(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def test_log_probability_and_entropy_count_real_choices_alone() -> None:
    x = logits(0, 3, 2, 4)
    action = jnp.asarray([[0, 1], [2, 3], [1, 1]], jnp.int32)
    p = np.exp(np.asarray(x, np.float64))
    p /= p.sum(-1, keepdims=True)
    expected = np.log([p[0, 0, 0], p[0, 1, 1], p[1, 0, 2], p[1, 1, 3]]).sum()
    assert float(reinforce.log_prob(x, action, REAL)) == pytest.approx(expected, rel=1e-5)
    assert float(reinforce.entropy(x, REAL)) == pytest.approx(-(p * np.log(p))[:2].sum(), rel=1e-5)
    slope = jax.grad(lambda x: reinforce.log_prob(x, action, REAL) + reinforce.entropy(x, REAL))(x)
    assert np.abs(np.asarray(slope)[2]).max() == 0
    assert np.abs(np.asarray(slope)[:2]).min() > 0


def test_samples_follow_the_logits() -> None:
    x = jnp.log(jnp.asarray([[0.1, 0.2, 0.7]], jnp.float32))
    drawn = jax.vmap(reinforce.sample, (0, None))(jax.random.split(jax.random.key(0), 4000), x)
    np.testing.assert_allclose(np.bincount(np.asarray(drawn)[:, 0]) / 4000, [0.1, 0.2, 0.7], atol=0.03)
    assert drawn.dtype == jnp.int32


def batch(x: jax.Array, actions: jax.Array, reward: np.ndarray, value: jax.Array) -> Batch:
    """One graph of two real choices."""
    log_prob = jax.vmap(reinforce.log_prob, (None, 0, None))(x, actions, BOTH)
    entropy = reinforce.entropy(x, BOTH)
    return Batch(log_prob[None], entropy[None], jnp.asarray([2.0], jnp.float32), value[None], jnp.asarray(reward[None]))


@pytest.mark.parametrize("baseline", ["learned", "leave-one-out"])
def test_the_gradient_is_that_of_the_expected_reward(baseline: reinforce.Baseline) -> None:
    x = logits(1, 2, 3)
    gain = np.random.default_rng(2).normal(size=(3, 3)).astype(np.float32)  # reward of both choices together

    def expected(x: jax.Array) -> jax.Array:
        p = jax.nn.softmax(x, -1)
        return p[0] @ jnp.asarray(gain) @ p[1]

    keys = jax.random.split(jax.random.key(0), 20_000)
    actions = jax.vmap(reinforce.sample, (0, None))(keys, x)
    reward = gain[np.asarray(actions)[:, 0], np.asarray(actions)[:, 1]]
    weights = dataclasses.replace(PLAIN, baseline=baseline)

    def objective(x: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        return reinforce.loss(batch(x, actions, reward, jnp.float32(reward.mean())), weights)

    slope, metrics = jax.grad(objective, has_aux=True)(x)
    scaled = -2 * np.asarray(slope) * float(metrics["advantage_deviation"])  # 2 choices; the loss divides by both
    np.testing.assert_allclose(scaled, np.asarray(jax.grad(expected)(x)), atol=0.02)


def test_the_learned_baseline_moves_towards_the_rewards_and_is_no_way_to_change_the_policy() -> None:
    actions, reward = jnp.asarray([[0, 1], [2, 2]], jnp.int32), np.asarray([1.0, 3.0], np.float32)
    slope = jax.grad(lambda v: reinforce.loss(batch(logits(0, 2, 3), actions, reward, v), PLAIN)[0])
    assert float(slope(jnp.float32(0.0))) == pytest.approx(-4.0)  # d/dv of the mean of (r - v)^2
    assert float(slope(jnp.float32(2.0))) == pytest.approx(0.0, abs=1e-6)


def test_equal_rewards_move_nothing_and_the_entropy_bonus_flattens() -> None:
    actions, reward = jnp.asarray([[0, 1], [2, 2]], jnp.int32), np.asarray([-1.0, -1.0], np.float32)

    def slope(x: jax.Array, entropy: float) -> np.ndarray:
        weights = dataclasses.replace(PLAIN, baseline="leave-one-out", entropy_coefficient=entropy)
        return np.asarray(jax.grad(lambda x: reinforce.loss(batch(x, actions, reward, jnp.float32(-1)), weights)[0])(x))

    assert np.abs(slope(logits(0, 2, 3), 0.0)).max() == 0
    flatter = slope(jnp.asarray([[2.0, 0.0, 0.0], [0.0, 0.0, 0.0]], jnp.float32), 0.1)
    assert flatter[0, 0] > 0 > flatter[0, 1]
    np.testing.assert_allclose(flatter[1], 0, atol=1e-6)


def test_outliers_are_clipped() -> None:
    actions = jnp.asarray([[2, 2]] + [[0, 1]] * 49, jnp.int32)
    reward = np.zeros(50, np.float32)
    reward[0] = 1000.0

    def size(clip: float) -> float:
        weights = dataclasses.replace(PLAIN, clip=clip)
        slope = jax.grad(lambda x: reinforce.loss(batch(x, actions, reward, jnp.float32(0)), weights)[0])
        return float(jnp.abs(slope(logits(0, 2, 3))).sum())

    assert size(2.0) / size(1e9) == pytest.approx(2 / 50**0.5, rel=1e-4)  # the outlier's distance in deviations
