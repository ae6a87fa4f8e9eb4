"""Methods "anneal-schedule" and "local-search": searches over explicit schedules, with the moves of `moves.py`.

"anneal-schedule" returns the best schedule that its chains find within the budget. Under `rendezvous` the ops of graphs
of 500 ops or more move in clusters (`anneal.clusters`), large ones first. Chains start at a list schedule, cool
geometrically over the budget, and run in parallel on all cores. A few times per run the worst chain continues from the
best one's schedule ("go with the winners", Aldous & Vazirani 1994). If only evaluations are limited, a run is
deterministic.

"local-search" is REGAL's (BASELINES). From a random placement and schedule it greedily moves an op across devices or
changes an op's place in the order; without progress it restarts from a new random plan. Ours takes the first move that
is not worse (REGAL does not state how many it compares), so that it crosses plateaus. It compares the energy of
annealing (`chain.py`). Transfers run right before they are needed.
"""

import functools
import math
import time
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from graphrl.compiled import announced
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.plan import Plan
from graphrl.process import count_cores
from graphrl.solvers.anneal.clusters import Clusters, make_clusters
from graphrl.solvers.anneal.driver import Exchanging, Pace, copy_arrays, copy_into, temperature_at
from graphrl.solvers.base import PlacedOrder, Task
from graphrl.solvers.flow import Flow
from graphrl.solvers.orders.random_orders import Drawing
from graphrl.solvers.rules.list_scheduling import schedule as list_schedule
from graphrl.solvers.rules.plan_builder import prepare as prepare_lists
from graphrl.solvers.rules.plan_builder import prepared_in_background as lists_in_background
from graphrl.solvers.schedules.chain import Best, anneal, empty_best
from graphrl.solvers.schedules.memory import Memory, memory
from graphrl.solvers.schedules.moves import KINDS, Move, empty_move
from graphrl.solvers.schedules.state import Schedule, schedule
from graphrl.solvers.solver import solver

# Probability of each kind of move.
MIX = {"shift": 0.35, "device": 0.10, "join": 0.15, "jump": 0.15, "cluster": 0.10, "stretch": 0.08, "send": 0.07}
HOT, COLD = 0.00015, 0.00001  # first and last temperature, relative to the first makespan
COOL = 0.00001  # first temperature if no device waits for another's transfer: list schedules are near the best there
USUAL_MOVES, MAX_HOT = 100.0, 0.01  # moves per op at which a chain starts from HOT; the largest first temperature
# With fewer ops than FINE_OPS one op is a larger part of the schedule, so the temperature rises by the same factor: at
# most MAX_FACTOR, or below SMALL_OPS by SMALL_OPS / ops if that is more.
FINE_OPS, MAX_FACTOR, SMALL_OPS = 8_000, 10.0, 800
ESCAPE = 0.005  # the first temperature is at least this where all ops start on one of several devices
WEIGHT = 0.1  # weight of the mean last clock in the energy
PENALTY = 5.0  # an excess of a hundredth of the memory limit weighs as much as a makespan that is 5% longer
MAX_CHAINS = 1024
PACE = Pace(steps=5_000, pieces=50)


@solver(
    "anneal-schedule", "simulated annealing of order, placement and transfers, compiled for the host", colocates=True
)
def solve(task: Task, *, chains: int = 0, hot: float = 0.0, cold: float = COLD, hint: Plan | None = None) -> Plan:
    """Simulated annealing over schedules. An evaluation is one move of one chain. Compiling does not count.

    Args:
      chains: number of chains; 0 is two if only evaluations are limited, else one per core.
      hot, cold: first and last temperature: a rise of the makespan by that share is accepted with probability 1/e. The
        first is for 100 moves per op, both are for 8,000 ops or more: see `temperature`. A first temperature of 0
        selects the default: 0.00015 under rendezvous and for peak memory, else 0.00001.
      hint: a plan to start from in place of list scheduling; it is not costed again.

    Raises:
      ProblemError: an option is out of range.
    """
    if not 0 <= chains <= MAX_CHAINS:
        raise ProblemError(f"chains is {chains}: must be from 0 to {MAX_CHAINS:,}")
    if chains == 0:
        chains = 2 if task.budget.seconds is None else min(count_cores(), MAX_CHAINS)
    hot = hot or initial_temperature(task.problem)
    if not 0 < cold <= hot:
        raise ProblemError(f"hot is {hot} and cold is {cold}: must be above 0, and cold at most hot")
    if hint is None:
        with task.paused_clock():
            prepare_with_lists(task.problem)
    plan = list_schedule(task.graph, task.problem) if hint is None else hint
    search = _Schedules(task, plan, chains, hot, cold)
    search.run()
    return search.plan()


class Chain(NamedTuple):
    """State of one chain of compiled annealing."""

    schedule: Schedule
    memory: Memory | None
    move: Move
    best: Best
    rng: np.ndarray  # [1] uint64
    seconds: float  # energy per second of makespan
    penalty: float  # energy per byte of excess
    counts: np.ndarray  # [kinds * 3] int64: numbers of moves, accepted moves, places walked
    work: np.ndarray  # [2 * devices^2] float64, work space


