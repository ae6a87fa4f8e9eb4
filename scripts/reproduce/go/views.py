"""What is seen of an op and a device that it could move to, in a plan of bundled sends: features of pairs `[n, d, k]`.

`shown` are the ops, and where those around them stand. `played` is the schedule: when ops run, what they wait for, what
would wait for them, and what devices do meanwhile; times are parts of the makespan. `Compile-v0` shows both
(`graphrl/envs/compile/features.py` is the twin of `played`).
"""

import numpy as np

from graphrl.costs.problem import Problem
from graphrl.graphs.features import node_features, type_features
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.sending.plans import placed, put
from graphrl.solvers.sending.search import makespan
from graphrl.solvers.sending.solver import quick_plan

WINDOWS = (4, 16, 64)  # parts of the order whose ops are near
MARGINS = (0.0, 0.01, 0.05, 0.2)  # parts of the makespan around an op in which devices are looked at
SHARP = 20.0  # slack of a twentieth of the makespan counts as 1/e of none


class Case:
    """The hint of a graph on d devices, and what it takes: n ops, all times in seconds."""

    def __init__(self, graph: ComputationGraph, problem: Problem) -> None:
        placement, nodes = quick_plan(graph, problem)
        self.graph, self.problem, self.devices, self.ops = graph, problem, problem.devices, len(graph.ops)
        self.placement = np.asarray(placement, np.int64)  # [n]
        self.order = nodes[nodes < self.ops].astype(np.int64)  # [n]
        self._plan = placed(graph, problem)
        self.makespan = self.seconds(self.placement)
        self.end = self._plan.ops["end"][:-1].copy()  # [n]
        self.start = self.end - graph.arrays.runtime

    def seconds(self, placement: np.ndarray) -> float:
        """The makespan of another placement `[n]` in the same order."""
        put(self._plan, placement, self.order)
        return makespan(self._plan)

    @property
    def moves(self) -> np.ndarray:
        """Which devices are not an op's own: `[n, d]` bool."""
        return np.arange(self.devices) != self.placement[:, None]


def shown(case: Case) -> np.ndarray:
    """The ops, and where those around them stand."""
    graph, n, d = case.graph, case.ops, case.devices
    own = np.eye(d)[case.placement]
    source, target = graph.arrays.dependencies()
    before, after = np.zeros((2, n, d))
    np.add.at(before, target, own[source])
    np.add.at(after, source, own[target])
    load = own.T @ graph.arrays.runtime
    pairs = [_shares(before), _shares(after), np.log1p(before), np.log1p(after)]
    pairs += [_near(case, max(1, n // parts // 2)) for parts in WINDOWS]
    pairs.append(np.tile(load / load.mean(), (n, 1)))
    place = np.empty(n)
    place[case.order] = np.arange(n) / n
    ops = np.concatenate([node_features(graph), type_features(graph), place[:, None]], 1)
    ops = (ops - ops.mean(0)) / (ops.std(0) + 1e-6)
    return _joined(case, np.column_stack([ops, np.full(n, d / 8)]), pairs)


def played(case: Case) -> np.ndarray:
    """The schedule."""
    n, d, whole, runtime = case.ops, case.devices, case.makespan, case.graph.arrays.runtime
    source, target = case.graph.arrays.dependencies()
    last, next_op = _on_device(case)
    idle_from = np.where(last >= 0, case.end[last], 0.0)
    idle_until = np.where(next_op >= 0, case.start[next_op], whole)
    ready, awaited = np.zeros(n), np.full(n, whole)
    np.maximum.at(ready, target, case.end[source])
    np.minimum.at(awaited, source, case.start[target])
    latest = _latest(case, next_op)
    slack, tail = latest - case.end, whole - case.end - case.graph.arrays.tail
    times = [case.start, case.end, runtime, case.start - idle_from, idle_until - case.end, case.start - ready]
    times += [np.minimum(awaited, idle_until) - case.end, slack, tail]
    sharp = [np.exp(-SHARP * np.maximum(each, 0) / whole) for each in (slack, tail)]
    inputs, readers = np.zeros((n, d)), np.full((n, d), whole)
    np.maximum.at(inputs, (target, case.placement[source]), case.end[source])
    np.minimum.at(readers, (source, case.placement[target]), case.start[target])
    busy = [_busy(case, case.start - margin * whole, case.end + margin * whole) for margin in MARGINS]
    pairs = [(inputs - case.start[:, None]) / whole, (readers - case.end[:, None]) / whole, *busy]
    pairs += [_busy(case, ready, latest), _busy(case, np.zeros(n), np.full(n, whole))]
    return _joined(case, np.column_stack([*(each / whole for each in times), *sharp]), pairs)


def _joined(case: Case, ops: np.ndarray, pairs: list[np.ndarray]) -> np.ndarray:
    """Features of ops `[n, k]`, of pairs `[n, d]` each, and by how much the latter differ from the op's own device."""
    of_pairs = np.stack(pairs, -1)
    own = of_pairs[np.arange(case.ops), case.placement][:, None]
    return np.concatenate([np.repeat(ops[:, None], case.devices, 1), of_pairs, of_pairs - own], -1)


def _shares(counts: np.ndarray) -> np.ndarray:
    return counts / np.maximum(counts.sum(1, keepdims=True), 1)


def _near(case: Case, half: int) -> np.ndarray:
    """The shares of devices among the ops at most so many places from each in the order."""
    n, place = case.ops, np.empty(case.ops, np.int64)
    place[case.order] = np.arange(n)
    until = np.pad(np.cumsum(np.eye(case.devices)[case.placement[case.order]], 0), ((1, 0), (0, 0)))
    return _shares(until[np.minimum(place + half + 1, n)] - until[np.maximum(place - half, 0)])


def _on_device(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """The op before and the op after each on its device, -1 for none: `[n]` each."""
    last, next_op, latest = np.full(case.ops, -1), np.full(case.ops, -1), np.full(case.devices, -1)
    for op in case.order:
        device = case.placement[op]
        last[op] = latest[device]
        if last[op] >= 0:
            next_op[last[op]] = op
        latest[device] = op
    return last, next_op


def _latest(case: Case, next_op: np.ndarray) -> np.ndarray:
    """When each op must end at the latest if the makespan is to stay, were transfers free: `[n]`."""
    source, target = case.graph.arrays.dependencies()
    runtime, latest = case.graph.arrays.runtime, np.full(case.ops, case.makespan)
    readers = np.split(
        target[np.argsort(source, kind="stable")], np.cumsum(np.bincount(source, minlength=case.ops))[:-1]
    )
    for op in case.order[::-1]:
        later = np.append(readers[op], next_op[op]) if next_op[op] >= 0 else readers[op]
        if len(later):
            latest[op] = (latest[later] - runtime[later]).min()
    return latest


def _busy(case: Case, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The share of the time from `begin` to `end`, `[n]` each, in which devices run ops: `[n, d]`."""
    begin, end = np.clip(begin, 0, case.makespan), np.clip(end, 0, case.makespan)
    shares = np.zeros((case.ops, case.devices))
    for device in range(case.devices):
        ops = case.order[case.placement[case.order] == device]
        moments = np.stack([case.start[ops], case.end[ops]], 1).ravel()
        done = np.cumsum(np.stack([np.zeros(len(ops)), case.graph.arrays.runtime[ops]], 1).ravel())
        if len(ops):
            spent = np.interp(end, moments, done, left=0.0) - np.interp(begin, moments, done, left=0.0)
            shares[:, device] = spent / np.maximum(end - begin, 1e-12 * case.makespan)
    return shares
