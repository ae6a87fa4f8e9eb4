"""The default method, "auto": the portfolio that was best for the time (docs/systems/opponents.md has the figures).

First the plans that need no search (`candidates`); for the largest load equal stages. Then, until a plan reaches the
bound or the budget is spent, the stages of the problem in sequence (`stages`; `portfolio.py` runs them).
docs/methods.md has a table of them, which scripts/methods_table.py generates from `stages`. `solve_maps` is "auto" for
memory maps.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, get_args

import numpy as np

from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Objective, Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan import Plan
from graphrl.plan.memory_map import MemoryMap
from graphrl.solvers.anneal import lists, loads, orders
from graphrl.solvers.anneal.clusters import moves_clusters
from graphrl.solvers.base import Budget, PlacedOrder, Task
from graphrl.solvers.exact import solver as cp_sat
from graphrl.solvers.loads.groups import Blocks, placed_order
from graphrl.solvers.loads.stages import equal_placement, stage_dp
from graphrl.solvers.maps import anneal as maps
from graphrl.solvers.maps.cp_sat import MAX_STEPS, prove
from graphrl.solvers.maps.task import MapTask, map_solver
from graphrl.solvers.orders import dfs_dp, min_cut, series_parallel
from graphrl.solvers.portfolio import Portfolio, Stage, best_as_hint
from graphrl.solvers.rules.list_scheduling import etf, etf_seconds, has_time, hlfet, schedule, schedule_within
from graphrl.solvers.rules.placements import layer_stages
from graphrl.solvers.rules.plan_builder import prepare as prepare_lists
from graphrl.solvers.rules.simple import given_order
from graphrl.solvers.schedules import multilevel
from graphrl.solvers.schedules import solver as schedules
from graphrl.solvers.solver import Solver, solver
from graphrl.solvers.transfer_rules import solver as transfer_rules

ETF_SHARE = 0.15  # largest share of the time for `etf`
OTHERS_SHARE = 0.05  # share of the time for plans without search other than the first two
# Orders of one device
DP_OPS, DP_SHARE, DP_SECONDS = 300, 0.2, 2.0
FIRST_SHARE, FIRST_SECONDS = 0.4, 0.5  # share of the budget, and largest time, for annealing before the minimum cuts
# Minimum cuts have that share, or the seconds for each op if that is more, which the first pass may take; where that is
# more than CUT_MOST of the time, annealing takes all the time first.
CUT_SHARE, CUT_SECONDS, MAX_CUT_SHARE = 0.3, 1e-3, 0.5
# Schedules
PEAK_OPS, RENDEZVOUS_OPS, OPTIMUM_OPS, PROOF_OPS = 60, 120, 150, 300  # up to which CP-SAT is worth its time
MULTILEVEL_OPS, MULTILEVEL_SECONDS = 3_000, 1e-3  # from which a makespan is annealed in levels, seconds for each op
EXACT_SECONDS = 5e-3  # for each op, below which CP-SAT has no time
SHORT_SHARE, SHORT_SECONDS = 0.1, 2.0  # share of the budget, and largest time, for annealing before CP-SAT
LISTS_SHARE = 0.3  # share of `anneal-list` before CP-SAT, at most SHORT_SECONDS; and of others after it where it leads
TRIAL_SHARE, LEVELS_SHARE = 0.1, 0.25  # share of each of two ways to anneal, before one has the rest
TRIAL_GAIN = 0.01  # lead that `anneal-ops` must have then
TRIAL_OPS = 5_000  # number of ops from which it is tried under `link`: smaller random DAGs gain nothing
POLISH_SHARE = 0.2  # share of the budget left then, for `anneal-schedule` from its plan
RULE_METHODS = ("anneal-ops", "go")  # methods whose plans have their sends by the rule, bundled under `rendezvous`
# The largest load
STAGES_SHARE, LOADS_SHARE, EXACT_SHARE = 0.25, 0.3, 0.5
EXACT_GROUPS = 1_000  # number of groups of colocated ops up to which CP-SAT is worth its time
HOT_LOADS = {"rounds": 20, "hot": 0.06}  # many short rounds: each settles early where the few largest groups are
COOL_LOADS = {"rounds": 1, "hot": 0.003}  # the last one
SECOND_LOADS_SHARE = 0.5  # share of annealing after CP-SAT, before the last
MAPS_SHARE = 0.2  # share of the seconds for annealing of memory maps
IF_AHEAD, OTHERWISE = f"if its plan is ahead by {TRIAL_GAIN:.0%}", "otherwise"  # for the table of docs/methods.md


@solver(
    "auto",
    "a portfolio of other methods, chosen by problem, size and time",
    colocates=True,
    objectives=get_args(Objective),
)
def solve(task: Task) -> Plan:
    """Runs the portfolio. The plan's bound is the best that any of its methods proved."""
    with task.paused_clock():
        _prepare(task.problem)
    return initial_portfolio(task).run(stages(task.graph, task.problem, task.budget))


