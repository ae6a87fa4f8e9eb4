"""PPO: its parts against their definitions, equal results on any number of devices, and learning."""

import dataclasses
import functools
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_graphs import random_dag
from walk_env import Walk

import graphrl
from graphrl.envs.adapters import from_gymnax
from graphrl.envs.ordering import make_instances as order_instances
from graphrl.envs.testing import check_env
from graphrl.errors import GraphrlError, ProblemError
from graphrl.learning import ppo
from graphrl.learning.ppo.rollout import Trajectory, reset_all, rollout
from graphrl.learning.ppo.settings import entropy, log_probs, masked, sample, total
from graphrl.learning.ppo.update import advantages, normalised
from graphrl.mesh import make_mesh
from graphrl.networks.base import NEVER, Network, network


class Mlp(nn.Module):
    """An MLP of two hidden layers; a single output is a scalar."""

    outputs: int
    width: int = 64

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        last = nn.initializers.orthogonal(0.01)
        for _ in range(2):
            x = nn.tanh(nn.Dense(self.width)(x))
        x = nn.Dense(self.outputs, kernel_init=last)(x)
        return x if self.outputs > 1 else x[..., 0]


class WalkLogits(nn.Module):
    @nn.compact
    def __call__(self, seen: Any) -> jax.Array:
        return Mlp(2, 16)(seen.seen)


class WalkValue(nn.Module):
    @nn.compact
    def __call__(self, seen: Any) -> jax.Array:
        return Mlp(1, 16)(seen.seen)


class OpLogits(nn.Module):
    """Policy network of `Ordering-v0`: one logit per op."""

    @nn.compact
    def __call__(self, seen: Any) -> jax.Array:
        now = jnp.broadcast_to(jnp.stack([seen.live, seen.peak]), (seen.nodes.shape[0], 2))
        last = (jnp.arange(seen.nodes.shape[0]) == seen.last).astype(jnp.float32)
        is_next = (seen.relation == 1).astype(jnp.float32) @ last
        return Mlp(1, 32)(jnp.concatenate([seen.nodes, now, is_next[:, None]], -1))


class OrderValue(nn.Module):
    @nn.compact
    def __call__(self, seen: Any) -> jax.Array:
        real = seen.mask[:, None].astype(jnp.float32)
        mean = (seen.nodes * real).sum(0) / real.sum()
        left = (seen.mask & ~seen.scheduled).sum(dtype=jnp.float32) / real.sum()
        return Mlp(1, 32)(jnp.concatenate([mean, jnp.stack([seen.live, seen.peak, left])]))


def _with_masks(policy: nn.Module, value: nn.Module) -> ppo.PolicyValue:
    return ppo.PolicyValue(masked(network(policy), lambda seen: seen.action_mask), network(value))


CONTROL = ppo.PolicyValue(network(Mlp(2)), network(Mlp(1)))
WALK = _with_masks(WalkLogits(), WalkValue())
ORDERING = _with_masks(OpLogits(), OrderValue())


KEY = jax.random.key(0)
LINES = jnp.asarray([[0, 1, 2, 4], [0, 4, 1, 8]], jnp.float32)
WALKING = ppo.PpoSettings(steps=8, environments=4, epochs=2, minibatches=2)


rolled_out = jax.jit(rollout, static_argnums=(0, 1, 6))


def walked(devices: int, updates: int = 3, **options: Any) -> Any:
    mesh = make_mesh(2, jax.devices()[:devices])
    return ppo.train(WALKING, Walk(), WALK, LINES, KEY, updates, mesh=mesh, **options)


def random_trajectory(rng: np.random.Generator, shape: tuple[int, int, int]) -> Trajectory:
    """A random trajectory; some steps end an episode, of which some truncate it."""
    value, reward, after = (jnp.asarray(rng.normal(size=shape), jnp.float32) for _ in range(3))
    done = rng.random(shape) < 0.3
    next_value = jnp.where(jnp.asarray(done & (rng.random(shape) < 0.5)), 0.0, after)
    no = jnp.zeros(shape)
    return Trajectory(no, no, no, no, value, next_value, reward, jnp.asarray(done), no)


