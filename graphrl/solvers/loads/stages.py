"""Contiguous splits for `max_load`: stages of equal work, and the best stages by dynamic programming over ideals.

An ideal is a set of blocks that contains, with every block, all blocks before it. `Ideals` is their lattice, from small
to large. The dynamic program (Tarnawski et al. 2020, section 5.1) is compiled:

best[c, a, I] is the least largest load of the blocks of ideal I on c CPUs and a accelerators. The last device has I
without some smaller ideal J, so it is the least over J of max(best[c, a - 1, J], load of I without J), and the same
with a CPU. A walk from I visits all J by removing block after block. The last device's load only grows on the way. The
walk turns back where that load reaches a known upper bound on every kind of device.
"""

import functools
import math
from typing import NamedTuple

import numpy as np

from graphrl.compiled import announced, entry, integer
from graphrl.costs.problem import ACCELERATOR, CPU, Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.plan import Plan
from graphrl.solvers.base import Task
from graphrl.solvers.loads.groups import Blocks, Groups, placed_plan
from graphrl.solvers.rules.placements import equal_parts
from graphrl.solvers.solver import solver

BARS, SENDS, BYTES, SUMS = 2, 4, 5, 6  # indices of sums: seconds and bars of both kinds, seconds of transfers, bytes
IDEALS = 60_000  # the limit of the paper's code
STEP_SECONDS = 0.05  # approximate time between two checks of the clock


@functools.cache
def prepare() -> None:
    """Compiles the dynamic program, or loads it, once per process."""
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
    """Finds the best contiguous split, whatever the evaluations, if the seconds suffice; never worse than equal stages.

    It starts with the splits of some topological orders of the blocks; the best of them bounds the search over all
    splits. An evaluation is a plan that was costed.

    Args:
      ideals: largest number of ideals (prefixes of the graph): with more, only splits of those orders are searched.
      hint: a plan whose load the stages must beat: the answer is the better one.

    Raises:
      ProblemError: an option is out of range, or an op can run nowhere.
    """
    if type(ideals) is not int or ideals < 0:
        raise ProblemError(f"ideals is {ideals!r}: must be an integer of at least 0")
    search = _Search(task, Blocks.of_graph(task.graph, task.problem))
    if hint is not None:
        search.keep(task.as_answer(hint))
    search.consider(equal_placement(search.blocks))
    for order in search.blocks.orders():
        search.run(chain_of(order))
    try:
        lattice = ideals_of(search.blocks, ideals)
    except ProblemError:
        return search.plan()
    search.run(lattice)
    return search.plan()


def equal_placement(blocks: Blocks) -> np.ndarray:
    """Returns the device of each op, `[n]`, for stages of equal run time on the accelerators, or on the CPUs if there
    are no accelerators. Blocks that cannot run there go to the first CPU.
    """
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


class Program(NamedTuple):
    """Arrays of the dynamic program: i ideals with x edges, b blocks and m nets, its table, and work space."""

    start: np.ndarray  # [i + 1], see `Ideals`
    smaller: np.ndarray  # [x]
    block: np.ndarray  # [x]
    runtime: np.ndarray  # [b, 2] float64; 0 where it cannot run
    bars: np.ndarray  # [b, 2] int64, 1 where it cannot run
    weight: np.ndarray  # [b] float64, bytes
    nets_start: np.ndarray  # [b + 1] int64, start of each block's nets in `nets`
    nets: np.ndarray  # [y] int64, nets of each block
    seconds: np.ndarray  # [m] float64, transfer time of each net
    size: np.ndarray  # [m] int64, number of blocks that a net joins
    best: np.ndarray  # [cpus + 1, accelerators + 1, i] float64
    link: np.ndarray  # [cpus + 1, accelerators + 1, i] int64, 2 * J + the kind of the last device; -1 without
    inside: np.ndarray  # [m] int64, number of a net's blocks that the last device has
    last_walk: np.ndarray  # [i] int64, the ideal whose walk visited this one last
    stack: np.ndarray  # [b + 1, 2] int64: an ideal, and the next of those below it
    sums: np.ndarray  # [b + 1, SUMS] float64, of the blocks that the last device has, at each depth of the walk
    limits: np.ndarray  # [2] float64: memory limit, bytes, and an upper bound that the largest load must stay below
    counts: np.ndarray  # [1] int64, number of pairs of ideals that were visited