@map_solver("auto", "annealing, then CP-SAT if the budget is in seconds", prepare=maps.prepare)
def solve_maps(task: MapTask) -> MemoryMap:
    """Anneals maps, then proves with CP-SAT; ends before the budget if the best map is proved optimal."""
    seconds = task.budget.seconds
    if seconds is None or task.problem.steps > MAX_STEPS:
        maps.cool(task, task.budget)
    else:
        maps.cool(task, dataclasses.replace(task.budget, seconds=MAPS_SHARE * seconds))
        prove(task)
    return task.best_map()


def stages(graph: ComputationGraph, problem: Problem, budget: Budget) -> Iterator[Stage]:
    """Returns the stages (methods in sequence) for a problem, after the plans without search."""
    if problem.objective == "max_load":
        return _loads_stages(graph, budget)
    if problem.devices == 1 and problem.objective == "peak_memory":
        return _orders_stages(graph, budget)
    return _schedules_stages(graph, problem, budget)


def _orders_stages(graph: ComputationGraph, budget: Budget) -> Iterator[Stage]:
    """Yields the stages for the peak memory of one device."""
    ops, starts = len(graph.ops), functools.partial(_orders, graph)
    yield Stage(series_parallel.solve)  # exact, where the graph is of that kind
    if ops <= DP_OPS:
        yield Stage(dfs_dp.solve, DP_SHARE, DP_SECONDS)  # often a proof within a second
    share = 0.0 if budget.seconds is None else CUT_SECONDS * ops / budget.seconds
    if share <= MAX_CUT_SHARE:
        yield Stage(orders.solve, FIRST_SHARE, FIRST_SECONDS, options=starts)
        yield Stage(min_cut.solve, max(CUT_SHARE, share))  # on compiled programs mostly a proof within a second
    yield Stage(orders.solve, 1 - CUT_SHARE, options=starts)
    yield Stage(min_cut.solve, options=starts)


def _schedules_stages(graph: ComputationGraph, problem: Problem, budget: Budget) -> Iterator[Stage]:
    """Yields the stages for the makespan, and for the peak memory of several devices."""
    search, exact = _annealing(graph, problem, budget), _exact_share(graph, problem, budget)
    if lists.supports(problem) and graph.colocation is None:
        yield from _list_stages(search, exact)
    elif _suits_anneal_ops(problem) and problem.transfer == "rendezvous":
        yield from _rendezvous_stages(search, exact)
    elif exact:
        yield Stage(schedules.solve, SHORT_SHARE, SHORT_SECONDS, options=best_as_hint)
        yield Stage(cp_sat.solve, exact, options=best_as_hint)
        yield Stage(search, options=best_as_hint)
    elif _suits_anneal_ops(problem) and (_is_grouped(graph) or len(graph.ops) >= TRIAL_OPS):
        yield from _link_stages(search, grouped=_is_grouped(graph))
    else:
        yield Stage(search, options=best_as_hint)


def _list_stages(search: Solver[Any], exact: float) -> Iterator[Stage]:
    """Yields the stages where transfers block no device, so that an order determines the schedule."""
    yield Stage(lists.solve, LISTS_SHARE if exact else TRIAL_SHARE, SHORT_SECONDS)
    if exact:
        yield Stage(cp_sat.solve, exact, options=best_as_hint)
    yield Stage(lists.solve, 1 - LISTS_SHARE, when=_list_leads, condition="if its plan is the best")
    yield Stage(search, options=best_as_hint)


