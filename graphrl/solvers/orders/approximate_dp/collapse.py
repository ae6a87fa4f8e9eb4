"""Candidates of equal sets become one: that of least peak (state collapsing, Topoformer, appendix C.3).

Sets are compared by 64 bits of random hashes (Zobrist): two of a million different sets are taken for equal with a
probability of about 3e-8 a step.
"""

import jax
import jax.numpy as jnp
from jax import lax

from graphrl.costs.device.indexing import put_max, take

_SLOTS = 4  # of the hash table, for each candidate at least


def least_of_equals(hashes: jax.Array, peak: jax.Array, real: jax.Array) -> jax.Array:
    """Which real candidates have the least peak of their set, one for each set (the first): `[m]` bool.

    Args:
      hashes: `[2, m]` uint32, of the sets.
      peak: `[m]` int32.
      real: `[m]` bool.
    """
    first = _first_of_equals(hashes, real)
    m = len(real)
    index = jnp.arange(m, dtype=jnp.int32)
    least = _least(first, peak, m, real)
    real = real & (peak == take(least, first))
    return real & (take(_least(first, index, m, real), first) == index)


def _first_of_equals(hashes: jax.Array, real: jax.Array) -> jax.Array:
    """A candidate that stands for all of the same set, `[m]` int32.

    A round puts all that have no such candidate yet in a hash table, where the first of each slot stays; the others of
    its set have found theirs. Those of other sets try again with another hash.
    """
    m = len(real)
    bits = (_SLOTS * m - 1).bit_length()
    index = jnp.arange(m, dtype=jnp.int32)

    def search(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        first, searching, round_ = state
        mixed = (hashes[1] + round_ * hashes[0]) * jnp.uint32(0x9E3779B1)
        slot = jnp.where(searching, (mixed >> jnp.uint32(32 - bits)).astype(jnp.int32), 1 << bits)
        stays = take(_least(slot, index, (1 << bits) + 1, searching), slot)
        stays = jnp.where(searching, stays, 0)
        equal = searching & (take(hashes[0], stays) == hashes[0]) & (take(hashes[1], stays) == hashes[1])
        return jnp.where(equal, stays, first), searching & ~equal, round_ + jnp.uint32(1)

    return lax.while_loop(lambda state: jnp.any(state[1]), search, (index, real, jnp.uint32(0)))[0]


def _least(group: jax.Array, value: jax.Array, groups: int, real: jax.Array) -> jax.Array:
    """The least value of the real members of each group: `[groups]` int32, garbage for groups without any."""
    return -put_max(jnp.full(groups, -(2**31 - 1), jnp.int32), group, jnp.where(real, -value, -(2**31 - 1)))
