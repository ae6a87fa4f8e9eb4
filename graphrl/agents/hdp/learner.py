"""REINFORCE on one graph: tries placements, and makes those that beat the moving average of the rewards likelier."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from graphrl.agents.hdp.config import HdpConfig
from graphrl.agents.hdp.instance import Instance
from graphrl.agents.hdp.network import Draw
from graphrl.agents.hdp.policy import Params, init, play
from graphrl.costs.device.decisions import Decisions
from graphrl.costs.device.fitness import fitness
from graphrl.envs.compile.run import transfer_keys
from graphrl.learning.descent import moved

FAILURE = -10.0  # reward of what exceeds the memory limit: grappler's failing signal is 100 s


class State(NamedTuple):
    """All that learning changes."""

    params: Params
    moments: Any  # of Adam
    baseline: jax.Array  # [] float32
    step: jax.Array  # [] int32, updates since it began anew
    key: jax.Array
    placement: jax.Array  # [n] int32, the best so far
    value: jax.Array  # [] float32, its fitness


def begin(config: HdpConfig, key: jax.Array, task: Instance) -> State:
    """The state before learning."""
    key, own = jax.random.split(key)
    params = init(config, own, task)
    placement = jnp.zeros(task.leader.shape[0], jnp.int32)
    moments = optimiser(config).init(params)
    return State(params, moments, jnp.float32(FAILURE), jnp.int32(0), key, placement, jnp.float32(jnp.inf))


def optimiser(config: HdpConfig) -> optax.GradientTransformation:
    """Adam with a rate that falls in steps; long gradients are shortened."""
    rate = optax.exponential_decay(
        config.rate, config.decay_every, config.decay, transition_begin=config.decay_from, staircase=True
    )
    return optax.chain(optax.clip_by_global_norm(config.gradient_norm), optax.adam(rate))


def update(config: HdpConfig, state: State, task: Instance) -> State:
    """Tries placements, and learns from what they take."""
    key, *keys = jax.random.split(state.key, config.children + 1)
    noise = jnp.where(state.step < config.noisy, config.noise, 0.0)
    draw = Draw(noise, state.step < config.sampled)

    def total(params: Params) -> tuple[jax.Array, jax.Array]:
        return jax.vmap(lambda key: play(config, params, key, task, draw))(jnp.stack(keys))

    _, pull, placements = jax.vjp(total, state.params, has_aux=True)
    values = costs(task, placements)
    reward = rewards(task, values)
    (gradient,) = pull(-(reward - state.baseline) / config.children)
    params, moments = moved(optimiser(config), state.params, state.moments, gradient)
    best = jnp.argmin(values)
    better = values[best] < state.value
    return State(
        params,
        moments,
        config.memory * state.baseline + (1 - config.memory) * reward.mean(),
        state.step + jnp.int32(1),
        key,
        jnp.where(better, placements[best], state.placement),
        jnp.minimum(values[best], state.value),
    )


def decisions(task: Instance, placements: jax.Array) -> Decisions:
    """Placements `[p, n]` with the order of the instance, as the costs take them."""
    graph = jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], task.graph)
    keys = jnp.asarray(task.keys)
    sent = jax.vmap(lambda placement: transfer_keys(graph, placement, keys, task.problem.devices))(placements)
    every = jnp.broadcast_to(keys, placements.shape)
    return Decisions(placements.T[:, None], every.T[:, None], jnp.moveaxis(sent, 0, -1)[:, :, None])


def costs(task: Instance, placements: jax.Array) -> jax.Array:
    """The fitness of placements `[p, n]`: `[p]` float32."""
    return fitness(jax.tree.map(jnp.asarray, task.graph), decisions(task, placements), task.problem)[0]


def rewards(task: Instance, values: jax.Array) -> jax.Array:
    """-sqrt(seconds) of each fitness `[p]`; `FAILURE` for what does not fit."""
    unit = jnp.asarray(task.graph.second_unit)[0]
    if task.problem.memory_limit is None:
        return -jnp.sqrt(values * unit)
    return jnp.where(values < 0, -jnp.sqrt(unit / jnp.maximum(-values, 1e-30)), FAILURE)


def begin_anew(config: HdpConfig, state: State, task: Instance) -> State:
    """With other parameters, but the best placement so far."""
    return begin(config, state.key, task)._replace(placement=state.placement, value=state.value)
