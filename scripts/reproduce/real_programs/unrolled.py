"""Programs of the kinds that people publish, without loops of their own; as `scanned.py`."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from reproduce.real_programs.layers import Mixer, Update, drawn, trained, trained_model
from reproduce.real_programs.updates import llama, ppo


def mixer() -> Update:
    """An MLP-Mixer (Tolstikhin et al., 2021), 6 blocks one after the other."""

    class Blocks(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            for _ in range(6):
                x, _none = Mixer(tokens=196, width=256)(x)
            return x

    return trained_model(Blocks(), jnp.ones((8, 196, 256)), optax.adamw(1e-4))


def vision_transformer() -> Update:
    """A vision transformer (Dosovitskiy et al., 2021) of 4 layers with Flax's attention."""

    class Blocks(nn.Module):
        @nn.compact
        def __call__(self, images: jax.Array) -> jax.Array:
            x = nn.Conv(192, (16, 16), (16, 16))(images).reshape(images.shape[0], -1, 192)
            for _ in range(4):
                y = nn.LayerNorm()(x)
                x = x + nn.MultiHeadDotProductAttention(6)(y, y)
                x = x + nn.Dense(192)(nn.gelu(nn.Dense(768)(nn.LayerNorm()(x))))
            return nn.Dense(1000)(x.mean(1))

    return trained_model(Blocks(), jnp.ones((8, 224, 224, 3)), optax.adamw(1e-4))


