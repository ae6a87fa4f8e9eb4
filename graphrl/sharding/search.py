"""Search for a plan of a sharding problem, on all cores: bounds, labels by messages, and annealing with trees.

The problem is reduced first. One worker raises the lower bound: its multipliers price memory, and its labels, repaired
by moves of trees, are the first plans. All workers then anneal in cycles of growing length, from the best plan or from
labels under perturbed costs. The best feasible plan only ever improves.
"""

import dataclasses
import functools
import math
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from graphrl.compiled import announced
from graphrl.errors import ProblemError
from graphrl.process import count_cores
from graphrl.sharding import messages as dual
from graphrl.sharding import moves
from graphrl.sharding.plan import ShardingPlan
from graphrl.sharding.problem import ShardingProblem
from graphrl.sharding.reduce import reduce_problem
from graphrl.sharding.rules import Reduced

CHUNK = 0.1  # seconds between two looks at the clock
DUAL_SHARE = 0.25  # most of the time that the bound takes
CYCLE = 200  # proposals of the first cycle, per strategy
GROWTH = 1.03  # of cycles
FIRST = 5  # chunks that a search without a plan has in any case
PERTURBED = 0.6  # share of cycles that start from labels by messages, not from the best plan
METHOD = "auto"


class Report(NamedTuple):
    """Progress of a search.

    Attributes:
      seconds: since its start.
      cost: of the best plan; None before the first.
      bound: lower bound.
      plan: function that returns the best plan.
    """

    seconds: float
    cost: int | None
    bound: int
    plan: Callable[[], ShardingPlan]


@dataclasses.dataclass(frozen=True)
class Parts:
    """Parts of the search, for measurements of what each brings.

    Attributes:
      reduction: the rules that compare and merge strategies and nodes.
      messages: labels and multipliers from the dual.
      trees: moves of trees.
    """

    reduction: bool = True
    messages: bool = True
    trees: bool = True


