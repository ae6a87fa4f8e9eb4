"""Method "anneal-list": annealing of a list of ops, for a makespan without transfer costs.

Without transfers a schedule follows from a list: time runs along the device that is free first, and of the ops whose
predecessors have ended by then the first in the list is next there (Graham 1966; the parallel schedule generation
scheme of resource-constrained project scheduling, Kolisch 1996). No device waits while an op is ready. That excludes
some schedules: if a device should wait for an op of the longest path, it excludes all optimal ones.

The makespan of almost all lists is one of a few numbers. The energy is finer: the device seconds that run beyond a
bound of the makespan. It is 0 where the bound is reached, and idle time before the bound shows early that it will be
large.
"""

import functools
import math
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np

from graphrl.compiled import announced, background_compile, entry, integer, part
from graphrl.compiled.structures import below, pop, push, uniform
from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.plan import Plan
from graphrl.solvers.anneal.driver import Annealing, Pace, temperature_at
from graphrl.solvers.base import PlacedOrder, Task
from graphrl.solvers.portfolio import SECONDS_ROUNDING
from graphrl.solvers.rules.plan_builder import place_all
from graphrl.solvers.rules.plan_builder import prepare as prepare_lists
from graphrl.solvers.rules.plan_state import builder
from graphrl.solvers.solver import solver

NAME = "anneal-list"
HOT, COLD = 0.02, 0.0004  # first and last temperature of a round, relative to the mean run time
FIRST = 100  # number of lists per op in the first round; each round has twice as many as the last
CHUNK = 200_000  # number of ops that are scheduled between two checks of the clock
MAX_DISTANCE = 4  # largest distance of two swapped ops in half of all moves; else any two are swapped

OP = np.dtype(
    [
        ("runtime", np.float64),  # seconds
        ("awaits", np.uint32),  # number of predecessors
        ("left", np.uint32),  # number of predecessors that have not run
        ("after", np.uint32),  # start of its row of successors
        ("device", np.uint32),
    ],
    align=True,
)


class Lists(NamedTuple):
    """A list of n ops on d devices, with m dependencies, and the best list so far."""

    ops: np.ndarray  # [n + 1] OP
    rows: np.ndarray  # [m] uint32, successors
    listed: np.ndarray  # [n] uint32, the list: the op at each place
    place: np.ndarray  # [n] float64, the place of each op in it
    best: np.ndarray  # [n] uint32, the best list
    ready: np.ndarray  # [n] float64, when the last of an op's predecessors that have run ends, seconds
    waiting: np.ndarray  # [n] uint32, heap by `ready` of ops whose predecessors have run but not all ended
    available: np.ndarray  # [n] uint32, heap by `place` of ops that could run now
    started: np.ndarray  # [n] uint32, ops in the order in which they started
    free: np.ndarray  # [d] float64, seconds when each device is free
    score: np.ndarray  # [2] float64, seconds: energy of the list, infinite before it is evaluated; makespan of the best
    rng: np.ndarray  # [1] uint64

    def restart(self, listed: np.ndarray) -> None:
        """Replaces the list, to continue from another one."""
        self.listed[:] = listed
        self.score[0] = np.inf


@functools.cache
def prepare_with_lists() -> None:
    """Compiles annealing and list scheduling, or loads them, once per process."""
    prepare_lists()
    with announced(anneal, NAME, seconds=2):
        anneal(lists(ComputationGraph("one", (Op("a"),)), 2, np.random.SeedSequence(0)), 1, 1.0, 1.0, 0.0)


def prepared_in_background() -> AbstractContextManager[None]:
    """Runs `prepare_with_lists` in another process while this one compiles something else."""
    return background_compile(anneal, NAME, prepare_with_lists)