def _rendezvous_stages(search: Solver[Any], exact: float) -> Iterator[Stage]:
    """Yields the stages under `rendezvous`, where only `anneal-ops` can continue from its plans. The other annealing
    restarts after its trial, as its temperature depends on the time.
    """
    yield Stage(transfer_rules.solve, TRIAL_SHARE, options=_best_of_kind)
    if exact:
        yield Stage(schedules.solve, SHORT_SHARE, SHORT_SECONDS, options=_others_best)
        yield Stage(cp_sat.solve, exact, options=best_as_hint)
    else:
        yield _trial(search)
    yield Stage(transfer_rules.solve, options=best_as_hint, when=_rule_leads, condition=IF_AHEAD)
    yield Stage(search, options=_unannealed_best, condition=OTHERWISE)


def _link_stages(search: Solver[Any], grouped: bool) -> Iterator[Stage]:
    """Yields the stages under `link`, where `anneal-schedule` can continue from all plans; `grouped`: `_is_grouped`."""

    def is_tried(plans: list[Plan]) -> bool:  # `anneal-ops` ignores memory
        return not grouped or plans[0].excess > 0

    def leads(plans: list[Plan]) -> bool:
        return not is_tried(plans) or _rule_leads(plans)

    yield Stage(transfer_rules.solve, TRIAL_SHARE, options=best_as_hint, when=is_tried)
    yield _trial(search, is_tried)
    yield Stage(transfer_rules.solve, 1 - POLISH_SHARE, options=best_as_hint, when=leads, condition=IF_AHEAD)
    yield Stage(schedules.solve, options=best_as_hint, when=leads, condition="then")
    yield Stage(search, options=_unannealed_best, condition=OTHERWISE)


def _trial(search: Solver[Any], when: Callable[[list[Plan]], bool] = lambda plans: True) -> Stage:
    """Returns the trial that `anneal-ops` is compared with, from the same plans."""
    share = LEVELS_SHARE if search is multilevel.solve else TRIAL_SHARE
    return Stage(search, share, options=_unannealed_best, when=when)


def _loads_stages(graph: ComputationGraph, budget: Budget) -> Iterator[Stage]:
    """Yields the stages for the largest load."""
    yield Stage(stage_dp, STAGES_SHARE, options=best_as_hint)
    if budget.seconds is not None:
        yield Stage(loads.solve.with_options(HOT_LOADS), LOADS_SHARE, options=best_as_hint)
        if len(np.unique(graph.leaders)) <= EXACT_GROUPS:
            yield Stage(cp_sat.solve, EXACT_SHARE, options=best_as_hint)
            yield Stage(loads.solve.with_options(HOT_LOADS), SECOND_LOADS_SHARE, options=best_as_hint)
        yield Stage(loads.solve.with_options(COOL_LOADS), options=best_as_hint)
    else:
        yield Stage(loads.solve, options=best_as_hint)


def initial_portfolio(task: Task) -> Portfolio:
    """Builds the portfolio with the plans that need no search. Its clock restarts after the first one and the bound,
    which take seconds on thousands of ops: otherwise a short budget would end without any search.

    Raises:
      ProblemError: the objective is the largest load, and an op can run nowhere.
    """
    if task.problem.objective == "max_load":
        portfolio = Portfolio(task, lower_bound(task.graph, task.problem))
        placement = equal_placement(Blocks.of_graph(task.graph, task.problem))
        portfolio.add([placed_order(task.graph, task.problem, placement)])
        return portfolio
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
    """Yields the plans that need no search, in this order. List scheduling; stages of layers, if layers have names;
    `etf`, if it is quick for the time; the given order; list scheduling on fewer devices, which is sometimes better;
    and `hlfet`. With little time, only those before the given order, with a quick list schedule as the first.
    """
    seconds = math.inf if budget.seconds is None else budget.seconds
    yield schedule_within(graph, problem, seconds)
    if problem.devices > 1 and problem.objective == "makespan":
        by_layer = layer_stages(graph, problem)
        if by_layer is not None:
            yield by_layer
        if etf_seconds(graph, problem) <= ETF_SHARE * seconds:
            yield etf(graph, problem)
    if problem.devices > 1 and not has_time(graph, problem, seconds):
        return  # with many uses, exact costs alone take a part of a second
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


