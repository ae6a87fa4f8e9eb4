"""An update of PPO from a roll-out, with generalised advantage estimation (Schulman et al. 2016).

Advantages tell episodes that terminated from those that were truncated. All functions are for one device's share of the
instances, see `learning.learner`.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from graphrl.envs.base import Environment
from graphrl.learning import learner
from graphrl.learning.learner import LearnerState, Metrics
from graphrl.learning.ppo.rollout import PolicyValue, Trajectory, begin, rollout
from graphrl.learning.ppo.settings import PpoSettings, entropy, log_probs, total
from graphrl.mesh import AXIS


def advantages(trajectory: Trajectory, discount: float, trace: float) -> jax.Array:
    """How much better than expected each action was: `[t, g, a]` float32.

    A_t = d_t + discount * trace * A_(t+1), d_t = r_t + discount * V(s_(t+1)) - V(s_t). Where an episode is over,
    A_(t+1) does not count; V(s_(t+1)) does where it was only cut, and is that of the state that it was cut in.
    """
    surprise = trajectory.reward + discount * trajectory.following - trajectory.value
    kept = discount * trace * (1 - trajectory.done.astype(jnp.float32))

    def back(later: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        now = step[0] + step[1] * later
        return now, now

    return jax.lax.scan(back, jnp.zeros_like(surprise[0]), (surprise, kept), reverse=True)[1]


def normalised(advantage: jax.Array) -> jax.Array:
    """`[t, g, a]`, shifted and scaled to mean 0 and deviation 1 over the steps of each instance."""
    centred = advantage - advantage.mean((0, 2), keepdims=True)
    deviation = jnp.sqrt(jnp.square(centred).mean((0, 2), keepdims=True))
    return centred / jnp.maximum(deviation, 1e-6)


class _Rows(NamedTuple):
    """What the loss needs of steps: `[g, b, ...]` each."""

    observation: Any
    action: Any
    log_prob: Any
    advantage: jax.Array
    target: jax.Array  # what the value should have been


def init(
    settings: PpoSettings, networks: PolicyValue, key: jax.Array, observation: Any, policy: Any = None
) -> LearnerState:
    """The state before training: params "policy" and "value", for observations of these shapes.

    Args:
      settings, networks: what learns.
      key: of new parameters.
      observation: one, of any instance.
      policy: parameters that the policy begins with; None for new ones.
    """
    policy_key, value_key = jax.random.split(key)
    params = {
        "policy": networks.policy.init(policy_key, observation) if policy is None else policy,
        "value": networks.value.init(value_key, observation),
    }
    return LearnerState(params, optimiser(settings).init(params), jnp.int32(0))


def update(
    settings: PpoSettings,
    env: Environment[Any, Any, Any],
    networks: PolicyValue,
    state: LearnerState,
    key: jax.Array,
    instances: Any,
) -> tuple[LearnerState, Metrics]:
    """A roll-out from new episodes, and what is learned from it; see `Learner` and `improve`."""
    begin_key, play_key, learn_key = jax.random.split(key, 3)
    graphs = jax.tree.leaves(instances)[0].shape[0]
    runner = begin(env, learner.keys(begin_key, graphs), instances, settings)
    keys = learner.keys(play_key, graphs)
    _, trajectory = rollout(env, networks, state.params, runner, keys, instances, settings)
    return improve(settings, networks, state, learner.keys(learn_key, graphs), trajectory)


def improve(
    settings: PpoSettings, networks: PolicyValue, state: LearnerState, keys: jax.Array, trajectory: Trajectory
) -> tuple[LearnerState, Metrics]:
    """Epochs of gradient steps on the minibatches of a roll-out.

    Args:
      settings, networks: what learns.
      state: its `step` counts gradient steps.
      keys: `[g]` typed keys, of this device's instances: they shuffle the steps.
      trajectory: of `rollout`.

    Returns:
      The state; and means over all devices: "reward" a step, "return" of the episodes that ended (0 if none did) and
      "ended", their share of the steps; over the gradient steps "entropy" in nats an action, "value_error" (root mean
      square), "clipped" (share of ratios), "divergence" (estimate of the Kullback-Leibler divergence that an action's
      distribution moved, in nats) and "gradient_norm".
    """
    advantage = advantages(trajectory, settings.discount, settings.trace)
    target = advantage + trajectory.value
    if settings.normalised:
        advantage = normalised(advantage)
    rows = _by_instance(_Rows(trajectory.observation, trajectory.action, trajectory.log_prob, advantage, target))

    def step(state: LearnerState, places: jax.Array) -> tuple[LearnerState, Metrics]:
        batch = jax.vmap(lambda one, place: jax.tree.map(lambda leaf: leaf[place], one))(rows, places)
        loss = functools.partial(_loss, settings, networks)
        gradient, metrics = jax.grad(loss, has_aux=True)(state.params, batch)
        state, metrics["gradient_norm"] = learner.descend(optimiser(settings), state, gradient)
        return state, metrics

    state, metrics = jax.lax.scan(step, state, minibatches(settings, keys))
    means = {name: values.mean() for name, values in metrics.items()}
    means["value_error"] = jnp.sqrt(means["value_error"])
    return state, _earnings(trajectory) | means


def _by_instance(steps: _Rows) -> _Rows:
    """`[t, g, a, ...]` each to `[g, t * a, ...]`."""

    def one(leaf: jax.Array) -> jax.Array:
        return jnp.moveaxis(leaf, 0, 1).reshape(leaf.shape[1], -1, *leaf.shape[3:])

    return jax.tree.map(one, steps)


def minibatches(settings: PpoSettings, keys: jax.Array) -> jax.Array:
    """Which steps of each instance: `[epochs * minibatches, g, b]` int32."""
    count = settings.steps * settings.environments

    def epoch(number: jax.Array) -> jax.Array:
        shuffled = jax.vmap(lambda key: jax.random.permutation(jax.random.fold_in(key, number), count))(keys)
        return jnp.moveaxis(shuffled.reshape(keys.shape[0], settings.minibatches, -1), 1, 0)

    places = jax.vmap(epoch)(jnp.arange(settings.epochs))
    return places.reshape(-1, *places.shape[2:])


def _loss(
    settings: PpoSettings, networks: PolicyValue, params: dict[str, Any], batch: _Rows
) -> tuple[jax.Array, Metrics]:
    """This device's part of the loss of a minibatch, whose gradients add up over the devices."""

    def one(row: _Rows) -> dict[str, jax.Array]:
        logits = networks.policy.apply(params["policy"], row.observation)
        moved = jax.tree.map(jnp.subtract, log_probs(logits, row.action), row.log_prob)
        if settings.ratio == "joint":
            moved = total(moved)
        error = jnp.square(networks.value.apply(params["value"], row.observation) - row.target)
        terms = {"gain": clipped_gain(settings.clip, moved, row.advantage), "value_error": error}
        return terms | {"entropy": entropy(logits)} | movement(settings.clip, moved)

    each = jax.vmap(jax.vmap(one))(batch)
    loss = settings.value * each["value_error"] - each.pop("gain") - settings.entropy * each["entropy"]
    return loss.mean() / jax.lax.psum(1, AXIS), {name: learner.mean(values) for name, values in each.items()}