def start_chain(graph: ComputationGraph, problem: Problem, plan: PlacedOrder, seed: np.random.SeedSequence) -> Chain:
    """Returns a chain that starts from a plan."""
    s = schedule(graph, problem, plan)
    peak = problem.objective == "peak_memory"
    limit = problem.memory_limit
    penalty = 1.0 if peak or limit is None else PENALTY * graph.arrays.runtime.sum() / limit
    chain = Chain(
        schedule=s,
        memory=memory(graph, problem) if counts_memory(problem) else None,
        move=empty_move(s),
        best=empty_best(s),
        rng=seed.generate_state(1, np.uint64),
        seconds=0.0 if peak else 1.0,
        penalty=penalty,
        counts=np.zeros(3 * len(KINDS), np.int64),
        work=np.zeros(2 * problem.devices**2),
    )
    run_chain(chain, 0, 1.0, 1.0)
    return chain


def _copy_chain(chain: Chain, seed: np.random.SeedSequence) -> Chain:
    """Copies a chain and gives it its own seed: building one from scratch takes as long as the first did."""
    copy = copy_arrays(chain)
    copy.rng[:] = seed.generate_state(1, np.uint64)
    return copy


def run_chain(chain: Chain, moves: int, hot: float, cold: float, mix: Mapping[str, float] = MIX) -> int:
    """Makes at most `moves` moves while the temperature falls from `hot` to `cold`, seconds. Returns their number."""
    c, shares = chain, np.cumsum([mix[kind] for kind in KINDS])
    return anneal(
        *(c.schedule, c.memory, c.move, c.best, c.rng, shares / shares[-1], moves, hot, cold),
        *(WEIGHT, c.seconds, c.penalty, c.counts, c.work),
    )


def temperature(
    share: float, moves_per_op: float, ops: float, hot: float, cold: float = COLD, least: float = 0.0
) -> float:
    """Returns the temperature after a share of the budget, relative to the first makespan.

    The first temperature grows with the square root of the moves that a chain has for each op (measured from 10 to
    30,000): a search with few moves stays near its start.

    Args:
      share: share of the budget, from 0 to 1.
      moves_per_op: moves of one chain in the whole budget, per op.
      ops: `effective_ops`.
      hot, cold: see `solve`.
      least: lower limit of the first temperature, see `min_temperature`.
    """
    coarse = max(1.0, min(FINE_OPS / ops, MAX_FACTOR), SMALL_OPS / ops)
    first = max(min(max(hot * math.sqrt(moves_per_op / USUAL_MOVES), cold), max(MAX_HOT, hot)) * coarse, least)
    return temperature_at(first, cold * max(1.0, coarse / 3), share)


def initial_temperature(problem: Problem) -> float:
    """Returns the default of the first temperature, `hot` of `solve`."""
    return COOL if problem.objective == "makespan" and problem.transfer != "rendezvous" else HOT


def min_temperature(problem: Problem, plan: PlacedOrder) -> float:
    """Returns the lower limit of the first temperature of a search from a plan. Where the plan leaves all but one of
    the devices idle, a short search must first escape from it.
    """
    return ESCAPE if uses_one_device(problem, plan) else 0.0


def uses_one_device(problem: Problem, plan: PlacedOrder) -> bool:
    """True if a makespan plan uses one of several devices, as list schedules do where transfers cost too much."""
    return problem.devices > 1 and problem.objective == "makespan" and bool(plan[0].min() == plan[0].max())


def effective_ops(graph: ComputationGraph) -> float:
    """Returns the effective number of ops, (sum of r)^2 / sum of r^2 for run times r: the number of ops if all took
    equally long. In real programs a few ops take most of the time.
    """
    runtime = graph.arrays.runtime
    squares = float((runtime**2).sum())
    return float(runtime.sum()) ** 2 / squares if squares > 0 else float(len(runtime))


def counts_memory(problem: Problem) -> bool:
    """True if chains track memory."""
    return problem.objective == "peak_memory" or problem.memory_limit is not None


@functools.cache
def prepare(with_memory: bool) -> None:
    """Compiles annealing, or loads it, once per process, without or with memory."""
    graph = ComputationGraph("one", (Op("a"),))
    problem = Problem("peak_memory" if with_memory else "makespan", 2)
    with announced(anneal, "anneal-schedule" + " with memory" * with_memory, seconds=6):
        start_chain(graph, problem, (np.zeros(1, np.int64), np.zeros(1, np.int64)), np.random.SeedSequence(0))
        Clusters(graph, problem).of(np.zeros(1, np.int64), 1)


def prepare_with_lists(problem: Problem) -> None:
    """Compiles annealing for a problem and list scheduling, in parallel if neither is on disk."""
    with lists_in_background():
        prepare(counts_memory(problem))
    prepare_lists()


