"""Proximal policy optimisation (Schulman et al. 2017) on `Ordering-v0`, all of it in one file, for copying.

A graph network chooses the next op of a graph, step after step, for a low peak of memory; the reward comes after the
last op. `AutoReset` starts the next episode. Advantages are generalised advantage estimates (Schulman et al. 2016).
A roll-out stores only what changes within an episode. All seeds train in one program. The held-out graphs are new to
the policies. For episodes of one step, with hundreds of choices in an action, see `ppo_single_file.py`.

python scripts/ppo_multi_step.py                       # five seeds; some minutes on two cores
python scripts/ppo_multi_step.py --seeds 1 --updates 200
"""

import argparse
import functools
import math
import time
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import graphrl

TRAIN, HELD_OUT = "layered:20x64", "layered:20x32@1000"  # 64 graphs of 20 ops with seeds from 0, 32 others from 1000
GRAPHS, STEPS = 16, 40  # graphs of an update, one environment each; steps of a roll-out: two episodes of 20 ops
EPOCHS, MINIBATCHES = 4, 4  # passes over the steps of an update, minibatches of a pass
DISCOUNT, LAMBDA, CLIP, ENTROPY, VALUE, RATE, MAX_NORM = 1.0, 0.95, 0.2, 0.01, 0.5, 4e-3, 0.5
WIDTH, ROUNDS, RELATIONS = 32, 2, 8
CHANGING = ("action_mask", "scheduled", "last", "live", "peak")  # the other fields are constant within an episode

env = graphrl.make("Ordering-v0")
training_env = graphrl.envs.AutoReset(env)
optimiser = optax.chain(optax.clip_by_global_norm(MAX_NORM), optax.adam(RATE))


class PolicyValue(nn.Module):
    """Logits of the next op, `[n]`, and the expected return, `[]`."""

    @nn.compact
    def __call__(self, o: Any) -> tuple[jax.Array, jax.Array]:
        related = jax.nn.one_hot(o.relation, RELATIONS)  # [n, n, r]; 0 for padding
        related /= jnp.maximum(related.sum(1, keepdims=True), 1)  # for a mean over each relation
        flags = jnp.stack([o.scheduled, o.action_mask, jnp.arange(len(o.nodes)) == o.last], 1).astype(jnp.float32)
        x = nn.Dense(WIDTH)(jnp.concatenate([o.nodes, flags], 1))
        for _ in range(ROUNDS):
            messages = jnp.einsum("ijr,jd->ird", related, nn.LayerNorm()(x)).reshape(len(x), -1)
            x = x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(WIDTH)(messages)))
        x = nn.LayerNorm()(x)
        logits = nn.Dense(1, kernel_init=nn.initializers.zeros)(x)[:, 0]  # equal at first
        mean = jnp.where(o.mask[:, None], x, 0).sum(0) / o.mask.sum()
        value = nn.Dense(1)(nn.tanh(nn.Dense(WIDTH)(jnp.append(mean, jnp.stack([o.live, o.peak])))))[0]
        return jnp.where(o.action_mask, logits, -1e9), value


apply: Any = jax.vmap(PolicyValue().apply, (None, 0))  # parameters, observations [b, ...]
nll = optax.softmax_cross_entropy_with_integer_labels  # negative log-likelihood of actions [b] under logits [b, n]


def rollout(params: Any, key: jax.Array, instances: Any) -> tuple[Any, dict[str, Any], jax.Array, jax.Array]:
    """Plays g instances; returns first observations, steps `[STEPS, g, ...]`, last values and mean returns, `[g]`."""
    keys = jax.random.split(key, (STEPS + 1, len(instances.nodes)))
    state, first = jax.vmap(training_env.reset)(keys[0], instances)

    def one(carry: tuple[Any, Any], keys: jax.Array) -> tuple[tuple[Any, Any], dict[str, Any]]:
        (state, observation), (act_keys, step_keys) = carry, jax.vmap(jax.random.split, out_axes=1)(keys)
        logits, value = apply(params, observation)
        action = jax.vmap(jax.random.categorical)(act_keys, logits)
        state, after = jax.vmap(training_env.step)(step_keys, state, action, instances)
        row = {"action": action, "nll": nll(logits, action), "value": value, "reward": after.reward}
        row |= {"done": after.done, "changing": {name: getattr(observation, name) for name in CHANGING}}
        return (state, after.observation), row

    (_, last), steps = jax.lax.scan(one, (state, first.observation), keys[1:])
    return first.observation, steps, apply(params, last)[1], steps["reward"].sum(0) / steps["done"].sum(0)


