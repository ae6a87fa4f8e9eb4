"""Fusion chosen by the plans that it leads to, where memory counts.

The sum of kernels' times, which rules and flips look at, knows nothing of memory: a kernel needs all its arguments at
once, so that sums of many gradients, fused, keep them all. Here several fusions are planned for a share of the budget
together, and the best of them for the rest: what flips end at; the same with kernels of several ops that read and write
at most a half, a quarter, ... of the most bytes there; the rule like XLA's; and none. Such short plans misjudge by some
per cent, so that flips stand unless another fusion is better by more.

Where memory has no part in a makespan, as a short plan of flips says, they are planned at once.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from graphrl.costs.bounds import lower_bound
from graphrl.costs.fusion.exact import Fusion, KernelGraph, fused_graph
from graphrl.costs.fusion.problem import FusionProblem
from graphrl.costs.problem import Problem
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Interrupted, Progress, Task
from graphrl.solvers.fusion.rules import flips, none, xla_like
from graphrl.solvers.solver import Solver

SHARE = 0.2  # of the budget for finding out which fusion is best
HALVINGS = 5  # of the bytes of a kernel
MOST = HALVINGS + 3  # fusions
ROOM = 0.9  # of the memory limit: a short plan that needs less says that memory does not bind
MARGIN = 0.05  # by which another fusion must be better than flips


def plan_jointly(
    fusions: FusionProblem, problem: Problem, budget: Budget, solver: Solver[Any], seed: int, progress: Progress | None
) -> Plan:
    """The best plan of kernels that a solver finds; making the fusions comes on top of the budget.

    Raises:
      Interrupted: Ctrl-C, with the best plan so far.
      GraphrlError: the solver does not take the problem.
    """
    race, every = _Race(problem, budget, solver, seed, progress), candidates(fusions)
    first = fused_graph(next(every))
    if problem.objective == "makespan" and problem.memory_limit is None:
        race.run(first, 1.0)
        return race.best()[1]
    race.run(first, SHARE / MOST)
    if not race.has_room():
        for fusion in every:
            graph = fused_graph(fusion)
            if not race.is_behind(graph):
                race.run(graph, SHARE / MOST)
    race.run(race.winner(), 1.0)
    return race.best()[1]


def candidates(fusions: FusionProblem) -> Iterator[Fusion]:
    """The fusions that may be planned, each once, at most `MOST`; the first is that of flips."""
    from graphrl.solvers.fusion.flips import descended  # numba

    yield (first := flips(fusions))
    single, seen = none(fusions), {first.inlined.tobytes()}
    limits = [largest_kernel(first) >> halving for halving in range(1, HALVINGS + 1)]
    for fusion in (*(descended(single, limit) for limit in limits), xla_like(fusions), single):
        if fusion.inlined.tobytes() not in seen:
            seen.add(fusion.inlined.tobytes())
            yield fusion


def largest_kernel(fusion: Fusion) -> int:
    """The most bytes that a kernel of several ops reads and writes, 0 if there is none."""
    problem = fusion.problem
    return max(
        (
            int(problem.tensor_bytes[list(fusion.arguments[root])].sum() + problem.output_bytes[root])
            for root, members in fusion.members.items()
            if len(members) > 1
        ),
        default=0,
    )


class _Race:
    """The plans so far, and what is left of the budget."""

    def __init__(
        self, problem: Problem, budget: Budget, solver: Solver[Any], seed: int, progress: Progress | None
    ) -> None:
        self._problem, self._budget, self._solver, self._seed, self._progress = problem, budget, solver, seed, progress
        self._plans: list[tuple[KernelGraph, Plan]] = []
        self._evaluations, self._seconds = 0, 0.0

    def best(self, *more: tuple[KernelGraph, Plan]) -> tuple[KernelGraph, Plan]:
        """The graph and the plan that are best, with what all of them took."""
        graph, plan = min((*self._plans, *more), key=lambda pair: pair[1].rank)
        evaluations = self._evaluations + sum(plan.evaluations for _, plan in more)
        seconds = self._seconds + sum(plan.seconds for _, plan in more)
        return graph, dataclasses.replace(plan, evaluations=evaluations, seconds=seconds)

    def has_room(self) -> bool:
        """Whether the first plan is of makespan, and memory has no part in it."""
        limit, peak = self._problem.memory_limit, max(self._plans[0][1].peak_memory, default=0)
        return self._problem.objective == "makespan" and limit is not None and peak <= ROOM * limit

    def winner(self) -> KernelGraph:
        """The kernels that the rest of the budget is for."""
        (graph, first), (other, best) = self._plans[0], self.best()
        is_ahead = (best.excess, best.value) < (first.excess, (1 - MARGIN) * first.value)
        return other if is_ahead else graph

    def is_behind(self, graph: KernelGraph) -> bool:
        """Whether no plan of these kernels is better than the best so far."""
        if not self._plans or self._problem.objective != "makespan":
            return False
        plan = self.best()[1]
        return plan.excess == 0 and lower_bound(graph, self._problem) >= plan.value

    def run(self, graph: KernelGraph, share: float) -> None:
        """Plans some kernels, with a share of the whole budget, or with what is left of it."""
        left = self._budget.less(self._evaluations, self._seconds)
        if left is None:
            return
        whole = self._budget
        count = seconds = None
        if left.evaluations is not None and whole.evaluations is not None:
            count = min(left.evaluations, max(1, int(share * whole.evaluations)))
        if left.seconds is not None and whole.seconds is not None:
            seconds = min(left.seconds, share * whole.seconds)

        def watch(evaluations: int, seconds: float, plan: Callable[[], Plan], value: float) -> None:
            if self._progress is not None:
                if self._plans and self.best()[1].excess == 0:
                    value = min(value, self.best()[1].value)
                evaluations, seconds = evaluations + self._evaluations, seconds + self._seconds
                self._progress(evaluations, seconds, lambda: self.best((graph, plan()))[1], value)

        try:
            plan = self._solver(Task(graph, self._problem, Budget(count, seconds), self._seed, watch))
        except Interrupted as stop:
            raise Interrupted(self.best((graph, stop.plan))[1]) from None
        self._plans.append((graph, plan))
        self._evaluations += plan.evaluations
        self._seconds += plan.seconds
