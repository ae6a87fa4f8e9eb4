"""List scheduling: plans made in one pass over the ops, without search.

Makespan. Time runs along the device that is free first. Of the ops whose predecessors have ended by then, the one of
highest level runs next (HLFET, Adam et al. 1974: the level is the longest path of run times to the end), where it
finishes first, the transfers that it needs right before it. Deviations, each tried with and without, for finishing
first alone keeps most ops on one device where transfers hold up their sender (`rendezvous`):
- ops that need no transfer to the device that is free go before those that do;
- a device pays for being busy longer than the first one, and for the time that others lose by sending.
Everything on one device is tried too; under a memory limit also the plans for peak memory.

Peak memory. On one device, the best of `memory_orders`. On several, the ops go in such an order, each where the fewest
bytes are added among the devices that stay under a target (copies of inputs count), else where the peak is least; the
target is found by bisection between the bound and the best peak.

A memory limit is respected where it can be: a device that stays within it by the builder's estimate goes first.

The best of all these plans by exact costs is the answer. Time: O((n + e) (log n + d)) a plan, about ten plans;
`quick_schedule` makes one.
"""

import dataclasses
import heapq
import math
from collections.abc import Callable, Iterator

import numpy as np

from graphrl.costs import exact
from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan import Plan
from graphrl.solvers.base import PlacedOrder, Task
from graphrl.solvers.flow import Flow
from graphrl.solvers.rules.memory_orders import memory_orders
from graphrl.solvers.rules.plan_builder import Builder, Trial
from graphrl.solvers.solver import solver

Choice = Callable[[Trial], tuple]

WORK = 100_000  # ops and uses, times devices, of which all list schedules take some second
BUSY = (0.0, 0.25, 0.5)  # what a second of being busy counts as, in seconds of finish
LOST = (0.0, 0.5)  # what a second that others lose counts as
SPARE = 1.2  # times the bound, the target of a quick schedule
BISECTIONS = 6  # the first aims at the least peak of every device


@solver("list", "the best of several list schedules")
def solve_list(task: Task) -> Plan:
    """A few plans, whatever the budget and the seed."""
    plan, evaluations = best_schedule(task.graph, task.problem)
    return task.answer(task.plan(*plan, evaluations=evaluations))


def schedule(graph: ComputationGraph, problem: Problem) -> PlacedOrder:
    """The best list schedule: placement `[n] int64` and order `[m] int64` of node ids."""
    return best_schedule(graph, problem)[0]


def best_schedule(graph: ComputationGraph, problem: Problem) -> tuple[PlacedOrder, int]:
    """The best list schedule, and how many plans were costed for it."""
    flow = Flow(graph)
    best: tuple[tuple[int, float], PlacedOrder] | None = None
    evaluations = 0
    for stage in _stages(flow, problem):
        for plan in stage:
            rank = exact.evaluate(graph, problem, *plan).rank(problem)
            evaluations += 1
            if best is None or rank < best[0]:
                best = rank, plan
        if best is not None and best[0][0] == 0:
            break
    assert best is not None  # the first stage has a plan
    return best[1], evaluations + flow.evaluations


def quick_schedule(graph: ComputationGraph, problem: Problem) -> PlacedOrder:
    """A plan in an eighth to a quarter of `schedule`'s time: placement `[n] int64` and order `[m] int64` of node ids.

    Makespan: by the rule that is best most often under the transfer model: under `rendezvous` ops without transfers
    first, with a price on being busy and on the time of others; else highest level first where it ends first (within
    0.3% of the best of all on 10 programs, and equal to it on 24 random graphs); or on one device, where transfers are
    so dear that this is faster. Peak memory: in the order of least peak on one device, with a fifth more than the bound
    as the target. At the bound itself plans are better, but fit so tightly that plans a little beside them are much
    worse (`agents.regal` searches around this one).
    """
    flow = Flow(graph)
    if problem.objective == "makespan" and problem.memory_limit is None:
        prices = (BUSY[1], LOST[1]) if problem.transfer == "rendezvous" else (0.0, 0.0)
        plan = _highest_level_first(flow, problem, problem.transfer == "rendezvous", _earliest(problem, *prices))
        is_spread = plan[0].min() < plan[0].max()
        if is_spread and exact.evaluate(graph, problem, *plan).makespan > graph.arrays.runtime.sum():
            return np.zeros(flow.num_ops, np.int64), np.array(flow.topological, np.int64)
        return plan
    order = memory_orders(flow)[0]
    if problem.objective == "makespan":
        return _in_order(flow, problem, order, _earliest(problem, BUSY[1], LOST[1])).plan()
    return _in_order(flow, problem, order, _fewest_bytes(SPARE * lower_bound(graph, problem))).plan()


def timely_schedule(graph: ComputationGraph, problem: Problem, seconds: float) -> PlacedOrder:
    """The best list schedule where there is time for all of them, else a quick one.

    Args:
      seconds: that are left, infinite for no limit; below 1 they count as 1.
    """
    return schedule(graph, problem) if has_time(graph, problem, max(1.0, seconds)) else quick_schedule(graph, problem)


