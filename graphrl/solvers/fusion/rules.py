"""Selection of the ops that kernels inline: rules by name, and the choice by the plans that a fusion leads to.

A rule (`RULES`) makes a fusion of a problem, whatever the devices are. Rules and flips minimise the sum of the kernels'
times, which ignores memory. A kernel needs all its arguments in memory at the same time, so fused sums of many
gradients keep all of them. Where memory counts, `plan_jointly` therefore plans several fusions for a share of the
budget together, and the best of them for the rest: the result of flips; the same with kernels of several ops that read
and write at most a half, a quarter, ... of the most bytes there; the rule like XLA's; and no fusion. Such short plans
misjudge by some per cent, so that flips win unless another fusion is better by more than `MARGIN`. If a short plan of
flips shows that memory does not affect the makespan, flips get the rest of the budget directly.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from graphrl.costs.bounds import lower_bound
from graphrl.costs.fusion.exact import Fusion, KernelGraph, fuse, fused_graph
from graphrl.costs.fusion.problem import FusionProblem
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError, suggest
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Interrupted, Progress, Task
from graphrl.solvers.solver import Solver

MOVES = 2_000_000  # number of flips of rule "anneal"
LARGER = 8  # an output at least this many times as large as its inputs is worth recomputing
JOINT = "joint"  # not a rule of a problem alone: `plan_jointly`
DEFAULT_RULE = "flips"
SHARE = 0.2  # share of the budget for finding the best fusion
HALVINGS = 5  # number of times that the limit of a kernel's bytes is halved
MAX_FUSIONS = HALVINGS + 3  # maximum number of fusions to plan
ROOM_SHARE = 0.9  # share of the memory limit: if a short plan needs less, memory does not bind
MARGIN = 0.05  # relative gain that another fusion must have over flips


def none(problem: FusionProblem) -> Fusion:
    """Inlines no op: every op is a kernel."""
    return fuse(problem, np.zeros(problem.num_ops, np.int64))


def single_reader(problem: FusionProblem) -> Fusion:
    """Inlines every op whose outputs are read by one op alone: nothing is computed twice."""
    return fuse(problem, _read_once(problem).astype(np.int64))


def xla_like(problem: FusionProblem) -> Fusion:
    """Inlines as `single_reader`, and also ops whose outputs are at least 8 times their inputs, such as a broadcast."""
    taken = np.append(0, np.cumsum(problem.tensor_bytes[problem.read_tensor]))[problem.read_start]
    grows = problem.output_bytes >= LARGER * np.diff(taken)
    return fuse(problem, (_read_once(problem) | grows).astype(np.int64))


def everything(problem: FusionProblem) -> Fusion:
    """Inlines every op for which that is legal."""
    return fuse(problem, np.ones(problem.num_ops, np.int64))


def flips(problem: FusionProblem) -> Fusion:
    """Inlines single ops, or stops inlining them, while that shortens the sum of the kernels' times. Starts from
    `xla_like` and from `everything`, and returns the better result.
    """
    from graphrl.solvers.fusion.flips import descend_from  # numba

    return min((descend_from(begin(problem)) for begin in (xla_like, everything)), key=lambda fusion: fusion.seconds)


def anneal(problem: FusionProblem) -> Fusion:
    """Simulated annealing of the sum of the kernels' times, from the result of `flips`: 2 million flips."""
    from graphrl.solvers.fusion.flips import anneal_from  # numba

    return anneal_from(flips(problem), MOVES)


RULES: dict[str, Callable[[FusionProblem], Fusion]] = {
    "none": none,
    "single": single_reader,
    "xla": xla_like,
    "all": everything,
    "flips": flips,
    "anneal": anneal,
}


def fuse_by(rule: str, problem: FusionProblem) -> Fusion:
    """Returns the fusion that the named rule makes.

    Raises:
      ProblemError: no rule has this name; the message lists them.
    """
    check_rule(rule)
    return RULES[rule](problem)


def check_rule(rule: str) -> None:
    """Raises ProblemError if the name is neither a rule nor `JOINT`; the message lists them."""
    if rule not in (*RULES, JOINT):
        raise ProblemError(f"unknown fusion rule {rule!r}: {suggest(rule, (*RULES, JOINT))}")


def plan_jointly(
    fusions: FusionProblem, problem: Problem, budget: Budget, solver: Solver[Any], seed: int, progress: Progress | None
) -> Plan:
    """Returns the best plan of kernels that a solver finds; making the fusions is not part of the budget.

    Raises:
      Interrupted: Ctrl-C, with the best plan so far.
      GraphrlError: the solver does not take the problem.
    """
    plans, every = _Plans(problem, budget, solver, seed, progress), candidates(fusions)
    first = fused_graph(next(every))
    if problem.objective == "makespan" and problem.memory_limit is None:
        plans.run(first, 1.0)
        return plans.best()[1]
    plans.run(first, SHARE / MAX_FUSIONS)
    if not plans.has_room():
        for fusion in every:
            graph = fused_graph(fusion)
            if not plans.is_behind(graph):
                plans.run(graph, SHARE / MAX_FUSIONS)
    plans.run(plans.winner(), 1.0)
    return plans.best()[1]


