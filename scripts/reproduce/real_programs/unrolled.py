"""Programs of the kinds that people publish, without loops of their own; as `scanned.py`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jraph
import optax
from flax import linen as nn

from reproduce.real_programs.layers import Mixer, Update, trained_model, trained_with_statistics
from reproduce.real_programs.updates import llama


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

    return trained_with_statistics(Blocks(), jnp.ones((16, 64, 64, 3)), optax.sgd(0.1, momentum=0.9, nesterov=True))


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
    """A DenseNet (Huang et al., 2017) of two blocks: every layer reads all earlier ones."""

    class Blocks(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            def seen(x: jax.Array) -> jax.Array:
                return nn.relu(nn.BatchNorm(use_running_average=False)(x))

            x = nn.Conv(48, (3, 3), use_bias=False)(x)
            for block in range(2):
                if block:
                    x = nn.avg_pool(nn.Conv(x.shape[-1] // 2, (1, 1), use_bias=False)(seen(x)), (2, 2), (2, 2))
                for _ in range(4):
                    y = nn.Conv(96, (1, 1), use_bias=False)(seen(x))
                    x = jnp.concatenate([x, nn.Conv(24, (3, 3), use_bias=False)(seen(y))], -1)
            return nn.Dense(10)(seen(x).mean((1, 2)))

    return trained_with_statistics(Blocks(), jnp.ones((32, 32, 32, 3)), optax.sgd(0.1, momentum=0.9, nesterov=True))


def private() -> Update:
    """Differentially private SGD (Abadi et al., 2016): Optax's rule, on a gradient an example."""

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = nn.max_pool(nn.relu(nn.Conv(16, (8, 8), strides=2)(x)), (2, 2))
            x = nn.max_pool(nn.relu(nn.Conv(32, (4, 4), strides=2)(x)), (2, 2))
            return nn.Dense(10)(nn.relu(nn.Dense(32)(x.reshape(x.shape[0], -1))))

    model, rule = Network(), optax.contrib.dpsgd(0.1, l2_norm_clip=1.0, noise_multiplier=1.1, seed=1337)
    images, labels = jnp.ones((256, 28, 28, 1)), jnp.zeros(256, jnp.int32)

    def loss(weights: Any, image: jax.Array, label: jax.Array) -> jax.Array:
        logits: Any = model.apply(weights, image[None])
        return optax.softmax_cross_entropy_with_integer_labels(logits, label[None]).mean()

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        weights, moments = state
        values, gradients = jax.vmap(jax.value_and_grad(loss), (None, 0, 0))(weights, *batch)
        updates, moments = rule.update(gradients, moments, weights)
        return (optax.apply_updates(weights, updates), moments), values.mean()

    weights = model.init(jax.random.key(0), images[:1])
    return step, (weights, rule.init(weights)), (images, labels)


def graph_network() -> Update:
    """Encode, process and decode on a mesh (Battaglia et al., 2018; Lam et al., 2023), with Jraph's networks."""
    nodes, edges, width, rounds = 2048, 8192, 128, 4
    senders, receivers = (jnp.arange(edges) * k % nodes for k in (7, 11))
    count = {"n_node": jnp.array([nodes]), "n_edge": jnp.array([edges]), "globals": None}

    class Network(nn.Module):
        @nn.compact
        def __call__(self, features: Any) -> jax.Array:
            def layers(x: jax.Array) -> jax.Array:
                return nn.LayerNorm()(nn.Dense(width)(nn.silu(nn.Dense(width)(x))))

            graph = jraph.GraphsTuple(**features, senders=senders, receivers=receivers, **count)
            graph = jraph.GraphMapFeatures(layers, layers)(graph)
            update = jraph.concatenated_args(layers)
            for _ in range(rounds):
                new = jraph.InteractionNetwork(update, update)(graph)
                graph = graph._replace(nodes=graph.nodes + new.nodes, edges=graph.edges + new.edges)
            return nn.Dense(16)(nn.silu(nn.Dense(width)(graph.nodes)))

    features = {"nodes": jnp.ones((nodes, 32)), "edges": jnp.ones((edges, 4))}
    return trained_model(Network(), features, optax.adamw(1e-3))


UNROLLED: dict[str, Callable[[], Update]] = {
    "Mixer": mixer,
    "vision transformer": vision_transformer,
    "Llama": llama,
    "residual network": residual_network,
    "U-Net": u_net,
    "dense block": dense_network,
    "DP-SGD": private,
    "graph network": graph_network,
}
