"""SAC for many choices: targets, noise and relaxed actions; a critic and an actor that learn."""

import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_maps as toy
from toy_maps import NETWORKS

from graphrl.learning import sac
from graphrl.learning.sac import ActorCritic, Batch, SacSettings
from graphrl.networks.base import Network
from graphrl.networks.heads import Acted

GRAPH = toy.instance(0, 6, 8)
LOGITS = jnp.asarray(np.random.default_rng(0).normal(size=(1, 8, 2, 3)), jnp.float32)


def random_batch(key: jax.Array, tried: int = 24) -> Batch:
    """Random actions on one graph, as in a bandit."""
    action = jax.random.randint(key, (tried, *GRAPH.target.shape), 0, toy.OPTIONS)
    reward = jax.vmap(toy.evaluate, (None, 0))(GRAPH, action)
    observation = jax.tree.map(lambda leaf: leaf[None], toy.observe(GRAPH, toy.start(GRAPH)))
    return Batch(observation, jax.nn.one_hot(action, 3)[None], reward[None], None, jnp.zeros((1, tried)))


def acted() -> Acted:
    batch = random_batch(jax.random.key(0), 1)
    return Acted(jax.tree.map(lambda leaf: leaf[0], batch.observation), batch.action[0, 0])


def test_a_bandit_is_learned_from_random_actions() -> None:
    settings = SacSettings(actor_rate=3e-3, critic_rate=3e-3)

    def steps(state: sac.State, key: jax.Array) -> tuple[sac.State, dict[str, jax.Array]]:
        def step(state: sac.State, key: jax.Array) -> tuple[sac.State, dict[str, jax.Array]]:
            batch_key, update_key = jax.random.split(key)
            batch = random_batch(batch_key)
            return sac.update(settings, NETWORKS, jnp.float32(0.99), state, update_key, batch)

        return jax.lax.scan(step, state, jax.random.split(key, 1500))

    state = jax.jit(functools.partial(sac.init, settings, NETWORKS))(jax.random.key(0), acted())
    state, metrics = jax.jit(steps)(state, jax.random.key(1))
    assert metrics["critic_loss"][-30:].mean() < 0.5 * metrics["critic_loss"][:30].mean()
    action = NETWORKS.actor.apply(state.params["actor"], acted().observation).argmax(-1)
    assert float(toy.evaluate(GRAPH, action.astype(jnp.int32))) > 0.75


def constant(values: Any) -> Network:
    """A network whose output is its parameters."""
    return Network(lambda key, observation: jnp.asarray(values, jnp.float32), lambda params, observation: params)


@pytest.mark.parametrize("endless", [False, True])
def test_targets_are_the_rewards_and_where_episodes_go_on_what_follows(endless: bool) -> None:
    """With constant networks: the actor's 6 real ops have an entropy of 2 ln 3 each, the critic returns 4 and 3."""
    networks = ActorCritic(constant(np.zeros((8, 2, 3))), constant([4.0, 3.0]))
    settings = SacSettings(following_entropy=0.1, reward_scale=5.0, reward_shift=2.0, critic_rate=1e-9)
    batch = random_batch(jax.random.key(0))
    next_observation = jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], 24, 1), batch.observation)
    goes_on = (jnp.arange(24) % 2).astype(jnp.float32)[None]
    batch = batch._replace(next_observation=next_observation if endless else None, continues=goes_on)
    state = sac.init(settings, networks, jax.random.key(0), acted())
    update = jax.jit(functools.partial(sac.update, settings, networks))
    _, metrics = update(jnp.float32(0.9), state, jax.random.key(1), batch)
    target = 5 * (np.asarray(batch.reward) + 2)
    if endless:
        target = target + 0.9 * np.asarray(goes_on) * (3 + 0.1 * 2 * np.log(3))
    expected = np.square(4 - target).mean() + np.square(3 - target).mean()
    assert float(metrics["critic_loss"]) == pytest.approx(expected, rel=1e-5)
    assert float(metrics["entropy"]) == pytest.approx(np.log(3), rel=1e-5)
    assert float(metrics["q_value"]) == pytest.approx(3.0, abs=1e-3)


def test_targets_follow_slowly() -> None:
    settings, keys = SacSettings(polyak=0.1), jax.random.split(jax.random.key(0), 3)
    init, update = (jax.jit(functools.partial(step, settings, NETWORKS)) for step in (sac.init, sac.update))
    state = init(keys[0], acted())
    after, _ = update(jnp.float32(0.9), state, keys[1], random_batch(keys[2]))
    expected = jax.tree.map(lambda new, old: 0.1 * new + 0.9 * old, after.params, state.params)
    chex.assert_trees_all_close(after.target, expected, atol=1e-6)


def test_noise_is_clipped() -> None:
    action = jnp.tile(jnp.asarray([0.0, 1.0]), 5000)
    noise = sac.add_noise(SacSettings(noise=0.3, limit=0.4), jax.random.key(0), action) - action
    assert float(jnp.abs(noise).max()) == pytest.approx(0.4, abs=1e-6)
    assert float(noise.std()) == pytest.approx(0.27, abs=0.02)


def test_relaxed_actions_are_the_probabilities_in_several_copies() -> None:
    actions = sac.relaxed(SacSettings(noise=0.0, policy_actions=4), jax.random.key(0), LOGITS)
    assert actions.shape == (1, 4, 8, 2, 3)
    np.testing.assert_allclose(actions[0, 3], jax.nn.softmax(LOGITS[0]), rtol=1e-6)
