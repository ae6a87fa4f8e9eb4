"""REGAL's policy places the ops one after another, and sees at each what the earlier choices have led to.

Features of ops and edges are alike for all devices, so choices that are independent of each other cannot put two ops on
the same device. Here each op's choice depends on the devices of the ops before it, through `DEVICE_FEATURES` of the op
on each device: when it would end there, which of its inputs are there, how many bytes it would add. They come from an
estimate of the plan so far (`_State`), and not from its exact costs: an op starts when its inputs have arrived and its
device is free, at its end or in a gap that is long enough (insertion, as in HEFT), and a tensor lives until its last
reader is placed.

The features depend on the choices alone, not on the network's parameters. `place` returns them, so that the gradient
of the log-probabilities needs no pass over the ops.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from graphrl.agents.regal.instances import Groups, Visits
from graphrl.costs.device.decisions import DeviceProblem
from graphrl.costs.problem import Problem
from graphrl.networks.base import signed_log

DEVICE_FEATURES = (
    "end",  # of the op on the device, after the earliest end on any; times are in mean run times, all as signed log1p
    "idle",  # time that the device would wait
    "delay",  # time that other devices would lose by sending
    "arrival_seconds",  # transfer time of the inputs that are on other devices
    "free",  # when the device is free, after the first one that is
    "inputs_here",  # share of the inputs
    "inputs_elsewhere",  # share of the inputs that would have to be sent
    "latest_input_here",  # 1 if the input that ends last was computed on the device
    "follows_input",  # 1 if the op that was last placed on the device computed an input
    "siblings",  # share of the placed inputs of the op's readers
    "load",  # run time on the device over the mean of all, relative to the whole graph's
    "placed",  # share of the ops that are placed
    "live",  # bytes on the device while the op runs; bytes are relative to an even share, all as signed log1p
    "live_over_least",  # the same, over that of the device with least
    "peak",  # of the device so far
    "peak_growth",  # of the largest peak of all devices
    "added",  # bytes that the op adds: its outputs, its workspace and copies of its inputs
    "freed",  # bytes of tensors on the device whose last reader is the op
    "input_bytes_here",  # share of the inputs' bytes
    "over_share",  # bytes over an even share while the op runs
)
GROUP_FEATURES = (  # more of them, where ops are placed in groups; they matter at the first op of each
    "ties_here",  # transfers between the group and ops that are on the device: share of those to all placed groups
    "ties_elsewhere",  # their time for those on other devices, relative to the group's run time
    "given",  # run time of all groups that are on the device, over the mean of all devices, relative to the graph's
    "given_after",  # the same with the group, over the largest of all devices
    "left",  # run time of the groups that are not placed, relative to the graph's
    "size",  # run time of the group, relative to an even share
    "ties",  # time of all its transfers, relative to its run time
)
OP_FEATURES = ("start", "rank", "level", "duration")  # of a placed op, for its priority
_GAPS = 4  # of a device that ops can still fill
_BYTES = 4.0  # factor of bytes before the logarithm: differences of a tenth of a share matter


class Placed(NamedTuple):
    """The result of `place`: the choice for every op of a padded graph, and the features that it depends on."""

    features: jax.Array  # [n, d, F] float32, `DEVICE_FEATURES`, and with groups also `GROUP_FEATURES`
    choice: jax.Array  # [n] int32, device * levels + level
    ops: jax.Array  # [n, len(OP_FEATURES)] float32


class _State(NamedTuple):
    """Estimate of the plan so far. The last row of arrays over ops is for padding."""

    end: jax.Array  # [n + 1]
    start: jax.Array  # [n + 1]
    made: jax.Array  # [n + 1, d], 1 on the device that computed the op
    here: jax.Array  # [n + 1, d], 1 where the op's outputs are
    readers: jax.Array  # [n + 1, d], number of the op's inputs that were computed on each device
    left: jax.Array  # [n + 1], number of readers that are not placed
    free: jax.Array  # [d], time from which the device is free
    gaps: jax.Array  # [d, _GAPS, 2], start and end of idle times before it; empty ones for none
    load: jax.Array  # [d], run time of its ops
    given: jax.Array  # [d], run time of all ops of its groups; 0 without groups
    last: jax.Array  # [d] int32, the last op that was placed on it, also if in a gap; -1 without one
    live: jax.Array  # [d], bytes
    peak: jax.Array  # [d], bytes
    placed: jax.Array  # [], number of ops


class _Step(NamedTuple):
    """An op on each of the d devices, before it is placed; k are its inputs."""

    start: jax.Array  # [d]
    gap: jax.Array  # [d] int32, the gap that it fills; _GAPS for none
    sends: jax.Array  # [d, d], time to which a sender is blocked, for the op on each device (the last axis)
    inputs: jax.Array  # [k] int32
    real: jax.Array  # [k], 1 for inputs and 0 for padding
    missing: jax.Array  # [k, d], 1 for inputs that would be copied
    live: jax.Array  # [d], bytes while it runs


def place(
    visits: Visits, problem: Problem | DeviceProblem, levels: int, key: jax.Array, choose: Callable[..., jax.Array]
) -> Placed:
    """Places the ops of one graph.

    Args:
      visits: of the graph.
      problem: its number of devices, its transfer model and its objective.
      levels: number of options for each device.
      key: is split into a key for every op.
      choose: (key, op `[]`, features of the op on each device) -> device * levels + level, `[]` int32.
    """
    visits = jax.tree.map(jnp.asarray, visits)
    n, is_blocking = len(visits.order), problem.transfer == "rendezvous"

    def body(state: Any, turn: Any) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        op, op_key = turn
        step = _look(visits, state, op, is_blocking)
        features = _features(visits, state, op, step)
        choice = choose(op_key, op, features)
        if visits.groups is not None:  # where the group's first op is
            first = state.made[visits.groups.leader[op]]
            choice = jnp.where(first.any(), first.argmax().astype(jnp.int32) * levels, choice)
        # padding comes last, and changes only rows that no real op reads: to select states would copy them at each op
        return _advance(visits, state, op, step, choice // levels, is_blocking), (features, choice)

    start = _start(visits, problem.devices)
    state, (features, choice) = jax.lax.scan(body, start, (visits.order, jax.random.split(key, n)))
    turn = jnp.zeros(n, jnp.int32).at[visits.order].set(jnp.arange(n, dtype=jnp.int32))
    return Placed(features[turn], choice[turn], _op_features(visits, state, problem))


def _start(visits: Visits, devices: int) -> _State:
    n = len(visits.order) + 1
    rows, table, each = jnp.zeros(n), jnp.zeros((n, devices)), jnp.zeros(devices)
    return _State(
        end=rows,
        start=rows,
        made=table,
        here=table,
        readers=table,
        left=jnp.asarray(visits.uses),
        free=each,
        gaps=jnp.zeros((devices, _GAPS, 2)),
        load=each,
        given=each,
        last=jnp.full(devices, -1, jnp.int32),
        live=each,
        peak=each,
        placed=jnp.float32(0),
    )


def _look(visits: Visits, state: _State, op: jax.Array, is_blocking: bool) -> _Step:
    """Estimates the op's start and memory on each device."""
    inputs, seconds = visits.inputs[op], visits.seconds[op]
    real = _number(inputs < len(visits.order))
    made, end = state.made[inputs], state.end[inputs]
    missing = real[:, None] * (1 - state.here[inputs])
    leaves = jnp.maximum(end, made @ state.free) if is_blocking else end
    arrival = jnp.where(missing > 0, (leaves + seconds)[:, None], (real * end)[:, None]).max(0)
    # transfers block their devices one after another: half of their time is beyond the latest arrival, on average
    extra = 0.5 * (seconds @ missing) if is_blocking else jnp.zeros_like(arrival)
    starts = jnp.maximum(state.gaps[..., 0], arrival[:, None]) + extra[:, None]
    fits = starts + visits.runtime[op] <= state.gaps[..., 1]
    in_gap = jnp.where(fits, starts, jnp.inf)
    gap = jnp.where(fits.any(1), in_gap.argmin(1), _GAPS)
    start = jnp.minimum(jnp.maximum(state.free, arrival) + extra, in_gap.min(1))
    if is_blocking:
        sends = (made[:, :, None] * (missing * start[None])[:, None]).max(0)
    else:
        sends = jnp.zeros((len(start), len(start)))
    size = visits.output[inputs]
    added = size @ missing + visits.output[op] + visits.workspace[op]
    return _Step(start, gap, sends, inputs, real, missing, state.live + added)


