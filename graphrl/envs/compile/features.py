"""Computes features of a plan's simulated run, for a policy that improves plans: schedules and pipelined executions.

`schedule_features` is for the makespan: the times at which ops ran, their waiting times, and the devices' busy times.
They show the policy where time is lost. Times are fractions of the makespan, so that neither units nor lengths matter.
Memory is linear in n d; so is time, except for sorting and one scan along the uses. On CPUs a compiled function takes
its place (`compiled_features.py`). `schedule_features_on_host` computes the same in NumPy, without compiling a program
for each size.

`load_features` is for pipelined execution (`max_load`): the loads of devices, and the loads with one op moved to
another device. They show the policy which device limits the plan, the cost of an op's tensors on other devices, and
where memory is free. Loads are fractions of the largest load, and bytes are fractions of the memory limit (0 without
one), so that units do not matter.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.compiled import late_entry
from graphrl.compiled.custom_call import is_compiled
from graphrl.costs.device.loads import PaddedPipeline, loads, moves
from graphrl.costs.problem import CPU
from graphrl.envs.compile.compiled_features import (
    DEVICE_TIMES,
    MARGINS,
    OP_TIMES,
    SHARP,
    SHORTEST,
    compiled_schedule_features,
)
from graphrl.envs.compile.generator import CompileInstance
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import PaddedGraph


class PlanFeatures(NamedTuple):
    """Features of one plan; zeros for padding, for ops that others inline, and before the first choice.

    ops: `[n, OP_TIMES]` float32, for each op
    - its start, its end, and its run time;
    - the idle time of its device before and after it, and how long its inputs waited for it;
    - how long its result waits for a reader or for the next op on its device, whichever comes first;
    - its slack, by which it could end later at the same makespan if transfers took no time: with the current order on
      devices, and with one device per op; and both as exp(-SHARP slack), which resolves small ones.

    devices: `[n, d, DEVICE_TIMES]` float32, for each op and device
    - the end of its last input there, relative to the op's start, and the start of its first reader there, relative to
      its end (times 0 and the makespan if there are no inputs or readers);
    - the share of time in which the device runs ops: around the op, for each of `MARGINS`; from when the op could start
      to when it must end; and in the whole run.
    """

    ops: jax.Array
    devices: jax.Array


class _Ops(NamedTuple):
    """Times of each op, `[n]` each, as shares of the makespan; padding starts and ends at 1."""

    real: jax.Array  # bool
    device: jax.Array  # int32
    place: jax.Array  # int32, position in the order; n for padding
    start: jax.Array
    end: jax.Array
    runtime: jax.Array


@functools.partial(jax.jit, static_argnames="devices")  # one program also if the environment is not jitted
def schedule_features(
    graph: PaddedGraph, placement: jax.Array, place: jax.Array, end: jax.Array, devices: int
) -> PlanFeatures:
    """Computes the features of a schedule.

    Args:
      graph: the graph that ran.
      placement: `[n]` int32, device of each op.
      place: `[n]` int32, position of each op in the order.
      end: `[n]` float32, end of each op in second units.
      devices: number of devices, d.
    """
    if is_compiled():
        return jax.lax.platform_dependent(
            cpu=lambda: PlanFeatures(*compiled_schedule_features(graph, placement, place, end, devices)),
            default=lambda: _schedule_features(graph, placement, place, end, devices),
        )
    return _schedule_features(graph, placement, place, end, devices)


def _schedule_features(
    graph: PaddedGraph, placement: jax.Array, place: jax.Array, end: jax.Array, devices: int
) -> PlanFeatures:
    """Computes the same in pure JAX."""
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
    end_devices = _at(ops.device, jnp.stack([source, target]), 0)
    inputs = jnp.zeros((n, devices)).at[target, end_devices[0]].max(_at(ops.end, source, 0), mode="drop")
    readers = jnp.ones((n, devices)).at[source, end_devices[1]].min(_at(ops.start, target, 1), mode="drop")
    begins = jnp.stack([*(ops.start - margin for margin in MARGINS), ready, jnp.zeros(n)])
    ends = jnp.stack([*(ops.end + margin for margin in MARGINS), latest, jnp.ones(n)])
    busy = _busy(ops, begins, ends, devices)
    pairs = [inputs - ops.start[:, None], readers - ops.end[:, None], *busy]
    return PlanFeatures(
        jnp.where(real[:, None], jnp.stack(times, -1), 0), jnp.where(real[:, None, None], jnp.stack(pairs, -1), 0)
    )


def _edges(graph: PaddedGraph) -> tuple[jax.Array, jax.Array]:
    """Returns the ops that edges lead from and to, `[e + f]` int32 each; n for padding."""
    n, source = graph.runtime.shape[0], _at(graph.producer, graph.use_tensor, graph.runtime.shape[0])
    source = jnp.append(source, graph.control_source)
    target = jnp.append(graph.use_op, graph.control_target)
    return jnp.where(target < n, source, n), target


def _at(values: jax.Array, index: jax.Array, otherwise: int) -> jax.Array:
    """Returns `values[index]`, or `otherwise` if the index is out of range."""
    return values.at[index].get(mode="fill", fill_value=otherwise)


def _neighbours(ops: _Ops) -> tuple[jax.Array, jax.Array]:
    """Finds the previous and the next op on the device of each op, `[n]` int32 each; n if there is no such op, and for
    padding.
    """
    n = len(ops.place)
    by_device = jnp.lexsort((ops.place, ops.device, ~ops.real)).astype(jnp.int32)
    device = jnp.where(ops.real, ops.device, -1)[by_device]
    follows = (device[1:] == device[:-1]) & (device[1:] >= 0)
    none = jnp.full(1, n, jnp.int32)
    before = jnp.concatenate([none, jnp.where(follows, by_device[:-1], n)])
    after = jnp.concatenate([jnp.where(follows, by_device[1:], n), none])
    return tuple(jnp.full(n, n, jnp.int32).at[by_device].set(each) for each in (before, after))  # type: ignore[return-value]


def _backwards(ops: _Ops, source: jax.Array, target: jax.Array, after: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Computes for each op the latest end that keeps the makespan, if transfers take no time and devices keep their
    order, and the longest path of run times after the op: `[n]` float32 each.
    """
    n = len(after)
    # an op's predecessors are visited after all of its successors
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
    """Computes the shares `[k, n, d]` of the times from `begins` to `ends` `[k, n]` in which devices run ops."""
    by_start = jnp.argsort(ops.start + (~ops.real).astype(jnp.float32))
    starts = jnp.where(ops.real, ops.start, 2)[by_start]
    on = jax.nn.one_hot(jnp.where(ops.real, ops.device, devices), devices)[by_start]
    # cumulative over starts: run times, and the end of the last op; a device runs one op at a time
    spent = jnp.pad(jnp.cumsum(on * ops.runtime[by_start, None], 0), ((1, 0), (0, 0)))
    until = jnp.pad(jax.lax.cummax(on * ops.end[by_start, None]), ((1, 0), (0, 0)))
    begins, ends = jnp.clip(begins, 0, 1), jnp.clip(ends, 0, 1)

    def up_to(moment: jax.Array) -> jax.Array:
        count = jnp.searchsorted(starts, moment, side="right")
        return spent[count] - jnp.maximum(until[count] - moment[..., None], 0)

    width = (ends - begins)[..., None]
    shares = (up_to(ends) - up_to(begins)) / jnp.maximum(width, SHORTEST)
    return jnp.where(width > SHORTEST, jnp.clip(shares, 0, 1), 0)


