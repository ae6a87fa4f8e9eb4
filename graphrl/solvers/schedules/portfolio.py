"""What `auto` does for a makespan, and for peak memory of several devices, once there are plans without search.

`anneal-schedule`; where the budget is in seconds and `cp-sat` makes something of them, for a tenth, at most 2 s, then
`cp-sat` from its plan, and `anneal-schedule` again for the rest:

  makespan under free and link, up to 150 ops: `cp-sat` for 7 tenths; up to 300 ops for 3
  makespan under rendezvous, up to 120 ops, and peak memory, up to 60 ops: for half
  makespan under free, without a memory limit or colocation: `anneal-list` first, for 3 tenths where `cp-sat` follows,
    in place of that tenth, else for one, at most 2 s; after `cp-sat` again for 7 tenths, if the best plan is its
  makespan under rendezvous, and under link from 5,000 ops on: first `anneal-ops` for a tenth, then
    `anneal-schedule` for a tenth of the rest, or `multilevel` for a quarter. If the plan of the first is better by 1%,
    it has what is left, under link but for a fifth, in which `anneal-schedule` goes on from there; else the second
    begins anew, as its temperature depends on the time
  makespan under link where most ops are colocated: no trials as long as the best plan keeps the memory limit,
    `anneal-ops` has all but the last fifth
  makespan from 3,000 ops on, with 1 ms for each: `multilevel` in its place, unless ops are colocated, or it moves
    clusters (`clusters.py`)
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan import Plan
from graphrl.solvers import lists as listed
from graphrl.solvers.base import Budget
from graphrl.solvers.clusters import moves_clusters
from graphrl.solvers.exact import solver as cp_sat
from graphrl.solvers.portfolio import Stage, best_as_hint
from graphrl.solvers.schedules import multilevel
from graphrl.solvers.schedules import solver as schedules
from graphrl.solvers.sending import solver as by_rule
from graphrl.solvers.solver import Solver

PEAK_OPS, RENDEZVOUS_OPS, OPTIMUM_OPS, PROOF_OPS = 60, 120, 150, 300  # up to which CP-SAT is worth its time
MULTILEVEL_OPS, MULTILEVEL_SECONDS = 3_000, 1e-3  # from which a makespan is annealed in levels, seconds for each op
EXACT_SECONDS = 5e-3  # for each op, below which CP-SAT has no time
SOON_SHARE, SOON_SECONDS = 0.1, 2.0  # of annealing before it
LISTS_SHARE = 0.3  # of annealing of lists before CP-SAT, at most SOON_SECONDS; and of others after it where it leads
TRIAL_SHARE, LEVELS_SHARE = 0.1, 0.25  # of each of two ways to anneal, in levels or not, before one has the rest
TRIAL_GAIN = 0.01  # that the first must have
TRIAL_OPS = 5_000  # from which it is tried under `link`: smaller random DAGs gain nothing
POLISH_SHARE = 0.2  # of what is left then, for the second from its plan
BY_RULE = ("anneal-ops", "go")  # whose plans have their sends by the rule, bundled under `rendezvous`


def prepare(problem: Problem) -> None:
    """Compiles what all of it needs, and list scheduling, once on a machine."""
    if not (_moves_ops(problem) or listed.takes(problem)):
        schedules.prepare_with_lists(problem)
        return
    first = by_rule if _moves_ops(problem) else listed
    with first.prepared_beside():
        schedules.prepare(schedules.counts_memory(problem))
    first.prepare_with_lists()


def stages(graph: ComputationGraph, problem: Problem, budget: Budget) -> Iterator[Stage]:
    """What the module says."""
    search, exact = _annealing(graph, problem, budget), _exact_share(graph, problem, budget)
    if listed.takes(problem) and graph.colocation is None:
        yield from _with_lists(search, exact)
    elif _moves_ops(problem) and problem.transfer == "rendezvous":
        yield from _with_bundles(search, exact)
    elif exact:
        yield Stage(schedules.solve, SOON_SHARE, SOON_SECONDS, options=best_as_hint)
        yield Stage(cp_sat.solve, exact, options=best_as_hint)
        yield Stage(search, options=best_as_hint)
    elif _moves_ops(problem) and (_is_grouped(graph) or len(graph.ops) >= TRIAL_OPS):
        yield from _over_links(search, grouped=_is_grouped(graph))
    else:
        yield Stage(search, options=best_as_hint)


def _with_lists(search: Solver[Any], exact: float) -> Iterator[Stage]:
    """Where transfers hold nobody up, and an order says all."""
    yield Stage(listed.solve, LISTS_SHARE if exact else TRIAL_SHARE, SOON_SECONDS)
    if exact:
        yield Stage(cp_sat.solve, exact, options=best_as_hint)
    yield Stage(listed.solve, 1 - LISTS_SHARE, when=_lists_lead)
    yield Stage(search, options=best_as_hint)


def _with_bundles(search: Solver[Any], exact: float) -> Iterator[Stage]:
    """Under `rendezvous`, where only `anneal-ops` can go on from its plans."""
    yield Stage(by_rule.solve, TRIAL_SHARE, options=_best_of_kind)
    if exact:
        yield Stage(schedules.solve, SOON_SHARE, SOON_SECONDS, options=_of_others)
        yield Stage(cp_sat.solve, exact, options=best_as_hint)
    else:
        yield _trial(search)
    yield Stage(by_rule.solve, options=best_as_hint, when=_leads)
    yield Stage(search, options=_unannealed)


def _over_links(search: Solver[Any], grouped: bool) -> Iterator[Stage]:
    """Under `link`, where `anneal-schedule` can go on from all plans; `grouped`: most ops are colocated."""

    def tries(plans: list[Plan]) -> bool:  # memory is what `anneal-ops` does not look at
        return not grouped or plans[0].excess > 0

    def leads(plans: list[Plan]) -> bool:
        return not tries(plans) or _leads(plans)

    yield Stage(by_rule.solve, TRIAL_SHARE, options=best_as_hint, when=tries)
    yield _trial(search, tries)
    yield Stage(by_rule.solve, 1 - POLISH_SHARE, options=best_as_hint, when=leads)
    yield Stage(schedules.solve, options=best_as_hint, when=leads)
    yield Stage(search, options=_unannealed)


def _trial(search: Solver[Any], when: Callable[[list[Plan]], bool] = lambda plans: True) -> Stage:
    """What `anneal-ops` is compared with, from the same plans."""
    return Stage(search, LEVELS_SHARE if search is multilevel.solve else TRIAL_SHARE, options=_unannealed, when=when)


def _annealing(graph: ComputationGraph, problem: Problem, budget: Budget) -> Solver[Any]:
    """`multilevel` where it is better than `anneal-schedule`, which makes more of clusters."""
    large = problem.objective == "makespan" and len(graph.ops) >= MULTILEVEL_OPS and graph.colocation is None
    large &= not moves_clusters(graph, problem)
    large &= budget.seconds is None or budget.seconds >= MULTILEVEL_SECONDS * len(graph.ops)
    return multilevel.solve if large else schedules.solve


def _is_grouped(graph: ComputationGraph) -> bool:
    """Whether most ops are colocated with others."""
    return 2 * int((graph.mates != np.arange(len(graph.ops))).sum()) > len(graph.ops)


def _moves_ops(problem: Problem) -> bool:
    """Whether `anneal-ops` is for such problems; under `free` there are better ways."""
    return problem.devices > 1 and problem.objective == "makespan" and problem.transfer != "free"


def _leads(plans: list[Plan]) -> bool:
    """Whether the best plan has its sends by the rule, and is so by far."""
    best, other = plans[0], _of_others(plans)["hint"]
    return best.method in BY_RULE and (best.excess < other.excess or best.value < (1 - TRIAL_GAIN) * other.value)


def _best_of_kind(plans: list[Plan]) -> dict[str, Any]:
    """Options of `anneal-ops`: the best plan of its kind, if there is one, else all others to choose from."""
    return {"hint": next((plan for plan in plans if plan.method in BY_RULE), None), "starts": plans}


def _lists_lead(plans: list[Plan]) -> bool:
    """Whether the best plan is of `anneal-list`, which knows none where a device waits while it could run an op."""
    return plans[0].method == listed.solve.name


def _of_others(plans: list[Plan]) -> dict[str, Any]:
    """Options of a stage that starts from the best plan but for those with sends by the rule: from bundled ones only
    `anneal-ops` can go on.
    """
    return best_as_hint([plan for plan in plans if plan.method not in BY_RULE])


def _unannealed(plans: list[Plan]) -> dict[str, Any]:
    """The same, but for those of `anneal-schedule`, too."""
    return best_as_hint([plan for plan in plans if plan.method not in (*BY_RULE, schedules.solve.name)])


def _exact_share(graph: ComputationGraph, problem: Problem, budget: Budget) -> float:
    """Of the time for CP-SAT, which places ops one by one; 0 where it makes nothing of that."""
    ops = len(graph.ops)
    if problem.objective == "peak_memory":
        share = 0.5 if ops <= PEAK_OPS else 0.0
    elif problem.transfer == "rendezvous":
        share = 0.5 if ops <= RENDEZVOUS_OPS else 0.0
    else:
        share = 0.7 if ops <= OPTIMUM_OPS else 0.3 if ops <= PROOF_OPS else 0.0
    proves = budget.seconds is not None and share * budget.seconds > EXACT_SECONDS * ops
    return share if proves and (problem.devices == 1 or graph.colocation is None) else 0.0
