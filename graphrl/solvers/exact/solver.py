"""CP-SAT as a `Solver`: a known plan, then search for a better one and for the proof that no plan is better."""

import dataclasses
from typing import Any, get_args

import numpy as np

from graphrl.costs import exact
from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Objective, Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan import Plan
from graphrl.process import count_cores
from graphrl.solvers.base import MAX_EVALUATIONS, PlacedOrder, Task
from graphrl.solvers.exact.engine import Limits, Quanta, minimise
from graphrl.solvers.exact.load import load_model, load_quanta, memory_model
from graphrl.solvers.exact.makespan import MAX_PAIRS, makespan_model, num_pairs
from graphrl.solvers.exact.memory import check_memory, peak_model
from graphrl.solvers.exact.model import Built, Lengths, Reference
from graphrl.solvers.loads.groups import Blocks, Groups, placed_order
from graphrl.solvers.loads.stages import equal_placement
from graphrl.solvers.rules.list_scheduling import schedule
from graphrl.solvers.rules.plan_builder import prepare
from graphrl.solvers.solver import solver

DEFAULT_SECONDS = 60.0  # if the budget has evaluations alone
MAX_OPS = 5000  # n^2 reachability is still quick
COARSE_SHARE = 0.6  # share of the time for a model whose seconds are rounded to few quanta, before the one with many
PEAK_PROBLEM: dict[str, Any] = {"objective": "peak_memory", "memory_limit": None}


@solver(
    "cp-sat",
    "OR-Tools' CP-SAT from the best list schedule: search and proof, up to a few hundred ops",
    objectives=get_args(Objective),
    prepare=prepare,
)
def solve(task: Task, *, workers: int = 0, gap: float = 1e-6, hint: Plan | None = None) -> Plan:
    """Finds a plan with a proved bound, never worse than list scheduling (`max_load`: equal stages) or the hint.

    It ends when the best plan is proved optimal, or at the budget's seconds (60 if it has evaluations alone). An
    evaluation is a plan that was costed: those that it starts from, and every better one that CP-SAT finds.

    Under a memory limit that no starting plan respects, it first searches for a plan that does, then for the fastest.
    If it finds no such plan, the answer is the plan of least excess, and then of least makespan.

    Seconds that are no whole multiples of a coarse quantum are first rounded down to one, for a good plan soon, then to
    a millionth of their average: their optimum is known to 1e-6, if CP-SAT gets so far.

    With one worker the same seed and evaluations give the same plan, if time does not run out. With several, CP-SAT's
    threads race, and only a proved value is reproducible.

    Args:
      workers: number of CP-SAT's threads, 0 for one per core.
      gap: relative gap; a plan within it of the bound counts as proved.
      hint: a plan to start from if it is better than the list schedule or equal stages.

    Raises:
      ProblemError: ortools is missing, an option is out of range, the graph has more than 5,000 ops (under a memory
        limit on several devices about 80 to 280), or, where memory counts, outputs reuse buffers on several devices.
      PlanError: the hint is no plan of this graph.
    """
    graph, problem = task.graph, task.problem
    _check(graph, problem, workers, gap)
    search = _Search(task, workers, gap)
    if hint is not None:
        search.consider(hint.decisions(graph))
    if problem.objective == "max_load":
        if search.left() is not None:
            search.consider(placed_order(graph, problem, equal_placement(Blocks.of_graph(graph, problem))))
        search.least_load()
        return search.plan()
    unit = check_memory(graph, problem) if problem.objective == "peak_memory" or problem.memory_limit is not None else 1
    if search.left() is not None:
        search.consider(schedule(graph, problem))
    if problem.objective == "peak_memory" or search.excess:
        search.least_peak(unit)
    if problem.objective == "makespan":
        search.least_makespan(unit)
    return search.plan()


def _check(graph: ComputationGraph, problem: Problem, workers: int, gap: float) -> None:
    if type(workers) is not int or not 0 <= workers <= 1024:
        raise ProblemError(f"workers is {workers!r}: must be an integer from 0 (one a core) to 1024")
    if isinstance(gap, bool) or not isinstance(gap, int | float) or not 0 <= gap < 1:
        raise ProblemError(f"gap is {gap!r}: must be from 0 to below 1")
    if len(graph.ops) > MAX_OPS:
        raise ProblemError(f"method 'cp-sat' takes graphs of up to {MAX_OPS} ops: {graph.name!r} has {len(graph.ops)}")
    if problem.memory_limit is not None and problem.devices > 1 and problem.objective == "makespan":
        pairs = num_pairs(graph, problem)
        if pairs > MAX_PAIRS:
            raise ProblemError(
                f"method 'cp-sat' takes up to {MAX_PAIRS} pairs of nodes under a memory limit and transfer "
                f"{problem.transfer!r}: {graph.name!r} has {pairs}"
            )