OP_LOADS, DEVICE_LOADS = 8, 8  # number of features per op, and per pair of op and device
ORDER = 8  # order of the norm of all loads, which distinguishes plans with the same largest load
FULL = 2.0  # feature values for filled memory are clipped at this multiple of the memory limit


class LoadFeatures(NamedTuple):
    """Result of running one plan for many samples in a pipeline."""

    largest: jax.Array  # [] float32, second units of the pipeline
    valid: jax.Array  # [] bool, every accelerator stays within the memory limit
    features: PlanFeatures


@jax.jit  # one program also if the environment is not jitted
def load_features(pipeline: PaddedPipeline, placement: jax.Array) -> LoadFeatures:
    """Computes features of a placement `[n]` int32 that keeps groups together, each on a device that can run it.

    An op moves together with its group; rows of padding are arbitrary:

    ops: `[n, OP_LOADS]` float32, for each op
    - the load of its device, its closeness to the largest load, exp(-SHARP difference), and the largest load of the
      others;
    - 1 if its device is a CPU, and its run time there;
    - its weights, and all resident bytes of its device;
    - the load of its device without it.

    devices: `[n, d, DEVICE_LOADS]` float32, for each op and device, as if the op moved there
    - the load of the device, before and after, and the largest load after;
    - the increase of the norm of all loads;
    - its run time there, and the increase in the device's transfer costs;
    - the resident bytes there, and 1 if they exceed the limit.
    """
    p, cost = pipeline, loads(pipeline, placement)
    (n,), d = placement.shape, len(p.kinds)
    moves_to = moves(p, placement, cost.loads)
    largest, is_cpu = cost.loads.max(), (p.kinds == CPU).astype(jnp.float32)[None]
    second, byte = 1 / jnp.maximum(largest, 1e-30), (1 - is_cpu) / p.limit
    left, entered, runtime = (
        values * second for values in (moves_to.left[:, None], moves_to.entered, moves_to.runtime)
    )
    is_home = placement[:, None] == jnp.arange(d, dtype=jnp.int32)[None]
    load, others = cost.loads[None] * second, _largest_of_others(cost.loads * second)[placement]
    weight = moves_to.weight[:, None]
    resident = cost.resident[None] + jnp.where(is_home, 0.0, weight)
    filled, is_over = jnp.minimum(resident * byte, FULL), (resident > p.limit).astype(jnp.float32) * (1 - is_cpu)
    own_features = [load, jnp.exp(-SHARP * (1 - load)), others, is_cpu, runtime, weight * byte, filled]
    ops = [jnp.where(is_home, values, 0.0).sum(1) for values in own_features]
    pair_load = jnp.where(is_home, load, jnp.maximum(left, entered))
    powers = load**ORDER
    both_powers = powers + jnp.where(is_home, powers, 0.0).sum(1, keepdims=True)  # of both devices, before
    total = powers.sum() - both_powers + left**ORDER + entered**ORDER
    norm_increase = jnp.where(is_home, 0.0, _root(total) - _root(powers.sum()))
    transfer_increase = jnp.where(is_home, 0.0, entered - load - runtime)
    pairs = [load, entered, jnp.maximum(pair_load, others), norm_increase, runtime, transfer_increase, filled, is_over]
    columns = [jnp.broadcast_to(values, (n, d)) for values in pairs]
    features = PlanFeatures(jnp.stack([*ops, left[:, 0]], -1), jnp.stack(columns, -1))
    return LoadFeatures(largest, cost.excess <= 0, features)


