"""Bundled sends on the device: the twin of `solvers.sending.rule`, as keys of a decoder."""

import jax
import jax.numpy as jnp

from graphrl.costs.device.decisions import Decisions
from graphrl.costs.device.decode import schedule
from graphrl.costs.device.lanes import implied
from graphrl.graphs.padding import PaddedGraph


def bundled(graph: PaddedGraph, placement: jax.Array, op_keys: jax.Array, devices: int) -> Decisions:
    """Decisions whose transfers go as `rendezvous` has them in `solvers.sending.rule`.

    Args:
      graph: a batch of graphs (leading axis g).
      placement: `[n, g, p]` int32.
      op_keys: `[n, g, p]` float32 in [0, 1): of the ready ops the largest runs first.
      devices: d.
    """
    rank = ranks(graph, op_keys)
    places = jax.vmap(jax.vmap(_places, (None, 1, 1, None), 2), (0, 1, 1, None), 2)
    before = places(graph, placement, rank, devices)

    def keys(place: jax.Array, is_send: int) -> jax.Array:
        count = jnp.expand_dims(jnp.maximum(graph.num_ops, 1), (*range(place.ndim - 2), -1))
        key = jnp.maximum(2 * (count - 1 - place) + is_send, 0)
        return key.astype(jnp.float32) / (2 * count).astype(jnp.float32)

    return Decisions(placement, keys(rank, 0), keys(before, 1))


def ranks(graph: PaddedGraph, op_keys: jax.Array) -> jax.Array:
    """The places `[n, g, p]` int32 of ops in the order of their keys; those of padding mean nothing."""
    n, g, p = op_keys.shape
    on_one = Decisions(jnp.zeros((n, g, p), jnp.int32), op_keys, jnp.zeros((1, graph.sizes.tensors, g, p)))
    events = schedule(graph, implied(graph, on_one, 1), 1, "free", None).events
    return places(events, n, 1).reshape(n, g, p)


def places(events: jax.Array, ops: int, devices: int) -> jax.Array:
    """The place `[n, L]` int32 of each op among the ops that events `[c, L]` run (`decode.Schedule`); n for padding."""
    op = jnp.minimum(events // devices, ops)
    place = jnp.cumsum(op < ops, 0, dtype=jnp.int32) - 1
    lane = jnp.arange(events.shape[1], dtype=jnp.int32)
    return jnp.full((ops + 1, events.shape[1]), ops, jnp.int32).at[op, lane].min(place)[:ops]


def _places(graph: PaddedGraph, placement: jax.Array, rank: jax.Array, devices: int) -> jax.Array:
    """Of each tensor to each device the place of the op that it is sent before: `[d, t]` int32.

    Of one graph: `placement` and `rank`, `[n]` int32 each.
    """
    n, t = len(rank), graph.sizes.tensors
    op, tensor = jnp.minimum(graph.use_op, n - 1), jnp.minimum(graph.use_tensor, t - 1)
    writer = graph.producer[tensor]
    source, target = placement[writer], placement[op]
    crosses = (graph.use_op < n) & (source != target)
    needed = jnp.where(crosses, rank[op], n)
    by_place = jnp.argsort(needed)
    pair = jnp.minimum(source, target) * devices + jnp.maximum(source, target)

    def step(last: jax.Array, use: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        which, written, needed = use
        is_cause = last[which] <= written  # nothing was sent since it was written
        return last.at[which].set(jnp.where(is_cause, needed, last[which])), is_cause

    pair, written, place = jax.tree.map(lambda each: each[by_place], (pair, rank[writer], needed))
    is_cause = jax.lax.scan(step, jnp.full(devices * devices, -1, jnp.int32), (pair, written, place))[1]
    span = jnp.int32(n + 1)
    causes = jnp.sort(jnp.where(is_cause, pair * span + place, jnp.iinfo(jnp.int32).max))
    before = causes[jnp.searchsorted(causes, pair * span + written, side="right")] - pair * span
    index = jnp.where(crosses, target * t + tensor, devices * t)[by_place]
    return jnp.full(devices * t, n, jnp.int32).at[index].min(before, mode="drop").reshape(devices, t)
