"""Contiguous splits: stages of equal work, and the best ones by dynamic programming."""

import functools
import math

import numpy as np

from graphrl.compiled import announced
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.plan import Plan
from graphrl.solvers.base import Task
from graphrl.solvers.loads.blocks import Blocks
from graphrl.solvers.loads.groups import Groups, placed_plan
from graphrl.solvers.loads.ideals import Ideals, chain_of, ideals_of
from graphrl.solvers.loads.program import Program, devices_of, fill, program
from graphrl.solvers.rules.expert import equal_parts
from graphrl.solvers.solver import solver

IDEALS = 60_000  # as many as the paper's code takes
STEP_SECONDS = 0.05  # between two looks at the clock, or so


@solver("equal-stages", "max_load: contiguous stages of equal run time, one an accelerator", objectives=("max_load",))
def equal_stages(task: Task) -> Plan:
    """What an expert does by hand, whatever the budget: the ops in topological order, by level, cut where the work so
    far passes a further equal part; what no accelerator can run goes to a CPU.
    """
    blocks = Blocks.of_graph(task.graph, task.problem)
    return task.answer(placed_plan(task, equal_placement(blocks), evaluations=1))


def equal_placement(blocks: Blocks) -> np.ndarray:
    """The device of each op, `[n]`."""
    groups, order = blocks.groups, blocks.orders()[0]
    accelerators = groups.accelerators
    kind = 0 if accelerators else 1
    devices = accelerators or len(groups.kinds)
    seconds = groups.runtime[order, kind]
    runs = np.isfinite(seconds)
    work = np.where(runs, seconds, 0.0)
    device = np.empty(len(order), np.int64)
    device[order] = np.where(runs, equal_parts(work, devices), accelerators % len(groups.kinds))
    return device[groups.of]


@functools.cache
def prepare() -> None:
    """Compiles the program, or loads it, once in a process."""
    graph = ComputationGraph("one", (Op("a"),))
    groups = Groups.of_ops(graph, Problem("max_load"))
    with announced(fill, "stage-dp", seconds=4):
        fill(program(groups, chain_of(np.zeros(1, np.int64)), math.inf, 1.0), 1, 2)


@solver(
    "stage-dp",
    "max_load: the best contiguous stages, by dynamic programming over ideals (Tarnawski et al. 2020)",
    objectives=("max_load",),
    prepare=prepare,
)
def stage_dp(task: Task, *, ideals: int = IDEALS, hint: Plan | None = None) -> Plan:
    """The best contiguous split, whatever the evaluations, if the seconds are enough; never worse than equal stages.

    It begins with the splits of some topological orders of the blocks, whose best bounds the search for the best of
    all. An evaluation is a plan that was costed.

    Args:
      ideals: prefixes of the graph at most, above which it is content with the splits of those orders.
      hint: a plan whose load the stages must beat: the answer is the better one.

    Raises:
      ProblemError: an option is out of range, or an op can run nowhere.
    """
    if type(ideals) is not int or ideals < 0:
        raise ProblemError(f"ideals is {ideals!r}: must be an integer of at least 0")
    search = _Search(task, Blocks.of_graph(task.graph, task.problem))
    if hint is not None:
        search.keep(task.known(hint))
    search.consider(equal_placement(search.blocks))
    for order in search.blocks.orders():
        search.run(chain_of(order))
    try:
        lattice = ideals_of(search.blocks, ideals)
    except ProblemError:
        return search.plan()
    search.run(lattice)
    return search.plan()


class _Search:
    """The best split so far."""

    def __init__(self, task: Task, blocks: Blocks) -> None:
        self.blocks = blocks
        self._task, self._evaluations = task, 0
        self._best: Plan | None = None

    def consider(self, placement: np.ndarray) -> None:
        """Costs a placement `[n]`, and keeps it if it is the best."""
        self.keep(placed_plan(self._task, placement, evaluations=1))

    def keep(self, plan: Plan) -> None:
        """Keeps a plan if it is the best."""
        self._evaluations += 1
        if self._best is None or plan.rank < self._best.rank:
            self._best = plan
            self._task.best = self.plan
            self._task.report(self._evaluations, plan.value)

    def plan(self) -> Plan:
        """The best so far."""
        assert self._best is not None
        return self._task.known(self._best, self._evaluations)

    def run(self, ideals: Ideals) -> None:
        """The best of a lattice's splits, if time is enough and it is better than what there is."""
        groups = self.blocks.groups
        assert self._best is not None
        upper = self._best.value * (1 + 1e-12) if self._best.excess == 0 else math.inf
        table = program(groups, ideals, groups.limit, upper)
        if not _filled(table, self._task):
            return
        device = devices_of(table, ideals, groups.accelerators)
        if device is not None:
            self.consider(device[groups.of])


def _filled(table: Program, task: Task) -> bool:
    """Fills a table, unless time ends before."""
    count = len(table.start) - 1
    first, step = 1, 1
    while first < count:
        if task.over():
            return False
        began = task.seconds
        last = min(count, first + step)
        fill(table, first, last)
        spent = max(task.seconds - began, 1e-6)
        step = max(1, int((last - first) * min(2.0, STEP_SECONDS / spent)))
        first = last
    return True
