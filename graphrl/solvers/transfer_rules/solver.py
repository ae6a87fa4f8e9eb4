"""Method "anneal-ops": annealing of placement and order; the rule of `plans.py` determines the transfers.

`quick_start` returns the best of a few quick list schedules with such transfers, from which the search starts.
"""

import dataclasses
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from graphrl.compiled import background_compile
from graphrl.costs import exact
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan import Plan
from graphrl.process import count_cores
from graphrl.solvers.anneal.clusters import Clusters, has_parts
from graphrl.solvers.anneal.driver import Exchanging, Pace, temperature_at
from graphrl.solvers.base import PlacedOrder, Task
from graphrl.solvers.rules.list_scheduling import affordable, etf, etf_seconds, quick_schedule, schedule
from graphrl.solvers.rules.placements import layer_stages
from graphrl.solvers.rules.plan_builder import prepare as prepare_lists
from graphrl.solvers.schedules.solver import uses_one_device
from graphrl.solvers.solver import solver
from graphrl.solvers.transfer_rules.plans import op_plan, set_plan, with_transfers
from graphrl.solvers.transfer_rules.search import (
    NAME,
    Chain,
    anneal,
    best_plan,
    chain,
    copy_chain,
    copy_plan,
    makespan,
    prepare,
    set_chain,
)

LISTS_SHARE = 0.5  # share of the time for all list schedules under `rendezvous`
ETF_SECONDS = 1.0  # limit of the estimated time of `etf`, by `etf_seconds`


class Start(NamedTuple):
    """A plan without its transfers."""

    placement: np.ndarray  # [n] devices
    ops: np.ndarray  # [n] in a topological order
    makespan: float  # seconds, with transfers by `with_transfers`


def quick_plan(
    graph: ComputationGraph, problem: Problem, seconds: float = math.inf, others: Sequence[PlacedOrder] = ()
) -> PlacedOrder:
    """Returns the plan of `quick_start` with its transfers: placement `[n]` and order of nodes."""
    start = quick_start(graph, problem, seconds, others)
    return start.placement, with_transfers(graph, problem, start.placement, start.ops)


def quick_start(
    graph: ComputationGraph, problem: Problem, seconds: float = math.inf, others: Sequence[PlacedOrder] = ()
) -> Start:
    """Returns the best of a few quick list schedules.

    Under `rendezvous` a list schedule that accounts for it leaves most devices with few ops. One for transfers that
    block no device uses all devices, and is mostly better with bundled sends. If the time suffices, the best of all
    list schedules is among them; under other transfer models also `etf`'s, if it is quick. If op names contain layers,
    stages of layers are among them.

    Args:
      seconds: time limit: slower schedules are left out, except the first.
      others: existing plans; their transfers are ignored.
    """
    n, plan, end = len(graph.ops), op_plan(graph, problem), time.perf_counter() + seconds
    starts = []
    for placement, order in itertools.chain(others, _plans(graph, problem, end)):
        set_plan(plan, placement, ops := order[order < n])
        starts.append(Start(placement, ops, makespan(plan)))
    if problem.memory_limit is None or len(starts) == 1:
        return min(starts, key=lambda start: start.makespan)

    def rank(start: Start) -> tuple[int, float]:
        order = with_transfers(graph, problem, start.placement, start.ops)
        return exact.evaluate(graph, problem, start.placement, order).rank(problem)

    return min(starts, key=rank)


def _plans(graph: ComputationGraph, problem: Problem, end: float) -> Iterator[PlacedOrder]:
    """Yields the schedules that should be ready by `end`, as `time.perf_counter` counts; the first one always."""
    by_layer = layer_stages(graph, problem) if problem.devices > 1 else None
    if by_layer is not None:
        yield by_layer
    if by_layer is None or time.perf_counter() < end:  # under a memory limit it takes seconds on the largest graphs
        yield quick_schedule(graph, problem)
    if problem.devices == 1:
        return
    if problem.transfer == "rendezvous":
        if time.perf_counter() < end:
            yield quick_schedule(graph, dataclasses.replace(problem, transfer="free"))
        if affordable(graph, problem, LISTS_SHARE * (end - time.perf_counter())):
            yield schedule(graph, problem)
        return
    if affordable(graph, problem, end - time.perf_counter()):
        yield schedule(graph, problem)
    if etf_seconds(graph, problem) <= min(ETF_SECONDS, end - time.perf_counter()):
        yield etf(graph, problem)


HOT, COLD = 0.002, 0.00003  # first and last temperature, relative to the first makespan
ESCAPE = 0.02  # the first temperature if all ops start on one of several devices
CHECKS, CHECK_SHARE = 20, 0.2  # number of checks by exact costs under a memory limit, and their share of the time
PLANS_SHARE, MIN_SECONDS = 0.5, 1.0  # share of the time for quick plans, and the least seconds that they get
MAX_CHAINS = 64
TYPICAL_MOVES = 30.0  # moves per op from which a search starts at HOT
PACE = Pace(steps=2_000, pieces=50, seconds=0.02, first=8)


def prepare_with_lists() -> None:
    """Compiles annealing and list scheduling, or loads them."""
    prepare_lists()
    prepare()


def prepared_in_background() -> AbstractContextManager[None]:
    """Runs `prepare_with_lists` in another process while this one compiles something else."""
    return background_compile(anneal, NAME, prepare_with_lists)


