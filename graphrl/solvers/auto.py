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

makespan, and peak memory of several devices
  `anneal-schedule`; where the budget is in seconds and `cp-sat` makes something of them, for a tenth, at most 2 s, then
  `cp-sat` from its plan, and `anneal-schedule` again for the rest:
    makespan under free and link, up to 150 ops: `cp-sat` for 7 tenths; up to 300 ops for 3
    makespan under rendezvous, up to 120 ops, and peak memory, up to 60 ops: for half
  makespan under free, without a memory limit or colocation: `anneal-list` first, for 3 tenths where `cp-sat` follows,
    in place of that tenth, else for one, at most 2 s; after `cp-sat` again for 7 tenths, if the best plan is its
  makespan under rendezvous: first `anneal-bundled` for a tenth, then `anneal-schedule` for a tenth of the rest, or
    `multilevel` for a quarter, and the first has all that is left if its plan is better by 1%; else the second begins
    anew, as its temperature depends on the time
  makespan from 3,000 ops on, with 1 ms for each: `multilevel` in its place, unless ops are colocated, or it moves
    clusters (`clusters.py`)

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
from graphrl.solvers.clusters import moves_clusters
from graphrl.solvers.exact.cp_sat import solver as cp_sat
from graphrl.solvers.lists import solver as listed
from graphrl.solvers.loads import portfolio as pipelined
from graphrl.solvers.orders import dfs_dp, series_parallel
from graphrl.solvers.orders.anneal import solver as anneal
from graphrl.solvers.orders.min_cut import solver as min_cut
from graphrl.solvers.portfolio import Portfolio, Stage, best_as_hint
from graphrl.solvers.rules.expert import layer_stages
from graphrl.solvers.rules.list_rules import etf, etf_seconds, hlfet
from graphrl.solvers.rules.list_scheduling import has_time, schedule, timely_schedule
from graphrl.solvers.rules.plan_builder.build import prepare as prepare_lists
from graphrl.solvers.rules.simple import given_order
from graphrl.solvers.schedules import multilevel
from graphrl.solvers.schedules import solver as schedules
from graphrl.solvers.sending import solver as bundled
from graphrl.solvers.solver import solver

DP_OPS, DP_SHARE, DP_SECONDS = 300, 0.2, 2.0
ETF_SHARE = 0.15  # of the time that `etf` may take
FIRST_SHARE, FIRST_SECONDS = 0.4, 0.5  # of annealing before the minimum cuts
CUT_SHARE, CUT_SECONDS, CUT_MOST = 0.3, 1e-3, 0.5  # the seconds for each op; the largest share that they may be
PEAK_OPS, RENDEZVOUS_OPS, OPTIMUM_OPS, PROOF_OPS = 60, 120, 150, 300  # up to which CP-SAT is worth its time
MULTILEVEL_OPS, MULTILEVEL_SECONDS = 3_000, 1e-3  # from which a makespan is annealed in levels, seconds for each op
OTHERS_SHARE = 0.05  # of the time for other plans without search than the first two
EXACT_SECONDS = 5e-3  # for each op, below which CP-SAT has no time
SOON_SHARE, SOON_SECONDS = 0.1, 2.0  # of annealing before it
LISTS_SHARE = 0.3  # of annealing of lists before CP-SAT, at most SOON_SECONDS; and of others after it where it leads
TRIAL_SHARE, LEVELS_SHARE = 0.1, 0.25  # of each of two ways to anneal, in levels or not, before one has the rest
TRIAL_GAIN = 0.01  # that the first must have
BUNDLED = ("anneal-bundled", "go")  # whose plans have bundled sends under `rendezvous`


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
    elif _bundles(problem) or listed.takes(problem):
        first = bundled if _bundles(problem) else listed
        with first.prepared_beside():
            schedules.prepare(schedules.counts_memory(problem))
        first.prepare_with_lists()
    else:
        schedules.prepare_with_lists(problem)


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
    return _schedules_stages(graph, problem, budget)


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


def _schedules_stages(graph: ComputationGraph, problem: Problem, budget: Budget) -> Iterator[Stage]:
    """Of makespan, and of peak memory of several devices."""
    ops = len(graph.ops)
    bundles = _bundles(problem)
    if bundles:
        yield Stage(bundled.solve, TRIAL_SHARE, options=_with_bundles)
    large = problem.objective == "makespan" and ops >= MULTILEVEL_OPS and graph.colocation is None
    large &= not moves_clusters(graph, problem)  # of which `anneal-schedule` makes more
    large &= budget.seconds is None or budget.seconds >= MULTILEVEL_SECONDS * ops
    search = multilevel.solve if large else schedules.solve
    share = _exact_share(ops, problem)
    proves = budget.seconds is not None and share * budget.seconds > EXACT_SECONDS * ops
    lists = listed.takes(problem) and graph.colocation is None
    if lists:
        yield Stage(listed.solve, LISTS_SHARE if proves else TRIAL_SHARE, SOON_SECONDS)
    if proves:
        if not lists:
            options = _unbundled if bundles else best_as_hint
            yield Stage(schedules.solve, SOON_SHARE, SOON_SECONDS, options=options)
        yield Stage(cp_sat.solve, share, options=best_as_hint)
    elif bundles:
        yield Stage(search, LEVELS_SHARE if large else TRIAL_SHARE, options=_unannealed)
    if bundles:
        yield Stage(bundled.solve, options=best_as_hint, when=_leads)
    if lists:
        yield Stage(listed.solve, 1 - LISTS_SHARE, when=_lists_lead)
    yield Stage(search, options=_unannealed if bundles else best_as_hint)


def _bundles(problem: Problem) -> bool:
    """Whether `anneal-bundled` is for such problems."""
    return problem.devices > 1 and bundled.takes(problem)


def _leads(plans: list[Plan]) -> bool:
    """Whether the best plan has bundled sends, by far."""
    return plans[0].method in BUNDLED and plans[0].value < (1 - TRIAL_GAIN) * _unbundled(plans)["hint"].value


def _with_bundles(plans: list[Plan]) -> dict[str, Any]:
    """Options of `anneal-bundled`: the best plan of its kind, if there is one, else all others to choose from."""
    return {"hint": next((plan for plan in plans if plan.method in BUNDLED), None), "starts": plans}


def _lists_lead(plans: list[Plan]) -> bool:
    """Whether the best plan is of `anneal-list`, which knows none where a device waits while it could run an op."""
    return plans[0].method == listed.solve.name


def _unbundled(plans: list[Plan]) -> dict[str, Any]:
    """Options of a stage that starts from the best plan but for those with bundled sends, from which only
    `anneal-bundled` can go on.
    """
    return best_as_hint([plan for plan in plans if plan.method not in BUNDLED])


def _unannealed(plans: list[Plan]) -> dict[str, Any]:
    """The same, but for those of `anneal-schedule`, too."""
    return best_as_hint([plan for plan in plans if plan.method not in (*BUNDLED, schedules.solve.name)])


def _exact_share(ops: int, problem: Problem) -> float:
    """Of the time for CP-SAT, on several devices."""
    if problem.objective == "peak_memory":
        return 0.5 if ops <= PEAK_OPS else 0.0
    if problem.transfer == "rendezvous":
        return 0.5 if ops <= RENDEZVOUS_OPS else 0.0
    return 0.7 if ops <= OPTIMUM_OPS else 0.3 if ops <= PROOF_OPS else 0.0


def _orders(graph: ComputationGraph, plans: list[Plan]) -> dict[str, Any]:
    return {"starts": [plan.decisions(graph)[1] for plan in plans]}
