"""HDP's two networks: the grouper, and the placer, which decides device after device of the groups."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from graphrl.agents.hdp.config import HdpConfig
from graphrl.learning import reinforce


class Draw(NamedTuple):
    """How options are chosen at one moment of learning."""

    noise: jax.Array  # [] float32, see `HdpConfig`; 0 for none
    is_sampled: jax.Array  # [] bool; groups always are


def choose(key: jax.Array, logits: jax.Array, draw: Draw) -> tuple[jax.Array, jax.Array]:
    """An option of every choice, `[...]` int32, and the logits with noise `[..., options]` that it is chosen by."""
    of_noise, of_sample = jax.random.split(key)
    size = jax.lax.stop_gradient(jnp.sqrt(jnp.square(logits).mean()))
    logits = logits + draw.noise * size * jax.random.normal(of_noise, logits.shape)
    likeliest = jnp.argmax(logits, -1).astype(jnp.int32)
    return jnp.where(draw.is_sampled, reinforce.sample(of_sample, logits), likeliest), logits


class Grouper(nn.Module):
    """Logits of the groups of an op: two matrices, with nothing between them.

    Attributes:
      hidden: width between them.
      groups: how many.
    """

    hidden: int
    groups: int

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:
        """`[n, F]` float32 to `[n, groups]`."""
        hidden = nn.Dense(self.hidden, use_bias=False, name="in")(features)
        return nn.Dense(self.groups, use_bias=False, name="out")(hidden)


class Placer(nn.Module):
    """A device for every group: an LSTM reads the groups in both directions, a second one attends to what it read and
    is told of the device before.

    Attributes:
      config: of the agent.
      devices: d.
    """

    config: HdpConfig
    devices: int

    @nn.compact
    def __call__(self, groups: jax.Array, key: jax.Array, draw: Draw) -> tuple[jax.Array, jax.Array]:
        """Embeddings of groups `[k, G]` float32 to their devices `[k]` int32 and the logits of these `[k, d]`."""
        hidden = self.config.hidden
        forward, backward = (nn.RNN(_lstm(hidden // 2), name=name) for name in ("forward", "backward"))
        memory = nn.Bidirectional(forward, backward)(groups[None])[0]
        keys = nn.Dense(hidden, use_bias=False, name="keys")(memory)
        steps = nn.scan(
            _Step,
            variable_broadcast="params",
            split_rngs={"params": False},
            in_axes=(0, nn.broadcast, nn.broadcast, nn.broadcast),
        )
        begin = (jnp.zeros(hidden), jnp.zeros(hidden)), jnp.int32(self.devices)
        each = jax.random.split(key, groups.shape[0])
        return steps(self.config, self.devices, name="step")(begin, each, memory, keys, draw)[1]


def _lstm(hidden: int, name: str | None = None) -> nn.OptimizedLSTMCell:
    # Linen's own initial weights are orthogonal, and their decomposition takes longer to compile than all the rest
    return nn.OptimizedLSTMCell(hidden, recurrent_kernel_init=nn.initializers.lecun_normal(), name=name)


class _Step(nn.Module):
    """The device of one group."""

    config: HdpConfig
    devices: int

    @nn.compact
    def __call__(
        self,
        carry: tuple[tuple[jax.Array, jax.Array], jax.Array],
        key: jax.Array,
        memory: jax.Array,
        keys: jax.Array,
        draw: Draw,
    ) -> tuple[tuple[tuple[jax.Array, jax.Array], jax.Array], tuple[jax.Array, jax.Array]]:
        hidden, (state, before) = self.config.hidden, carry
        last = nn.Embed(self.devices + 1, hidden, name="device")(before)  # the last one stands for none yet
        state, output = _lstm(hidden, name="cell")(state, last)
        query = nn.Dense(hidden, use_bias=False, name="query")(output)
        scores = nn.Dense(1, use_bias=False, name="score")(jnp.tanh(keys + query[None]))[:, 0]
        context = jax.nn.softmax(scores) @ memory
        logits = nn.Dense(self.devices, use_bias=False, name="logits")(jnp.concatenate([output, context]))
        device, logits = choose(key, self.config.tanh_constant * jnp.tanh(logits), draw)
        return (state, device), (device, logits)
