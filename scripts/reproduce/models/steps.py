"""Training steps in their published form, of supervised and of reinforcement learning.

Each function returns `(step, state, batch)`. `step(state, batch) -> (state, loss)` donates its state, as in the
published code.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax import lax

from reproduce.models.losses import Update, drawn, normed, trained, trained_model

_OBSERVATION, _ACTION, _WIDTH = 64, 8, 512


class _Layers(nn.Module):
    outputs: int

    @nn.compact
    def __call__(self, *inputs: jax.Array) -> jax.Array:
        x = jnp.concatenate(inputs, -1)
        for _ in range(2):
            x = nn.relu(nn.Dense(_WIDTH)(x))
        return nn.Dense(self.outputs)(x)


def _of(network: Any, weights: Any, *inputs: jax.Array) -> jax.Array:
    return network.apply(weights, *inputs)


def soft_actor_critic() -> Update:
    """SAC (Haarnoja et al., 2018): a stochastic actor, two critics with slow copies, and the temperature."""
    actor, rule, transitions = _Layers(2 * _ACTION), optax.adam(3e-4), 2048
    critics = nn.vmap(
        _Layers, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=None, out_axes=0, axis_size=2
    )(1)

    def drawn(weights: Any, observation: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Action and its log probability under a normal distribution, squashed by tanh."""
        mean, log_scale = jnp.split(_of(actor, weights, observation), 2, -1)
        log_scale = jnp.clip(log_scale, -20.0, 2.0)
        raw = mean + jnp.exp(log_scale) * jax.random.normal(key, mean.shape)
        density = jax.scipy.stats.norm.logpdf(raw, mean, jnp.exp(log_scale))
        return jnp.tanh(raw), (density - 2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw))).sum(-1)

    def value(weights: Any, *inputs: jax.Array) -> jax.Array:
        return _of(critics, weights, *inputs)[..., 0]

    def critic_loss(weights: Any, target: jax.Array, batch: Any) -> jax.Array:
        return jnp.square(value(weights, batch["observation"], batch["action"]) - target).mean()

    def actor_loss(weights: Any, critic: Any, temperature: jax.Array, batch: Any, key: jax.Array) -> Any:
        action, density = drawn(weights, batch["observation"], key)
        least = value(critic, batch["observation"], action).min(0)
        return (temperature * density - least).mean(), density

    def temperature_loss(log_temperature: jax.Array, density: jax.Array) -> jax.Array:
        return -(jnp.exp(log_temperature) * (density - _ACTION)).mean()

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        key, next_key, actor_key = jax.random.split(state["key"], 3)
        weights, temperature = state["weights"], jnp.exp(state["weights"]["temperature"])
        action, density = drawn(weights["actor"], batch["next"], next_key)
        least = value(state["slow"], batch["next"], action).min(0) - temperature * density
        target = lax.stop_gradient(batch["reward"] + 0.99 * batch["discount"] * least)
        error, critic = jax.value_and_grad(critic_loss)(weights["critic"], target, batch)
        (_, density), policy = jax.value_and_grad(actor_loss, has_aux=True)(
            weights["actor"], weights["critic"], temperature, batch, actor_key
        )
        slope = jax.grad(temperature_loss)(weights["temperature"], lax.stop_gradient(density))
        gradient = {"actor": policy, "critic": critic, "temperature": slope}
        updates, moments = rule.update(gradient, state["moments"], weights)
        weights = optax.apply_updates(weights, updates)
        slow = optax.incremental_update(weights["critic"], state["slow"], 0.005)
        return {"weights": weights, "slow": slow, "moments": moments, "key": key}, error

    observation, action = jnp.ones((transitions, _OBSERVATION)), jnp.zeros((transitions, _ACTION))
    critic = critics.init(jax.random.key(1), observation, action)
    weights = {"actor": actor.init(jax.random.key(0), observation), "critic": critic, "temperature": jnp.zeros(())}
    slow = jax.tree.map(jnp.copy, critic)
    state = {"weights": weights, "slow": slow, "moments": rule.init(weights), "key": jax.random.PRNGKey(0)}
    batch = {"observation": observation, "next": observation * 0.5, "action": action}
    return step, state, batch | {name: jnp.ones(transitions) for name in ("reward", "discount")}