def _features(visits: Visits, state: _State, op: jax.Array, step: _Step) -> jax.Array:
    """Computes `DEVICE_FEATURES` of the op on each device: `[d, features]` float32."""
    devices, real = len(state.free), step.real
    count = jnp.maximum(real.sum(), 1.0)
    here = state.here[step.inputs] * real[:, None]
    end, size = step.start + visits.runtime[op], visits.output[step.inputs]
    latest = jnp.argmax(jnp.where(real > 0, state.end[step.inputs], -1.0))
    follows = (state.last[:, None] == step.inputs[None]) & (real > 0)[None]
    siblings = state.readers.at[visits.readers[op]].get(mode="fill", fill_value=0.0).sum(0)
    is_last = real * _number(state.left[step.inputs] <= 1)
    work = jnp.maximum(visits.runtime.sum(), 1e-9)
    placed = state.placed / jnp.maximum(_number(visits.num_ops), 1.0)
    columns: tuple[jax.Array, ...] = (
        signed_log(end - end.min()),
        signed_log(jnp.maximum(step.start - state.free, 0.0)),
        signed_log(jnp.maximum(step.sends - state.free[:, None], 0.0).sum(0)),
        signed_log(visits.seconds[op] @ step.missing),
        signed_log(state.free - state.free.min()),
        here.sum(0) / count,
        step.missing.sum(0) / count,
        state.made[step.inputs[latest]] * real.max(),
        _number(follows.any(1)),
        siblings / jnp.maximum(siblings.sum(), 1.0),
        4 * (state.load * devices - state.load.sum()) / work,
        jnp.broadcast_to(placed, (devices,)),
        signed_log(_BYTES * step.live),
        signed_log(_BYTES * (step.live - step.live.min())),
        signed_log(_BYTES * state.peak),
        signed_log(_BYTES * (jnp.maximum(state.peak, step.live) - state.peak.max())),
        signed_log(_BYTES * (step.live - state.live)),
        signed_log(_BYTES * ((is_last * size) @ here)),
        size @ here / jnp.maximum(real @ size, 1e-9),
        signed_log(_BYTES * (step.live - 1)),
    )
    if visits.groups is not None:
        columns += _group_features(visits.groups, state, op, work)
    return jnp.stack(columns, -1)