@given(st.integers(0, 2**32 - 1), st.floats(0, 1), st.floats(0, 1))
def test_advantages_are_sums_of_surprises(seed: int, discount: float, trace: float) -> None:
    trajectory = random_trajectory(np.random.default_rng(seed), (6, 2, 3))
    given = np.asarray(advantages(trajectory, discount, trace))
    value, next_value, reward, done = (np.asarray(trajectory[i], np.float64) for i in (4, 5, 6, 7))
    for t in range(6):
        weight, expected = np.ones((2, 3)), np.zeros((2, 3))
        for later in range(t, 6):
            expected += weight * (reward[later] + discount * next_value[later] - value[later])
            weight *= discount * trace * (1 - done[later])
        np.testing.assert_allclose(given[t], expected, rtol=1e-4, atol=1e-5)


def test_advantages_are_normalised_instance_by_instance() -> None:
    scaled = np.random.default_rng(0).normal(size=(5, 3, 4)) * [[[1], [100], [0]]] + [[[0], [7], [3]]]
    made = np.asarray(normalised(jnp.asarray(scaled, jnp.float32)))
    np.testing.assert_allclose(made.mean((0, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(made.std((0, 2)), [1, 1, 0], atol=1e-4)


def test_actions_keep_to_masks_and_a_single_option_says_nothing() -> None:
    may = {"a": jnp.asarray([[True, False, True], [False, True, False]]), "b": jnp.asarray([True, True])}
    noise = {"a": jnp.asarray([[0.0, 50.0, 1.0], [9.0, 0.0, 9.0]]), "b": jnp.zeros(2)}
    fixed: Any = Network(lambda key, seen: {}, lambda params, seen: noise)  # type: ignore[arg-type,return-value]
    seen: Any = None
    logits: Any = masked(fixed, lambda seen: may).apply({}, seen)
    actions = jax.vmap(sample, (0, None))(jax.random.split(KEY, 200), logits)
    assert set(np.asarray(actions["a"][:, 0]).tolist()) == {0, 2}
    assert set(np.asarray(actions["a"][:, 1]).tolist()) == {1}
    forced = log_probs(logits, {"a": jnp.asarray([2, 1]), "b": jnp.asarray(0)})["a"][1]
    assert float(forced) == 0
    share = 1 / (1 + np.exp(-1.0))
    of_a = -share * np.log(share) - (1 - share) * np.log(1 - share)
    assert float(entropy(logits)) == pytest.approx(of_a + np.log(2), rel=1e-5)
    assert float(total({"a": jnp.ones((2, 2)), "b": jnp.float32(1)})) == 5
    assert float(logits["a"][0, 1]) == pytest.approx(NEVER)


def test_environments_go_on_after_an_episode_and_returns_are_of_whole_ones() -> None:
    settings = dataclasses.replace(WALKING, steps=30)
    env, keys = Walk(), jax.random.split(KEY, 2)
    runner = reset_all(env, keys, LINES, settings)
    params = ppo.init(settings, WALK, KEY, jax.tree.map(lambda leaf: leaf[0, 0], runner.observation)).params
    after, trajectory = rolled_out(env, WALK, params, runner, keys, LINES, settings)
    assert trajectory.reward.shape == (30, 2, 4)
    done, reward, earned = (
        np.asarray(leaf) for leaf in (trajectory.done, trajectory.reward, trajectory.episode_return)
    )
    assert done.any((0, 2)).all()
    for g, a in np.ndindex(2, 4):
        so_far = 0.0
        for t in range(30):
            so_far += reward[t, g, a]
            assert earned[t, g, a] == pytest.approx(so_far)
            so_far *= 1 - done[t, g, a]
        assert float(after.episode_return[g, a]) == pytest.approx(so_far)
    ended = np.asarray(trajectory.observation.position)[1:][done[:-1]]
    assert set(ended.tolist()) <= {0, 1}  # from a reset
    assert (np.asarray(trajectory.next_value)[done & (reward == np.asarray(LINES)[None, :, -1:])] == 0).all()


@pytest.mark.parametrize(("steps", "expected"), [(9, 4), (3, 3)])
def test_an_episode_ends_by_itself_or_after_the_most_steps(steps: int, expected: int) -> None:
    """Always forward, from place 0 or 1, to the last of 5 places; the state is that of the end."""
    line = jnp.arange(5.0)
    run = jax.vmap(lambda key: ppo.run_episode(Walk(9), lambda *_: jnp.int32(1), line, key, steps=steps))
    episode = run(jax.random.split(KEY, 16))
    first = episode.state.position - episode.steps
    assert set(first.tolist()) == {0, 1}
    np.testing.assert_array_equal(episode.steps, np.minimum(steps, 4 - first))
    assert episode.steps.max() == expected
    places = [np.arange(begin + 1, end + 1) for begin, end in zip(first, episode.state.position, strict=True)]
    np.testing.assert_allclose(episode.episode_return, [place.sum() for place in places])


def test_the_first_step_is_that_of_the_policy_gradient() -> None:
    """Before any update, the clipped surrogate's gradient is that of advantage * log-probability."""
    settings = dataclasses.replace(WALKING, epochs=1, minibatches=1, entropy_coefficient=0.0, value_coefficient=0.0)
    settings = dataclasses.replace(settings, normalize_advantage=False)
    env, keys, size = Walk(), jax.random.split(KEY, 2), 2 * 8 * 4
    runner = reset_all(env, keys, LINES, settings)
    state = ppo.init(settings, WALK, KEY, jax.tree.map(lambda leaf: leaf[0, 0], runner.observation))
    _, trajectory = rolled_out(env, WALK, state.params, runner, keys, LINES, settings)
    advantage = advantages(trajectory, settings.discount, settings.gae_lambda)

    def plain(params: Any) -> jax.Array:
        logits = jax.vmap(jax.vmap(jax.vmap(lambda seen: WALK.policy.apply(params, seen))))(trajectory.observation)
        return -(log_probs(logits, trajectory.action) * advantage).sum() / size

    gradient = jax.jit(jax.grad(plain))(state.params["policy"])
    length = np.sqrt(sum(float(jnp.square(leaf).sum()) for leaf in jax.tree.leaves(gradient)))
    for ratio in ("joint", "choice"):  # with one choice they are the same
        learn = functools.partial(
            ppo.improve, dataclasses.replace(settings, ratio=ratio), WALK, state, keys, trajectory
        )
        _, metrics = jax.jit(learn)()
        assert float(metrics["grad_norm"]) == pytest.approx(length, rel=1e-4)


def test_one_device_is_two_devices_and_equal_keys_give_equal_bits() -> None:
    (one, metrics), (again, _), (two, others) = walked(1), walked(1), walked(2)
    chex.assert_trees_all_equal(one, again)
    chex.assert_trees_all_close(*(jax.tree.map(np.asarray, each) for each in (one, two)), rtol=1e-4, atol=1e-5)
    chex.assert_trees_all_close(metrics, others, rtol=1e-3, atol=1e-4)
    assert two.runner.episode_return.sharding.shard_shape((2, 4)) == (1, 4)
    assert int(one.learner.step) == 3 * WALKING.epochs * WALKING.minibatches


def test_training_goes_on_from_where_it_was() -> None:
    first, _ = walked(1)
    kept = jax.tree.map(jnp.copy, first)
    on, _ = walked(1, training=first)
    gone_on, _ = walked(1, training=kept)
    chex.assert_trees_all_equal(on, gone_on)
    assert int(on.learner.step) == 2 * 3 * WALKING.epochs * WALKING.minibatches


def test_seeds_under_vmap_are_runs_one_after_another() -> None:
    train = functools.partial(ppo.train, WALKING, Walk(), WALK, LINES, updates=3)
    keys = jax.random.split(KEY, 3)
    together = jax.jit(jax.vmap(lambda key: train(key=key)))(keys)
    further = jax.vmap(lambda key, training: train(key=key, training=training))(keys, together[0])
    for number, key in enumerate(keys):
        alone = train(key=key)
        on = train(key=key, training=alone[0])
        for many, one in ((together, alone), (further, on)):
            chex.assert_trees_all_close(jax.tree.map(lambda leaf, i=number: leaf[i], many), one, rtol=1e-3, atol=1e-5)


def test_hyper_parameters_under_vmap_are_runs_with_each() -> None:
    def trained(rate: Any, entropy: Any, clip: Any) -> Any:
        numbers = {"learning_rate": rate, "entropy_coefficient": entropy, "clip_epsilon": clip}
        settings = dataclasses.replace(WALKING, **numbers)
        return ppo.train(settings, Walk(), WALK, LINES, KEY, 3)

    chosen = [(1e-3, 0.0, 0.1), (1e-2, 0.1, 0.3)]
    together = jax.vmap(trained)(*jnp.asarray(chosen, jnp.float32).T)
    for number, values in enumerate(chosen):
        one = jax.tree.map(lambda leaf, i=number: leaf[i], together)
        chex.assert_trees_all_close(one, trained(*values), rtol=1e-3, atol=1e-5)
    params = together[0].learner.params["policy"]
    assert all(float(jnp.abs(leaf[0] - leaf[1]).max()) > 1e-3 for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"minibatches": 3}, "minibatches is 3: must divide steps"),
        ({"clip_epsilon": 0.0}, "clip_epsilon is 0.0: must be a number above 0"),
        ({"discount": 1.5}, "discount is 1.5: must be from 0 to 1"),
        ({"ratio": "each"}, "ratio is 'each': must be one of joint, choice"),
        ({"entropy_coefficient": -1.0}, "entropy_coefficient is -1.0: must be at least 0"),
    ],
)
def test_wrong_settings_are_named(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ProblemError, match=fault.replace("(", r"\(")):
        ppo.PpoSettings(**options)