def has_time(graph: ComputationGraph, problem: Problem, seconds: float) -> bool:
    """Whether some seconds are enough for several list schedules beside a search."""
    a = graph.arrays
    return (a.num_ops + len(a.use_op)) * problem.devices <= WORK * seconds


def _stages(flow: Flow, problem: Problem) -> Iterator[Iterator[PlacedOrder]]:
    """The plans to choose from; a later stage only matters if none of those before it is within the memory limit."""
    limited = problem.memory_limit is not None
    if problem.objective == "makespan" and not limited:
        yield _makespan_plans(flow, problem, [np.array(flow.topological, np.int64)])
    else:
        orders = memory_orders(flow)[:2]
        if limited:
            yield _makespan_plans(flow, problem, orders)
        yield _memory_plans(flow, problem, orders)


def _makespan_plans(flow: Flow, problem: Problem, orders: list[np.ndarray]) -> Iterator[PlacedOrder]:
    """Everything on one device, in the first of the orders; highest level first; and, under a limit, in the orders."""
    yield np.zeros(flow.num_ops, np.int64), orders[0]
    if problem.devices == 1:
        return
    yield _highest_level_first(flow, problem, False, _earliest(problem, 0.0, 0.0))
    for busy in BUSY:
        for lost in LOST if problem.transfer == "rendezvous" else LOST[:1]:
            yield _highest_level_first(flow, problem, True, _earliest(problem, busy, lost))
    if problem.memory_limit is not None:
        for order in orders:
            yield _in_order(flow, problem, order, _earliest(problem, BUSY[1], LOST[1])).plan()


def _earliest(problem: Problem, busy: float, lost: float) -> Choice:
    """Where the op finishes first, of the devices that stay within the memory limit if any does."""
    limit = math.inf if problem.memory_limit is None else problem.memory_limit

    def choose(trial: Trial) -> tuple:
        seconds = trial.finish + busy * trial.busy + lost * trial.lost
        return max(0, trial.peak - limit), seconds, trial.busy, trial.added, trial.device

    return choose


def _highest_level_first(flow: Flow, problem: Problem, local_first: bool, choose: Choice) -> PlacedOrder:
    builder = Builder(flow, problem)
    level = levels(flow)
    waiting = flow.waiting()
    pending = [(0.0, op) for op in waiting.ready()]  # (when its predecessors have ended, op)
    available: list[tuple[float, int]] = []  # (-level, op)
    local: list[list[tuple[float, int]]] = [[] for _ in range(problem.devices)]  # those with all inputs on the device
    while pending or available:
        device = min(range(problem.devices), key=lambda device: builder.free[device])
        now = max(builder.free[device], 0.0 if available else pending[0][0])
        while pending and pending[0][0] <= now:
            _, op = heapq.heappop(pending)
            for queue in (available, *(local[b] for b in range(problem.devices) if builder.has_inputs(op, b))):
                heapq.heappush(queue, (-level[op], op))
        _, op = heapq.heappop(local[device] if local_first and local[device] else available)
        builder.append(op, choose)
        for queue in (available, *local):
            while queue and builder.placement[queue[0][1]] >= 0:
                heapq.heappop(queue)
        for after in waiting.ran(op):
            heapq.heappush(pending, (max(builder.end[before] for before in flow.predecessors[after]), after))
    return builder.plan()


def levels(flow: Flow) -> list[float]:
    """Longest path of run times from the start of each op to the end, seconds."""
    a = flow.graph.arrays
    return (a.tail + a.runtime).tolist()


def _in_order(flow: Flow, problem: Problem, order: np.ndarray, choose: Choice) -> Builder:
    builder = Builder(flow, problem)
    for op in order.tolist():
        builder.append(op, choose)
    return builder


def _memory_plans(flow: Flow, problem: Problem, orders: list[np.ndarray]) -> Iterator[PlacedOrder]:
    """Everything on one device, in the first of the orders; and a bisection with each of them."""
    yield np.zeros(flow.num_ops, np.int64), orders[0]
    if problem.devices == 1:
        return
    memory = dataclasses.replace(problem, objective="peak_memory", memory_limit=None)
    bound = lower_bound(flow.graph, memory)
    for order in orders:
        low, high, target = bound, math.inf, 0.0
        for _ in range(BISECTIONS):
            builder = _in_order(flow, problem, order, _fewest_bytes(target))
            yield builder.plan()
            peak = max(builder.peaks())
            low, high = (low if peak <= target else max(low, target)), min(high, peak)
            target = (low + high) / 2


def _fewest_bytes(target: float) -> Choice:
    """Where the fewest bytes are added, of the devices that stay within the target if any does."""
    return lambda trial: (max(0, trial.peak - target), trial.added, trial.peak, trial.device)
