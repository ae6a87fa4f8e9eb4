"""GO's learner: PPO on `Compile-v0`, from a heuristic's plan on.

A round draws plans beside the one that the policy sees; the next round begins at the best so far. Every round is an
episode of one step, which is how the policy is played (`solver.py`).
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from graphrl.agents.go.batch import Batch
from graphrl.agents.go.lessons import Lesson, imitation_loss
from graphrl.agents.go.network import networks
from graphrl.agents.go.policy import smallest
from graphrl.agents.go.settings import SENDS, GoSettings
from graphrl.envs.compile.env import INVALID
from graphrl.envs.compile.instance import Choices, CompileParams
from graphrl.envs.compile.outcome import outcome
from graphrl.envs.compile.run import possible
from graphrl.learning import descent, ppo, spread
from graphrl.learning.learner import Learner, LearnerState, Metrics
from graphrl.learning.ppo import oneshot
from graphrl.learning.ppo.choices import likeliest, sample
from graphrl.mesh import AXIS, make_mesh


class _Stand(NamedTuple):
    """Where rounds have come to."""

    instance: CompileParams  # which begins at the best plan so far
    reward: jax.Array  # [] float32, of that plan


def learner(settings: GoSettings) -> Learner:
    """The functions below for one configuration."""
    of = functools.partial
    return Learner(of(init, settings), of(update, settings), of(evaluate, settings), score="sampled")


def init(settings: GoSettings, key: jax.Array, policy: Any = None) -> LearnerState:
    """See `Learner`: params are those of "policy" and "value"."""
    return ppo.init(settings.ppo, networks(settings.network), key, smallest(settings), policy)


def update(settings: GoSettings, state: LearnerState, key: jax.Array, batch: Batch) -> tuple[LearnerState, Metrics]:
    """An update of PPO for each round and transfer model, or of imitation; see `Learner`.

    Returns:
      The new state, and means of `oneshot.learn`'s metrics, with "best": by how many percent the best plan of the last
      round was faster than the hint. Of imitation "loss", see `imitation_loss`, and "gradient_norm".
    """
    if settings.learning == "imitation":
        return _imitate(settings, state, batch)
    each = []
    for number, instances in enumerate(batch.values()):
        graphs = instances.order.shape[0]
        round_keys = jax.random.split(jax.random.fold_in(key, number), settings.rounds)
        keys = jax.vmap(spread.keys, (0, None))(round_keys, graphs)
        begun = state, jax.vmap(functools.partial(_begun, settings))(instances)
        (state, _), metrics = jax.lax.scan(functools.partial(_round, settings), begun, keys)
        each.append({name: value.mean() for name, value in metrics.items()} | {"best": metrics["best"][-1]})
    return state, _mean(each)


def _imitate(settings: GoSettings, state: LearnerState, batch: Batch) -> tuple[LearnerState, Metrics]:
    """A gradient step."""
    policy = networks(dataclasses.replace(settings.network, changes=0.0)).policy  # how many it makes is not learned

    def loss(params: dict[str, Any]) -> tuple[jax.Array, Metrics]:
        of_graph = functools.partial(imitation_loss, policy, params["policy"], settings.network.tasks)
        losses = jnp.concatenate([jax.vmap(of_graph)(lessons) for lessons in batch.values()])
        return losses.mean() / jax.lax.psum(1, AXIS), {"loss": spread.mean(losses)}

    gradient, metrics = jax.grad(loss, has_aux=True)(state.params)
    optimiser = descent.optimiser(settings.ppo.rate, settings.ppo.gradient_norm)
    state, metrics["gradient_norm"] = descent.descend(optimiser, state, gradient)
    return state, metrics


def _round(settings: GoSettings, carry: tuple[LearnerState, _Stand], keys: jax.Array) -> tuple[Any, Metrics]:
    (state, stand), of = carry, networks(settings.network)
    split = jax.vmap(jax.random.split)(keys)
    tried = oneshot.attempt(settings.ppo, settings.env, of, state.params, split[:, 0], stand.instance)
    # a worse plan costs nothing: the next round begins where this one did; else nothing but no change at all is learned
    kept = tried._replace(reward=jnp.maximum(tried.reward, stand.reward[:, None]))
    state, metrics = oneshot.learn(settings.ppo, of, state, split[:, 1], kept)
    stand = jax.vmap(_better)(stand, tried.action, tried.reward)
    return (state, stand), metrics | {"best": spread.mean(gain(stand.reward))}


def evaluate(settings: GoSettings, params: Any, key: jax.Array, batch: Batch) -> Metrics:
    """By how many percent the policy's plans are faster than the hint: means over graphs and transfer models.

    Returns:
      "sampled", the best of all rounds, the hint among them; "by_chance", the best of as many plans, each of which
      differs from its round's start in as many ops as one of the policy's, but which ops and how is random; "greedy",
      the likeliest plan of the first round alone; and "sampled" by transfer model.
    """
    each, apart = [], {}
    for number, (transfer, rows) in enumerate(batch.items()):
        instances = rows.instance if isinstance(rows, Lesson) else rows
        keys = spread.keys(jax.random.fold_in(key, number), instances.order.shape[0])
        played = jax.vmap(functools.partial(_play, settings, params["policy"]), (0, 0, None))
        both = jax.vmap(played, (None, None, 0))(keys, instances, jnp.array([False, True]))
        names = {"sampled": both[0][0], "by_chance": both[0][1], "greedy": both[1][0]}
        each.append({name: spread.mean(gain(reward)) for name, reward in names.items()})
        apart[f"sampled_{transfer}"] = each[-1]["sampled"]
    return _mean(each) | apart


def tuned(
    settings: GoSettings, policy: Any, instance: CompileParams, key: jax.Array, updates: int
) -> tuple[Any, Choices]:
    """A policy after some updates on one graph, and the best choices that these drew, or the instance's start."""
    params = jax.tree.map(jnp.asarray, policy)
    stand = _begun(settings, instance)
    state, stand = _tuned(settings, params, stand, key, updates)
    return jax.tree.map(np.asarray, state.params["policy"]), stand.instance.start


