"""Keys of transfers in `Compile-v0`: when each tensor is sent, given placement and priorities.

`transfer_keys` sends a tensor when its most urgent reader is due. `by_rule` is the device version of
`solvers.transfer_rules.plans`: sends follow from the order of ops, bundled under `rendezvous`.
On CPUs it is a part of the compiled costs (`costs/host/sends.py`).
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from graphrl.costs.device.decisions import Decisions, DeviceProblem
from graphrl.costs.device.evaluate import evaluate
from graphrl.costs.problem import Problem, Transfer
from graphrl.graphs.padding import PaddedGraph

_ALONE = DeviceProblem.of(Problem("makespan", 1, "free"))
Sends = Literal["urgent", "rule"]


def by_rule(
    graph: PaddedGraph, placement: jax.Array, op_keys: jax.Array, devices: int, transfer: Transfer
) -> Decisions:
    """Creates decisions whose transfers follow the rule of `solvers.transfer_rules.plans`: bundled under `rendezvous`,
    else right before the first op that waits; for thousands of ops keys lack resolution (`costs.device.lanes`).

    Args:
      graph: a batch of graphs (leading axis g).
      placement: `[n, g, p]` int32.
      op_keys: `[n, g, p]` float32 in [0, 1): the ready op with the largest key runs first.
      devices: number of devices, d.
      transfer: the transfer model.
    """
    keys = _bundled if transfer == "rendezvous" else _late
    of_all = jax.vmap(jax.vmap(keys, (None, 1, 1, None), (1, 2)), (0, 1, 1, None), (1, 2))
    return Decisions(placement, *of_all(graph, placement, ranks(graph, op_keys), devices))


def places_of_ops(events: jax.Array, ops: int, devices: int) -> jax.Array:
    """Finds each op's position `[n, L]` int32 among the ops in events `[c, L]` (`decode.Schedule`); n for padding."""
    op = jnp.minimum(events // devices, ops)
    place = jnp.cumsum(op < ops, 0, dtype=jnp.int32) - 1
    lane = jnp.arange(events.shape[1], dtype=jnp.int32)
    return jnp.full((ops + 1, events.shape[1]), ops, jnp.int32).at[op, lane].min(place)[:ops]


def transfer_keys(graph: PaddedGraph, placement: jax.Array, keys: jax.Array, devices: int) -> jax.Array:
    """Computes transfer keys `[d, t]` float32 in [0, 1): each has the key of the most urgent op that waits for it."""
    t, n = graph.sizes.tensors, graph.sizes.ops
    op = jnp.minimum(graph.use_op, n - 1)
    index = jnp.where(graph.use_op < n, placement[op] * t + graph.use_tensor, devices * t)
    return jnp.zeros(devices * t).at[index].max(keys[op], mode="drop").reshape(devices, t)


def _bundled(graph: PaddedGraph, placement: jax.Array, rank: jax.Array, devices: int) -> tuple[jax.Array, jax.Array]:
    """Computes one graph's keys of ops `[n]` and of bundled transfers `[d, t]`; `placement`, `rank` are `[n]` int32."""
    count = jnp.maximum(graph.num_ops, 1)

    def keys(place: jax.Array, is_send: int) -> jax.Array:
        key = jnp.maximum(2 * (count - 1 - place) + is_send, 0)
        return key.astype(jnp.float32) / (2 * count).astype(jnp.float32)

    return keys(rank, 0), keys(_bundled_before(graph, placement, rank, devices), 1)


def _late(graph: PaddedGraph, placement: jax.Array, rank: jax.Array, devices: int) -> tuple[jax.Array, jax.Array]:
    """Computes keys as `_bundled` does, but with each transfer right before the first op that waits for it; tensors
    that are written earlier are sent first.

    All transfers of one op's outputs that the same op waits for first share one position among those of the ops.
    """
    uses = _uses(graph, placement, rank)
    transfers = devices * graph.sizes.tensors
    index = jnp.where(uses.crosses, uses.target * graph.sizes.tensors + uses.tensor, transfers)
    first = jnp.full(transfers + 1, len(rank), jnp.int32).at[index].min(uses.needed)[index]
    by_place = jnp.lexsort((uses.written, first))
    first, written, index = (each[by_place] for each in (first, uses.written, index))
    is_new = (first != jnp.roll(first, 1)) | (written != jnp.roll(written, 1))
    count = jnp.cumsum((is_new.at[0].set(True) & (first < len(rank))).astype(jnp.int32))
    steps = jnp.maximum(graph.num_ops, 1) + count[-1]
    sends_before = jnp.append(jnp.zeros(1, jnp.int32), count)[jnp.searchsorted(first, rank, side="right")]

    def keys(place: jax.Array) -> jax.Array:
        return jnp.maximum(steps - 1 - place, 0).astype(jnp.float32) / steps.astype(jnp.float32)

    sends = jnp.zeros(transfers).at[index].max(keys(first + count - 1), mode="drop")
    return keys(rank + sends_before), sends.reshape(devices, -1)


def ranks(graph: PaddedGraph, op_keys: jax.Array) -> jax.Array:
    """Computes the positions `[n, g, p]` int32 of ops in the order of their keys; those of padding are arbitrary."""
    n, g, p = op_keys.shape
    on_one = Decisions(jnp.zeros((n, g, p), jnp.int32), op_keys, jnp.zeros((1, graph.sizes.tensors, g, p)))
    events = evaluate(graph, on_one, _ALONE, makespan=False, memory=False).events
    return places_of_ops(events.reshape(-1, g * p), n, 1).reshape(n, g, p)


def _bundled_before(graph: PaddedGraph, placement: jax.Array, rank: jax.Array, devices: int) -> jax.Array:
    """Finds the position of the op before which each tensor is sent to each device, in a bundle: `[d, t]` int32.

    For one graph: `placement` and `rank`, `[n]` int32 each.
    """
    n, t, uses = len(rank), graph.sizes.tensors, _uses(graph, placement, rank)
    by_place = jnp.argsort(uses.needed)
    pair = jnp.minimum(uses.source, uses.target) * devices + jnp.maximum(uses.source, uses.target)

    def step(last: jax.Array, use: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        which, written, needed = use
        is_cause = last[which] <= written  # no transfer between the two devices since it was written
        return last.at[which].set(jnp.where(is_cause, needed, last[which])), is_cause

    pair, written, place = jax.tree.map(lambda each: each[by_place], (pair, uses.written, uses.needed))
    is_cause = jax.lax.scan(step, jnp.full(devices * devices, -1, jnp.int32), (pair, written, place))[1]
    span = jnp.int32(n + 1)
    causes = jnp.sort(jnp.where(is_cause, pair * span + place, jnp.iinfo(jnp.int32).max))
    before = causes[jnp.searchsorted(causes, pair * span + written, side="right")] - pair * span
    index = jnp.where(uses.crosses, uses.target * t + uses.tensor, devices * t)[by_place]
    return jnp.full(devices * t, n, jnp.int32).at[index].min(before, mode="drop").reshape(devices, t)


class _Uses(NamedTuple):
    """Uses of tensors by ops, `[u]` each."""

    crosses: jax.Array  # bool, True if the tensor comes from another device
    tensor: jax.Array  # int32
    source: jax.Array  # int32, device
    target: jax.Array  # int32, device
    written: jax.Array  # int32, position of the op that writes the tensor
    needed: jax.Array  # int32, position of the op that reads it; n if the tensor does not cross


def _uses(graph: PaddedGraph, placement: jax.Array, rank: jax.Array) -> _Uses:
    n, t = len(rank), graph.sizes.tensors
    op, tensor = jnp.minimum(graph.use_op, n - 1), jnp.minimum(graph.use_tensor, t - 1)
    writer = graph.producer[tensor]
    source, target = placement[writer], placement[op]
    crosses = (graph.use_op < n) & (source != target)
    return _Uses(crosses, tensor, source, target, rank[writer], jnp.where(crosses, rank[op], n))