def advantages(steps: dict[str, Any], last_value: jax.Array) -> jax.Array:
    """Generalised advantage estimates: `[STEPS, GRAPHS]`. Without truncation: no reward follows `done`."""

    def one(carry: tuple[jax.Array, jax.Array], row: dict[str, Any]) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        advantage, next_value = carry
        later = DISCOUNT * ~row["done"] * (next_value + LAMBDA * advantage)  # 0 after an episode's last step
        advantage = row["reward"] + later - row["value"]
        return (advantage, row["value"]), advantage

    return jax.lax.scan(one, (jnp.zeros_like(last_value), last_value), steps, reverse=True)[1]


def loss(params: Any, observation: Any, steps: dict[str, Any]) -> jax.Array:
    """Clipped loss, squared error of values and entropy bonus of a minibatch of steps `[b]`."""
    logits, value = apply(params, observation._replace(**steps["changing"]))
    ratio = jnp.exp(steps["nll"] - nll(logits, steps["action"]))
    advantage = (steps["advantage"] - steps["advantage"].mean()) / (steps["advantage"].std() + 1e-8)
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage).mean()
    error = jnp.square(value - steps["value"] - steps["advantage"]).mean()
    entropy = -(jax.nn.softmax(logits) * jax.nn.log_softmax(logits)).sum(1).mean()
    return -gain + VALUE * error - ENTROPY * entropy


def update(generator: Any, carry: tuple[Any, Any], key: jax.Array) -> tuple[tuple[Any, Any], jax.Array]:
    """Roll-out and gradient steps; returns parameters, the optimiser's state and the mean return."""
    draw_key, play_key, shuffle_key = jax.random.split(key, 3)
    instances = jax.vmap(generator.sample)(jax.random.split(draw_key, GRAPHS))
    first, steps, last_value, returns = rollout(carry[0], play_key, instances)
    steps["advantage"] = advantages(steps, last_value)
    flat = jax.tree.map(lambda leaf: leaf.reshape(STEPS * GRAPHS, *leaf.shape[2:]), steps)

    def step(carry: tuple[Any, Any], chosen: jax.Array) -> tuple[tuple[Any, Any], None]:
        params, moments = carry
        parts = jax.tree.map(lambda leaf: leaf[chosen % GRAPHS], first), jax.tree.map(lambda leaf: leaf[chosen], flat)
        changes, moments = optimiser.update(jax.grad(loss)(params, *parts), moments)
        return (optax.apply_updates(params, changes), moments), None

    orders = jax.vmap(lambda key: jax.random.permutation(key, STEPS * GRAPHS))(jax.random.split(shuffle_key, EPOCHS))
    carry, _ = jax.lax.scan(step, carry, orders.reshape(EPOCHS * MINIBATCHES, -1))
    return carry, returns.mean()


def train(seeds: int, updates: int, every: int = 10) -> tuple[jax.Array, jax.Array]:
    """Trains. Returns held-out returns of random actions and of the trained policies: `[seeds, g]` each."""
    generator, held_out, start = env.generator(TRAIN), env.instances(HELD_OUT), time.perf_counter()
    keys = jax.vmap(lambda seed: jax.random.split(jax.random.key(seed), 3))(jnp.arange(seeds))  # [seeds, 3]
    first = env.reset(keys[0, 0], generator[0])[1].observation
    params: Any = jax.vmap(PolicyValue().init, (0, None))(keys[:, 0], first)
    carry = params, jax.vmap(optimiser.init)(params)
    score = jax.jit(jax.vmap(lambda *args: rollout(*args)[3], (0, 0, None)))
    several = jax.jit(jax.vmap(lambda *args: jax.lax.scan(functools.partial(update, args[0]), *args[1:]), (None, 0, 0)))
    random = returns = score(carry[0], keys[:, 1], held_out)  # equal logits
    print(f"{'updates':>8} {'steps':>9} {'return':>8} {'held out':>9} {'seconds':>8}   (seeds: {seeds})")
    every = math.gcd(every, updates)
    for done in range(every, updates + 1, every):
        split = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, done), every))(keys[:, 2])  # noqa: B023
        carry, mean = several(generator, carry, split)
        returns = score(carry[0], keys[:, 1], held_out)
        means, seconds = f"{mean.mean():8.4f} {returns.mean():9.4f}", time.perf_counter() - start
        print(f"{done:8} {done * GRAPHS * STEPS:9,} {means} {seconds:8.1f}", flush=True)
    return random, returns


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds 0 to N - 1 (default: 5)")
    parser.add_argument("--updates", type=int, default=60, metavar="N", help="number of updates (default: 60)")
    args = parser.parse_args()
    random, trained = train(args.seeds, args.updates)
    peaks = f"{-random.mean():.3f} with random actions, {-trained.mean():.3f} trained"
    print(f"\npeak / largest op of held-out graphs: {peaks}, deviation of seeds {trained.mean(1).std():.3f}")
