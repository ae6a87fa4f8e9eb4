"""What the ops around an op have chosen, for each option that it has itself: features of pairs."""

import flax.linen as nn
import jax
import jax.numpy as jnp

WINDOWS = (8, 32, 128)  # parts of the order, in each of which options are loaded differently
PAIR_FEATURES = 5 + len(WINDOWS)


def votes(chosen: jax.Array, senders: jax.Array, receivers: jax.Array, order: jax.Array) -> jax.Array:
    """`[n, o, PAIR_FEATURES]` float32: of op v and option k

    - whether v has chosen k;
    - the share of the ops before v that have, and of those after it; and their numbers, log1p;
    - of the ops that stand near v in the order, the share that have, for parts of the order of several lengths.

    Memory is linear in n. Nothing depends on the options' numbers: permuted options have permuted features.

    Args:
      chosen: `[n, o]` float32, the probabilities of options, or 1 for what was chosen; 0 for padding.
      senders, receivers: `[e]` int32, ops that edges lead from and to; n for padding.
      order: `[n]` int32, the ops, first to last.
    """
    counts = [_sums(chosen, *ends) for ends in ((senders, receivers), (receivers, senders))]
    shares = [count / jnp.maximum(count.sum(-1, keepdims=True), 1.0) for count in counts]
    place = jnp.zeros_like(order).at[order].set(jnp.arange(len(order), dtype=jnp.int32))
    until = jnp.pad(jnp.cumsum(chosen[order], 0), ((1, 0), (0, 0)))
    real = chosen.sum()
    near = [_near(until, place, real / parts) for parts in WINDOWS]
    return jnp.stack([chosen, *shares, *map(jnp.log1p, counts), *near], -1)


class VoteLogits(nn.Module):
    """Logits that each op makes of its pair features, weighing them as its vector says; 0 for all when untrained."""

    @nn.compact
    def __call__(self, ops: jax.Array, features: jax.Array) -> jax.Array:
        """Vectors `[n, w]` and features `[n, o, PAIR_FEATURES]` to `[n, o]` float32."""
        weights = nn.Dense(PAIR_FEATURES, kernel_init=nn.initializers.zeros, name="weights")(ops)
        return jnp.einsum("nok,nk->no", features, weights)


def _sums(values: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
    """Of each receiver the sum of its senders' values `[n, o]`."""
    return jnp.zeros_like(values).at[receivers].add(values.at[senders].get(mode="fill", fill_value=0), mode="drop")


def _near(until: jax.Array, place: jax.Array, width: jax.Array) -> jax.Array:
    """Shares `[n, o]` of options among `width` ops around each, of sums `[n + 1, o]` along the order."""
    last = until.shape[0] - 1
    half = jnp.maximum(width / 2, 1.0).astype(jnp.int32)
    begin, end = jnp.clip(place - half, 0, last), jnp.clip(place + half + 1, 0, last)
    sums = until[end] - until[begin]
    return sums / jnp.maximum(sums.sum(-1, keepdims=True), 1.0)