def candidates(fusions: FusionProblem) -> Iterator[Fusion]:
    """Yields the fusions to plan, each once, at most `MAX_FUSIONS`; the first is that of flips."""
    from graphrl.solvers.fusion.flips import descend_from  # numba

    yield (first := flips(fusions))
    single, seen = none(fusions), {first.inlined.tobytes()}
    limits = [largest_kernel(first) >> halving for halving in range(1, HALVINGS + 1)]
    for fusion in (*(descend_from(single, limit) for limit in limits), xla_like(fusions), single):
        if fusion.inlined.tobytes() not in seen:
            seen.add(fusion.inlined.tobytes())
            yield fusion


def largest_kernel(fusion: Fusion) -> int:
    """Returns the most bytes that a kernel of several ops reads and writes, 0 without such kernels."""
    problem = fusion.problem
    return max(
        (
            int(problem.tensor_bytes[list(fusion.arguments[root])].sum() + problem.output_bytes[root])
            for root, members in fusion.members.items()
            if len(members) > 1
        ),
        default=0,
    )


class _Plans:
    """Plans fusions for one budget: the plans so far, and what is left of the budget."""

    def __init__(
        self, problem: Problem, budget: Budget, solver: Solver[Any], seed: int, progress: Progress | None
    ) -> None:
        self._problem, self._budget, self._solver, self._seed, self._progress = problem, budget, solver, seed, progress
        self._plans: list[tuple[KernelGraph, Plan]] = []
        self._evaluations, self._seconds = 0, 0.0

    def best(self, *more: tuple[KernelGraph, Plan]) -> tuple[KernelGraph, Plan]:
        """Returns the best graph and plan, with the evaluations and seconds of all plans."""
        graph, plan = min((*self._plans, *more), key=lambda pair: pair[1].rank)
        evaluations = self._evaluations + sum(plan.evaluations for _, plan in more)
        seconds = self._seconds + sum(plan.seconds for _, plan in more)
        return graph, dataclasses.replace(plan, evaluations=evaluations, seconds=seconds)

    def has_room(self) -> bool:
        """True if the first plan is for the makespan, and memory does not affect it."""
        limit, peak = self._problem.memory_limit, max(self._plans[0][1].peak_memory, default=0)
        return self._problem.objective == "makespan" and limit is not None and peak <= ROOM_SHARE * limit

    def winner(self) -> KernelGraph:
        """Returns the kernels that get the rest of the budget."""
        (graph, first), (other, best) = self._plans[0], self.best()
        wins = (best.excess, best.value) < (first.excess, (1 - MARGIN) * first.value)
        return other if wins else graph

    def is_behind(self, graph: KernelGraph) -> bool:
        """True if, by its lower bound, no plan of these kernels can be better than the best so far."""
        if not self._plans or self._problem.objective != "makespan":
            return False
        plan = self.best()[1]
        return plan.excess == 0 and lower_bound(graph, self._problem) >= plan.value

    def run(self, graph: KernelGraph, share: float) -> None:
        """Plans some kernels, with a share of the whole budget, or with what is left of it if that is less."""
        left = self._budget.minus(self._evaluations, self._seconds)
        if left is None:
            return
        whole = self._budget
        count = seconds = None
        if left.evaluations is not None and whole.evaluations is not None:
            count = min(left.evaluations, max(1, int(share * whole.evaluations)))
        if left.seconds is not None and whole.seconds is not None:
            seconds = min(left.seconds, share * whole.seconds)

        def report(evaluations: int, seconds: float, plan: Callable[[], Plan], value: float) -> None:
            if self._progress is not None:
                if self._plans and self.best()[1].excess == 0:
                    value = min(value, self.best()[1].value)
                evaluations, seconds = evaluations + self._evaluations, seconds + self._seconds
                self._progress(evaluations, seconds, lambda: self.best((graph, plan()))[1], value)

        try:
            plan = self._solver(Task(graph, self._problem, Budget(count, seconds), self._seed, report))
        except Interrupted as stop:
            raise Interrupted(self.best((graph, stop.plan))[1]) from None
        self._plans.append((graph, plan))
        self._evaluations += plan.evaluations
        self._seconds += plan.seconds


def _read_once(problem: FusionProblem) -> np.ndarray:
    """True for ops whose outputs are read by exactly one op: `[n]` bool."""
    a = problem.graph.arrays
    pairs = np.unique(a.producer[a.use_tensor].astype(np.int64) * problem.num_ops + a.use_op)
    return np.bincount(pairs // problem.num_ops, minlength=problem.num_ops) == 1
