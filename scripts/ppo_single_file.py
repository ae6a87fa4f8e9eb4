"""Proximal policy optimisation (Schulman et al. 2017) on `Compile-v0`, all of it in one file, for copying.

A graph network chooses a device and a priority for every op of a graph, for a low run time. Episodes have one step: the
mean reward of a graph's episodes is the baseline, and replaces a value network. All seeds train in one program. The
table at the end is of graphs that are new to the policies. A list schedule has the reward -1 by definition.

python scripts/ppo_single_file.py                       # five seeds in half a minute on two cores
python scripts/ppo_single_file.py --seeds 1 --updates 500
"""

import argparse
import functools
import math
import time
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import jraph
import optax

import graphrl

TRAIN, HELD_OUT = "layered:20x64", "layered:20x32@1000"  # 64 graphs of 20 ops with seeds from 0, 32 others from 1000
GRAPHS, SAMPLES = 16, 16  # graphs of an update, episodes of each graph
EPOCHS, MINIBATCHES = 4, 2  # passes over the episodes of an update, minibatches of a pass (they share the graphs)
CLIP, ENTROPY, RATE, MAX_NORM = 0.2, 0.003, 5e-3, 5.0
WIDTH, ROUNDS, WAVES = 64, 3, 16

env = graphrl.make("Compile-v0")
optimiser = optax.chain(optax.clip_by_global_norm(MAX_NORM), optax.adam(RATE))


class Policy(nn.Module):
    """Logits of each task's options for every op: `[n, o]` each."""

    @nn.compact
    def __call__(self, observation: Any) -> dict[str, jax.Array]:
        graph, mask = observation.graph, observation.mask[:, None]
        place = jnp.append(jnp.argsort(observation.order), 0) / len(mask)  # distinguishes ops with equal features
        waves = jnp.cos(jnp.pi * place[:, None] * jnp.arange(1, WAVES + 1))
        x = nn.Dense(WIDTH)(jnp.concatenate([graph.nodes, waves], 1))  # [n + 1, WIDTH]; the last node is padding
        for _ in range(ROUNDS):
            before = jraph.segment_mean(x[graph.senders], graph.receivers, len(x))
            after = jraph.segment_mean(x[graph.receivers], graph.senders, len(x))
            mean = jnp.where(mask, x[:-1], 0).sum(0) / jnp.maximum(mask.sum(), 1)
            messages = jnp.concatenate([x, before, after, jnp.broadcast_to(mean, x.shape)], 1)
            x = x + nn.Dense(WIDTH)(nn.relu(nn.Dense(WIDTH)(nn.LayerNorm()(messages))))
        x, logits = nn.LayerNorm()(x[:-1]), {}
        x -= jnp.where(mask, x, 0).sum(0) / jnp.maximum(mask.sum(), 1)  # relative to the others: prefers no device
        for task, options in observation.options.items():  # features of the options: as many logits as there are
            # a scale at which ops differ from the start: equal logits on equal devices are a saddle point
            scores = nn.Dense(WIDTH)(x) @ nn.Dense(WIDTH)(options).T / 4
            logits[task] = jnp.where(observation.action_mask[task], scores, -1e9)
        return logits


def log_probs(logits: dict[str, jax.Array], action: dict[str, jax.Array]) -> jax.Array:
    """Log-probabilities of an action's choices: `[tasks, n]`; 0 where there is only one option."""
    each = [jnp.take_along_axis(jax.nn.log_softmax(logits[task]), action[task][:, None], 1) for task in sorted(logits)]
    return jnp.concatenate(each, 1).T


def rollout(params: Any, key: jax.Array, instance: Any) -> tuple[Any, dict[str, Any]]:
    """Plays one instance `SAMPLES` times; returns its observation, and `[SAMPLES, ...]` of the episodes."""
    reset_key, play_key = jax.random.split(key)
    state, first = env.reset(reset_key, instance)
    logits: Any = Policy().apply(params, first.observation)

    def episode(key: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        step_key, *keys = jax.random.split(key, 1 + len(logits))
        action = {task: jax.random.categorical(key, logits[task]) for key, task in zip(keys, logits, strict=True)}
        return action, log_probs(logits, action), env.step(step_key, state, action, instance)[1].reward

    action, log_prob, reward = jax.vmap(episode)(jax.random.split(play_key, SAMPLES))
    advantage = (reward - reward.mean()) / (reward.std() + 1e-3)
    return first.observation, {"action": action, "log_prob": log_prob, "advantage": advantage, "reward": reward}


def loss(params: Any, observation: Any, episodes: dict[str, Any]) -> jax.Array:
    """Clipped loss of one instance's episodes. Each choice has its own ratio: an action has dozens of them."""
    logits: Any = Policy().apply(params, observation)
    ratio = jnp.exp(jax.vmap(log_probs, (None, 0))(logits, episodes["action"]) - episodes["log_prob"])
    advantage = episodes["advantage"][:, None, None]
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage).sum((1, 2)).mean()
    entropy = sum(-(jax.nn.softmax(each) * jax.nn.log_softmax(each)).sum() for each in logits.values())
    return -gain - ENTROPY * entropy


