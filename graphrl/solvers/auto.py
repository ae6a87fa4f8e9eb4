"""The default method: the portfolio that was best for the time (docs/systems/opponents.md has the figures).

First plans without search: list scheduling, the given order, list scheduling on fewer devices; for makespan stages of
layers, as `expert` with `order=level` makes them, where ops have their layers' names, `hlfet` and, where it takes a
small part of the time, `etf`, which under `link` is often ahead of ten seconds of search; on large graphs in a short
time a list schedule, `etf` likewise, and on one device the given order. Then, as long as no plan reaches the bound and
the budget lasts:

peak memory of one device
  1. `series-parallel`, which is exact, where the graph is of that kind
  2. `dfs-dp` for a fifth of the budget, at most 2 s, on up to 300 ops: often a proof within a second
  3. `anneal` for two fifths, at most half a second
  4. `min-cut` for 3 tenths of what is left, or 1 ms an op if that is more, which its first pass may take: on compiled
     programs mostly a proof within a second. Where that is more than half of the budget, 3 and 4 are left out
  5. `anneal` for 7 tenths of the rest, from the best orders so far
  6. `min-cut` again, from those

makespan, and peak memory of several devices: what `schedules/portfolio.py` says
largest load (`max_load`): what `loads/portfolio.py` says
"""

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any, get_args

import numpy as np

from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Objective, Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, PlacedOrder, Task
from graphrl.solvers.loads import portfolio as pipelined
from graphrl.solvers.orders import anneal, dfs_dp, min_cut, series_parallel
from graphrl.solvers.portfolio import Portfolio, Stage
from graphrl.solvers.rules.list_scheduling import etf, etf_seconds, has_time, hlfet, schedule, timely_schedule
from graphrl.solvers.rules.placements import layer_stages
from graphrl.solvers.rules.plan_builder import prepare as prepare_lists
from graphrl.solvers.rules.simple import given_order
from graphrl.solvers.schedules import portfolio as scheduled
from graphrl.solvers.solver import solver

DP_OPS, DP_SHARE, DP_SECONDS = 300, 0.2, 2.0
ETF_SHARE = 0.15  # of the time that `etf` may take
FIRST_SHARE, FIRST_SECONDS = 0.4, 0.5  # of annealing before the minimum cuts
CUT_SHARE, CUT_SECONDS, CUT_MOST = 0.3, 1e-3, 0.5  # the seconds for each op; the largest share that they may be
OTHERS_SHARE = 0.05  # of the time for other plans without search than the first two


@solver(
    "auto",
    "the portfolio of the methods below that was best for the time",
    colocates=True,
    objectives=get_args(Objective),
)
def solve(task: Task) -> Plan:
    """See the module. Its bound is the best that any of its methods proved."""
    with task.uncounted():
        _prepare(task.problem)
    return begun(task).run(stages(task.graph, task.problem, task.budget))


def _prepare(problem: Problem) -> None:
    """Compiles what the plans without search and the searches on several devices need, once on a machine."""
    if problem.objective == "max_load":
        return  # each method does so itself
    if problem.devices == 1:
        prepare_lists()
    else:
        scheduled.prepare(problem)


def begun(task: Task) -> Portfolio:
    """The portfolio with the plans that need no search. Its seconds count from the first of them and the bound, which
    take seconds on thousands of ops: a short budget would end without any search.
    """
    if task.problem.objective == "max_load":
        return pipelined.begun(task)
    plans = candidates(task.graph, task.problem, task.budget)
    first = next(plans)
    portfolio = Portfolio(task)
    portfolio.add([first])
    # on one device `min-cut` improves it soon, by the best order so far
    portfolio.bound = lower_bound(task.graph, task.problem, first[1] if task.problem.devices > 1 else None)
    task.restart()
    portfolio.add(plans)
    return portfolio


def candidates(graph: ComputationGraph, problem: Problem, budget: Budget) -> Iterator[PlacedOrder]:
    """List scheduling, stages of layers where layers have names, `etf` where it is quick for the time, the given order,
    list scheduling on fewer devices, which is sometimes better, and `hlfet`. Where there is little time, those before
    the given order; and a quick list schedule.
    """
    seconds = math.inf if budget.seconds is None else budget.seconds
    yield timely_schedule(graph, problem, seconds)
    if problem.devices > 1 and problem.objective == "makespan":
        by_layer = layer_stages(graph, problem)
        if by_layer is not None:
            yield by_layer
        if etf_seconds(graph, problem) <= ETF_SHARE * seconds:
            yield etf(graph, problem)
    if problem.devices > 1 and not has_time(graph, problem, seconds):
        return  # of many uses, exact costs alone take a part of a second
    yield given_order(graph, problem)
    if not has_time(graph, problem, OTHERS_SHARE * seconds):
        return
    devices = problem.devices // 2
    while devices > 1:
        placement, order = schedule(graph, dataclasses.replace(problem, devices=devices))
        tensor, to = np.divmod(order - len(graph.ops), devices)
        moved = len(graph.ops) + tensor * problem.devices + to  # a transfer's id depends on the number of devices
        yield placement, np.where(order < len(graph.ops), order, moved)
        devices //= 2
    if problem.devices > 1 and problem.objective == "makespan":
        yield hlfet(graph, problem)


def stages(graph: ComputationGraph, problem: Problem, budget: Budget) -> Iterator[Stage]:
    """What the module says, from the first search on."""
    if problem.objective == "max_load":
        return pipelined.stages(graph, problem, budget)
    if problem.devices == 1 and problem.objective == "peak_memory":
        return _orders_stages(graph, budget)
    return scheduled.stages(graph, problem, budget)


def _orders_stages(graph: ComputationGraph, budget: Budget) -> Iterator[Stage]:
    """Of peak memory of one device."""
    ops, starts = len(graph.ops), functools.partial(_orders, graph)
    yield Stage(series_parallel.solve)
    if ops <= DP_OPS:
        yield Stage(dfs_dp.solve, DP_SHARE, DP_SECONDS)
    least = 0.0 if budget.seconds is None else CUT_SECONDS * ops / budget.seconds
    if least <= CUT_MOST:
        yield Stage(anneal.solve, FIRST_SHARE, FIRST_SECONDS, options=starts)
        yield Stage(min_cut.solve, max(CUT_SHARE, least))
    yield Stage(anneal.solve, 1 - CUT_SHARE, options=starts)
    yield Stage(min_cut.solve, options=starts)


def _orders(graph: ComputationGraph, plans: list[Plan]) -> dict[str, Any]:
    return {"starts": [plan.decisions(graph)[1] for plan in plans]}
