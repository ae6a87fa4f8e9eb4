"""Method "multilevel": annealing of large graphs in levels, from a coarse graph to the whole one (Walshaw 2004).

The ops of a coarse graph are segments of one topological order of the graph's ops. Annealing starts with the coarsest
graph, and each larger one starts from the schedule of the last, as in graph partitioning. The whole graph starts from
the best plan so far, which on graphs without chains is often the search's first plan.

Segments of an order can run one after the other, whatever they contain, so that coarse graphs have no cycle. Segments
grow in rounds. Each round joins pairs of neighbours, first those with most seconds of transfers between them
(heavy-edge matching, Karypis & Kumar 1998), up to a size that leaves enough of them for every device.
"""

import dataclasses
import math
import time
from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.topology import distinct
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, PlacedOrder, Task
from graphrl.solvers.rules.list_scheduling import quick_schedule, schedule_within
from graphrl.solvers.rules.plan_builder import prepare
from graphrl.solvers.rules.simple import depth_first
from graphrl.solvers.schedules.solver import solve as anneal_schedule
from graphrl.solvers.solver import solver

MAX_RUNTIME = 3.0  # largest run time of a segment, in multiples of the mean
MIN_JOINED = 0.05  # share of segments joined in a round, below which neighbours without shared tensors join, too


def segments(graph: ComputationGraph, problem: Problem, order: np.ndarray, count: int) -> np.ndarray:
    """Returns the segment `[n]` of every op: `count` segments, or n if that is less, numbered along the order `[n]`."""
    a = graph.arrays
    segment = np.empty(a.num_ops, np.int64)
    segment[order] = np.arange(a.num_ops)
    transfer = np.array([problem.transfer_seconds(num_bytes) for num_bytes in a.tensor_bytes.tolist()])
    max_runtime = MAX_RUNTIME * a.runtime.sum() / count
    any_neighbours = False
    while (size := int(segment.max(initial=-1)) + 1) > count:
        begin, end = segment[a.producer[a.use_tensor]], segment[a.use_op]
        adjacent = end - begin == 1
        # a little above 0 for each use: a transfer may cost nothing and still make devices wait for each other
        weight = np.bincount(begin[adjacent], transfer[a.use_tensor[adjacent]] + 1e-12, minlength=size)
        runtime = np.bincount(segment, a.runtime, minlength=size)
        fits = runtime[:-1] + runtime[1:] <= max_runtime
        allowed = np.flatnonzero(fits & (any_neighbours | (weight[:-1] > 0)))
        joined = _matching(allowed[np.argsort(-weight[allowed], kind="stable")], size)[: size - count]
        if len(joined) < MIN_JOINED * size:
            if any_neighbours:
                max_runtime *= 2
            any_neighbours = True
        follows = np.zeros(size, np.int64)
        follows[joined + 1] = 1
        segment = (np.arange(size) - np.cumsum(follows))[segment]
    return segment


def _matching(pairs: np.ndarray, size: int) -> np.ndarray:
    """Selects pairs (i, i + 1), in the given order, that share no segment with a pair selected before."""
    free = [True] * size
    chosen = []
    for i in pairs.tolist():
        if free[i] and free[i + 1]:
            free[i] = free[i + 1] = False
            chosen.append(i)
    return np.array(chosen, np.int64)