def proximal_policy() -> Update:
    """PPO (Schulman et al., 2017) in PureJaxRL's form: advantages in a scan, epochs of minibatches in two more."""
    steps, worlds, epochs, parts = 128, 64, 4, 4
    policy, critic = _Layers(_ACTION), _Layers(1)
    rule = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(2.5e-4, eps=1e-5))

    def advantages(paths: Any, last: jax.Array) -> jax.Array:
        """Generalised advantages (Schulman et al., 2016), `[steps, worlds]`."""

        def back(state: Any, path: Any) -> Any:
            advantage, after = state
            alive = 1 - path["done"]
            delta = path["reward"] + 0.99 * after * alive - path["value"]
            advantage = delta + 0.99 * 0.95 * alive * advantage
            return (advantage, path["value"]), advantage

        return lax.scan(back, (jnp.zeros_like(last), last), paths, reverse=True, unroll=16)[1]

    def loss(weights: Any, part: Any) -> jax.Array:
        log_policy = jax.nn.log_softmax(_of(policy, weights["policy"], part["observation"]))
        log_action = jnp.take_along_axis(log_policy, part["action"][:, None], 1)[:, 0]
        ratio, advantage = jnp.exp(log_action - part["log_action"]), part["advantage"]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage).mean()
        value = _of(critic, weights["critic"], part["observation"])[:, 0]
        clipped = part["value"] + jnp.clip(value - part["value"], -0.2, 0.2)
        errors = jnp.maximum(jnp.square(value - part["return"]), jnp.square(clipped - part["return"]))
        return -gain + 0.25 * errors.mean() + 0.01 * (jnp.exp(log_policy) * log_policy).sum(-1).mean()

    def learn(learner: Any, part: Any) -> Any:
        weights, moments = learner
        error, gradient = jax.value_and_grad(loss)(weights, part)
        updates, moments = rule.update(gradient, moments, weights)
        return (optax.apply_updates(weights, updates), moments), error

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        learner, key = state
        paths = batch["paths"]
        advantage = advantages(paths, _of(critic, learner[0]["critic"], batch["last"])[:, 0])
        paths = paths | {"advantage": advantage, "return": advantage + paths["value"]}
        flat = jax.tree.map(lambda x: x.reshape(steps * worlds, *x.shape[2:]), paths)

        def epoch(state: Any, _: None) -> Any:
            learner, key = state
            key, draw = jax.random.split(key)
            places = jax.random.permutation(draw, steps * worlds)
            shuffled = jax.tree.map(lambda x: x[places].reshape(parts, -1, *x.shape[1:]), flat)
            learner, errors = lax.scan(learn, learner, shuffled)
            return (learner, key), errors

        state, errors = lax.scan(epoch, (learner, key), None, length=epochs)
        return state, errors.mean()

    last = jnp.ones((worlds, _OBSERVATION))
    weights = {"policy": policy.init(jax.random.key(0), last), "critic": critic.init(jax.random.key(1), last)}
    paths = {name: jnp.full((steps, worlds), 0.1) for name in ("reward", "value", "log_action", "done")}
    paths |= {"observation": jnp.ones((steps, *last.shape)), "action": jnp.zeros((steps, worlds), jnp.int32)}
    return step, ((weights, rule.init(weights)), jax.random.PRNGKey(0)), {"paths": paths, "last": last}


def eight_branches() -> Update:
    """Loop whose body has eight branches that are only summed."""
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
    """Gated layers in a scan, each under `jax.checkpoint`: the scan's body has a forward and a backward pass."""
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
    """Neural ODE (Chen et al., 2018), differentiated through 20 steps of fourth-order Runge-Kutta."""
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
    """Block of an MLP-Mixer (Tolstikhin et al., 2021) of 196 patches, with the signature of a scan's body."""

    @nn.compact
    def __call__(self, x: jax.Array, _: None = None) -> tuple[jax.Array, None]:
        cells, width = x.shape[1:]
        y = jnp.swapaxes(nn.LayerNorm()(x), 1, 2)
        x = x + jnp.swapaxes(nn.Dense(cells)(nn.gelu(nn.Dense(width)(y))), 1, 2)
        y = nn.LayerNorm()(x)
        return x + nn.Dense(width)(nn.gelu(nn.Dense(4 * width)(y))), None


def mixer(rule: Any, *, scanned: bool) -> Update:
    """MLP-Mixer, 6 blocks in sequence or in Flax's `nn.scan`."""

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
    """DenseNet (Huang et al., 2017) of two blocks: every layer reads all earlier ones."""

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
    """Differentially private SGD (Abadi et al., 2016): Optax's rule, with a gradient for each example."""

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
