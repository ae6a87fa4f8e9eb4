"""Updates of reinforcement learning as people publish them; `(step, state, batch)` as in steps.py."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax import lax

from reproduce.models.losses import Update

_OBSERVATION, _ACTION, _WIDTH = 64, 8, 512


class _Layers(nn.Module):
    outputs: int

    @nn.compact
    def __call__(self, *inputs: jax.Array) -> jax.Array:
        x = jnp.concatenate(inputs, -1)
        for _ in range(2):
            x = nn.relu(nn.Dense(_WIDTH)(x))
        return nn.Dense(self.outputs)(x)


def _of(network: Any, weights: Any, *inputs: jax.Array) -> jax.Array:
    return network.apply(weights, *inputs)


def soft_actor_critic() -> Update:
    """SAC (Haarnoja et al., 2018): a stochastic actor, two critics with slow copies, and the temperature."""
    actor, rule, transitions = _Layers(2 * _ACTION), optax.adam(3e-4), 2048
    critics = nn.vmap(
        _Layers, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=None, out_axes=0, axis_size=2
    )(1)

    def drawn(weights: Any, observation: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """An action and its log probability under a normal distribution behind a tanh."""
        mean, log_scale = jnp.split(_of(actor, weights, observation), 2, -1)
        log_scale = jnp.clip(log_scale, -20.0, 2.0)
        raw = mean + jnp.exp(log_scale) * jax.random.normal(key, mean.shape)
        density = jax.scipy.stats.norm.logpdf(raw, mean, jnp.exp(log_scale))
        return jnp.tanh(raw), (density - 2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw))).sum(-1)

    def value(weights: Any, *inputs: jax.Array) -> jax.Array:
        return _of(critics, weights, *inputs)[..., 0]

    def critic_loss(weights: Any, target: jax.Array, batch: Any) -> jax.Array:
        return jnp.square(value(weights, batch["observation"], batch["action"]) - target).mean()

    def actor_loss(weights: Any, critic: Any, temperature: jax.Array, batch: Any, key: jax.Array) -> Any:
        action, density = drawn(weights, batch["observation"], key)
        least = value(critic, batch["observation"], action).min(0)
        return (temperature * density - least).mean(), density

    def temperature_loss(log_temperature: jax.Array, density: jax.Array) -> jax.Array:
        return -(jnp.exp(log_temperature) * (density - _ACTION)).mean()

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        key, next_key, actor_key = jax.random.split(state["key"], 3)
        weights, temperature = state["weights"], jnp.exp(state["weights"]["temperature"])
        action, density = drawn(weights["actor"], batch["next"], next_key)
        least = value(state["slow"], batch["next"], action).min(0) - temperature * density
        target = lax.stop_gradient(batch["reward"] + 0.99 * batch["discount"] * least)
        error, critic = jax.value_and_grad(critic_loss)(weights["critic"], target, batch)
        (_, density), policy = jax.value_and_grad(actor_loss, has_aux=True)(
            weights["actor"], weights["critic"], temperature, batch, actor_key
        )
        slope = jax.grad(temperature_loss)(weights["temperature"], lax.stop_gradient(density))
        gradient = {"actor": policy, "critic": critic, "temperature": slope}
        updates, moments = rule.update(gradient, state["moments"], weights)
        weights = optax.apply_updates(weights, updates)
        slow = optax.incremental_update(weights["critic"], state["slow"], 0.005)
        return {"weights": weights, "slow": slow, "moments": moments, "key": key}, error

    observation, action = jnp.ones((transitions, _OBSERVATION)), jnp.zeros((transitions, _ACTION))
    critic = critics.init(jax.random.key(1), observation, action)
    weights = {"actor": actor.init(jax.random.key(0), observation), "critic": critic, "temperature": jnp.zeros(())}
    slow = jax.tree.map(jnp.copy, critic)
    state = {"weights": weights, "slow": slow, "moments": rule.init(weights), "key": jax.random.PRNGKey(0)}
    batch = {"observation": observation, "next": observation * 0.5, "action": action}
    return step, state, batch | {name: jnp.ones(transitions) for name in ("reward", "discount")}


def proximal_policy() -> Update:
    """PPO (Schulman et al., 2017) as PureJaxRL has it: advantages in a scan, epochs of minibatches in two more."""
    steps, worlds, epochs, parts = 128, 64, 4, 4
    policy, critic = _Layers(_ACTION), _Layers(1)
    rule = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(2.5e-4, eps=1e-5))

    def advantages(paths: Any, last: jax.Array) -> jax.Array:
        """Generalised (Schulman et al., 2016), `[steps, worlds]`."""

        def back(state: Any, path: Any) -> Any:
            advantage, after = state
            alive = 1 - path["done"]
            delta = path["reward"] + 0.99 * after * alive - path["value"]
            advantage = delta + 0.99 * 0.95 * alive * advantage
            return (advantage, path["value"]), advantage

        return lax.scan(back, (jnp.zeros_like(last), last), paths, reverse=True, unroll=16)[1]

    def loss(weights: Any, part: Any) -> jax.Array:
        log_policy = jax.nn.log_softmax(_of(policy, weights["policy"], part["observation"]))
        log_action = jnp.take_along_axis(log_policy, part["action"][:, None], 1)[:, 0]
        ratio, advantage = jnp.exp(log_action - part["log_action"]), part["advantage"]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage).mean()
        value = _of(critic, weights["critic"], part["observation"])[:, 0]
        clipped = part["value"] + jnp.clip(value - part["value"], -0.2, 0.2)
        errors = jnp.maximum(jnp.square(value - part["return"]), jnp.square(clipped - part["return"]))
        return -gain + 0.25 * errors.mean() + 0.01 * (jnp.exp(log_policy) * log_policy).sum(-1).mean()

    def learn(learner: Any, part: Any) -> Any:
        weights, moments = learner
        error, gradient = jax.value_and_grad(loss)(weights, part)
        updates, moments = rule.update(gradient, moments, weights)
        return (optax.apply_updates(weights, updates), moments), error

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        learner, key = state
        paths = batch["paths"]
        advantage = advantages(paths, _of(critic, learner[0]["critic"], batch["last"])[:, 0])
        paths = paths | {"advantage": advantage, "return": advantage + paths["value"]}
        flat = jax.tree.map(lambda x: x.reshape(steps * worlds, *x.shape[2:]), paths)

        def epoch(state: Any, _: None) -> Any:
            learner, key = state
            key, draw = jax.random.split(key)
            places = jax.random.permutation(draw, steps * worlds)
            shuffled = jax.tree.map(lambda x: x[places].reshape(parts, -1, *x.shape[1:]), flat)
            learner, errors = lax.scan(learn, learner, shuffled)
            return (learner, key), errors

        state, errors = lax.scan(epoch, (learner, key), None, length=epochs)
        return state, errors.mean()

    last = jnp.ones((worlds, _OBSERVATION))
    weights = {"policy": policy.init(jax.random.key(0), last), "critic": critic.init(jax.random.key(1), last)}
    paths = {name: jnp.full((steps, worlds), 0.1) for name in ("reward", "value", "log_action", "done")}
    paths |= {"observation": jnp.ones((steps, *last.shape)), "action": jnp.zeros((steps, worlds), jnp.int32)}
    return step, ((weights, rule.init(weights)), jax.random.PRNGKey(0)), {"paths": paths, "last": last}