def coarse_graph(graph: ComputationGraph, segment: np.ndarray) -> ComputationGraph:
    """Builds the graph whose ops are segments `[n]`. An op runs as long as all ops of its segment together, and writes
    the tensors that other segments read. Aliases and reuses are left out, and workspace is the largest of a segment.
    """
    a = graph.arrays
    size = int(segment.max()) + 1
    begin, end = segment[a.producer[a.use_tensor]], segment[a.use_op]
    outside = begin != end
    tensors = distinct(np.concatenate([a.use_tensor[outside], np.flatnonzero(a.kept)]))
    outputs: list[list[Tensor]] = [[] for _ in range(size)]
    for t, num_bytes in zip(tensors.tolist(), a.tensor_bytes[tensors].tolist(), strict=True):
        outputs[segment[a.producer[t]]].append(Tensor(f"t{t}", num_bytes))
    inputs: list[list[str]] = [[] for _ in range(size)]
    readers, read = np.divmod(distinct(end[outside] * a.num_tensors + a.use_tensor[outside]), max(1, a.num_tensors))
    for reader, t in zip(readers.tolist(), read.tolist(), strict=True):
        inputs[reader].append(f"t{t}")
    after: list[list[str]] = [[] for _ in range(size)]
    control = np.stack([segment[a.control_target], segment[a.control_source]], 1)
    for later, earlier in np.unique(control[control[:, 0] != control[:, 1]], axis=0).tolist():
        after[later].append(f"s{earlier}")
    runtime, weights = (np.bincount(segment, x, minlength=size).tolist() for x in (a.runtime, a.weight_bytes))
    workspace = np.zeros(size, np.int64)
    np.maximum.at(workspace, segment, a.workspace_bytes)
    ops = tuple(
        Op(
            f"s{i}",
            runtime=runtime[i],
            inputs=tuple(inputs[i]),
            outputs=tuple(outputs[i]),
            after=tuple(after[i]),
            workspace_bytes=int(workspace[i]),
            weight_bytes=int(weights[i]),
        )
        for i in range(size)
    )
    return ComputationGraph(graph.name, ops, outputs=tuple(f"t{t}" for t in np.flatnonzero(a.kept).tolist()))