@entry
def fill(p: Program, first: int, last: int) -> None:
    """Fills the table for the ideals from `first` to `last` - 1, after all smaller ones."""
    cpus, accelerators = p.best.shape[0] - 1, p.best.shape[1] - 1
    limit, upper = p.limits[0], p.limits[1]
    for ideal in range(first, last):
        depth = integer(0)
        p.stack[0, 0], p.stack[0, 1] = ideal, p.start[ideal]
        for part in range(SUMS):
            p.sums[0, part] = 0.0
        while depth >= 0:
            here, edge = p.stack[depth, 0], p.stack[depth, 1]
            if edge == p.start[here + 1]:
                if depth > 0:  # undoes the step of the walk: takes the block out again
                    removed = p.block[p.stack[depth - 1, 1] - 1]
                    for i in range(p.nets_start[removed], p.nets_start[removed + 1]):
                        p.inside[p.nets[i]] -= 1
                depth -= 1
                continue
            p.stack[depth, 1] = edge + 1
            below, block = p.smaller[edge], p.block[edge]
            if p.last_walk[below] == ideal:
                continue
            p.last_walk[below] = ideal
            p.counts[0] += 1
            transfers = p.sums[depth, SENDS]
            for i in range(p.nets_start[block], p.nets_start[block + 1]):
                net = p.nets[i]
                p.inside[net] += 1
                if p.inside[net] == 1:
                    transfers += p.seconds[net]
                if p.inside[net] == p.size[net]:
                    transfers -= p.seconds[net]
            depth += 1
            for kind in (ACCELERATOR, CPU):
                p.sums[depth, kind] = p.sums[depth - 1, kind] + p.runtime[block, kind]
                p.sums[depth, BARS + kind] = p.sums[depth - 1, BARS + kind] + p.bars[block, kind]
            p.sums[depth, SENDS], p.sums[depth, BYTES] = transfers, p.sums[depth - 1, BYTES] + p.weight[block]
            p.stack[depth, 0], p.stack[depth, 1] = below, p.start[below]
            on_accelerator, on_cpu = p.sums[depth, ACCELERATOR], p.sums[depth, CPU]
            fits = p.sums[depth, BARS + ACCELERATOR] == 0 and p.sums[depth, BYTES] <= limit
            fits = fits and accelerators > 0 and on_accelerator < upper
            runs = p.sums[depth, BARS + CPU] == 0 and cpus > 0 and on_cpu < upper
            if not fits and not runs:
                p.stack[depth, 1] = p.start[below + 1]  # no smaller ideal fits either: loads only grow
                continue
            load = on_accelerator + transfers
            if fits and load < upper:
                for c in range(cpus + 1):
                    for a in range(1, accelerators + 1):
                        value = max(p.best[c, a - 1, below], load)
                        if value < p.best[c, a, ideal]:
                            p.best[c, a, ideal], p.link[c, a, ideal] = value, 2 * below + ACCELERATOR
            if runs:
                for c in range(1, cpus + 1):
                    for a in range(accelerators + 1):
                        value = max(p.best[c - 1, a, below], on_cpu)
                        if value < p.best[c, a, ideal]:
                            p.best[c, a, ideal], p.link[c, a, ideal] = value, 2 * below + CPU
        for c in range(cpus + 1):
            for a in range(accelerators + 1):
                if a > 0 and p.best[c, a - 1, ideal] < p.best[c, a, ideal]:
                    p.best[c, a, ideal], p.link[c, a, ideal] = p.best[c, a - 1, ideal], 2 * ideal + ACCELERATOR
                if c > 0 and p.best[c - 1, a, ideal] < p.best[c, a, ideal]:
                    p.best[c, a, ideal], p.link[c, a, ideal] = p.best[c - 1, a, ideal], 2 * ideal + CPU


class Ideals(NamedTuple):
    """All ideals, by size, the empty one first, and for each the ideals that lack one block of it."""

    start: np.ndarray  # [i + 1] int64, start of each ideal's entries in the other two
    smaller: np.ndarray  # [x] int64, ideals
    block: np.ndarray  # [x] int64, the block that is missing in each


def program(groups: Groups, ideals: Ideals, limit: float, upper: float) -> Program:
    """Builds the `Program` for groups and their ideals; its table is empty except for ideal 0."""
    count, accelerators = len(ideals.start) - 1, groups.accelerators
    blocks, cpus = len(groups.weight), len(groups.kinds) - accelerators
    incidence = groups.incidence()
    bars = np.isinf(groups.runtime)
    best = np.full((cpus + 1, accelerators + 1, count), np.inf)
    best[:, :, 0] = 0.0
    return Program(
        *ideals,
        runtime=np.where(bars, 0.0, groups.runtime),
        bars=bars.astype(np.int64),
        weight=groups.weight.astype(np.float64),
        nets_start=np.cumsum([0, *map(len, incidence)]),
        nets=np.array([net for nets in incidence for net in nets], np.int64),
        seconds=groups.seconds,
        size=np.array([len(ends) for ends in groups.ends], np.int64),
        best=best,
        link=np.full(best.shape, -1),
        inside=np.zeros(len(groups.seconds), np.int64),
        last_walk=np.full(count, -1),
        stack=np.zeros((blocks + 1, 2), np.int64),
        sums=np.zeros((blocks + 1, SUMS)),
        limits=np.array([limit, upper]),
        counts=np.zeros(1, np.int64),
    )