class _Schedules(Exchanging[Chain]):
    """The chains of one task."""

    def __init__(self, task: Task, plan: Plan | PlacedOrder, chains: int, hot: float, cold: float) -> None:
        self._task, self._hot, self._cold = task, hot, cold
        start = time.perf_counter()
        first = task.as_answer(plan) if isinstance(plan, Plan) else task.plan(*plan, evaluations=1)
        cost_seconds = time.perf_counter() - start
        self._first = first  # may be better than all schedules of the chains, whose transfers have few places
        task.best = lambda: first
        seeds = np.random.SeedSequence(task.seed).spawn(chains)
        with task.paused_clock():
            prepare(counts_memory(task.problem))
        start = time.perf_counter()
        decisions = first.decisions(task.graph)
        chain = start_chain(task.graph, task.problem, decisions, seeds[0])
        super().__init__(task, [chain, *(_copy_chain(chain, seed) for seed in seeds[1:])], PACE, evaluations=1)
        # Seconds to cost the answer exactly: about as long as building a chain, if the costs of the hint are known.
        self.reserve = max(cost_seconds, time.perf_counter() - start)
        self.clusters = make_clusters(task.graph, task.problem)
        self._effective_ops, self._min_temperature = effective_ops(task.graph), min_temperature(task.problem, decisions)
        self._unit = max(self.value(), 1e-30)
        task.best = self.plan

    def plan(self) -> Plan:
        """Returns the best plan so far."""
        plan = self._task.plan(*self._best().plan, evaluations=self.evaluations)
        return plan if plan.rank <= self._first.rank else self._task.as_answer(self._first, self.evaluations)

    def walk(self, chain: Chain, steps: int, begin: float, end: float) -> int:
        """Makes some moves of a chain, at the temperatures between two shares of the budget."""
        each = self.expected / len(self._task.graph.ops)
        hot, cold = (
            self._unit * temperature(share, each, self._effective_ops, self._hot, self._cold, self._min_temperature)
            for share in (begin, end)
        )
        return run_chain(chain, steps, hot, cold)

    def value(self) -> float:
        """Returns the objective of the best schedule."""
        return self._best().objective(self._task.problem)

    def energy(self, chain: Chain) -> float:
        """Returns the energy of the current schedule."""
        return _energy(chain)

    def follow(self, chain: Chain, other: Chain) -> None:
        """Copies the other chain's schedule into this chain."""
        copy_into(chain.schedule, other.schedule)
        copy_into(chain.move, other.move)

    def move_ops(self, chain: Chain) -> np.ndarray:
        """Returns the chain's ops."""
        return chain.schedule.ops

    def _best(self) -> Best:
        return min((chain.best for chain in self.chains), key=attrgetter("rank"))


LOCAL_SEARCH_MIX = dict.fromkeys(KINDS, 0.0) | {"shift": 0.5, "device": 0.5}
ROUNDING = 1e-12  # relative: a smaller decrease is no improvement, as sums of seconds depend on their order
CHECK_MOVES = 100  # moves between two checks of the budget and of the patience


@solver("local-search", "REGAL's local search: moves of single ops, with restarts from random plans")
def solve_local_search(task: Task, *, patience: int = 2000) -> Plan:
    """REGAL's local search. An evaluation is a random plan or a move. Compiling does not count.

    Args:
      patience: number of moves in a row without an improvement before a restart.

    Raises:
      ProblemError: patience is below 1.
    """
    if patience < 1:
        raise ProblemError(f"patience is {patience}: must be at least 1")
    with task.paused_clock():
        prepare(counts_memory(task.problem))
    starts = _starts(task)
    chain, evaluations, stalled = next(starts), 1, 0
    best, least = chain.best, _energy(chain)

    def plan() -> Plan:
        return task.plan(*best.plan, evaluations=evaluations)

    task.best = plan
    while not task.is_spent(evaluations):
        left = CHECK_MOVES if task.budget.evaluations is None else task.budget.evaluations - evaluations
        if stalled >= patience:
            chain, moves, stalled = next(starts), 1, 0
            least = _energy(chain)
        else:
            heat = max(ROUNDING * least, 1e-300)
            moves = run_chain(chain, min(CHECK_MOVES, patience - stalled, left), heat, heat, LOCAL_SEARCH_MIX)
            if moves == 0:  # no other plan
                break
            better = _energy(chain) < least * (1 - ROUNDING)
            least, stalled = min(least, _energy(chain)), 0 if better else stalled + moves
        evaluations += moves
        best = min(best, chain.best, key=lambda one: one.rank)
        task.report(evaluations, best.objective(task.problem))
    return plan()


def _starts(task: Task) -> Iterator[Chain]:
    """Yields chains that start from random plans."""
    drawing, seeds = Drawing(Flow(task.graph)), np.random.SeedSequence(task.seed)
    while True:
        seed = seeds.spawn(1)[0]
        rng = np.random.default_rng(seed)
        orders = drawing.draw(rng, 1, by_priority=True)
        assert orders is not None
        placement = rng.integers(task.problem.devices, size=len(task.graph.ops))
        yield start_chain(task.graph, task.problem, (placement, orders[0]), seed)


def _energy(chain: Chain) -> float:
    """Returns the energy of a chain's current schedule."""
    return float(chain.schedule.score[2])