def residual_network() -> Update:
    """A residual network with batch normalisation, whose statistics are part of the state."""

    class Blocks(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            for k, width in enumerate((32, 32, 64, 64)):
                y = nn.Conv(width, (3, 3), strides=2 if k == 2 else 1)(x)
                y = nn.relu(nn.BatchNorm(use_running_average=False)(y))
                y = nn.BatchNorm(use_running_average=False)(nn.Conv(width, (3, 3))(y))
                x = nn.relu(y + nn.Conv(width, (1, 1), strides=2 if k == 2 else 1)(x))
            return nn.Dense(10)(x.mean((1, 2)))

    model, images, rule = Blocks(), jnp.ones((16, 64, 64, 3)), optax.sgd(0.1, momentum=0.9, nesterov=True)
    variables = model.init(jax.random.key(0), images)

    def loss(weights: Any, statistics: Any, images: jax.Array) -> tuple[jax.Array, Any]:
        logits, changed = model.apply({"params": weights, "batch_stats": statistics}, images, mutable=["batch_stats"])
        return jnp.square(logits).mean(), changed["batch_stats"]

    def step(state: Any, images: jax.Array) -> tuple[Any, jax.Array]:
        weights, statistics, moments = state
        (value, statistics), gradient = jax.value_and_grad(loss, has_aux=True)(weights, statistics, images)
        updates, moments = rule.update(gradient, moments, weights)
        return (optax.apply_updates(weights, updates), statistics, moments), value

    return step, (variables["params"], variables["batch_stats"], rule.init(variables["params"])), images


def u_net() -> Update:
    """A U-Net's step of denoising (Ho et al., 2020)."""

    class Blocks(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            kept = []
            for width in (32, 64, 128):
                x = nn.silu(nn.GroupNorm(8)(nn.Conv(width, (3, 3))(x)))
                x = nn.silu(nn.GroupNorm(8)(nn.Conv(width, (3, 3))(x)))
                kept.append(x)
                x = nn.avg_pool(x, (2, 2), (2, 2))
            for width, skipped in zip((128, 64, 32), reversed(kept), strict=True):
                x = jnp.concatenate([jnp.repeat(jnp.repeat(x, 2, 1), 2, 2), skipped], -1)
                x = nn.silu(nn.GroupNorm(8)(nn.Conv(width, (3, 3))(x)))
            return nn.Conv(3, (3, 3))(x)

    return trained_model(Blocks(), jnp.ones((4, 64, 64, 3)), optax.adam(1e-4))


def dense_network() -> Update:
    """A dense block (Huang et al., 2017): every layer reads all earlier ones."""

    class Blocks(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            for _ in range(12):
                y = nn.relu(nn.GroupNorm(1)(x))
                x = jnp.concatenate([x, nn.Conv(16, (3, 3))(nn.Conv(64, (1, 1))(y))], -1)
            return x

    return trained_model(Blocks(), jnp.ones((8, 32, 32, 32)), optax.adam(1e-4))


def private() -> Update:
    """Differentially private SGD (Abadi et al., 2016): a gradient an example, clipped, summed and blurred."""
    weights = [drawn(784, 256), drawn(256, 128), drawn(128, 10)]

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for w in weights[:-1]:
            x = jnp.tanh(x @ w)
        return jax.nn.logsumexp(x @ weights[-1])

    def step(state: Any, batch: jax.Array) -> tuple[Any, jax.Array]:
        weights, key = state
        values, gradients = jax.vmap(jax.value_and_grad(loss), (None, 0))(weights, batch)
        norms = jax.vmap(optax.global_norm)(gradients)
        scale = 1.0 / jnp.maximum(1.0, norms)
        key, *keys = jax.random.split(key, len(weights) + 1)
        blurred = [
            jnp.tensordot(scale, g, 1) + 0.5 * jax.random.normal(k, w.shape)
            for g, k, w in zip(gradients, keys, weights, strict=True)
        ]
        return ([w - 0.01 * g for w, g in zip(weights, blurred, strict=True)], key), values.mean()

    return step, (weights, jax.random.PRNGKey(0)), jnp.ones((64, 784))


def graph_network() -> Update:
    """Message passing on a mesh, as GraphCast's processor (Lam et al., 2023): 4 rounds, edges and nodes updated."""
    nodes, edges, width, rounds = 2048, 12288, 128, 4
    senders, receivers = (jnp.arange(edges) * k % nodes for k in (7, 11))
    weights = [{"edge": drawn(3 * width, width), "edge2": drawn(width, width), "node": drawn(2 * width, width),
                "node2": drawn(width, width)} for _ in range(rounds)]  # fmt: skip

    def loss(weights: Any, batch: Any) -> jax.Array:
        x, e = batch
        for w in weights:
            e = e + jax.nn.silu(jnp.concatenate([e, x[senders], x[receivers]], -1) @ w["edge"]) @ w["edge2"]
            messages = jax.ops.segment_sum(e, receivers, nodes)
            x = x + jax.nn.silu(jnp.concatenate([x, messages], -1) @ w["node"]) @ w["node2"]
        return jnp.square(x).mean()

    return trained(loss, weights, (jnp.ones((nodes, width)), jnp.ones((edges, width))), optax.adam(1e-3))


def soft_actor_critic() -> Update:
    """SAC's step (Haarnoja et al., 2018): two critics, their slow copies and the policy, 4,096 transitions."""

    def network(inputs: int, outputs: int) -> list[jax.Array]:
        return [drawn(inputs, 512), drawn(512, 512), drawn(512, outputs)]

    def of(weights: Any, *xs: jax.Array) -> jax.Array:
        x = jnp.concatenate(xs, -1)
        for w in weights[:-1]:
            x = jax.nn.relu(x @ w)
        return x @ weights[-1]

    rule = optax.adam(3e-4)
    weights = {"policy": network(64, 16), "critics": [network(80, 1) for _ in range(2)]}
    slow = [network(80, 1) for _ in range(2)]

    def critic_loss(critics: Any, weights: Any, slow: Any, batch: Any) -> jax.Array:
        action = jnp.tanh(of(weights["policy"], batch["next"]))
        target = batch["reward"] + 0.99 * functools.reduce(jnp.minimum, [of(c, batch["next"], action) for c in slow])
        errors = [of(c, batch["state"], batch["action"]) - jax.lax.stop_gradient(target) for c in critics]
        return sum((jnp.square(error).mean() for error in errors), jnp.zeros(()))

    def policy_loss(policy: Any, critics: Any, batch: Any) -> jax.Array:
        action = jnp.tanh(of(policy, batch["state"]))
        return -functools.reduce(jnp.minimum, [of(c, batch["state"], action) for c in critics]).mean()

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        weights, slow, moments = state
        value, critics = jax.value_and_grad(critic_loss)(weights["critics"], weights, slow, batch)
        policy = jax.grad(policy_loss)(weights["policy"], weights["critics"], batch)
        updates, moments = rule.update({"policy": policy, "critics": critics}, moments, weights)
        weights = optax.apply_updates(weights, updates)
        slow = jax.tree.map(lambda s, w: 0.995 * s + 0.005 * w, slow, weights["critics"])
        return (weights, slow, moments), value

    batch = {name: jnp.ones((4096, width)) for name, width in (("state", 64), ("next", 64), ("action", 16))}
    return step, (weights, slow, rule.init(weights)), batch | {"reward": jnp.ones((4096, 1))}


UNROLLED: dict[str, Callable[[], Update]] = {
    "Mixer": mixer,
    "vision transformer": vision_transformer,
    "Llama": llama,
    "residual network": residual_network,
    "U-Net": u_net,
    "dense block": dense_network,
    "DP-SGD": private,
    "graph network": graph_network,
    "SAC": soft_actor_critic,
    "PPO": ppo,
}