@functools.partial(jax.jit, static_argnums=(0, 4))
def _tuned(
    settings: GoSettings, policy: Any, stand: _Stand, key: jax.Array, updates: int
) -> tuple[LearnerState, _Stand]:
    def all_rounds(policy: Any, key: jax.Array, stand: _Stand) -> tuple[LearnerState, _Stand]:
        init_key, play_key = jax.random.split(key)
        begun = init(settings, init_key, policy), jax.tree.map(lambda leaf: leaf[None], stand)
        keys = jax.vmap(spread.keys, (0, None))(jax.random.split(play_key, updates), 1)
        state, stand = jax.lax.scan(functools.partial(_round, settings), begun, keys)[0]
        return state, jax.tree.map(lambda leaf: leaf[0], stand)

    one, everywhere = make_mesh(1, jax.devices()[:1]), PartitionSpec()
    return jax.shard_map(all_rounds, mesh=one, in_specs=everywhere, out_specs=everywhere, check_vma=False)(
        policy, key, stand
    )


def gain(reward: jax.Array) -> jax.Array:
    """Percent by which a plan is faster than the baseline."""
    return 100 * (1 - jnp.square(reward))


def _play(
    settings: GoSettings, policy: Any, key: jax.Array, instance: CompileParams, by_chance: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The rewards `[]` of the best plan of all rounds on one graph, and of the first round's likeliest."""
    env, network = settings.env, networks(settings.network).policy

    def one_round(stand: _Stand, key: jax.Array) -> tuple[_Stand, jax.Array]:
        sample_key, chance_key = jax.random.split(key)
        state, first = env.reset(sample_key, stand.instance)
        logits = network.apply(policy, first.observation)
        drawn = jax.vmap(sample, (0, None))(jax.random.split(sample_key, settings.samples), logits)
        action = jax.tree.map(lambda rest, best: rest.at[0].set(best), drawn, likeliest(logits))
        was, mask = first.observation.previous, first.observation.action_mask
        random = jax.vmap(_shuffled, (0, 0, None, None))(
            jax.random.split(chance_key, settings.samples), drawn, was, mask
        )
        action = jax.tree.map(lambda *two: jnp.where(by_chance, *two), random, action)
        reward = jax.vmap(env.step, (None, None, 0, None))(sample_key, state, action, stand.instance)[1].reward
        return _better(stand, action, reward), reward[0]

    stand, likely = jax.lax.scan(one_round, _begun(settings, instance), jax.random.split(key, settings.rounds))
    return stand.reward, likely[0]


def _begun(settings: GoSettings, instance: CompileParams) -> _Stand:
    """At the hint, whose reward is -1, if it is valid."""
    instance = jax.tree.map(jnp.asarray, instance)
    valid = outcome(instance, possible(instance, instance.start), SENDS).valid
    return _Stand(instance, jnp.where(valid, jnp.float32(-1), INVALID))


def _better(stand: _Stand, action: Any, reward: jax.Array) -> _Stand:
    """At the best of actions `[a, ...]`, or where it was if none is better."""
    instance, best = stand.instance, reward.argmax()
    is_better = reward[best] > stand.reward
    tried = possible(instance, instance.start._replace(**{task: options[best] for task, options in action.items()}))
    start = jax.tree.map(lambda *two: jnp.where(is_better, *two), tried, instance.start)
    return _Stand(dataclasses.replace(instance, start=start), jnp.maximum(reward[best], stand.reward))


def _shuffled(key: jax.Array, action: Any, was: Any, mask: Any) -> Any:
    """An action that differs from `was` in as many ops of each task as the given one: which and how is random."""

    def one(key: jax.Array, action: jax.Array, was: jax.Array, mask: jax.Array) -> jax.Array:
        order_key, option_key = jax.random.split(key)
        movable = mask.sum(-1) > 1
        count = ((action != was) & movable).sum()
        drawn = jnp.where(movable, jax.random.uniform(order_key, was.shape), jnp.inf)
        other = mask & ~jax.nn.one_hot(was, mask.shape[-1], dtype=bool)
        option = jax.random.categorical(option_key, jnp.where(other, 0.0, -jnp.inf)).astype(jnp.int32)
        return jnp.where((drawn.argsort().argsort() < count), option, was)

    keys = dict(zip(sorted(action), jax.random.split(key, len(action)), strict=True))
    return {task: one(keys[task], action[task], was[task], mask[task]) for task in action}


def _mean(each: list[Metrics]) -> Metrics:
    return jax.tree.map(lambda *values: sum(values) / len(values), *each)