def chain_of(order: np.ndarray) -> Ideals:
    """Returns the prefixes of one order of the blocks as ideals: all splits into consecutive blocks."""
    return _lattice([[], *([(place, int(block))] for place, block in enumerate(order))])


class _Search:
    """Searches lattices, and keeps the best split so far."""

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
        """Returns the best plan so far."""
        assert self._best is not None
        return self._task.as_answer(self._best, self._evaluations)

    def run(self, ideals: Ideals) -> None:
        """Searches a lattice for its best split; keeps it if it beats the best so far. No result if time ends."""
        groups = self.blocks.groups
        assert self._best is not None
        upper = self._best.value * (1 + 1e-12) if self._best.excess == 0 else math.inf
        table = program(groups, ideals, groups.limit, upper)
        if not _fill(table, self._task):
            return
        device = devices_of(table, ideals, groups.accelerators)
        if device is not None:
            self.consider(device[groups.of])


def ideals_of(blocks: Blocks, max_ideals: int) -> Ideals:
    """Returns all ideals of the blocks.

    Raises:
      ProblemError: there are more than `max_ideals`.
    """
    fault = ProblemError(f"there are more than {max_ideals:,} ideals, prefixes that a split can have")
    if len(blocks.before) >= max_ideals:
        raise fault
    before = [sum(1 << other for other in others) for others in blocks.before]
    after: list[list[int]] = [[] for _ in before]
    for block, others in enumerate(blocks.before):
        for other in others:
            after[other].append(block)
    number = {0: 0}
    ready = [[block for block, mask in enumerate(before) if mask == 0]]  # of each ideal
    missing: list[list[tuple[int, int]]] = [[]]
    sets = [0]
    for ideal, members in enumerate(sets):  # the list grows during the loop; sizes never fall
        if 1 << len(ready[ideal]) > max_ideals:  # any subset of the ready blocks may join
            raise fault
        for block in ready[ideal]:
            larger = members | 1 << block
            if larger not in number:
                if len(sets) == max_ideals:
                    raise fault
                number[larger] = len(sets)
                sets.append(larger)
                new = [other for other in after[block] if before[other] & larger == before[other]]
                ready.append([other for other in ready[ideal] if other != block] + new)
                missing.append([])
            missing[number[larger]].append((ideal, block))
    return _lattice(missing)


def _lattice(missing: list[list[tuple[int, int]]]) -> Ideals:
    start = np.cumsum([0, *map(len, missing)])
    pairs = np.array([pair for pairs in missing for pair in pairs], np.int64).reshape(-1, 2)
    return Ideals(start, pairs[:, 0].copy(), pairs[:, 1].copy())


def _fill(table: Program, task: Task) -> bool:
    """Fills a table; returns False if time ends before it is full."""
    count = len(table.start) - 1
    first, step = 1, 1
    while first < count:
        if task.is_spent():
            return False
        start = task.seconds
        last = min(count, first + step)
        fill(table, first, last)
        elapsed = max(task.seconds - start, 1e-6)
        step = max(1, int((last - first) * min(2.0, STEP_SECONDS / elapsed)))
        first = last
    return True


def devices_of(p: Program, ideals: Ideals, accelerators: int) -> np.ndarray | None:
    """Returns the device of each block in the best split, `[b] int64`; None if no split is below the limit."""
    c, a, ideal = p.best.shape[0] - 1, p.best.shape[1] - 1, p.best.shape[2] - 1
    if not np.isfinite(p.best[c, a, ideal]):
        return None
    device = np.zeros(len(p.weight), np.int64)
    while ideal:
        below, kind = divmod(int(p.link[c, a, ideal]), 2)
        a, c = (a - 1, c) if kind == ACCELERATOR else (a, c - 1)
        for block in _members(ideals, ideal) - _members(ideals, below):
            device[block] = a if kind == ACCELERATOR else accelerators + c
        ideal = below
    return device


def _members(ideals: Ideals, ideal: int) -> set[int]:
    """Returns the blocks of an ideal."""
    blocks = set()
    while ideal:
        edge = ideals.start[ideal]
        blocks.add(int(ideals.block[edge]))
        ideal = int(ideals.smaller[edge])
    return blocks


@solver("equal-stages", "max_load: contiguous stages of equal run time, one per accelerator", objectives=("max_load",))
def equal_stages(task: Task) -> Plan:
    """Makes contiguous stages of equal work, as an expert would split by hand, whatever the budget. The ops, in
    topological order by level, are cut where the work so far passes the next equal part; ops that no accelerator can
    run go to a CPU.
    """
    blocks = Blocks.of_graph(task.graph, task.problem)
    return task.answer(placed_plan(task, equal_placement(blocks), evaluations=1))
