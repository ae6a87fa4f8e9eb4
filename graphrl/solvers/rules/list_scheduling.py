"""List schedulers: plans made in one pass over the ops, without search (methods "list", "hlfet" and "etf").

"hlfet" and "etf" are the textbook schedulers, under every transfer model, and consider run times only. HLFET, highest
level first with estimated times (Adam, Chandy & Dickson 1974): of the ops whose predecessors are placed, the one of
highest level, where it can start first. ETF, earliest task first (Hwang, Chow, Anger & Lee 1989): of those ops, the one
that can start first on any device, there; ties to the highest level. An op's level is the longest path of run times
from its start to the end, without transfers ("static"). A start counts the op's transfers, which run right before it.

"list" is the best of about ten plans by exact costs, O((n + e) (log n + d)) each; `quick_schedule` makes one.

Makespan: time runs along the device that is free first. Of the ops whose predecessors have ended by then, the one of
highest level runs next, where it finishes first, its transfers right before it. Finishing first alone keeps most ops on
one device where transfers block their sender (`rendezvous`). So there are two deviations, each tried with and without:
- ops that need no transfer to the device that is free go before those that do;
- a device pays for being busy longer than the first one, and for the time that others lose by sending.
Everything on one device is tried too; under a memory limit also the plans for peak memory.

Peak memory: on one device, the best of `memory_orders`. On several, the ops go in such an order, each where the fewest
bytes are added among the devices that stay under a target (copies of inputs count), else where the peak is least. The
target is found by bisection between the bound and the best peak.

A memory limit is kept where possible: a device that stays within it by the builder's estimate goes first.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np

from graphrl.costs import exact
from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.topology import least_first
from graphrl.plan import Plan
from graphrl.solvers.base import PlacedOrder, Task
from graphrl.solvers.flow import Flow
from graphrl.solvers.rules.memory_orders import memory_orders
from graphrl.solvers.rules.plan_builder import (
    BYTES,
    FINISH,
    START,
    Choice,
    earliest_first,
    highest_level_first,
    in_order,
    place_all,
    prepare,
)
from graphrl.solvers.rules.plan_state import Builder, builder
from graphrl.solvers.solver import batch_solver, solver

WORK = 100_000  # (ops + uses) * devices for which all list schedules take about a second with exact costs
TIMED_FACTOR = 60  # times as much where the builder computes their value
BUSY = (0.0, 0.25, 0.5)  # price of a busy second, in seconds of finish
DELAY = (0.0, 0.5)  # price of a second that other devices lose
TARGET_FACTOR = 1.2  # target of a quick schedule, in multiples of the bound
BISECTIONS = 6  # the first aims at the least peak of every device


@batch_solver("list", "the best of several list schedules", colocates=True, prepare=prepare)
def solve_list(tasks: Sequence[Task], *, quick: bool = False) -> list[Plan]:
    """Returns the best of a few plans of each graph, whatever the budget and the seed.

    Args:
      quick: True makes one plan alone, by `quick_schedule`.
    """
    plans = []
    for task in tasks:
        graph, problem = task.graph, task.problem
        plan, evaluations = (quick_schedule(graph, problem), 1) if quick else best_schedule(graph, problem)
        plans.append(task.plan(*plan, evaluations=evaluations))
    return plans


def schedule(graph: ComputationGraph, problem: Problem) -> PlacedOrder:
    """Returns the best list schedule: placement `[n] int64` and order `[m] int64` of node ids."""
    return best_schedule(graph, problem)[0]


def best_schedule(graph: ComputationGraph, problem: Problem) -> tuple[PlacedOrder, int]:
    """Returns the best list schedule, and the number of plans that were costed to find it."""
    b, orders, evaluations = builder(graph, problem), [graph.arrays.topological], 0
    if not _is_timed(problem):
        flow = Flow(graph)
        orders, evaluations = memory_orders(flow)[:2], flow.evaluations
    best: tuple[tuple[int, float], PlacedOrder] | None = None
    for stage in _stages(b, graph, problem, orders):
        for plan in stage:
            rank = (0, b.makespan) if _is_timed(problem) else exact.evaluate(graph, problem, *plan).rank(problem)
            evaluations += 1
            if best is None or rank < best[0]:
                best = rank, plan
        if best is not None and best[0][0] == 0:
            break
    assert best is not None  # the first stage has a plan
    return best[1], evaluations


def _is_timed(problem: Problem) -> bool:
    """True if only the makespan matters, which a builder computes exactly."""
    return problem.objective == "makespan" and problem.memory_limit is None


def quick_schedule(graph: ComputationGraph, problem: Problem) -> PlacedOrder:
    """Makes a plan in an eighth to a quarter of `schedule`'s time: placement `[n] int64`, order `[m] int64` of nodes.

    Makespan: by the rule that is best most often under the transfer model: under `rendezvous` ops without transfers
    first, with a price on being busy and on the time of others; else highest level first where it ends first (within
    0.3% of the best of all on 10 programs, and equal to it on 24 random graphs); or on one device, if long transfers
    make that faster. Peak memory: in the order of least peak on one device, with a fifth more than the bound as the
    target. With the bound itself as the target plans are better, but so tight that their neighbours are much worse
    (`agents.regal` searches around this plan).
    """
    b = builder(graph, problem)
    if _is_timed(problem):
        prices = (BUSY[1], DELAY[1]) if problem.transfer == "rendezvous" else (0.0, 0.0)
        local_first = problem.transfer == "rendezvous"
        plan = highest_level_first(b, _earliest(problem, *prices), local_first=local_first)
        is_spread = plan[0].min() < plan[0].max()
        if is_spread and b.makespan > graph.arrays.runtime.sum():
            return _on_one_device(b, graph.arrays.topological)
        return plan
    order = memory_orders(Flow(graph))[0]
    if problem.objective == "makespan":
        return in_order(b, order, _earliest(problem, BUSY[1], DELAY[1]))
    if problem.devices == 1:
        return _on_one_device(b, order)
    return in_order(b, order, Choice(BYTES, target=TARGET_FACTOR * lower_bound(graph, problem)))


def schedule_within(graph: ComputationGraph, problem: Problem, seconds: float) -> PlacedOrder:
    """Returns the best list schedule if the time suffices for all of them, else a quick one.

    Args:
      seconds: time that is left, infinite for no limit; below 1 it counts as 1.
    """
    return schedule(graph, problem) if affordable(graph, problem, max(1.0, seconds)) else quick_schedule(graph, problem)


def affordable(graph: ComputationGraph, problem: Problem, seconds: float) -> bool:
    """True if all list schedules can be computed in this many seconds."""
    return has_time(graph, problem, seconds * (TIMED_FACTOR if _is_timed(problem) else 1))


def has_time(graph: ComputationGraph, problem: Problem, seconds: float) -> bool:
    """True if several list schedules with their exact costs, and a search, can be computed in this many seconds."""
    a = graph.arrays
    return (a.num_ops + len(a.use_op)) * problem.devices <= WORK * seconds


def _stages(
    b: Builder, graph: ComputationGraph, problem: Problem, orders: list[np.ndarray]
) -> Iterator[Iterator[PlacedOrder]]:
    """Yields the plans to choose from; a later stage matters only if no earlier plan is within the memory limit."""
    if problem.objective == "makespan":
        yield _makespan_plans(b, problem, orders)
    if not _is_timed(problem):
        yield _memory_plans(b, graph, problem, orders)


def _makespan_plans(b: Builder, problem: Problem, orders: list[np.ndarray]) -> Iterator[PlacedOrder]:
    """Yields plans: all on one device, in the first order; highest level first; and, under a limit, in all orders."""
    yield _on_one_device(b, orders[0])
    if problem.devices == 1:
        return
    yield highest_level_first(b, _earliest(problem, 0.0, 0.0), local_first=False)
    for busy in BUSY:
        for delay in DELAY if problem.transfer == "rendezvous" else DELAY[:1]:
            yield highest_level_first(b, _earliest(problem, busy, delay), local_first=True)
    if problem.memory_limit is not None:
        for order in orders:
            yield in_order(b, order, _earliest(problem, BUSY[1], DELAY[1]))


def _on_one_device(b: Builder, order: np.ndarray) -> PlacedOrder:
    return place_all(b, order, np.zeros(len(order), np.int64))


def _earliest(problem: Problem, busy: float, delay: float) -> Choice:
    """Returns the choice of the device where an op finishes first, of those within the memory limit if any are."""
    limit = math.inf if problem.memory_limit is None else float(problem.memory_limit)
    return Choice(FINISH, busy, delay, limit)


def _memory_plans(
    b: Builder, graph: ComputationGraph, problem: Problem, orders: list[np.ndarray]
) -> Iterator[PlacedOrder]:
    """Yields everything on one device, in the first of the orders; and the plans of a bisection with each of them."""
    yield _on_one_device(b, orders[0])
    if problem.devices == 1:
        return
    bound = lower_bound(graph, dataclasses.replace(problem, objective="peak_memory", memory_limit=None))
    for order in orders:
        low, high, target = bound, math.inf, 0.0
        for _ in range(BISECTIONS):
            yield in_order(b, order, Choice(BYTES, target=target))
            peak = float(b.peaks.max())
            low, high = (low if peak <= target else max(low, target)), min(high, peak)
            target = (low + high) / 2


PAIR_SECONDS, USE_SECONDS = 6e-9, 1.5e-7  # time of ETF per pair of simultaneously ready ops, and per op or use


def hlfet(graph: ComputationGraph, problem: Problem) -> PlacedOrder:
    """Schedules by HLFET: O((n + e) (log n + d)). Ties of level go to the lower op, of starts to the lower device."""
    b = builder(graph, problem)
    order = least_first(b.rank, graph.arrays.waiting())
    return in_order(b, np.array(order), Choice(START))


def etf_seconds(graph: ComputationGraph, problem: Problem) -> float:
    """Estimates the seconds of ETF, which scans all ready ops each time: as many as along the topological order."""
    a, ready = graph.arrays, np.zeros(len(graph.ops), np.int64)
    source, target = a.dependencies()
    np.maximum.at(ready, target, a.rank[source] + 1)
    pairs = float((a.rank - ready).sum())
    return problem.devices * (PAIR_SECONDS * pairs + USE_SECONDS * (a.num_ops + len(a.use_op)))


def etf(graph: ComputationGraph, problem: Problem) -> PlacedOrder:
    """Schedules by ETF, trying every ready op on every device for each op: O(n w d), d devices and w ready ops."""
    return earliest_first(builder(graph, problem))


@solver("hlfet", "highest level first, where it can start first (Adam et al. 1974)", colocates=True, prepare=prepare)
def solve_hlfet(task: Task) -> Plan:
    """Returns the plan of `hlfet`, whatever the budget and the seed."""
    return task.answer(task.plan(*hlfet(task.graph, task.problem), evaluations=1))


@solver("etf", "earliest task first, ties to the highest level (Hwang et al. 1989)", colocates=True, prepare=prepare)
def solve_etf(task: Task) -> Plan:
    """Returns the plan of `etf`, whatever the budget and the seed."""
    return task.answer(task.plan(*etf(task.graph, task.problem), evaluations=1))