class _Search:
    """The best plan and the bound so far.

    Attributes:
      evaluations: number of plans that were costed.
      best, rank, peak: the best plan, its rank, and the bytes of its fullest device.
      bound: lower bound of the objective.
    """

    def __init__(self, task: Task, workers: int, gap: float) -> None:
        self.task, self.graph, self.problem = task, task.graph, task.problem
        self.workers, self.gap = workers, gap
        self.evaluations = self.peak = 0
        self.best: PlacedOrder | None = None
        self.rank: tuple[int, float] = (0, 0.0)
        self.bound = lower_bound(task.graph, task.problem)

    @property
    def excess(self) -> int:
        """Bytes by which the best plan exceeds the memory limit."""
        return self.rank[0]

    def consider(self, decisions: PlacedOrder) -> None:
        """Costs a plan exactly, and keeps it if it is the best."""
        placement, order = (np.asarray(part) for part in decisions)
        costs = exact.evaluate(self.graph, self.problem, placement, order)
        self.evaluations += 1
        rank = costs.rank(self.problem)
        if self.best is None or rank < self.rank:
            self.best, self.rank, self.peak = (placement, order), rank, max(costs.peak_memory)
            self.task.best = self.plan

    def plan(self) -> Plan:
        """Returns the best plan so far."""
        assert self.best is not None
        return self.task.plan(*self.best, evaluations=self.evaluations, bound=self.bound)

    def least_peak(self, unit: int) -> None:
        """Minimises the peak memory, down to the limit if there is one."""
        limit = self.problem.memory_limit
        low = -(-int(lower_bound(self.graph, dataclasses.replace(self.problem, **PEAK_PROBLEM))) // unit)
        if limit is not None:
            low = max(low, limit // unit)  # a lower peak has no value
        if self.peak // unit <= low or self.left() is None:
            return
        model = peak_model(self.graph, self.problem, self._reference(), unit, low, self.peak // unit)
        proved = self._run(model)
        if limit is None and proved is not None:
            bound = float(proved * unit)
            self.bound = max(self.bound, bound if bound <= proved * unit else float(np.nextafter(bound, 0)))

    def least_makespan(self, unit: int) -> None:
        """Minimises the makespan, without more excess over the limit."""
        n, problem = self.graph.arrays.num_ops, self.problem
        sizes = self.graph.arrays.tensor_bytes.tolist()
        moving = [problem.transfer_seconds(size) if problem.devices > 1 else 0.0 for size in sizes]
        seconds = self.graph.arrays.runtime.tolist() + moving
        coarse, fine = Quanta.of(seconds, coarse=True), Quanta.of(seconds)
        for quanta, share in ((coarse, COARSE_SHARE), (fine, 1.0)) if not coarse.exact else ((fine, 1.0),):
            if self._proved() or self.left() is None:
                return
            limit = None
            if problem.memory_limit is not None:
                limit = max(problem.memory_limit, self.peak) // unit, unit
            lengths = Lengths(quanta.lengths[:n], quanta.lengths[n:])
            low = quanta.at_least(self.bound)
            model = makespan_model(self.graph, problem, self._reference(), lengths, low, limit)
            proved = self._run(model, share)
            if proved is not None and not self.excess:  # a bound under a limit is valid if the plan respects the limit
                self.bound = max(self.bound, quanta.bound(proved))

    def least_load(self) -> None:
        """Minimises the load of the busiest device, without more excess over the limit."""
        groups = Groups.of_ops(self.graph, self.problem)
        if self.excess:
            self._run(memory_model(self.graph, self.problem, groups, self._devices(groups)), COARSE_SHARE)
        if self._proved() or self.left() is None:
            return
        quanta = load_quanta(groups)
        low = quanta.at_least(self.bound)
        proved = self._run(load_model(self.graph, self.problem, groups, self._devices(groups), quanta, low))
        if proved is not None and not self.excess:  # a bound under a limit is valid if the plan respects the limit
            self.bound = max(self.bound, quanta.bound(proved))

    def _devices(self, groups: Groups) -> np.ndarray:
        assert self.best is not None
        device = np.zeros(len(groups.weight), np.int64)
        device[groups.of] = self.best[0]
        return device

    def _reference(self) -> Reference:
        assert self.best is not None
        return Reference(self.graph, self.problem, *self.best)

    def _proved(self) -> bool:
        return not self.excess and self.rank[1] <= self.bound * (1 + self.gap)

    def left(self) -> tuple[int, float] | None:
        """Returns the evaluations and seconds that are left, or None if either is spent."""
        left = self.task.left(self.evaluations)
        if left is None:
            return None
        seconds = max(0.0, DEFAULT_SECONDS - self.task.seconds) if left.seconds is None else left.seconds
        return left.evaluations or MAX_EVALUATIONS, seconds

    def _run(self, model: Built, share: float = 1.0) -> int | None:
        """Searches a model for a share of the remaining time; returns the proved bound of the objective, or None."""
        left = self.left()
        if left is None:
            return None
        limits = Limits(left[1] * share, left[0], self.task.seed, self.workers or count_cores(), self.gap)

        def take(values: list[int]) -> None:
            self.consider(model.decode(values))

        return minimise(model.model, model.objective, model.variables, limits, take, self._tick)

    def _tick(self) -> bool:
        self.task.report(self.evaluations, float(self.rank[1]), force=True)
        return self.problem.objective != "peak_memory" and self._proved()