def _group_features(groups: Groups, state: _State, op: jax.Array, work: jax.Array) -> tuple[jax.Array, ...]:
    """Computes `GROUP_FEATURES` for the group that starts with an op: `[d]` float32 each."""
    devices, size, seconds = len(state.given), groups.runtime[op], groups.seconds[op]
    placed = state.made[groups.ties[op]]
    here, total, unit = seconds @ placed, seconds.sum(), jnp.maximum(size, 1e-3 * work / devices)
    after = state.given + size
    alike = (
        1 - state.given.sum() / work,
        size * devices / work,
        signed_log(total / unit),
    )
    return (
        here / jnp.maximum(here.sum(), 1e-9),
        signed_log((here.sum() - here) / unit),
        (state.given * devices - state.given.sum()) / work,
        devices * (after - state.given.max()) / work,
        *(jnp.broadcast_to(value, (devices,)) for value in alike),
    )


def _advance(visits: Visits, state: _State, op: jax.Array, step: _Step, device: jax.Array, is_blocking: bool) -> _State:
    """Places the op on the device."""
    devices, start = len(state.free), step.start[device]
    runtime, output = visits.runtime[op], visits.output[op]
    end, one = start + runtime, jax.nn.one_hot(device, devices)
    free = jnp.maximum(state.free, step.sends[:, device]) if is_blocking else state.free
    inputs, size = step.inputs, visits.output[step.inputs]
    arrived = jnp.broadcast_to(one, (len(inputs), devices))
    here = state.here.at[inputs].max(arrived, mode="drop").at[op].set(one)
    left = state.left.at[inputs].add(-1.0, mode="drop")
    dead = step.real * _number(left[inputs] <= 0)
    copied = step.missing[:, device] @ size
    kept = jnp.where(visits.uses[op] > 0, output, 0.0)
    freed = (dead * size) @ here[inputs]
    return _State(
        end=state.end.at[op].set(end),
        start=state.start.at[op].set(start),
        made=state.made.at[op].set(one),
        here=here,
        readers=state.readers.at[visits.readers[op]].add(arrived, mode="drop"),
        left=left,
        free=jnp.where(one > 0, jnp.maximum(end, state.free), free),
        gaps=state.gaps.at[device].set(_gaps(state.gaps[device], step.gap[device], state.free[device], start, end)),
        load=state.load + one * runtime,
        given=state.given if visits.groups is None else state.given + one * visits.groups.runtime[op],
        last=jnp.where(one > 0, op, state.last),
        live=state.live + one * (copied + kept) - freed,
        peak=jnp.maximum(state.peak, one * step.live[device]),
        placed=state.placed + 1,
    )


def _gaps(gaps: jax.Array, filled: jax.Array, free: jax.Array, start: jax.Array, end: jax.Array) -> jax.Array:
    """Returns a device's gaps `[_GAPS, 2]` after an op that fills one of them, or else follows the others: the longer
    part of the filled one remains, or a new one replaces the shortest.
    """
    lengths = gaps[:, 1] - gaps[:, 0]
    shortest, is_new = lengths.argmin(), filled == _GAPS
    old = gaps[jnp.minimum(filled, _GAPS - 1)]
    before, after = jnp.stack([old[0], start]), jnp.stack([end, old[1]])
    rest = jnp.where(start - old[0] > old[1] - end, before, after)
    new = jnp.where(start - free > lengths[shortest], jnp.stack([free, start]), gaps[shortest])
    return gaps.at[jnp.where(is_new, shortest, filled)].set(jnp.where(is_new, new, rest))


def _op_features(visits: Visits, state: _State, problem: Problem | DeviceProblem) -> jax.Array:
    """Computes `OP_FEATURES`, all relative to the whole plan: `[n, features]` float32."""
    n, count = len(visits.order), jnp.maximum(_number(visits.num_ops), 1.0)
    whole, start = jnp.maximum(state.end.max(), 1e-9), state.start[:n]
    turns = visits.order
    if problem.objective == "makespan":  # the order of their starts; the order of the visits keeps peaks low
        is_real = jnp.arange(n, dtype=jnp.int32) < visits.num_ops
        turns = turns[jnp.argsort(jnp.where(is_real, start, jnp.inf)[turns])]
    rank = jnp.zeros(n).at[turns].set(jnp.arange(n, dtype=jnp.float32) / count)
    return jnp.stack([start / whole, rank, visits.level, 10 * (state.end[:n] - start) / whole], -1)


def _number(x: Any) -> jax.Array:
    return jnp.asarray(x, jnp.float32)
