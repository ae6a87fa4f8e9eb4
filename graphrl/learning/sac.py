"""Soft actor-critic for many discrete choices in parallel, and the episodes of a population that it learns from.

EGRL, appendix D; Haarnoja et al. 2018; Fujimoto et al. 2018. `play` runs one-step episodes of all individuals in one
batch (EGRL, algorithm 2, lines 5 to 8; one step as in the paper's tables), and `transitions` converts them to replay
entries.

Letters: s states of a batch, r actions per state, n ops, h choices (heads) of an op, o options of each; k individuals,
g graphs.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from graphrl.learning import learner, reinforce
from graphrl.networks.base import Network
from graphrl.networks.heads import Acted

Params = Any


@dataclasses.dataclass(frozen=True)
class SacSettings:
    """Settings of one learner; the defaults are those of EGRL's table 2 where it has them.

    Attributes:
      actor_rate, critic_rate: Adam's learning rates.
      gradient_norm: gradients are clipped to this global norm (the code's; the paper does not clip).
      entropy: alpha, weight of the entropy, per nat.
      following_entropy: alpha in the value of the next state, if episodes continue. The paper's formula has no weight
        there; the code has 0.01.
      polyak: tau, the part of the parameters that the target networks take over per step.
      noise: standard deviation of the noise on actions (the code's).
      limit: c, the clipping limit of the noise (ours, as in TD3).
      reward_scale, reward_shift: the critic learns scale * (reward + shift). Table 2 has 5 and 0, the code 5 and 2.
      policy_actions: number of noisy actions in the actor's loss per batch, at least one for each of its states.
    """

    actor_rate: float = 1e-3
    critic_rate: float = 1e-3
    gradient_norm: float = 5.0
    entropy: float = 0.05
    following_entropy: float = 0.05
    polyak: float = 1e-3
    noise: float = 0.2
    limit: float = 0.5
    reward_scale: float = 5.0
    reward_shift: float = 0.0
    policy_actions: int = 8


class ActorCritic(NamedTuple):
    """Actor and critic networks."""

    actor: Network  # observation -> logits [n, h, o]
    critic: Network  # Acted -> [2], two estimates of the action's value


class State(NamedTuple):
    """State of one learner; each dict has the keys "actor" and "critic"."""

    params: dict[str, Params]
    target: dict[str, Params]  # moving averages of `params`
    optimiser: dict[str, Any]


class Batch(NamedTuple):
    """Transitions of s states, with r actions each."""

    observation: Any  # [s, ...] each
    action: jax.Array  # [s, r, n, h, o] float32, one-hot
    reward: jax.Array  # [s, r] float32
    next_observation: Any  # [s, r, ...] each, the next observations; None if every episode ended
    continues: jax.Array  # [s, r] float32, 1 if the episode continued, else 0


def init(settings: SacSettings, networks: ActorCritic, key: jax.Array, acted: Acted) -> State:
    """Initialises the networks for inputs with the shapes of `acted`."""
    actor_key, critic_key = jax.random.split(key)
    params = {"actor": networks.actor.init(actor_key, acted.observation)}
    params["critic"] = networks.critic.init(critic_key, acted)  # type: ignore[arg-type]
    moments = {name: optimiser.init(params[name]) for name, optimiser in _optimisers(settings).items()}
    return State(params, jax.tree.map(jnp.copy, params), moments)


def update(
    settings: SacSettings, networks: ActorCritic, discount: jax.Array, state: State, key: jax.Array, batch: Batch
) -> tuple[State, dict[str, jax.Array]]:
    """Updates the critic, then the actor under the new critic, and moves the target networks towards both.

    Returns:
      The state, and means over the batch: "critic_loss" (squared errors of both estimates, summed), "actor_loss",
      "q_value" (the smaller estimate for the actor's actions) and "entropy" in nats per choice.
    """
    critic_key, actor_key = jax.random.split(key)
    target = _targets(settings, networks, discount, state, batch)
    noisy = add_noise(settings, critic_key, batch.action)

    def critic_loss(critic: Params) -> jax.Array:
        values = _values(networks, critic, batch.observation, noisy)
        return jnp.square(values - target[..., None]).mean((0, 1)).sum()

    def actor_loss(actor: Params) -> tuple[jax.Array, dict[str, jax.Array]]:
        logits = jax.vmap(networks.actor.apply, (None, 0))(actor, batch.observation)
        actions = relaxed(settings, actor_key, logits)
        value = _values(networks, state.params["critic"], batch.observation, actions).min(-1).mean()
        entropy = jax.vmap(op_entropy)(logits, batch.observation.mask).mean()
        loss = -value - settings.entropy * entropy
        return loss, {"actor_loss": loss, "q_value": value, "entropy": entropy / logits.shape[-2]}

    error, gradient = jax.value_and_grad(critic_loss)(state.params["critic"])
    state = _gradient_step(settings, state, "critic", gradient)
    gradient, metrics = jax.grad(actor_loss, has_aux=True)(state.params["actor"])
    state = _gradient_step(settings, state, "actor", gradient)
    target_params = optax.incremental_update(state.params, state.target, settings.polyak)
    return state._replace(target=target_params), metrics | {"critic_loss": error}


def add_noise(settings: SacSettings, key: jax.Array, action: jax.Array) -> jax.Array:
    """Adds noise to actions: a~ = a + clip(e, -c, c), e ~ N(0, noise^2). (The code clips a + e to [0, 1].)"""
    noise = settings.noise * jax.random.normal(key, action.shape)
    return action + jnp.clip(noise, -settings.limit, settings.limit)


def relaxed(settings: SacSettings, key: jax.Array, logits: jax.Array) -> jax.Array:
    """Draws noisy actions of a policy, `[s, r, n, h, o]`, differentiable in its logits `[s, n, h, o]`.

    The critic receives the probabilities of the options (our reading of the paper; the code sets all but the most
    likely to 0).
    """
    copies = max(1, settings.policy_actions // logits.shape[0])
    logits = jnp.broadcast_to(logits[:, None], (logits.shape[0], copies, *logits.shape[1:]))
    return add_noise(settings, jax.random.split(key)[1], jax.nn.softmax(logits))


def op_entropy(logits: jax.Array, mask: jax.Array) -> jax.Array:
    """Computes the entropy in nats, summed over an op's choices and averaged over the ops of `mask`: `[]`."""
    return reinforce.entropy(logits, mask) / mask.sum(dtype=jnp.float32)


def _values(networks: ActorCritic, critic: Params, observation: Any, action: jax.Array) -> jax.Array:
    """Computes the critic's two estimates `[s, r, 2]` of the values of actions `[s, r, n, h, o]`."""

    def value(observation: Any, action: jax.Array) -> jax.Array:
        return networks.critic.apply(critic, Acted(observation, action))  # type: ignore[arg-type]

    return jax.vmap(jax.vmap(value, (None, 0)))(observation, action)


def _targets(
    settings: SacSettings, networks: ActorCritic, discount: jax.Array, state: State, batch: Batch
) -> jax.Array:
    """Computes the critic's targets `[s, r]`: y = r, plus discount (min_j Q'_j(s', p') + alpha H(p')) where the episode
    continues, with p' the target actor's probabilities for the next state. (The paper's next action is cut off in
    print; probabilities are the code's.)
    """
    reward = settings.reward_scale * (batch.reward + settings.reward_shift)
    if batch.next_observation is None:
        return reward

    def soft_value(observation: Any) -> jax.Array:
        logits = networks.actor.apply(state.target["actor"], observation)
        acted = Acted(observation, jax.nn.softmax(logits))
        value = networks.critic.apply(state.target["critic"], acted).min()  # type: ignore[arg-type]
        return value + settings.following_entropy * op_entropy(logits, observation.mask)

    return reward + discount * batch.continues * jax.vmap(jax.vmap(soft_value))(batch.next_observation)


def _gradient_step(settings: SacSettings, state: State, name: str, gradient: Params) -> State:
    optimiser = _optimisers(settings)[name]
    params, moments = learner.gradient_step(optimiser, state.params[name], state.optimiser[name], gradient)
    return state._replace(
        params=state.params | {name: params},
        optimiser=state.optimiser | {name: moments},
    )


def _optimisers(settings: SacSettings) -> dict[str, optax.GradientTransformation]:
    rates = {"actor": settings.actor_rate, "critic": settings.critic_rate}
    return {name: learner.optimiser(rate, settings.gradient_norm) for name, rate in rates.items()}


Instance = Any  # pytree of arrays, one graph


class Domain(NamedTuple):
    """A decision problem as pure functions of one graph: an action is `[n, h]` int32.

    Attributes:
      options: o, the number of options of each choice.
      start: (instance) -> the initial action of an episode.
      observe: (instance, last action) -> observation for the networks.
      evaluate: (instance, action) -> reward, `[]` float32.
    """

    options: int
    start: Callable[[Instance], jax.Array]
    observe: Callable[[Instance, jax.Array], Any]
    evaluate: Callable[[Instance, jax.Array], jax.Array]


class Transition(NamedTuple):
    """A step of an episode, as stored in the replay; the next observation follows from the graph and the action."""

    graph: jax.Array  # [] int32, its index among the instances
    before: jax.Array  # [n, h] int8, the previous action
    action: jax.Array  # [n, h] int8
    reward: jax.Array  # [] float32
    continues: jax.Array  # [] float32, 1 if the value of the next state counts, else 0


class Episodes(NamedTuple):
    """Episodes of one step: one per individual and graph."""

    action: jax.Array  # [k, g, n, h] int32
    before: jax.Array  # [k, g, n, h] int32, the initial action
    reward: jax.Array  # [k, g] float32
    logits: Any  # second output of `decide`


def play(
    domain: Domain,
    decide: Callable[[jax.Array, Any], tuple[jax.Array, Any]],
    key: jax.Array,
    instances: Instance,
    individuals: int,
) -> Episodes:
    """Runs an episode of every individual on every graph.

    Args:
      domain: the decision problem.
      decide: (key, observations `[k, g, ...]`) -> actions `[k, g, n, h]` int32, and a second output.
      key: key of all random numbers.
      instances: `[g, ...]` each.
      individuals: number of individuals, k.
    """
    start = jax.vmap(domain.start)(instances)
    before = jnp.broadcast_to(start, (individuals, *start.shape))
    observation = jax.vmap(jax.vmap(domain.observe), (None, 0))(instances, before)
    (step_key,) = jax.random.split(key, 1)
    action, logits = decide(step_key, observation)
    return Episodes(action, before, jax.vmap(jax.vmap(domain.evaluate), (None, 0))(instances, action), logits)


def transitions(episodes: Episodes, *, endless: bool) -> Transition:
    """Converts episodes to transitions, `[k * g, ...]` each; with `endless`, the value of the next state counts."""
    shape = episodes.reward.shape
    each = Transition(
        jnp.broadcast_to(jnp.arange(shape[1], dtype=jnp.int32), shape),
        episodes.before.astype(jnp.int8),
        episodes.action.astype(jnp.int8),
        episodes.reward,
        jnp.full(shape, jnp.float32(endless)),
    )
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), each)


def explore(key: jax.Array, logits: jax.Array, noise: float) -> jax.Array:
    """Draws noisy actions `[...]` int32 for logits `[..., o]`: the options with the largest probabilities after adding
    N(0, noise^2) to each (appendix C).
    """
    noise_key, _ = jax.random.split(key)
    noisy = jax.nn.softmax(logits) + noise * jax.random.normal(noise_key, logits.shape)
    return noisy.argmax(-1).astype(jnp.int32)