@solver(
    NAME,
    "free transfers: annealing of the priority list of a list schedule",
    objectives=("makespan",),
    prepare=prepare_with_lists,
)
def solve(task: Task, *, hot: float = HOT, cold: float = COLD) -> Plan:
    """Anneals in rounds, each twice as long as the last, until the bound is reached. Every round starts from the list
    by levels (`lists`). An evaluation is a list that is scheduled.

    Args:
      hot, cold: first and last temperature of a round, relative to the mean run time: that many more device seconds
        beyond the bound are accepted with probability 1/e.

    Raises:
      ProblemError: the problem is another than makespan under `free` without a memory limit, or an option is out of
        range.
    """
    if not supports(task.problem):
        what = "the objective makespan with free transfers and no memory limit"
        raise ProblemError(f"method {NAME!r} requires {what}")
    if not 0 < cold <= hot < math.inf:
        raise ProblemError(f"hot is {hot} and cold is {cold}: must be numbers above 0, and cold at most hot")
    search = _Lists(task, hot, cold)
    length = FIRST * len(task.graph.ops)
    search.run(length)
    while not search.done() and not task.is_spent(search.evaluations):
        length *= 2
        search.restart()
        search.run(length)
    return search.plan()


class _Lists(Annealing[Lists]):
    """A chain that has evaluated the list by levels (see `lists`)."""

    def __init__(self, task: Task, hot: float, cold: float) -> None:
        self._task, graph = task, task.graph
        self._bound = lower_bound(graph, task.problem)
        self._hot, self._cold = (float(graph.arrays.runtime.mean()) * part for part in (hot, cold))
        chain = lists(graph, task.problem.devices, np.random.SeedSequence(task.seed))
        self._first = chain.listed.copy()
        evaluations = anneal(chain, 1, 1.0, 1.0, self._bound)
        super().__init__(task, [chain], Pace(max(1, CHUNK // len(graph.ops))), evaluations)
        task.best = self.plan

    def restart(self) -> None:
        """Restarts from the list by levels."""
        self.chains[0].restart(self._first)

    def plan(self) -> Plan:
        """Returns the best plan so far."""
        decisions = _plan(self._task.graph, self._task.problem, self.chains[0], self._bound)
        return self._task.plan(*decisions, evaluations=self.evaluations, bound=self._bound)

    def walk(self, chain: Lists, steps: int, begin: float, end: float) -> int:
        """Evaluates lists, at the temperatures between two shares of a round."""
        hot, cold = (temperature_at(self._hot, self._cold, share) for share in (begin, end))
        return anneal(chain, steps, hot, cold, self._bound)

    def value(self) -> float:
        """Returns the makespan of the best list, in seconds."""
        return float(self.chains[0].score[1])

    def done(self) -> bool:
        """True if the bound is reached."""
        return self.value() <= self._bound * (1 + SECONDS_ROUNDING)


def supports(problem: Problem) -> bool:
    """True if the search supports a problem."""
    return (problem.objective, problem.transfer, problem.memory_limit) == ("makespan", "free", None)


def lists(graph: ComputationGraph, devices: int, seed: np.random.SeedSequence) -> Lists:
    """Returns a new chain with the list by levels: the op with the longest path to the end first."""
    a = graph.arrays
    n, (source, target) = a.num_ops, a.dependencies()
    ops = np.zeros(n + 1, OP)
    ops["runtime"][:-1] = a.runtime
    ops["awaits"][:-1] = np.bincount(target, minlength=n)
    ops["after"][1:] = np.cumsum(np.bincount(source, minlength=n))
    listed = np.argsort(-(a.tail + a.runtime), kind="stable").astype(np.uint32)
    waiting, available, started = np.zeros((3, n), np.uint32)
    return Lists(
        ops=ops,
        rows=target.astype(np.uint32),
        listed=listed,
        place=np.zeros(n),
        best=listed.copy(),
        ready=np.zeros(n),
        waiting=waiting,
        available=available,
        started=started,
        free=np.zeros(devices),
        score=np.full(2, np.inf),
        rng=seed.generate_state(1, np.uint64),
    )


def _plan(graph: ComputationGraph, problem: Problem, search: Lists, bound: float) -> PlacedOrder:
    """Schedules the best list again, to get its plan; the search is not changed."""
    best = Lists(*(part.copy() for part in search))
    best.restart(search.best)
    anneal(best, 1, 1.0, 1.0, bound)
    return place_all(builder(graph, problem), best.started.astype(np.int64), best.ops["device"][:-1].astype(np.int64))


@entry
def anneal(s: Lists, moves: int, hot: float, cold: float, bound: float) -> int:
    """Swaps ops until a list reaches the bound; returns the number of evaluated lists, at most `moves`. A new list is
    evaluated first.

    Args:
      s: the chain, new or as an earlier call left it.
      moves: maximum number of lists to evaluate, at least 1.
      hot, cold: temperature of the first move, and after the last one, seconds: it falls geometrically.
      bound: lower bound of the makespan, seconds.
    """
    n, evaluated = len(s.listed), integer(0)
    cooling, temperature = (cold / hot) ** (1.0 / max(1, moves)), hot
    if s.score[0] == np.inf:
        for place in range(n):
            s.place[s.listed[place]] = place
        s.score[0] = _schedule(s, bound, np.inf)
        evaluated += 1
    while evaluated < moves and n > 1 and s.score[1] > bound:
        evaluated += 1
        one = below(s.rng, n)
        if uniform(s.rng) < 0.5:
            other = (one + 1 + below(s.rng, min(MAX_DISTANCE, n - 1))) % n
        else:
            other = (one + 1 + below(s.rng, n - 1)) % n
        _swap(s, one, other)
        limit = s.score[0] - temperature * np.log(uniform(s.rng))
        energy = _schedule(s, bound, limit)
        if energy <= limit:
            s.score[0] = energy
        else:
            _swap(s, one, other)
        temperature *= cooling
    return evaluated


@part
def _swap(s: Lists, one: int, other: int) -> None:
    a, b = s.listed[one], s.listed[other]
    s.listed[one], s.listed[other] = b, a
    s.place[a], s.place[b] = other, one


@part
def _schedule(s: Lists, bound: float, limit: float) -> float:
    """Computes the energy of the list, or a value above the limit; keeps the list if its makespan is the least so far.

    The energy is the device seconds beyond the bound: those that devices wait before it, less the wait that it allows.
    """
    ops, ready, free, d = s.ops, s.ready, s.free, len(s.free)
    n = len(s.listed)
    num_waiting = available = integer(0)
    allowed_idle = d * bound
    for op in range(n):
        ops[op].left, ready[op] = ops[op].awaits, 0.0
        allowed_idle -= ops[op].runtime
        if ops[op].awaits == 0:
            available = push(s.available, s.place, available, op)
    free[:] = 0.0
    done, idle = 0, 0.0
    while done < n:
        device = 0
        for other in range(1, d):
            if free[other] < free[device]:
                device = other
        now = free[device]
        while num_waiting > 0 and ready[s.waiting[0]] <= now:
            available = push(s.available, s.place, available, integer(s.waiting[0]))
            num_waiting = pop(s.waiting, ready, num_waiting)
        if available == 0:
            next_ready = ready[s.waiting[0]]
            idle += max(0.0, min(next_ready, bound) - now)
            if idle - allowed_idle > limit:
                return np.inf
            free[device] = next_ready
            continue
        op = integer(s.available[0])
        available = pop(s.available, s.place, available)
        end = now + ops[op].runtime
        free[device], ops[op].device, s.started[done] = end, device, op
        done += 1
        for row in range(ops[op].after, ops[op + 1].after):
            after = integer(s.rows[row])
            ops[after].left -= 1
            ready[after] = max(ready[after], end)
            if ops[after].left == 0:
                num_waiting = push(s.waiting, ready, num_waiting, after)
    energy = makespan = 0.0
    for device in range(d):
        energy += max(0.0, free[device] - bound)
        makespan = max(makespan, free[device])
    if makespan < s.score[1]:
        s.score[1] = makespan
        for place in range(n):  # numba would copy a whole array twice
            s.best[place] = s.listed[place]
    return energy