def _prepare(problem: Problem) -> None:
    """Compiles, once per machine, the code that the plans without search and the searches on several devices need."""
    if problem.objective == "max_load":
        return  # each method compiles its own code
    if problem.devices == 1:
        prepare_lists()
    elif _suits_anneal_ops(problem) or lists.supports(problem):
        search = transfer_rules if _suits_anneal_ops(problem) else lists
        with search.prepared_in_background():
            schedules.prepare(schedules.counts_memory(problem))
        search.prepare_with_lists()
    else:
        schedules.prepare_with_lists(problem)


def _annealing(graph: ComputationGraph, problem: Problem, budget: Budget) -> Solver[Any]:
    """Returns `multilevel` where that is better, else `anneal-schedule`, which gains more from clusters."""
    large = problem.objective == "makespan" and len(graph.ops) >= MULTILEVEL_OPS and graph.colocation is None
    large &= not moves_clusters(graph, problem)
    large &= budget.seconds is None or budget.seconds >= MULTILEVEL_SECONDS * len(graph.ops)
    return multilevel.solve if large else schedules.solve


def _exact_share(graph: ComputationGraph, problem: Problem, budget: Budget) -> float:
    """Returns CP-SAT's share of the time; 0 where it gains nothing or cannot keep colocated ops together."""
    ops = len(graph.ops)
    if problem.objective == "peak_memory":
        share = 0.5 if ops <= PEAK_OPS else 0.0
    elif problem.transfer == "rendezvous":
        share = 0.5 if ops <= RENDEZVOUS_OPS else 0.0
    else:
        share = 0.7 if ops <= OPTIMUM_OPS else 0.3 if ops <= PROOF_OPS else 0.0
    proves = budget.seconds is not None and share * budget.seconds > EXACT_SECONDS * ops
    return share if proves and (problem.devices == 1 or graph.colocation is None) else 0.0


def _is_grouped(graph: ComputationGraph) -> bool:
    """True if most ops are colocated with others."""
    return 2 * int((graph.next_colocated != np.arange(len(graph.ops))).sum()) > len(graph.ops)


def _suits_anneal_ops(problem: Problem) -> bool:
    """True if `anneal-ops` suits the problem; under `free` there are better ways."""
    return problem.devices > 1 and problem.objective == "makespan" and problem.transfer != "free"


def _rule_leads(plans: list[Plan]) -> bool:
    """True if the best plan has its transfers by the rule, and leads by `TRIAL_GAIN` or a smaller excess."""
    best, other = plans[0], _others_best(plans)["hint"]
    return best.method in RULE_METHODS and (best.excess < other.excess or best.value < (1 - TRIAL_GAIN) * other.value)


def _list_leads(plans: list[Plan]) -> bool:
    """True if the best plan is by `anneal-list`, whose plans never let a device wait while it could run an op."""
    return plans[0].method == lists.solve.name


def _orders(graph: ComputationGraph, plans: list[Plan]) -> dict[str, Any]:
    return {"starts": [plan.decisions(graph)[1] for plan in plans]}


def _best_of_kind(plans: list[Plan]) -> dict[str, Any]:
    """Returns options of `anneal-ops`: the best plan with transfers by the rule, if any, and all plans as starts."""
    return {"hint": next((plan for plan in plans if plan.method in RULE_METHODS), None), "starts": plans}


def _others_best(plans: list[Plan]) -> dict[str, Any]:
    """Returns options of a stage that starts from the best plan whose transfers are not by the rule: only `anneal-ops`
    can continue from bundled ones.
    """
    return best_as_hint([plan for plan in plans if plan.method not in RULE_METHODS])


def _unannealed_best(plans: list[Plan]) -> dict[str, Any]:
    """Returns `_others_best`, with the plans of `anneal-schedule` left out, too."""
    return best_as_hint([plan for plan in plans if plan.method not in (*RULE_METHODS, schedules.solve.name)])