def expand(
    graph: ComputationGraph, devices: int, order: np.ndarray, segment: np.ndarray, coarse: PlacedOrder
) -> PlacedOrder:
    """Expands a plan of `coarse_graph` to the graph: segments `[n]` run as in the coarse plan, the ops of one in the
    order `[n]`. Every transfer runs right before the first op that needs it.
    """
    a = graph.arrays
    n, (devices_of, nodes) = a.num_ops, coarse
    rank, at, place = np.empty(len(devices_of), np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    rank[nodes[nodes < len(rank)]] = np.arange(len(rank))
    at[order] = np.arange(n)
    ops = np.lexsort((at, rank[segment]))
    place[ops] = np.arange(n)
    placement = devices_of[segment]
    remote = placement[a.use_op] != placement[a.producer[a.use_tensor]]
    copies = a.use_tensor[remote].astype(np.int64) * devices + placement[a.use_op[remote]]
    first = np.full(a.num_tensors * devices, n)
    np.minimum.at(first, copies, place[a.use_op[remote]])
    copies = distinct(copies)
    keys = np.concatenate([copies, np.full(n, len(first))]), np.concatenate([first[copies], place])
    return placement, np.concatenate([n + copies, np.arange(n)])[np.lexsort(keys)]


COARSE, FACTOR = 1_000, 5.0  # number of ops of the smallest graph, and the factor between consecutive graphs
START_SHARE = 0.1  # share of the time for its list schedules
COARSE_SHARE = 0.3  # share of the budget for the smallest graph; the others share the rest


@solver(
    "multilevel",
    "anneal-schedule in levels, from a coarse graph to the whole one, for 3,000 ops and more",
    prepare=prepare,
)
def solve(task: Task, *, coarse: int = COARSE, hint: Plan | None = None) -> Plan:
    """Anneals the levels. An evaluation is one move of one chain on any level.

    Args:
      coarse: ops of the smallest graph.
      hint: a plan that the answer is not worse than, in place of a list schedule.

    Raises:
      ProblemError: coarse is out of range.
    """
    if coarse < 1:
        raise ProblemError(f"coarse is {coarse}: must be at least 1")
    if hint is None:
        first = task.plan(*quick_schedule(task.graph, task.problem), evaluations=1)
    else:
        first = task.as_answer(hint)
    task.best = lambda: first
    search = _Search(task, first, coarse)
    task.best = search.current
    search.run()
    return search.current()


class _Search:
    """The levels of one graph, and the best plan so far."""

    def __init__(self, task: Task, first: Plan, coarse: int) -> None:
        self._task, self._best, self._evaluations = task, first, 1
        self._levels = _levels(task.graph, task.problem, coarse)
        seconds = math.inf if task.budget.seconds is None else START_SHARE * (task.end - time.perf_counter())
        self._number = len(self._levels) - 1
        self._part = self._start_level(self._number)
        self._decisions = schedule_within(self._part.graph, task.problem, seconds)
        self._best = self._best_with(self._part.plan(*self._decisions, evaluations=1), 1)

    def run(self) -> None:
        """Anneals every level for its share of the budget."""
        task = self._task
        for number in range(len(self._levels) - 1, -1, -1):
            if task.left(self._evaluations) is None:
                return
            self._number, self._part = number, self._start_level(number)
            hint = self._part.plan(*self._decisions, evaluations=1) if number else self._best
            plan = anneal_schedule.search(self._part, hint=hint)
            task.exclude_time(self._part.excluded_seconds)
            self._part.best, self._evaluations = None, self._evaluations + plan.evaluations
            self._best = self._best_with(plan, self._evaluations)
            if number:
                decisions = plan.decisions(self._part.graph)
                self._decisions = self._levels[number - 1].expand(task.problem, decisions)

    def current(self) -> Plan:
        """Returns the best plan so far, for the whole graph."""
        if self._part.best is None:  # no level is being annealed
            return dataclasses.replace(self._best, evaluations=self._evaluations, seconds=self._task.seconds)
        plan = self._part.best()
        return self._best_with(plan, self._evaluations + plan.evaluations)

    def _best_with(self, plan: Plan, evaluations: int) -> Plan:
        """Expands a plan of the current level to the whole graph; returns it, or the best plan so far if better."""
        if self._number:
            decisions = plan.decisions(self._part.graph)
            for level in reversed(self._levels[: self._number]):
                decisions = level.expand(self._task.problem, decisions)
            whole = self._task.plan(*decisions, evaluations=evaluations)
        else:
            whole = self._task.as_answer(plan, evaluations)
        return min(self._best, whole, key=attrgetter("rank"))

    def _start_level(self, number: int) -> Task:
        """Returns the task of annealing a level, with its share of the remaining budget."""
        task, left = self._task, self._task.left(self._evaluations) or self._task.budget
        share = COARSE_SHARE if number == len(self._levels) - 1 > 0 else 1 / (number + 1)
        part = Budget(
            None if left.evaluations is None else max(1, int(share * left.evaluations)),
            None if left.seconds is None else share * left.seconds,
        )
        return Task(self._levels[number].graph, task.problem, part, task.seed, self._report)

    def _report(self, evaluations: int, seconds: float, plan: Callable[[], Plan], value: float) -> None:
        whole = value if self._number == 0 and self._best.excess == 0 else self._best.value
        self._task.report(self._evaluations + evaluations, min(self._best.value, whole))


class _Level(NamedTuple):
    """A graph, and its segments, which are the ops of the next smaller graph."""

    graph: ComputationGraph
    order: np.ndarray  # [n] ops
    segment: np.ndarray  # [n]

    def expand(self, problem: Problem, coarse: PlacedOrder) -> PlacedOrder:
        """Expands a plan of the next smaller graph to this graph."""
        return expand(self.graph, problem.devices, self.order, self.segment, coarse)


def _levels(graph: ComputationGraph, problem: Problem, coarse: int) -> list[_Level]:
    """Returns the graph and its coarser graphs, the largest first."""
    levels: list[_Level] = []
    order = np.array(depth_first(graph.arrays.waiting()), np.int64)
    while len(graph.ops) > FACTOR / 2 * coarse:
        segment = segments(graph, problem, order, max(coarse, int(len(graph.ops) / FACTOR)))
        levels.append(_Level(graph, order, segment))
        graph = coarse_graph(graph, segment)
        order = np.arange(len(graph.ops))
    return [*levels, _Level(graph, order, order)]