def no_features(instance: CompileInstance) -> PlanFeatures:
    """Returns the features before any run: zeros."""
    pipelined, rows = isinstance(instance.problem, PaddedPipeline), instance.runs_on.shape
    of_op, of_device = (OP_LOADS, DEVICE_LOADS) if pipelined else (OP_TIMES, DEVICE_TIMES)
    return PlanFeatures(jnp.zeros((rows[0], of_op)), jnp.zeros((*rows, of_device)))


def _largest_of_others(load: jax.Array) -> jax.Array:
    """Computes for each pair of devices the largest load of all others, 0 if there are no others: `[d, d]`."""
    device = jnp.arange(len(load), dtype=jnp.int32)
    one, two, other = device[:, None, None], device[None, :, None], device[None, None]
    return jnp.where((other != one) & (other != two), load[None, None], 0.0).max(-1)


def _root(powers: jax.Array) -> jax.Array:
    """Computes the root of order `ORDER` of sums of powers, which rounding may have made negative: then 0."""
    return jnp.maximum(powers, 0.0) ** (1 / ORDER)


def schedule_features_on_host(
    graph: ComputationGraph, placement: np.ndarray, place: np.ndarray, end: np.ndarray, devices: int, to: int
) -> PlanFeatures:
    """Computes the same as `schedule_features`, in NumPy.

    Args:
      placement: `[n]` int64, device of each op.
      place: `[n]` int64, position of each op in the order.
      end: `[n]` float64, end of each op in seconds.
      devices: number of devices, d.
      to: number of rows in the result, including padding.
    """
    n, makespan = len(end), max(float(end.max()), 1e-30)
    end, runtime = end / makespan, graph.arrays.runtime / makespan
    start = np.maximum(end - runtime, 0)
    order = np.argsort(place)
    last, following = _host_neighbours(placement, order)
    idle_from, idle_until = np.append(end, 0.0)[last], np.append(start, 1.0)[following]
    source, target = (each.astype(np.int64) for each in graph.arrays.dependencies())
    inputs, readers = np.zeros((n, devices)), np.ones((n, devices))
    latest, tail = np.ones(n), np.zeros(n)
    begins = np.searchsorted(source, np.arange(n + 1))
    _device_times(start, end, placement, source, target, inputs, readers)
    _latest_ends(runtime, order, begins, target, following, latest, tail)
    ready, awaited = inputs.max(1), readers.min(1)
    slack, free = latest - end, 1 - end - tail
    times = [start, end, runtime, start - idle_from, idle_until - end, start - ready]
    times += [np.minimum(awaited, idle_until) - end, slack, free]
    times += [np.exp(-SHARP * np.maximum(each, 0)) for each in (slack, free)]
    spans = [(start - margin, end + margin) for margin in MARGINS]
    spans += [(ready, latest), (np.zeros(n), np.ones(n))]
    pairs = [inputs - start[:, None], readers - end[:, None]]
    pairs += _host_busy(start, end, runtime, placement, order, spans, devices)
    return PlanFeatures(_padded(times, to), _padded(pairs, to))


