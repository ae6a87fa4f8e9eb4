"""What loads become where one group of ops moves to another device, in pure JAX: of all groups and devices at once.

A tensor costs its home once if it is read elsewhere, and every other device once that reads it (`loads.py`), so that a
move changes the loads of the device that is left and of the one that is entered, and of no third: if the last reader
elsewhere moves on to another device, the home sends as before.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from graphrl.costs.device.loads import PaddedPipeline, traffic
from graphrl.costs.pipeline import ACCELERATOR


class Moves(NamedTuple):
    """Of each op whose group moves, in units of the graph; where a device cannot run an op, without that op's time."""

    left: jax.Array  # [n] float32, the load of its device without it
    entered: jax.Array  # [n, d] float32, that of each other device with it; of its own as it is
    runtime: jax.Array  # [n, d] float32, what the group takes on each device
    weight: jax.Array  # [n] float32, of the group


def moves(pipeline: PaddedPipeline, placement: jax.Array, loads: jax.Array) -> Moves:
    """From a placement `[n] int32` that keeps groups together, and its loads `[d]`: O((n + e + t) d)."""
    p, (devices,), leader = pipeline, pipeline.kinds.shape, pipeline.leader
    seconds = jnp.where(jnp.isfinite(p.runtime), p.runtime, 0.0)
    runtime = jnp.zeros_like(seconds).at[leader].add(seconds)[:, p.kinds]
    leaves, enters = _changes(p, placement)
    pays = p.kinds == ACCELERATOR
    is_home = placement[:, None] == jnp.arange(devices, dtype=jnp.int32)[None]
    own = jnp.where(is_home, runtime, 0.0).sum(1)
    left = loads[placement] - own + jnp.where(pays[placement], leaves, 0.0)
    entered = loads[None] + jnp.where(is_home, 0.0, runtime + jnp.where(pays[None], enters, 0.0))
    weight = jnp.zeros_like(p.weight).at[leader].add(p.weight)
    return Moves(*(of[leader] for of in (left, entered, runtime, weight)))


def _changes(p: PaddedPipeline, placement: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What leaders' moves add to what their devices `[n]` and others `[n, d]` pay for tensors, if these pay at all."""
    (n,), (devices,), (tensors,) = placement.shape, p.kinds.shape, p.transfer.shape
    home, readers, away = traffic(p, placement)
    device = jnp.arange(devices, dtype=jnp.int32)[None]
    read, is_home = readers > 0, device == home[:, None]  # [t, d]
    # as the writer: its device sends no more, but may read from now on; another one sends, and no longer receives
    at_home = (read & is_home).any(1)
    places = away + at_home.astype(jnp.int32)
    others = places[:, None] > read.astype(jnp.int32)  # [t, d], whether it is read on another device
    writer = jnp.asarray(p.leader).at[p.producer].get(mode="fill", fill_value=n)
    leaves = jnp.zeros(n).at[writer].add(_more(at_home, away > 0) * p.transfer, mode="drop")
    enters = jnp.zeros((n, devices)).at[writer].add(_more(others, read) * p.transfer[:, None], mode="drop")
    # as a reader: its device may be the last to read there, another one the first
    of = jnp.minimum(p.read_tensor, tensors - 1)
    here, cost = placement.at[p.reader].get(mode="fill", fill_value=0), p.transfer[of]
    alone = jnp.take_along_axis(readers[of], here[:, None], axis=1)[:, 0] == 1
    from_home = here == home[of]
    starts, ends = from_home & (away[of] == 0), ~from_home & alone  # the home sends; the device no longer receives
    stops = ends & (away[of] == 1)  # the home sends no longer, if the reader goes there
    leaves = leaves.at[p.reader].add(_more(starts, ends) * cost, mode="drop")
    first = _more(~read[of] & ~is_home[of], stops[:, None] & is_home[of])
    return leaves, enters.at[p.reader].add(first * cost[:, None], mode="drop")


def _more(after: jax.Array, before: jax.Array) -> jax.Array:
    """1 for what begins, -1 for what ends, float32."""
    return after.astype(jnp.float32) - before.astype(jnp.float32)
