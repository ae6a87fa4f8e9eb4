"""Losses of networks for images `[batch, side, side, channels]`, in Flax."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from reproduce.models.losses import Network, Program, flax_program

CLASSES = 1000
GROUPS = 8  # of group normalisation


def vision_transformer(*, batch: int, side: int, patch: int, depth: int, width: int, heads: int) -> Program:
    """Vision transformer (Dosovitskiy et al., 2021) with Flax's attention."""

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            y = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(heads)(y, y)
            return x + nn.Dense(width)(nn.gelu(nn.Dense(4 * width)(nn.LayerNorm()(x))))

    def forward(network: Network, images: jax.Array, labels: jax.Array) -> jax.Array:
        x = network.part(nn.Conv(width, (patch, patch), (patch, patch)), images).reshape(batch, -1, width)
        for _ in range(depth):
            x = network.layer(Layer(), x)
        return _cross_entropy(network.part(nn.Dense(CLASSES), x.mean(1)), labels)

    return flax_program(forward, _labelled(batch, side))


def residual_network(*, batch: int, side: int, width: int, blocks: Sequence[int]) -> Program:
    """Residual network of bottlenecks with batch normalisation (He et al., 2015); 3-4-6-3 blocks are ResNet-50."""

    def normal(x: jax.Array) -> jax.Array:
        return nn.BatchNorm(use_running_average=False)(x)

    class Block(nn.Module):
        width: int
        stride: int

        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            y = nn.relu(normal(nn.Conv(self.width, (1, 1), use_bias=False)(x)))
            y = nn.relu(normal(nn.Conv(self.width, (3, 3), self.stride, use_bias=False)(y)))
            y = normal(nn.Conv(4 * self.width, (1, 1), use_bias=False)(y))
            if x.shape != y.shape:
                x = normal(nn.Conv(4 * self.width, (1, 1), self.stride, use_bias=False)(x))
            return nn.relu(x + y)

    class Stem(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = nn.relu(normal(nn.Conv(width, (7, 7), 2, use_bias=False)(x)))
            return nn.max_pool(x, (3, 3), (2, 2), "SAME")

    def forward(network: Network, images: jax.Array, labels: jax.Array) -> jax.Array:
        x = network.part(Stem(), images)
        for stage, count in enumerate(blocks):
            for k in range(count):
                x = network.layer(Block(width * 2**stage, 2 if stage and not k else 1), x)
        return _cross_entropy(network.part(nn.Dense(CLASSES), x.mean((1, 2))), labels)

    return flax_program(forward, _labelled(batch, side))


Stage = tuple[int, int, int, int, int]  # expansion, channels, blocks, stride, kernel


def efficient_network(*, batch: int, side: int, stem: int, stages: Sequence[Stage], head: int) -> Program:
    """Inverted bottlenecks with squeeze and excitation (Tan and Le, 2019; with seven stages EfficientNet-B0)."""

    class Normal(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            return nn.silu(nn.BatchNorm(use_running_average=False)(x))

    class Block(nn.Module):
        expansion: int
        channels: int
        stride: int
        kernel: int

        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            inside = x.shape[-1] * self.expansion
            y = Normal()(nn.Conv(inside, (1, 1), use_bias=False)(x)) if self.expansion > 1 else x
            size = (self.kernel, self.kernel)
            y = Normal()(nn.Conv(inside, size, self.stride, feature_group_count=inside, use_bias=False)(y))
            mean = nn.silu(nn.Dense(max(1, x.shape[-1] // 4))(y.mean((1, 2))))
            y = y * nn.sigmoid(nn.Dense(inside)(mean))[:, None, None]
            y = nn.BatchNorm(use_running_average=False)(nn.Conv(self.channels, (1, 1), use_bias=False)(y))
            return x + y if x.shape == y.shape else y

    def forward(network: Network, images: jax.Array, labels: jax.Array) -> jax.Array:
        x = network.part(Normal(), network.part(nn.Conv(stem, (3, 3), 2, use_bias=False), images))
        for expansion, channels, count, stride, kernel in stages:
            for k in range(count):
                x = network.layer(Block(expansion, channels, stride if not k else 1, kernel), x)
        x = network.part(Normal(), network.part(nn.Conv(head, (1, 1), use_bias=False), x))
        return _cross_entropy(network.part(nn.Dense(CLASSES), x.mean((1, 2))), labels)

    return flax_program(forward, _labelled(batch, side))


class _Residual(nn.Module):
    """Two convolutions with group normalisation; an optional vector shifts the outputs of the first."""

    width: int

    @nn.compact
    def __call__(self, x: jax.Array, shift: jax.Array | None = None) -> jax.Array:
        y = nn.Conv(self.width, (3, 3))(nn.silu(nn.GroupNorm(GROUPS)(x)))
        if shift is not None:
            y = y + nn.Dense(self.width)(shift)[:, None, None]
        y = nn.Conv(self.width, (3, 3))(nn.silu(nn.GroupNorm(GROUPS)(y)))
        return y + (x if x.shape[-1] == self.width else nn.Conv(self.width, (1, 1))(x))


class _Attention(nn.Module):
    """Attention between the positions of an image."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = nn.GroupNorm(GROUPS)(x).reshape(x.shape[0], -1, x.shape[-1])
        return x + nn.MultiHeadDotProductAttention(4)(y, y).reshape(x.shape)


def u_net(*, batch: int, side: int, widths: Sequence[int]) -> Program:
    """Loss of a denoising diffusion model with a U-Net (Ho et al., 2020), which draws times and noise."""

    class Time(nn.Module):
        @nn.compact
        def __call__(self, time: jax.Array) -> jax.Array:
            rates = 1e4 ** (-jnp.arange(widths[0] // 2)[None] / (widths[0] // 2))
            angles = 1000 * time[:, None] * rates
            waves = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)
            return nn.silu(nn.Dense(4 * widths[0])(nn.silu(nn.Dense(4 * widths[0])(waves))))

    def denoised(network: Network, x: jax.Array, shift: jax.Array) -> jax.Array:
        x = network.part(nn.Conv(widths[0], (3, 3)), x)
        kept = []
        for width in widths:
            for _ in range(2):
                x = network.layer(_Residual(width), x, shift)
                kept.append(x)
            x = network.part(nn.Conv(width, (3, 3), 2), x)
        x = network.layer(_Attention(), network.layer(_Residual(widths[-1]), x, shift))
        for width in reversed(widths):
            x = network.part(nn.Conv(width, (3, 3)), _doubled(x))
            for _ in range(2):
                x = network.layer(_Residual(width), jnp.concatenate([x, kept.pop()], -1), shift)
        return network.part(nn.Conv(3, (3, 3)), nn.silu(x))

    def forward(network: Network, images: jax.Array, key: jax.Array) -> jax.Array:
        of_times, of_noise = jax.random.split(key)
        time, noise = jax.random.uniform(of_times, (batch,)), jax.random.normal(of_noise, images.shape)
        angle = (jnp.pi / 2 * time)[:, None, None, None]
        noisy = jnp.cos(angle) * images + jnp.sin(angle) * noise
        return jnp.square(denoised(network, noisy, network.part(Time(), time)) - noise).mean()

    return flax_program(forward, _with_key(batch, side))


def autoencoder(*, batch: int, side: int, widths: Sequence[int], code: int) -> Program:
    """Variational autoencoder of residual blocks (Kingma and Welling, 2014; Rombach et al., 2022)."""

    def forward(network: Network, images: jax.Array, key: jax.Array) -> jax.Array:
        x = network.part(nn.Conv(widths[0], (3, 3)), images)
        for width in widths:
            x = network.layer(_Residual(width), network.layer(_Residual(width), x))
            x = network.part(nn.Conv(width, (3, 3), 2), x)
        mean, log_variance = jnp.split(network.part(nn.Conv(2 * code, (1, 1)), x), 2, -1)
        x = mean + jnp.exp(log_variance / 2) * jax.random.normal(key, mean.shape)
        x = network.part(nn.Conv(widths[-1], (3, 3)), x)
        for width in reversed(widths):
            x = network.part(nn.Conv(width, (3, 3)), _doubled(x))
            x = network.layer(_Residual(width), network.layer(_Residual(width), x))
        divergence = jnp.square(mean) + jnp.exp(log_variance) - log_variance - 1
        return jnp.square(network.part(nn.Conv(3, (3, 3)), x) - images).mean() + 1e-3 * divergence.mean()

    return flax_program(forward, _with_key(batch, side))


def _doubled(x: jax.Array) -> jax.Array:
    return jnp.repeat(jnp.repeat(x, 2, 1), 2, 2)


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], -1).mean()


def _labelled(batch: int, side: int) -> Callable[[jax.Array], Any]:
    def inputs(key: jax.Array) -> Any:
        of_images, of_labels = jax.random.split(key)
        images = jax.random.normal(of_images, (batch, side, side, 3))
        return images, jax.random.randint(of_labels, (batch,), 0, CLASSES)

    return inputs


def _with_key(batch: int, side: int) -> Callable[[jax.Array], Any]:
    def inputs(key: jax.Array) -> Any:
        of_images, own = jax.random.split(key)
        return jax.random.normal(of_images, (batch, side, side, 3)), own

    return inputs
