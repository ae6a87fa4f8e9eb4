"""The learners of a search: a portfolio of SAC's with different discounts, and the replay that they share with all."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flashbax
import jax
import jax.numpy as jnp

from graphrl.learning import allocation, sac
from graphrl.learning.collaborative.settings import Settings
from graphrl.learning.rollouts import Domain, Instance, Transition


class Learners(NamedTuple):
    """The portfolio and what it learns from."""

    states: sac.State  # [l, ...] each
    returns: allocation.Returns
    replay: Any  # flashbax's, of `Transition`


Spread = Callable[[sac.Batch], sac.Batch]


def learned(
    settings: Settings,
    domain: Domain,
    networks: sac.ActorCritic,
    learners: Learners,
    key: jax.Array,
    instances: Instance,
    spread: Spread,
) -> tuple[Learners, dict[str, jax.Array]]:
    """The gradient steps of a generation; every learner draws its own transitions.

    Args:
      settings, domain, networks, instances, spread: see `search.generation`.
      learners: of the portfolio, and what they learn from.
      key: of all that is random.

    Returns:
      The learners, and means of what `sac.update` says.
    """
    graphs = jax.tree.leaves(instances)[0].shape[0]
    count = max(1, round(settings.gradient_steps * settings.rollouts * settings.steps * graphs))
    buffer, discounts = buffer_of(settings), jnp.asarray(settings.discounts, jnp.float32)

    def one(discount: jax.Array, state: sac.State, key: jax.Array) -> tuple[sac.State, dict[str, jax.Array]]:
        sample_key, update_key = jax.random.split(key)
        with jax.numpy_rank_promotion("allow"):  # flashbax adds vectors to matrices
            items = buffer.sample(learners.replay, sample_key).experience
        batch = spread(_batch(settings, domain, instances, items))
        return sac.update(settings.sac, networks, discount, state, update_key, batch)

    def step(states: sac.State, key: jax.Array) -> tuple[sac.State, dict[str, jax.Array]]:
        return jax.vmap(one)(discounts, states, jax.random.split(key, len(discounts)))

    states, metrics = jax.lax.scan(step, learners.states, jax.random.split(key, count))
    return learners._replace(states=states), {name: values.mean() for name, values in metrics.items()}


def _batch(settings: Settings, domain: Domain, instances: Instance, items: Transition) -> sac.Batch:
    """Sampled transitions as SAC takes them. In a bandit's problem with one graph they are all of one state."""
    is_bandit = settings.steps == 1 and not settings.endless
    graphs = jax.tree.leaves(instances)[0].shape[0]
    states = 1 if is_bandit and graphs == 1 else settings.batch
    action = items.action.astype(jnp.int32).reshape(states, -1, *items.action.shape[1:])
    chosen = jax.tree.map(lambda leaf: leaf[items.graph[:states]], instances)
    observation = jax.vmap(domain.observe)(chosen, items.before[:states].astype(jnp.int32))
    following = None if is_bandit else jax.vmap(jax.vmap(domain.observe, (None, 0)))(chosen, action)
    one_hot = jax.nn.one_hot(action, domain.options)
    reward, continues = (each.reshape(states, -1) for each in (items.reward, items.continues))
    return sac.Batch(observation, one_hot, reward, following, continues)


def buffer_of(settings: Settings) -> Any:
    """Flashbax's functions for the replay."""
    return flashbax.make_item_buffer(settings.replay, 1, settings.batch, add_batches=True)