def test_instances_that_devices_cannot_share_are_refused() -> None:
    with pytest.raises(ProblemError, match="must be a multiple of the 2 devices"):
        ppo.train(WALKING, Walk(), WALK, LINES[:1], KEY, 1, mesh=make_mesh(2, jax.devices()[:2]))


def test_an_environment_of_gymnax_is_one_of_ours() -> None:
    gymnax = pytest.importorskip("gymnax")
    env, params = gymnax.make("CartPole-v1")
    check_env(from_gymnax(env), params)
    with pytest.raises(GraphrlError, match="tuple is not a gymnax environment: must be the first"):
        from_gymnax((env, params))


@pytest.mark.slow
def test_it_balances_a_pole() -> None:
    gymnax = pytest.importorskip("gymnax")
    env, params = gymnax.make("CartPole-v1")
    pole, instances = from_gymnax(env), jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], params)
    settings = ppo.PpoSettings(steps=128, environments=8, learning_rate=1e-3)
    training, _ = ppo.train(settings, pole, CONTROL, instances, KEY, 150)
    earned = ppo.play(pole, CONTROL.policy, training.learner.params["policy"], instances, KEY, steps=500, episodes=32)
    assert float(earned.mean()) >= 475


@pytest.mark.slow
def test_it_learns_orders_for_graphs_that_it_has_not_seen() -> None:
    env = graphrl.make("Ordering-v0")
    seen, unseen = (order_instances([random_dag(at + i, 14) for i in range(n)]) for at, n in ((0, 8), (100, 32)))
    settings = ppo.PpoSettings(
        steps=28, environments=8, discount=1.0, gae_lambda=1.0, learning_rate=1e-3, minibatches=2
    )
    training, metrics = ppo.train(settings, env, ORDERING, seen, KEY, 80)
    _, first = env.reset(KEY, jax.tree.map(lambda leaf: leaf[0], seen))
    untrained = jax.vmap(ORDERING.policy.init, (0, None))(jax.random.split(KEY, 8), first.observation)
    earned = functools.partial(ppo.play, env, ORDERING.policy, instances=unseen, key=KEY, steps=14)
    before = jax.vmap(lambda params: earned(params)[:, 0])(untrained).mean(0)  # a single seed may be lucky
    better = np.asarray(earned(training.learner.params["policy"])[:, 0] - before)
    assert float(metrics["return"][-5:].mean()) > float(metrics["return"][:5].mean()) + 0.1
    assert better.mean() > 2 * better.std(ddof=1) / np.sqrt(len(better))
