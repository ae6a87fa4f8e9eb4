"""What a plan of an instance did when it ran: when ops did and what they waited for, and what devices did meanwhile.

A policy that makes a plan better must know where time is lost. Times are parts of the makespan, so that neither units
nor lengths matter. Memory is linear in n d, and so is time but for sorting and one scan along the uses.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from graphrl.graphs.padding import PaddedGraph

OP_TIMES, DEVICE_TIMES = 11, 8
MARGINS = (0.0, 0.01, 0.05, 0.2)  # parts of the makespan around an op in which devices are looked at
SHARP = 20.0  # slack of a twentieth of the makespan counts as 1/e of none
SHORTEST = 1e-6  # part of the makespan: of shorter times float32 does not say how busy a device was


class Played(NamedTuple):
    """Of one plan; zeros for padding, for ops that others inline, and where nothing has been chosen yet.

    ops: `[n, OP_TIMES]` float32, of each op
    - its start, its end, and its run time;
    - since when its device was idle, for how long it will be afterwards, and how long its inputs waited for it;
    - how long nothing waits for it, neither a reader nor the next op on its device;
    - by how much it may be late, were transfers free: with the order on devices as it is, and with as many devices as
      there are ops; and both once more as exp(-SHARP slack), which tells small ones apart.

    devices: `[n, d, DEVICE_TIMES]` float32, of each op and device
    - how much later than the op's start the last of its inputs there ends, and how much later than its end the first of
      its readers there starts (0 and the makespan where there are none there);
    - the share of the time in which the device runs ops: around the op, for each of `MARGINS`; from when the op could
      start to when it must end; and of the whole run.
    """

    ops: jax.Array
    devices: jax.Array


class _Ops(NamedTuple):
    """Of each op: `[n]` each; times are parts of the makespan, padding starts and ends at 1."""

    real: jax.Array  # bool
    device: jax.Array  # int32
    place: jax.Array  # int32, in the order; n for padding
    start: jax.Array
    end: jax.Array
    runtime: jax.Array


@functools.partial(jax.jit, static_argnames="devices")  # one program also where the environment is not jitted
def played(graph: PaddedGraph, placement: jax.Array, place: jax.Array, end: jax.Array, devices: int) -> Played:
    """What was played.

    Args:
      graph: that ran.
      placement: `[n]` int32, devices.
      place: `[n]` int32, of each op in the order.
      end: `[n]` float32, second units.
      devices: d.
    """
    n, real = len(end), jnp.arange(len(end), dtype=jnp.int32) < graph.num_ops
    scale = 1 / jnp.maximum(jnp.where(real, end, 0).max(), 1e-30)
    end, runtime = jnp.where(real, end * scale, 1), jnp.where(real, graph.runtime * scale, 0)
    place = jnp.where(real, place, n)
    ops = _Ops(real, placement, place, jnp.maximum(end - runtime, 0), end, runtime)
    source, target = _edges(graph)
    before, after = _neighbours(ops)
    idle_from, idle_until = _at(ops.end, before, 0), _at(ops.start, after, 1)
    ready = jnp.zeros(n).at[target].max(_at(ops.end, source, 0), mode="drop")
    awaited = jnp.ones(n).at[source].min(_at(ops.start, target, 1), mode="drop")
    latest, tail = _backwards(ops, source, target, after)
    slack, free = latest - ops.end, 1 - ops.end - tail
    times = [ops.start, ops.end, ops.runtime, ops.start - idle_from, idle_until - ops.end, ops.start - ready]
    times += [jnp.minimum(awaited, idle_until) - ops.end, slack, free]
    times += [jnp.exp(-SHARP * jnp.maximum(each, 0)) for each in (slack, free)]
    own = _at(ops.device, jnp.stack([source, target]), 0)
    inputs = jnp.zeros((n, devices)).at[target, own[0]].max(_at(ops.end, source, 0), mode="drop")
    readers = jnp.ones((n, devices)).at[source, own[1]].min(_at(ops.start, target, 1), mode="drop")
    begins = jnp.stack([*(ops.start - margin for margin in MARGINS), ready, jnp.zeros(n)])
    ends = jnp.stack([*(ops.end + margin for margin in MARGINS), latest, jnp.ones(n)])
    busy = _busy(ops, begins, ends, devices)
    pairs = [inputs - ops.start[:, None], readers - ops.end[:, None], *busy]
    return Played(
        jnp.where(real[:, None], jnp.stack(times, -1), 0), jnp.where(real[:, None, None], jnp.stack(pairs, -1), 0)
    )


def _edges(graph: PaddedGraph) -> tuple[jax.Array, jax.Array]:
    """The ops that edges lead from and to, `[e + f]` int32 each; n for padding."""
    n, source = graph.runtime.shape[0], _at(graph.producer, graph.use_tensor, graph.runtime.shape[0])
    source = jnp.append(source, graph.control_source)
    target = jnp.append(graph.use_op, graph.control_target)
    return jnp.where(target < n, source, n), target


def _at(values: jax.Array, index: jax.Array, otherwise: int) -> jax.Array:
    """`values[index]`, or another number where the index is that of no row."""
    return values.at[index].get(mode="fill", fill_value=otherwise)


def _neighbours(ops: _Ops) -> tuple[jax.Array, jax.Array]:
    """The op before and the op after each on its device, `[n]` int32 each; n for none, and for padding."""
    n = len(ops.place)
    by_device = jnp.lexsort((ops.place, ops.device, ~ops.real)).astype(jnp.int32)
    device = jnp.where(ops.real, ops.device, -1)[by_device]
    follows = (device[1:] == device[:-1]) & (device[1:] >= 0)
    none = jnp.full(1, n, jnp.int32)
    before = jnp.concatenate([none, jnp.where(follows, by_device[:-1], n)])
    after = jnp.concatenate([jnp.where(follows, by_device[1:], n), none])
    return tuple(jnp.full(n, n, jnp.int32).at[by_device].set(each) for each in (before, after))  # type: ignore[return-value]


def _backwards(ops: _Ops, source: jax.Array, target: jax.Array, after: jax.Array) -> tuple[jax.Array, jax.Array]:
    """When each op must end at the latest, were transfers free, with the order on devices as it is; and the longest
    path of run times after it: `[n]` float32 each.
    """
    n = len(after)
    # what an op waits for is walked after all that waits for the op
    source, target = (jnp.append(*pair) for pair in ((source, jnp.arange(n, dtype=jnp.int32)), (target, after)))
    is_edge = jnp.arange(len(source)) < len(source) - n
    walk = jnp.argsort(-_at(ops.place, jnp.where(target < n, source, n), -1))

    def step(state: tuple[jax.Array, jax.Array], edge: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
        latest, tail = state
        one, other = source[edge], target[edge]
        runtime = _at(ops.runtime, other, 0)
        late = latest.at[one].min(_at(latest, other, 1) - runtime, mode="drop")
        path = jnp.where(is_edge[edge], _at(tail, other, 0) + runtime, 0)
        return (late, tail.at[one].max(path, mode="drop")), None

    return jax.lax.scan(step, (jnp.ones(n), jnp.zeros(n)), walk)[0]


def _busy(ops: _Ops, begins: jax.Array, ends: jax.Array, devices: int) -> jax.Array:
    """The shares `[k, n, d]` of the times from `begins` to `ends` `[k, n]` in which devices run ops."""
    by_start = jnp.argsort(ops.start + (~ops.real).astype(jnp.float32))
    starts = jnp.where(ops.real, ops.start, 2)[by_start]
    on = jax.nn.one_hot(jnp.where(ops.real, ops.device, devices), devices)[by_start]
    # of those that started, up to each: the run times, and the end of the last; a device runs one op at a time
    spent = jnp.pad(jnp.cumsum(on * ops.runtime[by_start, None], 0), ((1, 0), (0, 0)))
    until = jnp.pad(jax.lax.cummax(on * ops.end[by_start, None]), ((1, 0), (0, 0)))
    begins, ends = jnp.clip(begins, 0, 1), jnp.clip(ends, 0, 1)

    def up_to(moment: jax.Array) -> jax.Array:
        count = jnp.searchsorted(starts, moment, side="right")
        return spent[count] - jnp.maximum(until[count] - moment[..., None], 0)

    width = (ends - begins)[..., None]
    shares = (up_to(ends) - up_to(begins)) / jnp.maximum(width, SHORTEST)
    return jnp.where(width > SHORTEST, jnp.clip(shares, 0, 1), 0)