def update(generator: Any, carry: tuple[Any, Any], key: jax.Array) -> tuple[tuple[Any, Any], jax.Array]:
    """Roll-out and gradient steps; returns parameters, the optimiser's state and the mean reward."""
    draw_key, play_key, shuffle_key = jax.random.split(key, 3)
    instances = jax.vmap(generator.sample)(jax.random.split(draw_key, GRAPHS))
    observation, episodes = jax.vmap(rollout, (None, 0, 0))(carry[0], jax.random.split(play_key, GRAPHS), instances)

    def step(carry: tuple[Any, Any], chosen: jax.Array) -> tuple[tuple[Any, Any], None]:
        params, moments = carry
        part = jax.tree.map(lambda leaf: leaf[:, chosen], episodes)
        gradient = jax.grad(lambda params: jax.vmap(loss, (None, 0, 0))(params, observation, part).mean())(params)
        changes, moments = optimiser.update(gradient, moments)
        return (optax.apply_updates(params, changes), moments), None

    orders = jax.vmap(lambda key: jax.random.permutation(key, SAMPLES))(jax.random.split(shuffle_key, EPOCHS))
    carry, _ = jax.lax.scan(step, carry, orders.reshape(EPOCHS * MINIBATCHES, -1))
    return carry, episodes["reward"].mean()


def init(generator: Any, key: jax.Array) -> tuple[Any, Any]:
    """Returns parameters and the optimiser's state."""
    params = Policy().lazy_init(key, jax.eval_shape(lambda: env.reset(key, generator[0])[1].observation))
    return params, optimiser.init(params)


def evaluate(instances: Any, params: Any, key: jax.Array) -> jax.Array:
    """Rewards of drawn actions: `[g, SAMPLES]`, for each of g instances."""
    return jax.vmap(rollout, (None, 0, 0))(params, jax.random.split(key, len(instances.order)), instances)[1]["reward"]


def train(seeds: int, updates: int, every: int = 10) -> tuple[jax.Array, jax.Array]:
    """Trains. Returns held-out rewards of random actions and of the trained policies: `[seeds, g, SAMPLES]` each."""
    generator, held_out, start = env.generator(TRAIN), env.instances(HELD_OUT), time.perf_counter()
    keys = jax.vmap(lambda seed: jax.random.split(jax.random.key(seed), 3))(jnp.arange(seeds))  # [seeds, 3]
    carry = jax.jit(jax.vmap(init, (None, 0)))(generator, keys[:, 0])
    score = jax.jit(jax.vmap(evaluate, (None, 0, 0)))
    several = jax.jit(jax.vmap(lambda *args: jax.lax.scan(functools.partial(update, args[0]), *args[1:]), (None, 0, 0)))
    random = rewards = score(held_out, jax.tree.map(jnp.zeros_like, carry[0]), keys[:, 1])  # 0: equal logits
    print(f"{'updates':>8} {'episodes':>9} {'reward':>8} {'held out':>9} {'seconds':>8}   (seeds: {seeds})")
    every = math.gcd(every, updates)
    for done in range(every, updates + 1, every):
        split = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, done), every))(keys[:, 2])  # noqa: B023
        carry, reward = several(generator, carry, split)
        rewards = score(held_out, carry[0], keys[:, 1])
        means, seconds = f"{reward.mean():8.4f} {rewards.mean():9.4f}", time.perf_counter() - start
        print(f"{done:8} {done * GRAPHS * SAMPLES:9,} {means} {seconds:8.1f}", flush=True)
    return random, rewards


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds 0 to N - 1 (default: 5)")
    parser.add_argument("--updates", type=int, default=100, metavar="N", help="number of updates (default: 100)")
    args = parser.parse_args()
    random, trained = train(args.seeds, args.updates)
    print(f"\n{'held-out graphs':24} {'reward':>8} {'run time / list schedule':>25} {'deviation of seeds':>20}")
    rows = {"random": random, "trained": trained, f"trained, best of {SAMPLES}": trained.max(2, keepdims=True)}
    rows["list schedule"] = -jnp.ones_like(trained)  # the reward is -sqrt(run time / list schedule's)
    for name, rewards in rows.items():
        ratio = jnp.square(rewards).mean((1, 2))
        print(f"{name:24} {rewards.mean():8.4f} {ratio.mean():25.3f} {ratio.std():20.3f}")
