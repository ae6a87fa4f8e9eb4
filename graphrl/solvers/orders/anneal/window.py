"""One window of annealing, on the device: the moves of a while, all between the same neighbouring places.

All chains anneal the same window of W places of their own orders. Inside, an op has a *local index*, its place in the
window when that was opened. A step takes the ops of one local index, one a chain, and puts each at one of all places
between its last predecessor and its first successor, by the heat-bath rule: place g with probability proportional to
exp(-E(g) / temperature). With A and B the memory at the other ops' places if the moved op comes after or before them,

    E(g)^4 = sum over other ops r before g of f(A_r) + sum over those from g on of f(B_r) + f(at the op itself)

so two triangular matrix products give the energies of all places at once. f(x) = (max(0, x - floor) / scale)^4, with
the floor a little below the best peak: E is the 4-norm of the excess, near the peak when one place stands out, and
still falling when several do. (Common is the peak plus its mean excess, and single random places.)

The heat-bath choice is made by the Gumbel trick on a table of noise that is drawn once a window.

Shapes: c chains, N ops, W places of a window, e entries, s slots (moves.py).
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from graphrl.costs.device.indexing import add, put, take
from graphrl.solvers.orders.anneal.moves import Moves

STEPS = 256  # moves of a chain in a window
NOISE = 32  # rows of noise that they share
BAND = 0.15  # how far below the best peak the energy begins to count, as a part of it
FOCUS = 0.75  # how many windows lie where some chain's memory is near its peak; the others lie anywhere
LOWEST = -(2**31)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Chains:
    """Orders and what they cost. Rows of `during` and `before` begin one place before the order, with a margin."""

    order: jax.Array  # [c, N] int32, op at each place; N for padding
    place: jax.Array  # [c, N + 1] int32, of each op
    during: jax.Array  # [c, N + 3] float32, quanta while the op at place i - 1 runs
    before: jax.Array  # [c, N + 3] float32, quanta live before it
    best_order: jax.Array  # [c, N] int32, that of least peak at the end of a window
    best: jax.Array  # [c] float32, quanta, its peak


class _Window(NamedTuple):
    """What stays the same while a window is open; the first axis is the local index, so that a step reads a row."""

    entry: jax.Array  # [W, c, e] int32, where the entry's place stands in the flat local places
    role: jax.Array  # [W, c, e] int32
    slot_bytes: jax.Array  # [W, c, s] float32
    held: jax.Array  # [W, c, 1] float32
    needed: jax.Array  # [W, c, 1] float32
    fixed: jax.Array  # [W, c, 1] bool
    outside: jax.Array  # [c, 1] float32, sum of f over all places outside
    floor: jax.Array  # [c, 1] float32, quanta
    scale: jax.Array  # [c, 1] float32, quanta
    cold: jax.Array  # [c, 1] float32, scale / temperature


class _Local(NamedTuple):
    """The state of an open window."""

    place: jax.Array  # [c, W + 2] int32, of each local index, -1 and W for ops outside
    during: jax.Array  # [c, W + 3] float32
    before: jax.Array  # [c, W + 3] float32


def anneal_window(chains: Chains, moves: Moves, key: jax.Array, temperature: jax.Array, width: int) -> Chains:
    """Opens a window of `width` places, makes STEPS moves a chain, and closes it.

    Args:
      chains: state.
      moves: of the graph.
      key: consumed.
      temperature: `[c, 1]` float32, parts of the best peak.
      width: static, at most N.
    """
    c = chains.order.shape[0]
    where, which, rows, noise_key = jax.random.split(key, 4)
    start = _start(chains, moves, where, width)
    ops = lax.dynamic_slice_in_dim(chains.order, start, width, 1)
    window = _open(chains, moves, ops, start, temperature)
    index = jax.random.randint(which, (STEPS,), 0, width)
    row = jax.random.randint(rows, (STEPS,), 0, NOISE)
    noise = jax.random.gumbel(noise_key, (NOISE, c, width), jnp.float32)
    local = _Local(
        place=jnp.broadcast_to(_count(width + 2) - 1, (c, width + 2)),
        during=lax.dynamic_slice_in_dim(chains.during, start, width + 3, 1),
        before=lax.dynamic_slice_in_dim(chains.before, start, width + 3, 1),
    )
    sums = _triangles(width)
    local = lax.fori_loop(0, STEPS, lambda i, state: _step(state, window, index[i], noise[row[i]], sums), local)
    return _close(chains, local, ops, start)


def _start(chains: Chains, moves: Moves, key: jax.Array, width: int) -> jax.Array:
    """First place of the window: around a place drawn by its excess in some chain, or around any place."""
    which, by_excess, anywhere, choice = jax.random.split(key, 4)
    chain = jax.random.randint(which, (), 0, chains.order.shape[0])
    excess = jnp.maximum(0.0, chains.during[chain] - (1 - BAND) * chains.best[chain])
    total = jnp.cumsum(excess)
    focus = jnp.sum((total < jax.random.uniform(by_excess) * total[-1]).astype(jnp.int32)) - 1
    middle = jnp.where(jax.random.uniform(choice) < FOCUS, focus, jax.random.randint(anywhere, (), 0, moves.num_ops))
    return jnp.clip(middle - width // 2, 0, jnp.maximum(0, moves.num_ops - width))


def _open(chains: Chains, moves: Moves, ops: jax.Array, start: jax.Array, temperature: jax.Array) -> _Window:
    c, width = ops.shape
    chain = jnp.arange(c, dtype=jnp.int32)[:, None]
    rows = chains.place.shape[1]
    place = take(chains.place.reshape(-1), chain[..., None] * rows + moves.entry[ops]) - start  # [c, W, e]
    entry = jnp.clip(place, -1, width) + 1 + chain[..., None] * (width + 2)
    floor, scale = (1 - BAND) * chains.best[:, None], BAND * chains.best[:, None]
    at = _count(chains.during.shape[1]) - 1 - start
    energy = _excess(chains.during, floor, scale)
    return _Window(
        entry=entry.swapaxes(0, 1),
        role=moves.role[ops].swapaxes(0, 1),
        slot_bytes=moves.slot_bytes[ops].swapaxes(0, 1),
        held=moves.held[ops].T[..., None],
        needed=moves.needed[ops].T[..., None],
        fixed=moves.fixed[ops].T[..., None],
        outside=jnp.sum(jnp.where((at >= 0) & (at <= width), 0.0, energy), 1, keepdims=True),
        floor=floor,
        scale=scale,
        cold=BAND / temperature,
    )


def _excess(quanta: jax.Array, floor: jax.Array, scale: jax.Array) -> jax.Array:
    part = jnp.maximum(0.0, quanta - floor) / scale
    return (part * part) * (part * part)


def _triangles(width: int) -> tuple[jax.Array, jax.Array]:
    """[W + 3, W + 4] that sums what is strictly before a place, from -1; [2 W, W] that sums A before g and B from g."""
    before = np.triu(np.ones((width + 3, width + 4), np.float32), 1)
    places = np.ones((width, width), np.float32)
    return jnp.asarray(before), jnp.asarray(np.concatenate([np.triu(places, 1), np.tril(places)]))


def _step(
    local: _Local, window: _Window, index: jax.Array, noise: jax.Array, triangles: tuple[jax.Array, jax.Array]
) -> _Local:
    """Moves the ops of one local index. Ranks r count the other ops, so that r is place r or, past the op, r + 1."""
    width = noise.shape[1]
    here = lax.dynamic_slice_in_dim(local.place, index + 1, 1, 1)  # [c, 1]
    low, high, last_use = _bounds(local, window, index, width)
    freed = _freed_before(window, index, last_use, triangles[0])
    ranks = _count(width + 2) - 1
    past = ranks >= here
    # what an op at rank r has more of if the moved op ran before it: its outputs, less the inputs that it freed
    gain = _row(window.held, index) - jnp.where(past, freed[:, 1 : width + 3], freed[:, : width + 2])
    during = jnp.where(past, local.during[:, 1:] - gain, local.during[:, :-1])  # A
    before = jnp.where(past, local.before[:, 1:] - gain, local.before[:, :-1])
    needed = _row(window.needed, index)
    first, second = during[:, 1:-1], during[:, 1:-1] + gain[:, 1:-1]
    others = jnp.concatenate([_excess(x, window.floor, window.scale) for x in (first, second)], 1)
    own = _excess(before[:, 1:-1] + needed, window.floor, window.scale)
    energy = jnp.sqrt(jnp.sqrt(window.outside + jnp.dot(others, triangles[1]) + own))
    there = _draw(noise - energy * window.cold, low, high)
    there = jnp.where(_row(window.fixed, index), here, there)
    live = jnp.sum(jnp.where(_count(width) == there, before[:, 1:-1], 0.0), 1, keepdims=True)
    places = _count(width + 1)

    def moved(after: jax.Array, own: jax.Array, old: jax.Array) -> jax.Array:
        new = jnp.where(places < there, after[:, 1:], after[:, :-1] + gain[:, :-1])
        new = jnp.where(places == there, own, new)
        new = jnp.where(_row(window.fixed, index), old[:, 1 : width + 2], new)
        return old.at[:, 1 : width + 2].set(new)

    place = local.place
    shift = ((place >= there) & (place < here)).astype(jnp.int32) - ((place > here) & (place <= there)).astype(
        jnp.int32
    )
    return _Local(
        place=jnp.where(place == here, there, place + shift),
        during=moved(during, live + needed, local.during),
        before=moved(before, live, local.before),
    )


def _count(size: int) -> jax.Array:
    """0, 1, ...: `[1, size]` int32."""
    return jnp.arange(size, dtype=jnp.int32)[None]


def _row(array: jax.Array, index: jax.Array) -> jax.Array:
    return lax.dynamic_index_in_dim(array, index, 0, keepdims=False)


def _bounds(local: _Local, window: _Window, index: jax.Array, width: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """First and last place where the op may stand, `[c, 1]`, and the last place, `[c, s]`, where another op uses what
    it reads: -1 if none does since the window's begin, W if one does after its end.
    """
    slots = window.slot_bytes.shape[2]
    role = _row(window.role, index)
    place = take(local.place.reshape(-1), _row(window.entry, index))
    # One maximum over the entries for all roles: of successors it is that of the negative places.
    place = jnp.where(role == slots + 1, -place, place)
    least = np.full(slots + 2, -1, np.int32)
    least[slots + 1] = -width
    roles = _count(slots + 2)[..., None]
    most = jnp.max(jnp.where(role[:, None, :] == roles, place[:, None, :], jnp.asarray(least)[None, :, None]), 2)
    return most[:, slots : slots + 1] + 1, -most[:, slots + 1 :] - 1, most[:, :slots]


def _freed_before(window: _Window, index: jax.Array, last_use: jax.Array, triangle: jax.Array) -> jax.Array:
    """Quanta `[c, W + 4]` of what the op reads and nobody else needs at each place, from place -1 on."""
    chains, size = last_use.shape[0], triangle.shape[0]
    at = last_use + 1 + jnp.arange(chains, dtype=jnp.int32)[:, None] * size
    quanta = add(jnp.zeros(chains * size, jnp.float32), at.reshape(-1), _row(window.slot_bytes, index).reshape(-1))
    return jnp.dot(quanta.reshape(chains, size), triangle)


def _draw(score: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """The place `[c, 1]` of the largest score among those allowed. The place is packed into the last bits of the
    score, as integers that sort as the floats do, so that one maximum finds it.
    """
    width = score.shape[1]
    mask = (1 << (width - 1).bit_length()) - 1
    bits = lax.bitcast_convert_type(score, jnp.int32)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    places = _count(width)
    allowed = (places >= low) & (places <= high)
    return jnp.max(jnp.where(allowed, (bits & ~mask) | places, LOWEST), 1, keepdims=True) & mask


def _close(chains: Chains, local: _Local, ops: jax.Array, start: jax.Array) -> Chains:
    """Writes a window's outcome into the orders, and keeps it where it is the best."""
    c, width = ops.shape
    chain = jnp.arange(c, dtype=jnp.int32)[:, None]
    inside = local.place[:, 1:-1]
    flat = put(jnp.zeros(c * width, jnp.int32), (inside + chain * width).reshape(-1), ops.reshape(-1))
    order = lax.dynamic_update_slice_in_dim(chains.order, flat.reshape(c, width), start, 1)
    rows = chains.place.shape[1]
    place = put(chains.place.reshape(-1), (ops + chain * rows).reshape(-1), (inside + start).reshape(-1))
    during = lax.dynamic_update_slice_in_dim(chains.during, local.during, start, 1)
    peak = jnp.max(during, 1)
    return Chains(
        order=order,
        place=place.reshape(c, rows),
        during=during,
        before=lax.dynamic_update_slice_in_dim(chains.before, local.before, start, 1),
        best_order=jnp.where((peak < chains.best)[:, None], order, chains.best_order),
        best=jnp.minimum(peak, chains.best),
    )
