"""Buffers that tensors share (`alias` and `reuses`), on the device; the rules stand in `exact_memory.py`.

Used only for graphs padded for shares: others compile to the same program as without it.

An **instance** is a copy of a tensor on a device: copy c of tensor t is number c * t_size + t, and copy 0 is the one
where its producer runs (see memory.py). A **share** is an output x that uses the buffer of an input y of its op. The
buffer is that of y's instance on the op's device: of y's transferred copy, or of y itself, or, if y is an alias made
on this device, of what y shares with.

- An alias only makes its buffer live longer: until its own end.
- An output that reuses takes the buffer over if the buffer would end at the op itself: then its own allocation is
  spared, its own end frees nothing, and the buffer ends where the output does, or who takes it from that in turn.

Both are chains of shares, followed by pointer doubling: log2(s) rounds of gathers over all shares, and no loop over
them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from graphrl.costs.lanes import Lanes, rows
from graphrl.graphs.padding import PaddedGraph


class Shared(NamedTuple):
    """What sharing changes. `end` and `freed` as in `memory.Copies`."""

    end: jax.Array  # [d, t, g, p] int32
    freed: jax.Array  # [d, t, g, p] float32, byte units
    allocated: jax.Array  # [c, L] float32, byte units


class _Shares(NamedTuple):
    """The shares in every lane. Padding shares are of tensor t and of instance d * t, which both are none."""

    tensor: jax.Array  # [g, s] int32, x
    place: jax.Array  # [s, g, p] int32, place of x's producer
    instance: jax.Array  # [s, g, p] int32, of y
    parent: jax.Array  # [s, g, p] int32, the share that made y an alias on this device; s where there is none


def share_buffers(
    graph: PaddedGraph, lanes: Lanes, place: jax.Array, end: jax.Array, freed: jax.Array, allocated: jax.Array
) -> Shared:
    """Ends, frees and allocations when buffers are shared, from those when every tensor has its own.

    Args:
      graph: a batch of graphs (leading axis g) with `sizes.shares` > 0.
      lanes: what the placements imply.
      place: `[N + 1, g, p]` int32, place of every node in the order.
      end: `[d, t, g, p]` int32, as `memory.Copies.end`; c for never.
      freed: `[d, t, g, p or 1]` float32, as `memory.Copies.freed`.
      allocated: `[c, L]` float32, what the node at each place allocates.
    """
    d, t, g, p = end.shape
    never, none = allocated.shape[0], d * t
    shares = _shares(graph, lanes, place, none)
    index = jnp.arange(graph.sizes.shares, dtype=jnp.int32)[:, None, None]
    reuses = graph.share_reuses.T[..., None]
    ends = _with_row(end.reshape(none, g, p), -1)
    ends = ends.at[:t].set(jnp.where(_external(graph).T[..., None], never, ends[:t]))  # nobody takes those over

    buffer = _pick(shares.instance, _last_of_chain(shares.parent))
    of_aliases = jnp.where(reuses, -1, rows(ends, shares.tensor))
    ends = _at(ends, buffer, of_aliases, "max")

    # the first of an op's outputs has a buffer that several want
    wanted = reuses & (_pick(ends, buffer) == shares.place)
    taker = _at(jnp.full_like(ends, index.shape[0]), buffer, jnp.where(wanted, index, index.shape[0]), "min")
    takes = wanted & (_pick(taker, buffer) == index)

    last = _last_of_chain(rows(taker, shares.tensor))
    final = _pick(rows(ends, shares.tensor), last)
    ends = _at(ends, jnp.where(takes, buffer, none), final, "set")
    graph_index = jnp.arange(g, dtype=jnp.int32)[:, None]
    owner = _with_row(jnp.zeros((t, g, p), jnp.bool_), False)
    owner = owner.at[shares.tensor.T, graph_index.T].max(takes)[:t]
    spared = jnp.where(takes, graph.owned_bytes.at[graph_index, shares.tensor].get(mode="clip").T[..., None], 0.0)
    place_of = jnp.where(takes, shares.place, 0)
    return Shared(
        end=ends[:none].reshape(d, t, g, p),
        freed=jnp.broadcast_to(freed, end.shape).at[0].set(jnp.where(owner, 0.0, freed[0])),
        allocated=_at(allocated.reshape(never, g, p), place_of, -spared, "add").reshape(never, g * p),
    )