@solver(
    NAME,
    "annealing of placement and order; a rule determines the transfers",
    colocates=True,
    objectives=("makespan",),
    prepare=prepare_with_lists,
)
def solve(
    task: Task, *, hot: float = 0.0, cold: float = COLD, hint: Plan | None = None, starts: Sequence[Plan] = ()
) -> Plan:
    """Anneals from the best of a few list schedules. An evaluation is a move. From 500 ops on they move in clusters
    (`anneal.clusters`), large ones first. If evaluations are limited there is one chain, else one per core; a few times
    per run the worst chain continues from the best one's state.

    Moves ignore memory. Under a limit, exact costs check it a few times: if a chain's plan is above the limit, all
    moves since the last plan within the limit are undone.

    Args:
      hot, cold: first and last temperature: a rise of the makespan by that share is accepted with probability 1/e. The
        first is for 30 moves per op or more: see `initial_temperature`. A `hot` of 0 is 0.002; if all ops start on one
        of several devices, from which a search must escape, 0.02.
      hint: a plan to start from in place of these; the rule determines its transfers.
      starts: plans to add to these; the rule determines their transfers, too.

    Raises:
      ProblemError: an option is out of range.
    """
    if not 0 < cold <= (hot or HOT):
        raise ProblemError(f"hot is {hot or HOT} and cold is {cold}: must be above 0, and cold at most hot")
    if hint is None:
        seconds = math.inf if task.budget.seconds is None else max(MIN_SECONDS, PLANS_SHARE * task.budget.seconds)
        others = [plan.decisions(task.graph) for plan in starts]
        first = task.plan(*quick_plan(task.graph, task.problem, seconds, others), evaluations=1)
    else:
        first = task.as_answer(hint)
    task.best = lambda: first
    hot = hot or (ESCAPE if uses_one_device(task.problem, first.decisions(task.graph)) else HOT)
    search = _Chains(task, first, hot, cold)
    search.run()
    return search.plan()


class _Chains(Exchanging[Chain]):
    """The chains, and the best plan that keeps the memory limit."""

    def __init__(self, task: Task, first: Plan, hot: float, cold: float) -> None:
        self._task, self._first, self._hot, self._cold, self._next_check = task, first, hot, cold, 0.0
        seed = np.random.SeedSequence(task.seed)
        count = 1 if task.budget.evaluations is not None else min(count_cores(), MAX_CHAINS)
        one = chain(task.graph, task.problem, first.decisions(task.graph), seed)
        super().__init__(task, [one, *(copy_chain(one, other) for other in seed.spawn(count - 1))], PACE, evaluations=1)
        self._unit = float(one.score[1])
        if task.problem.devices > 1 and has_parts(task.graph):
            self.clusters = Clusters(task.graph, task.problem)
        task.best = self.plan

    def plan(self) -> Plan:
        """Returns the best plan so far."""
        limited = self._task.problem.memory_limit is not None  # which the quickest plan may exceed
        plan = min(map(self._plan_of, self.chains if limited else [self._quickest()]), key=attrgetter("rank"))
        return plan if plan.rank <= self._first.rank else self._task.as_answer(self._first, self.evaluations)

    def walk(self, chain: Chain, steps: int, begin: float, end: float) -> int:
        """Makes moves of a chain, at the temperatures between two shares of the budget."""
        hot = initial_temperature(self.expected / len(self._task.graph.ops), self._hot, self._cold)
        anneal(chain, steps, *(self._unit * temperature_at(hot, self._cold, share) for share in (begin, end)))
        return steps

    def value(self) -> float:
        """Returns the makespan of the best plan so far, in seconds."""
        limited = self._task.problem.memory_limit is not None
        return self._first.value if limited else float(self._quickest().score[1])

    def energy(self, chain: Chain) -> float:
        """Returns the energy of a chain's plan, in seconds."""
        return float(chain.score[0])

    def follow(self, chain: Chain, other: Chain) -> None:
        """Copies the other chain's plan into this chain."""
        copy_plan(chain, other)

    def move_ops(self, chain: Chain) -> np.ndarray:
        """Returns the chain's ops."""
        return chain.plan.ops[:-1]

    def done(self) -> bool:
        """True if the plan takes no time."""
        return self._unit <= 0

    def after(self, share: float) -> None:
        """Checks chains under a memory limit, every 1 / `CHECKS` of the budget or less often. A chain whose best plan
        is further above the limit than the best plan of all restarts from the latter.
        """
        if self._task.problem.memory_limit is None or share < self._next_check:
            return
        start = time.perf_counter()
        plans = [self._plan_of(one) for one in self.chains]
        self._first = min([self._first, *plans], key=attrgetter("rank"))
        for one, plan in zip(self.chains, plans, strict=True):
            if plan.excess > self._first.excess:
                set_chain(one, *_ops(self._task, self._first))
                self.level = -1  # clusters must be of one device each
        seconds = time.perf_counter() - start
        cost_share = 0.0 if self._task.budget.seconds is None else seconds / self._task.budget.seconds
        self._next_check = share + max(1 / CHECKS, cost_share / CHECK_SHARE)

    def _quickest(self) -> Chain:
        return min(self.chains, key=lambda one: float(one.score[1]))

    def _plan_of(self, one: Chain) -> Plan:
        """Returns the best plan of a chain."""
        decisions = best_plan(self._task.graph, self._task.problem, one)
        return self._task.plan(*decisions, evaluations=self.evaluations)


def _ops(task: Task, plan: Plan) -> PlacedOrder:
    """Returns the devices and the order of a plan's ops, `[n]` each."""
    placement, order = plan.decisions(task.graph)
    return placement, order[order < len(placement)]


def initial_temperature(moves_per_op: float, hot: float, cold: float) -> float:
    """Returns the first temperature of a search with few moves per op: it falls with the square root of the moves, as
    in `schedules.solver.temperature`. From `hot` such a search would only move away from its start.
    """
    return max(cold, hot * min(1.0, math.sqrt(moves_per_op / TYPICAL_MOVES)))