def clipped_gain(clip: float, moved: Any, advantage: jax.Array) -> jax.Array:
    """The clipped surrogate (their equation 7), summed over ratios, whose logarithms `moved` has."""

    def one(log_ratio: jax.Array) -> jax.Array:
        ratio = jnp.exp(log_ratio)
        return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)

    return total(jax.tree.map(one, moved))


def movement(clip: float, moved: Any) -> dict[str, jax.Array]:
    """How far a policy moved, by the logarithms of ratios under what it had sampled."""
    outside = [(jnp.abs(jnp.exp(leaf) - 1) > clip).astype(jnp.float32) for leaf in jax.tree.leaves(moved)]
    divergence = total(jax.tree.map(lambda leaf: jnp.expm1(leaf) - leaf, moved))
    ratios = sum(leaf.size for leaf in outside)
    return {"clipped": total(outside) / ratios, "divergence": jax.lax.stop_gradient(divergence)}


def _earnings(trajectory: Trajectory) -> Metrics:
    done = trajectory.done.astype(jnp.float32)
    ended, returns = learner.mean(done), learner.mean(done * trajectory.earned)
    return {"reward": learner.mean(trajectory.reward), "return": returns / jnp.maximum(ended, 1e-9), "ended": ended}


def optimiser(settings: PpoSettings) -> optax.GradientTransformation:
    return learner.optimiser(settings.rate, settings.gradient_norm)