def _padded(features: list[np.ndarray], to: int) -> Any:
    """Stacks features `[n, ...]` to `[to, ..., k]` float32."""
    rows = np.zeros((to, *features[0].shape[1:], len(features)), np.float32)
    rows[: len(features[0])] = np.stack(features, -1)
    return rows


def _host_neighbours(placement: np.ndarray, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Finds the previous and the next op on the device of each op, n if there is no such op: `[n]` int64 each."""
    n = len(order)
    by_device = order[np.argsort(placement[order], kind="stable")]
    same = placement[by_device[1:]] == placement[by_device[:-1]]
    last, following = np.full((2, n), n)
    last[by_device[1:][same]] = by_device[:-1][same]
    following[by_device[:-1][same]] = by_device[1:][same]
    return last, following


def _host_busy(
    start: np.ndarray,
    end: np.ndarray,
    runtime: np.ndarray,
    placement: np.ndarray,
    order: np.ndarray,
    spans: list[tuple[np.ndarray, np.ndarray]],
    devices: int,
) -> list[np.ndarray]:
    """Computes for each span, `[n]` begins and ends, the shares `[n, d]` of time in which devices run ops."""
    spans = [(np.clip(begins, 0, 1), np.clip(ends, 0, 1)) for begins, ends in spans]
    shares = [np.zeros((len(start), devices)) for _ in spans]
    for device in range(devices):
        ops = order[placement[order] == device]
        starts = start[ops]
        spent, until = np.append(0.0, np.cumsum(runtime[ops])), np.append(0.0, end[ops])
        for share, (begins, ends) in zip(shares, spans, strict=True):
            done = []
            for moments in (begins, ends):
                count = np.searchsorted(starts, moments, side="right")
                done.append(spent[count] - np.maximum(until[count] - moments, 0))
            width = ends - begins
            part = np.clip((done[1] - done[0]) / np.maximum(width, SHORTEST), 0, 1)
            share[:, device] = np.where(width > SHORTEST, part, 0)
    return shares


@late_entry
def _device_times(
    start: np.ndarray,
    end: np.ndarray,
    placement: np.ndarray,
    source: np.ndarray,
    target: np.ndarray,
    inputs: np.ndarray,
    readers: np.ndarray,
) -> None:
    """Writes the end of the last input of each op on each device, and the start of its first reader there, `[n, d]`
    each, from edges `[m]`.
    """
    for edge in range(len(source)):
        one, other = source[edge], target[edge]
        inputs[other, placement[one]] = max(inputs[other, placement[one]], end[one])
        readers[one, placement[other]] = min(readers[one, placement[other]], start[other])


@late_entry
def _latest_ends(
    runtime: np.ndarray,
    order: np.ndarray,
    begins: np.ndarray,
    target: np.ndarray,
    following: np.ndarray,
    latest: np.ndarray,
    tail: np.ndarray,
) -> None:
    """Computes in place each op's latest end, `latest` (initially 1), and the longest path after it, `tail` (0).

    Args:
      order: `[n]`, the ops in their order.
      begins: `[n + 1]`, offsets of each op's readers in `target`.
      following: `[n]`, the next op on each op's device, n after the last.
    """
    for place in range(len(order) - 1, -1, -1):
        op = order[place]
        for row in range(begins[op], begins[op + 1]):
            other = target[row]
            latest[op] = min(latest[op], latest[other] - runtime[other])
            tail[op] = max(tail[op], tail[other] + runtime[other])
        if following[op] < len(order):
            latest[op] = min(latest[op], latest[following[op]] - runtime[following[op]])