def search(
    problem: ShardingProblem,
    seconds: float,
    *,
    seed: int = 0,
    report: Callable[[Report], None] = lambda report: None,
    parts: Parts = Parts(),
    workers: int | None = None,
    started: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[ShardingPlan, Reduced]:
    """Searches for a feasible plan of least cost.

    Args:
      problem: the problem.
      seconds: wall-clock time; the search ends earlier if the plan is optimal.
      seed: of the random numbers; results also depend on the machine's speed.
      report: called about ten times a second.
      parts: parts to leave out.
      workers: threads that search (default: the number of cores).
      started: time of the clock at which the search starts, if reading the problem counts.
      clock: function that returns seconds; `time.process_time` with one worker measures on a machine that others use.

    Returns:
      The best plan, and the reduced problem.

    Raises:
      ProblemError: no feasible plan was found; or there is none.
      KeyboardInterrupt: Ctrl-C before the first plan; later ones end the search.
    """
    before = clock()
    compile_moves()
    started = clock() if started is None else started + clock() - before  # compilation does not count
    reduced = reduce_problem(problem, merge=parts.reduction)
    shared = _Shared(problem, reduced, started, seconds, seed, clock)
    if len(reduced.sizes) == 0:
        shared.offer(np.zeros(0, np.int64), reduced.constant)
        shared.raise_bound(reduced.constant)
        return shared.plan(), reduced
    threads = [
        threading.Thread(target=_Worker(shared, number, parts).run, daemon=True)
        for number in range(workers or count_cores())
    ]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            threads[0].join(CHUNK)
            report(Report(shared.elapsed, shared.cost, shared.bound, shared.plan))
    except KeyboardInterrupt:
        if shared.cost is None:
            raise
    finally:
        shared.stopped = True
        for thread in threads:
            thread.join()
    if shared.error is not None:
        raise shared.error
    report(Report(shared.elapsed, shared.cost, shared.bound, shared.plan))
    return shared.plan(), reduced


class _Shared:
    """What the workers of a search share: its clock, the best plan and the bound."""

    def __init__(
        self,
        problem: ShardingProblem,
        reduced: Reduced,
        started: float,
        seconds: float,
        seed: int,
        clock: Callable[[], float],
    ) -> None:
        self.clock = clock
        self.problem, self.reduced, self.seed = problem, reduced, seed
        self.model = moves.model_of(reduced)
        self.seconds = seconds
        self._started = started
        self.cost: int | None = None
        self.label = np.zeros(0, np.int64)
        self.bound = reduced.constant  # no cost is below 0
        self.multipliers: dict[int, float] = {}  # by time
        self.messages: dual.Messages | None = None
        self.stopped = False
        self.error: BaseException | None = None
        self._lock = threading.Lock()

    @property
    def elapsed(self) -> float:
        return self.clock() - self._started

    @property
    def done(self) -> bool:
        """True if the time is over, or the best plan is optimal."""
        return self.stopped or self.elapsed >= self.seconds or (self.cost is not None and self.cost <= self.bound)

    def offer(self, label: np.ndarray, cost: int) -> None:
        """Keeps `[g]` feasible labels if they are the best."""
        with self._lock:
            if self.cost is None or cost < self.cost:
                self.label, self.cost = label.copy(), cost

    def raise_bound(self, bound: int) -> None:
        with self._lock:
            self.bound = max(self.bound, bound)

    def plan(self) -> ShardingPlan:
        """Returns the best plan.

        Raises:
          ProblemError: there is none.
        """
        with self._lock:
            label, cost, bound = self.label, self.cost, self.bound
        if cost is None:
            raise ProblemError(f"no feasible plan was found in {self.elapsed:.0f} s: give more --seconds")
        strategies, seconds = self.reduced.expand(label), round(self.elapsed, 3)
        plan = ShardingPlan.of(self.problem, strategies, METHOD, min(bound, cost), seconds, self.seed)
        plan.check(self.problem)
        return plan


class _Worker:
    """A thread of the search, with its own labels."""

    def __init__(self, shared: _Shared, number: int, parts: Parts) -> None:
        self.shared, self.model, self.number, self.parts = shared, shared.model, number, parts
        self.random = np.random.default_rng([shared.seed, number])
        model, groups = self.model, len(self.model.offset) - 1
        least = np.minimum.reduceat(model.cost, model.offset[:-1])
        label = np.array([model.cost[a:b].argmin() for a, b in zip(model.offset[:-1], model.offset[1:], strict=True)])
        self.scale = max(1.0, float(least.sum()) + float(np.median(model.cost)) * groups * 0.01)  # of costs
        self.per_byte = self.scale / max(1, int(model.room.max(initial=1)))
        self.state = moves.start(model, label, self.per_byte, int(self.random.integers(2**31)))
        self.scratch = moves.scratch_of(model)
        self.proposals, self.rounds = 1000, 1  # of a chunk

    def run(self) -> None:
        """Searches until the time is over."""
        try:
            self._found()
            for _ in range(FIRST):  # also if reading and reducing took all the time
                if self.shared.cost is None:
                    self._anneal(self.scale / len(self.state.label) * 1e-3)
            if self.number == 0 and self.parts.messages:
                _Ascent(self).run()
            cycle = CYCLE * len(self.model.cost)
            while not self.shared.done:
                self._cycle(cycle)
                cycle = int(cycle * GROWTH)
        except BaseException as error:  # the main thread raises it
            self.shared.error, self.shared.stopped = error, True

    def _found(self) -> None:
        """Shares the best labels, and the scale of costs that they show."""
        cost = int(self.state.numbers[moves.BEST])
        if cost >= 0:
            self.shared.offer(self.state.best, cost + self.shared.reduced.constant)
        best = self.shared.cost
        self.scale = max(
            1.0, float((best if best is not None else self.state.numbers[moves.COST]) - self.shared.reduced.constant)
        )
        self.per_byte = self.scale / max(1, int(self.model.room.max(initial=1)))

    def _cycle(self, proposals: int) -> None:
        """Anneals once."""
        shared, state = self.shared, self.state
        self._restart()
        for a in range(int(state.numbers[moves.WATCHED])):
            price = shared.multipliers.get(int(state.watched[a]), 0.0)
            state.weight[a] = max(1.5 * price, 0.01 * self.per_byte)
        moves.place(self.model, state)
        unit = self.scale / len(state.label)
        hot, cold = unit * 10 ** self.random.uniform(-3, -0.3), unit * 1e-4
        started, done = shared.elapsed, 0
        while not shared.done and done < proposals:
            left = (shared.elapsed - started) / max(1e-9, shared.seconds - started)
            temperature = hot * (cold / hot) ** max(done / proposals, left)
            done += self._anneal(temperature)

    def _restart(self) -> None:
        """Sets the labels with which a cycle starts."""
        best = self.shared.cost
        if best is None:
            return
        if self.shared.messages is not None and self.random.random() < PERTURBED:
            self._perturb(self.shared.messages)
        else:
            self.state.label[:] = self.shared.label

    def _perturb(self, sent: dual.Messages) -> None:
        """Labels by messages, under noise and with other multipliers, from little to much."""
        model, state, random = self.model, self.state, self.random
        sent = sent._replace(**{name: getattr(sent, name).copy() for name in ("theta", "message", "belief", "label")})
        prices = np.array([self.shared.multipliers.get(int(time), 0.0) for time in state.watched])
        dual.price(model, state, sent, prices * 10 ** (random.uniform(-1, 1) * 10 ** random.uniform(-3, -0.3)))
        unit = sent.scale * self.scale / len(state.label) * 10 ** random.uniform(-4, 0)
        sent.theta[:] += np.minimum(unit * random.exponential(size=len(sent.theta)), 2.0**50).astype(np.int64)
        for forward in (True, False, True, False):
            if not self.shared.done:
                dual.sweep(model, sent, forward)
        state.label[:] = sent.label

    def _anneal(self, temperature: float) -> int:
        """Anneals for a chunk of time at one temperature; returns the number of proposals."""
        model, state, share = self.model, self.state, 0.5 if self.parts.trees else 0.0
        begin, proposals = self.shared.clock(), self.proposals
        moves.anneal(model, state, proposals, temperature, temperature, 1.03, 0.985, 0.01 * self.per_byte)
        taken = self.shared.clock() - begin
        self.proposals = 1 + int(proposals * _factor(CHUNK * (1 - share), taken))
        if self.parts.trees:
            self._trees(temperature, CHUNK * share)
        self._found()
        return proposals

    def _trees(self, temperature: float, seconds: float) -> None:
        begin, largest = self.shared.clock(), len(self.state.label)
        moves.blocks(self.model, self.state, self.scratch, self.rounds, largest, temperature, temperature)
        self.rounds = 1 + int(self.rounds * _factor(seconds, self.shared.clock() - begin))


def _factor(wanted: float, taken: float) -> float:
    return min(2.0, max(0.5, wanted / max(1e-9, taken)))


class _Ascent:
    """Subgradient ascent of the dual in the multipliers of memory: Polyak's steps to a target above the best bound.

    The target is `ahead` above it. It comes nearer when the bound does not rise, and is far again once it is very near.
    """

    def __init__(self, worker: _Worker) -> None:
        self.worker, self.model, self.state = worker, worker.model, worker.state
        self.messages = dual.messages_of(self.model, worker.scale)
        self.multipliers = np.zeros(moves.MAX_WATCHED)
        self.slope = np.zeros(moves.MAX_WATCHED)  # smoothed bytes above the room
        self.best = -math.inf  # bound of the reduced problem
        self.kept = self.multipliers.copy()  # multipliers of the best bound
        self.ahead, self.stalled = 0.5, 0  # share of the cost

    def run(self) -> None:
        """Raises the bound until it settles, or its share of the time is over; repairs labels now and then."""
        shared, worker, count = self.worker.shared, self.worker, 0
        end = shared.elapsed + DUAL_SHARE * (shared.seconds - shared.elapsed)
        while count == 0 or (not shared.done and shared.elapsed < end):
            self._ascend()
            count += 1
            if count % 5 == 0:
                self.state.weight[:] = np.maximum(1.5 * self.multipliers, 0.01 * worker.per_byte)
                moves.place(self.model, self.state)
                if worker.parts.trees:
                    worker._trees(worker.scale / len(self.state.label) * 1e-3, CHUNK / 2)
                worker._found()
        shared.messages = self.messages

    def _ascend(self) -> None:
        """One step: messages at the present multipliers, then new ones."""
        shared, state, worker = self.worker.shared, self.state, self.worker
        room = dual.price(self.model, state, self.messages, self.multipliers)
        for _ in range(2):
            bounds = [int(dual.sweep(self.model, self.messages, forward)) for forward in (True, False)]
        scaled = max(bounds) - room
        shared.raise_bound(shared.reduced.constant - (-scaled // self.messages.scale))
        bound = scaled / self.messages.scale
        self._watch()
        state.label[:] = self.messages.label
        worker._found()
        held = state.held.copy()
        self.slope = 0.7 * self.slope + 0.3 * held
        self._remember(bound)
        scale = worker.scale
        if bound < self.best - max(2 * self.ahead, 0.05) * scale:  # the step was far too long
            self.multipliers, self.ahead, self.slope, bound = self.kept.copy(), self.ahead * 0.85, 0.3 * held, self.best
        best = shared.cost - shared.reduced.constant if shared.cost is not None else math.inf
        target = min(best, self.best + self.ahead * scale)
        slope = np.where((self.multipliers > 0) | (self.slope > 0), self.slope, 0.0)
        length = max(target - bound, 1e-4 * scale) / max(1.0, float(slope @ slope))
        self.multipliers = np.maximum(0.0, self.multipliers + length * slope)

    def _remember(self, bound: float) -> None:
        """Keeps the multipliers of the best bound; brings the target nearer when it does not rise."""
        if bound > self.best:
            self.stalled = 0 if bound > self.best + 1e-4 * abs(bound) else self.stalled + 1
            self.best, self.kept = bound, self.multipliers.copy()
            times = self.state.watched[: self.state.numbers[moves.WATCHED]].tolist()
            self.worker.shared.multipliers = dict(zip(times, self.kept.tolist(), strict=False))
        else:
            self.stalled += 1
        if self.stalled > 12:
            self.ahead, self.stalled, self.multipliers = self.ahead * 0.7, 0, self.kept.copy()
        if self.ahead < 1e-4:
            self.ahead = 0.1

    def _watch(self) -> None:
        """Places the labels; multipliers of times that are no longer watched are 0."""
        before = self.state.watched.copy()
        self.state.weight[:] = self.multipliers
        self.state.label[:] = self.messages.label
        moves.place(self.model, self.state)
        changed = before != self.state.watched
        self.multipliers[changed] = self.kept[changed] = self.slope[changed] = 0.0


@functools.cache
def compile_moves() -> None:
    """Compiles the functions of the search, once for a machine, and loads them."""
    with announced(moves.blocks, "shard"):
        reduced = reduce_problem(_tiny())
        model = moves.model_of(reduced)
        state = moves.start(model, np.zeros(len(reduced.sizes), np.int64), 1.0, 0)
        moves.anneal(model, state, 1, 1.0, 1.0, 1.0, 1.0, 0.0)
        moves.blocks(model, state, moves.scratch_of(model), 1, 1, 1.0, 1.0)
        sent = dual.messages_of(model, 1.0)
        dual.sweep(model, sent, True)


def _tiny() -> ShardingProblem:
    """Two nodes that the reduction leaves as they are."""
    return ShardingProblem(
        "tiny", np.array([0, 2, 4]), np.array([1, 0, 1, 0]), np.array([0, 1, 0, 1]), np.array([[0, 1], [0, 1]]),
        np.array([[0, 1]]), np.array([0, 4]), np.array([0, 1, 1, 0]), 1,
    )  # fmt: skip
