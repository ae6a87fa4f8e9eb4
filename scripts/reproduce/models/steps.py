"""Training steps and the like that are no loss of layers, of the kinds that people publish.

Each is a function that gives `(step, state, batch)`; `step(state, batch) -> (state, loss)` donates its state, as their
authors have it.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax import lax

from reproduce.models.losses import Update, drawn, normed, trained, trained_model


def eight_branches() -> Update:
    """A loop whose body holds eight branches that nothing but their sum needs."""
    side = 1536

    def step(state: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
        def body(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
            total = jnp.zeros_like(x)
            for k in range(8):
                thin = jnp.sin(jnp.outer(x, x + k)) @ y
                total += (jnp.cos(thin @ y.T) @ y).sum(1)
            return jnp.tanh(total), total.sum()

        return lax.scan(lambda x, _: body(x, batch), state, None, length=2)

    return step, jnp.full(side, 0.01), drawn(side, 64)


def checkpointed_model() -> Update:
    """Gated layers in a scan, each under `jax.checkpoint`: its body is forward and backward at once."""
    depth, width, tokens = 8, 384, 1024
    weights = {"up": drawn(depth, width, 4 * width), "gate": drawn(depth, width, 4 * width),
               "down": drawn(depth, 4 * width, width)}  # fmt: skip

    def loss(weights: Any, batch: jax.Array) -> jax.Array:
        @jax.checkpoint
        def block(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
            y = normed(x)
            return x + (jax.nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"], None

        return jnp.square(lax.scan(block, batch, weights)[0]).mean()

    return trained(loss, weights, jnp.ones((tokens, width)), optax.adam(1e-4))


def neural_ode() -> Update:
    """A neural ODE (Chen et al., 2018), differentiated through 20 steps of fourth-order Runge-Kutta."""
    weights, length = [drawn(64, 512), drawn(512, 512), drawn(512, 64)], 0.05

    def slope(weights: Any, x: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.tanh(x @ weights[0]) @ weights[1]) @ weights[2]

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        def advance(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            first = slope(weights, x)
            second = slope(weights, x + length / 2 * first)
            third = slope(weights, x + length / 2 * second)
            fourth = slope(weights, x + length * third)
            return x + length / 6 * (first + 2 * second + 2 * third + fourth), None

        return jnp.square(lax.scan(advance, x, None, length=20)[0]).mean()

    return trained(loss, weights, jnp.ones((256, 64)), optax.adam(1e-3))


def hamiltonian() -> Update:
    """Hamiltonian Monte Carlo (Duane et al., 1987) for a logistic regression, 64 chains, leapfrog in a scan."""
    points = jnp.linspace(-1, 1, 4096 * 64).reshape(4096, 64)

    def energy(q: jax.Array) -> jax.Array:
        return jax.nn.softplus(points @ q).sum() + 0.5 * (q * q).sum()

    def chain(q: jax.Array, p: jax.Array) -> tuple[jax.Array, jax.Array]:
        def leap(state: Any, _: None) -> Any:
            q, p = state
            p = p - 5e-4 * jax.grad(energy)(q)
            q = q + 1e-3 * p
            return (q, p - 5e-4 * jax.grad(energy)(q)), None

        (q, p), _ = lax.scan(leap, (q, p), None, length=10)
        return q, energy(q) + 0.5 * (p * p).sum()

    def step(state: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
        state, energies = jax.vmap(chain)(state, batch)
        return state, energies.mean()

    return step, drawn(64, 64), drawn(64, 64)


def meta_learning() -> Update:
    """MAML (Finn et al., 2017): 16 tasks under `vmap`, 5 inner steps in a scan, differentiated through."""
    weights = [drawn(1, 256), drawn(256, 256), drawn(256, 1)]

    def error(weights: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        h = jnp.tanh(x @ weights[0])
        return jnp.square(jnp.tanh(h @ weights[1]) @ weights[2] - y).mean()

    def adapted(weights: Any, task: Any) -> jax.Array:
        def inner(weights: Any, _: None) -> Any:
            return jax.tree.map(lambda w, g: w - 0.01 * g, weights, jax.grad(error)(weights, *task)), None

        return error(lax.scan(inner, weights, None, length=5)[0], *task)

    def loss(weights: Any, tasks: Any) -> jax.Array:
        return jax.vmap(functools.partial(adapted, weights))(tasks).mean()

    return trained(loss, weights, (jnp.ones((16, 64, 1)), jnp.zeros((16, 64, 1))), optax.adam(1e-3))


def evolution() -> Update:
    """Evolution strategies (Salimans et al., 2017): 64 perturbed policies, each for 20 steps of a world."""
    weights = [drawn(16, 128), drawn(128, 128), drawn(128, 4)]

    def reward(weights: Any, start: jax.Array) -> jax.Array:
        def live(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            action = jnp.tanh(jnp.tanh(jnp.tanh(x @ weights[0]) @ weights[1]) @ weights[2])
            x = x + 0.05 * jnp.sin(jnp.roll(x, 1, -1)) + 0.1 * jnp.tile(action, (1, 4))
            return x, -jnp.square(x).mean()

        return lax.scan(live, start, None, length=20)[1].sum()

    def step(state: Any, batch: jax.Array) -> Any:
        weights, key = state
        key, draw = jax.random.split(key)
        keys = jax.random.split(draw, len(weights))
        noise = [jax.random.normal(k, (64, *w.shape)) for k, w in zip(keys, weights, strict=True)]
        moved = [w + 0.02 * n for w, n in zip(weights, noise, strict=True)]
        rewards = jax.vmap(reward, (0, None))(moved, batch)
        scores = (rewards - rewards.mean()) / (rewards.std() + 1e-8)
        weights = [w + 0.01 * jnp.tensordot(scores, n, 1) for w, n in zip(weights, noise, strict=True)]
        return (weights, key), rewards.mean()

    return step, (weights, jax.random.PRNGKey(0)), jnp.ones((64, 16))


def diffusion_sampler() -> Update:
    """Twenty steps of a sampler (Ho et al., 2020) with a residual network on images, in a `fori_loop`."""
    kernels = [drawn(3, 3, 3, 64), *(drawn(3, 3, 64, 64) for _ in range(4)), drawn(3, 3, 64, 3)]

    def convolved(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def step(state: jax.Array, batch: Any) -> tuple[jax.Array, jax.Array]:
        def denoise(k: int, x: jax.Array) -> jax.Array:
            h = convolved(x, batch[0])
            parts = [jax.nn.silu(convolved(normed(h), kernel)) for kernel in batch[1:-1]]
            return x - 0.05 * convolved(functools.reduce(jnp.add, parts, h), batch[-1])

        state = lax.fori_loop(0, 20, denoise, state)
        return state, state.mean()

    return step, jnp.ones((2, 64, 64, 3)), kernels


class _Mixer(nn.Module):
    """A block of an MLP-Mixer (Tolstikhin et al., 2021) of 196 patches, as a scan wants it."""

    @nn.compact
    def __call__(self, x: jax.Array, _: None = None) -> tuple[jax.Array, None]:
        cells, width = x.shape[1:]
        y = jnp.swapaxes(nn.LayerNorm()(x), 1, 2)
        x = x + jnp.swapaxes(nn.Dense(cells)(nn.gelu(nn.Dense(width)(y))), 1, 2)
        y = nn.LayerNorm()(x)
        return x + nn.Dense(width)(nn.gelu(nn.Dense(4 * width)(y))), None


def mixer(rule: Any, *, scanned: bool) -> Update:
    """An MLP-Mixer, 6 blocks one after the other or in Flax's `nn.scan`."""

    class Blocks(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            if scanned:
                return nn.scan(_Mixer, variable_axes={"params": 0}, split_rngs={"params": True}, length=6)()(x, None)[0]
            for _ in range(6):
                x, _none = _Mixer()(x)
            return x

    return trained_model(Blocks(), jnp.ones((8, 196, 256)), rule)


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

    return trained_model(Blocks(), jnp.ones((32, 32, 32, 3)), optax.sgd(0.1, momentum=0.9, nesterov=True))


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
