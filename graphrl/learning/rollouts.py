"""Episodes of a whole population at once (EGRL, algorithm 2, lines 5 to 8).

Letters: k individuals, t steps of an episode, g graphs, n ops, h choices of an op, o options of each.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

Instance = Any  # pytree of arrays, one graph
Exploration = Literal["gaussian", "epsilon", "sample"]


class Domain(NamedTuple):
    """What is decided, as pure functions of one graph: an action is `[n, h]` int32.

    Attributes:
      options: o, of each choice.
      start: (instance) -> the action that an episode begins with.
      observe: (instance, last action) -> what networks see.
      evaluate: (instance, action) -> reward, `[]` float32.
    """

    options: int
    start: Callable[[Instance], jax.Array]
    observe: Callable[[Instance, jax.Array], Any]
    evaluate: Callable[[Instance, jax.Array], jax.Array]


class Transition(NamedTuple):
    """A step of an episode, as the replay holds it; the next observation follows from the graph and the action."""

    graph: jax.Array  # [] int32, its place among the instances
    before: jax.Array  # [n, h] int8, the action before
    action: jax.Array  # [n, h] int8
    reward: jax.Array  # [] float32
    continues: jax.Array  # [] float32, 1 if a step followed whose reward counts, else 0


class Episodes(NamedTuple):
    """What the individuals did."""

    action: jax.Array  # [t, k, g, n, h] int32
    before: jax.Array  # [t, k, g, n, h] int32
    reward: jax.Array  # [t, k, g] float32
    logits: Any  # of the first step, as `decide` gave them


def play(
    domain: Domain,
    decide: Callable[[jax.Array, Any], tuple[jax.Array, Any]],
    key: jax.Array,
    instances: Instance,
    individuals: int,
    steps: int,
) -> Episodes:
    """An episode of every individual on every graph.

    Args:
      domain: what is decided.
      decide: (key, observations `[k, g, ...]`) -> actions `[k, g, n, h]` int32, and anything else.
      key: of all that is random.
      instances: `[g, ...]` each.
      individuals: k.
      steps: of an episode.
    """
    start = jax.vmap(domain.start)(instances)
    evaluate = jax.vmap(jax.vmap(domain.evaluate), (None, 0))

    def step(before: jax.Array, key: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        observation = jax.vmap(jax.vmap(domain.observe), (None, 0))(instances, before)
        action, logits = decide(key, observation)
        return action, (action, before, evaluate(instances, action), logits)

    first = jnp.broadcast_to(start, (individuals, *start.shape))
    _, (action, before, reward, logits) = jax.lax.scan(step, first, jax.random.split(key, steps))
    return Episodes(action, before, reward, jax.tree.map(lambda leaf: leaf[0], logits))


def transitions(episodes: Episodes, *, endless: bool) -> Transition:
    """All steps of all episodes, `[t * k * g, ...]` each.

    Args:
      episodes: of `play`.
      endless: whether what would follow an episode's last step counts.
    """
    t, _, g = episodes.reward.shape
    shape = episodes.reward.shape
    goes_on = jnp.arange(t) < (t if endless else t - 1)
    each = Transition(
        jnp.broadcast_to(jnp.arange(g, dtype=jnp.int32), shape),
        episodes.before.astype(jnp.int8),
        episodes.action.astype(jnp.int8),
        episodes.reward,
        jnp.broadcast_to(goes_on.astype(jnp.float32)[:, None, None], shape),
    )
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:]), each)


def explored(key: jax.Array, logits: jax.Array, exploration: Exploration, noise: float) -> jax.Array:
    """Noisy actions `[...]` int32 of logits `[..., o]`.

    Args:
      key: of the noise.
      logits: of the options.
      exploration: "gaussian": the largest probability after N(0, noise^2) was added to each (paper, appendix C);
        "epsilon": with probability `noise` a choice is any option (code, once its rate has sunk); "sample".
      noise: see there.
    """
    noise_key, option_key = jax.random.split(key)
    if exploration == "sample":
        action = jax.random.categorical(noise_key, logits)
    elif exploration == "gaussian":
        action = (jax.nn.softmax(logits) + noise * jax.random.normal(noise_key, logits.shape)).argmax(-1)
    else:
        any_option = jax.random.randint(option_key, logits.shape[:-1], 0, logits.shape[-1])
        is_any = jax.random.bernoulli(noise_key, noise, logits.shape[:-1])
        action = jnp.where(is_any, any_option, logits.argmax(-1))
    return action.astype(jnp.int32)
