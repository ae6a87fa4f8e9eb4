"""A worker of the search for a plan of a sharding problem, and the state that the workers share.

What they do, in which order, is in search.py.
"""

import dataclasses
import math
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from graphrl.errors import ProblemError
from graphrl.sharding import messages as dual
from graphrl.sharding import moves
from graphrl.sharding.exact import (
    GAIN,
    SETTLING,
    STEPS,
    Answer,
    Limits,
    is_available,
    narrow_problem,
    solve_part,
    solve_restricted,
)
from graphrl.sharding.guide import Guide, place_best
from graphrl.sharding.multipliers import SWEEPS, Ascent
from graphrl.sharding.plan import ShardingPlan
from graphrl.sharding.problem import PROHIBITIVE, ShardingProblem, owners
from graphrl.sharding.rules import Reduced

CHUNK = 0.1  # seconds between two looks at the clock
RATE = 500  # evaluations that count as a second of the schedule
TREES = 10  # moves of trees that count as an evaluation
DUAL_SHARE = 0.25  # most of the time that the bound takes
SETTLED, AGAIN = 80, 20  # steps without progress after which the bound has settled: at first, and in what is left
SOLVE_SHARE = 0.4  # most of the time so far that exact searches of the whole take
MAX_PAIRS = 60_000  # pairs of strategies that CP-SAT takes
PAIRS = 10_000  # of them that it takes for each of its seconds
NARROWED = 10  # an exact search of the whole, which takes bounds first, needs at most this multiple of those pairs
SMALL, SMALL_SECONDS = 2_000, 2.0  # pairs up to which the first exact search is for the optimum, and its extra seconds
NEAREST = 1e-3  # where an exact search starts above the bound, relative to it
FARTHER = 2  # factor of this distance after a proof; without an answer it is divided by it
NEARER = 0.9  # the gap must have shrunk by this factor before strategies are left out again
REPAIRS = 0.5  # time of exact repairs, over that since the last ones
PART_SHARE, PART_SECONDS = 0.05, 2.0  # most time of an exact repair: share of the whole time, and seconds
CYCLE = 200  # proposals of the first cycle, per strategy
GROWTH = 1.03  # of cycles
FIRST = 5  # chunks that a search without a plan has in any case
FIRST_SHARE = 0.1  # of the time, after which a search without a plan raises the bound
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
      exact: strategies that the dual leaves out, and CP-SAT for what is left or for parts of it.
    """

    reduction: bool = True
    messages: bool = True
    trees: bool = True
    exact: bool = True


ALL = Parts()


class Budget:
    """Budget of a search: seconds of a clock, or evaluations, of which `RATE` count as a second in its schedules."""

    def __init__(self, clock: Callable[[], float], started: float, seconds: float, evaluations: int | None) -> None:
        self.clock, self.started, self.seconds, self.evaluations = clock, started, seconds, evaluations
        self.count = 0.0
        self.total = seconds if evaluations is None else evaluations / RATE
        self.option = "--seconds" if evaluations is None else "--evaluations"

    @property
    def seconds_taken(self) -> float:
        return self.clock() - self.started

    @property
    def elapsed(self) -> float:
        return self.seconds_taken if self.evaluations is None else self.count / RATE

    @property
    def spent(self) -> bool:
        return self.elapsed >= self.total or self.seconds_taken >= self.seconds


class Shared:
    """State that the workers of a search share: its budget, the best plan, the bound, and the problem that is left."""

    def __init__(self, problem: ShardingProblem, reduced: Reduced, budget: Budget, seed: int) -> None:
        self.problem, self.budget, self.seed = problem, budget, seed
        self.reduced = reduced  # without what no better plan has
        self.cost: int | None = None
        self.strategies = np.zeros(0, np.int64)
        self.bound = reduced.constant  # no cost is below 0
        self.ascent: Ascent | None = None
        self.guide: Guide | None = None
        self.stopped = False
        self.error: BaseException | None = None
        self._lock = threading.Lock()

    @property
    def done(self) -> bool:
        """True if the budget is spent, the best plan is optimal, or no plan is feasible."""
        return self.stopped or self.budget.spent or self.bound >= (PROHIBITIVE if self.cost is None else self.cost)

    def offer(self, strategies: np.ndarray, cost: int) -> None:
        """Keeps `[n]` strategies of a feasible plan if they are the best."""
        with self._lock:
            if self.cost is None or cost < self.cost:
                self.strategies, self.cost = strategies, cost

    def raise_bound(self, bound: int) -> None:
        with self._lock:
            self.bound = max(self.bound, bound)

    def report(self) -> Report:
        return Report(self.budget.seconds_taken, self.cost, self.bound, self.plan)

    def plan(self) -> ShardingPlan:
        """Returns the best plan.

        Raises:
          ProblemError: no plan was found, or no plan is feasible.
        """
        with self._lock:
            strategies, cost, bound = self.strategies, self.cost, self.bound
        seconds = self.budget.seconds_taken
        if cost is None and bound >= PROHIBITIVE:
            raise ProblemError("no plan is feasible: all exceed the memory limit or have prohibitive costs")
        if cost is None:
            raise ProblemError(f"no feasible plan was found in {seconds:.0f} s: give more {self.budget.option}")
        plan = ShardingPlan.of(self.problem, strategies, METHOD, min(bound, cost), round(seconds, 3), self.seed)
        plan.check(self.problem)
        return plan


class Worker:
    """A thread of the search, with its own labels."""

    def __init__(self, shared: Shared, number: int, parts: Parts) -> None:
        self.shared, self.number, self.parts, self.budget = shared, number, parts, shared.budget
        self.random = np.random.default_rng([shared.seed, number])
        self.tried = math.inf  # gap at which strategies were left out last
        self.cycles = 0  # so far
        self.freed = 30.0  # groups of the next part that is solved exactly
        self.ahead, self.solving, self.attempt = NEAREST, 0.0, 0.0  # of exact searches of the whole: see `_solve`
        self.solves = False  # exactly: as soon as CP-SAT is there
        self._enter()

    def _enter(self) -> None:
        """Starts on the problem that is left."""
        self.reduced = self.shared.reduced
        self.model = model = moves.model_of(self.reduced)
        groups = len(model.offset) - 1
        least = np.minimum.reduceat(model.cost, model.offset[:-1])
        self.scale = max(1.0, float(least.sum()) + float(np.median(model.cost)) * groups * 0.01)  # of costs
        self.per_byte = self.scale / max(1, int(model.room.max(initial=1)))
        if self.shared.cost is not None:
            label = self.reduced.project(self.shared.strategies)
        else:
            label = moves.least_labels(model)
        self.state = moves.start(model, label, self.per_byte, int(self.random.integers(2**31)))
        guide = self.shared.guide
        self.scratch = moves.scratch_of(model, None if guide is None else guide.roots(self.reduced))
        self.proposals, self.rounds = 1000, 1  # of a chunk

    def run(self) -> None:
        """Searches until the budget is spent."""
        try:
            self._share()
            if self.shared.guide is not None:
                self._follow(self.shared.guide.labels)
            self._find_plan()
            self.solves = self.parts.exact and is_available()  # loads CP-SAT before its time is measured
            if self.number == 0 and self.parts.messages:
                self._prove(self.budget.elapsed + DUAL_SHARE * (self.budget.total - self.budget.elapsed))
                if len(self.reduced.edge_cost) <= SMALL:
                    self._solve()
            cycle, begin = CYCLE * len(self.model.cost), self.budget.elapsed
            while not self.shared.done:
                self._cycle(cycle)
                cycle = int(cycle * GROWTH)
                if self.parts.exact and self.number == 0 and self._leave_out():
                    self._prove(self.budget.elapsed + DUAL_SHARE * (self.budget.total - self.budget.elapsed))
                if self.solves:
                    self._repair(REPAIRS * (self.budget.elapsed - begin))
                begin = self.budget.elapsed
                if self.number == 0:
                    self._solve()
        except BaseException as error:  # the main thread raises it
            self.shared.error, self.shared.stopped = error, True

    def _follow(self, labels: np.ndarray) -> None:
        """Starts from the best of a guide's `[k, g]` labels, repaired by moves of trees."""
        place_best(self.model, self.state, labels)
        self.budget.count += len(labels)
        self._share()
        if self.parts.trees:
            self._trees(self.scale / len(self.state.label) * 1e-3, CHUNK)
            self._share()

    def _find_plan(self) -> None:
        """Anneals until there is a plan, for a few chunks also if reading and reducing took all the time."""
        end, chunks = self.budget.elapsed + FIRST_SHARE * self.budget.total, 0
        while self.shared.cost is None and (chunks < FIRST or (not self.shared.done and self.budget.elapsed < end)):
            self._anneal(self.scale / len(self.state.label) * 1e-3)
            chunks += 1

    def _share(self) -> None:
        """Shares the best labels, and the scale of costs that they show."""
        best, own = self.shared.cost, int(self.state.numbers[moves.BEST]) + self.reduced.constant
        if self.state.numbers[moves.BEST] >= 0 and (best is None or own < best):
            self.shared.offer(self.reduced.expand(self.state.best), own)
            best = own
        cost = self.state.numbers[moves.COST] if best is None else best - self.reduced.constant
        self.scale = max(1.0, float(cost))
        self.per_byte = self.scale / max(1, int(self.model.room.max(initial=1)))

    def _cycle(self, proposals: int) -> None:
        """Anneals once."""
        shared = self.shared
        if self.reduced is not shared.reduced:
            self._enter()
        state, ascent = self.state, shared.ascent
        self._restart()
        for a in range(int(state.numbers[moves.WATCHED])):
            price = ascent.multipliers[state.watched[a]] if ascent is not None and self._fits(ascent) else 0.0
            state.weight[a] = max(1.5 * price, 0.01 * self.per_byte)
        moves.place(self.model, state)
        unit = self.scale / len(state.label)
        hot, cold = unit * 10 ** self.random.uniform(-3, -0.3), unit * 1e-4
        started, done = self.budget.elapsed, 0
        while not shared.done and done < proposals:
            left = (self.budget.elapsed - started) / max(1e-9, self.budget.total - started)
            temperature = hot * (cold / hot) ** max(done / proposals, left)
            done += self._anneal(temperature)

    def _fits(self, ascent: Ascent) -> bool:
        """True if an ascent is of this worker's problem."""
        return ascent.reduced is self.reduced

    def _restart(self) -> None:
        """Sets the labels with which a cycle starts; the first cycle has those that the bound left."""
        self.cycles += 1
        if self.shared.cost is None or self.cycles == 1:
            return
        ascent = self.shared.ascent
        if ascent is not None and self._fits(ascent) and self.random.random() < PERTURBED:
            self._perturb(ascent)
        else:
            self.state.label[:] = self.reduced.project(self.shared.strategies)

    def _perturb(self, ascent: Ascent) -> None:
        """Labels by messages, under noise and with other multipliers, from little to much."""
        model, random, sent = self.model, self.random, ascent.messages
        sent = sent._replace(**{name: getattr(sent, name).copy() for name in ("theta", "message", "belief", "label")})
        factor = 10 ** (random.uniform(-1, 1) * 10 ** random.uniform(-3, -0.3))
        dual.price(model, sent, ascent.multipliers * factor)
        unit = sent.scale * self.scale / len(self.state.label) * 10 ** random.uniform(-4, 0)
        sent.theta[:] += np.minimum(unit * random.exponential(size=len(sent.theta)), 2.0**50).astype(np.int64)
        for forward in (True, False, True, False):
            if not self.shared.done:
                dual.sweep(model, sent, forward)
        self.budget.count += 4
        self.state.label[:] = sent.label

    def _anneal(self, temperature: float) -> int:
        """Anneals for a chunk of time at one temperature; returns the number of proposals."""
        model, state, share = self.model, self.state, 0.5 if self.parts.trees else 0.0
        begin, proposals = self.budget.elapsed, self.proposals
        moves.anneal(model, state, proposals, temperature, temperature, 1.03, 0.985, 0.01 * self.per_byte)
        self.budget.count += proposals / len(state.label)
        self.proposals = 1 + int(proposals * _factor(CHUNK * (1 - share), self.budget.elapsed - begin))
        if self.parts.trees:
            self._trees(temperature, CHUNK * share)
        self._share()
        return proposals

    def _trees(self, temperature: float, seconds: float) -> None:
        begin, largest = self.budget.elapsed, len(self.state.label)
        moves.blocks(self.model, self.state, self.scratch, self.rounds, largest, temperature, temperature)
        self.budget.count += self.rounds / TREES
        self.rounds = 1 + int(self.rounds * _factor(seconds, self.budget.elapsed - begin))

    def _prove(self, end: float) -> None:
        """Raises the bound until `end`; leaves out what no better plan has."""
        self._ascend(end)
        while self.budget.elapsed < end and self.parts.exact and self._leave_out():
            self._ascend(end)

    def _ascend(self, end: float) -> None:
        """Raises the bound until it settles, or until `end`; repairs labels now and then."""
        shared, state = self.shared, self.state
        begin, count, last, settled = self.budget.elapsed, 0, 0, -math.inf
        patience = SETTLED if shared.ascent is None else AGAIN
        ascent = Ascent(self.reduced, self.model, self.scale)
        while count == 0 or (not shared.done and self.budget.elapsed < end and count - last < patience):
            state.label[:] = ascent.step()
            count += 1
            self.budget.count += 2 * SWEEPS
            shared.raise_bound(self.reduced.constant + ascent.bound)
            for a in range(int(state.numbers[moves.WATCHED])):
                state.weight[a] = max(1.5 * ascent.multipliers[state.watched[a]], 0.01 * self.per_byte)
            moves.place(self.model, state)
            if count % 10 == 0 and self.parts.trees:
                self._trees(self.scale / len(state.label) * 1e-3, 0.3 * (self.budget.elapsed - begin))
                begin = self.budget.elapsed
            self._share()
            gap = (shared.cost or math.inf) - self.reduced.constant - ascent.bound
            if ascent.bound > settled + min(0.01 * gap, 1e-4 * self.scale):
                settled, last = float(ascent.bound), count
        shared.ascent = ascent

    def _leave_out(self) -> bool:
        """Leaves out strategies that no better plan has, if the gap is smaller than before; True if many went."""
        shared, ascent, cost = self.shared, self.shared.ascent, self.shared.cost
        if shared.done or cost is None or ascent is None or not self._fits(ascent):
            return False
        if cost - shared.bound > NEARER * self.tried:
            return False
        self.tried = cost - shared.bound
        self.budget.count += 2 * SETTLING
        reduced = narrow_problem(ascent, cost)
        if len(reduced.sizes) == 0:
            shared.offer(reduced.expand(np.zeros(0, np.int64)), reduced.constant)
            shared.raise_bound(reduced.constant)
            return False
        if len(reduced.edge_cost) >= GAIN * len(self.reduced.edge_cost):
            return False
        shared.reduced, self.tried, self.attempt = reduced, math.inf, 0.0
        self._enter()
        self._share()
        return True

    def _solve(self) -> None:
        """Searches exactly for a plan a little above the bound, then further above, as far as CP-SAT can follow.

        In small problems the first search is for any plan that is better than the best.
        All exact searches of the whole have a share of the time so far, and after one without an answer the next has
        twice its time.
        """
        shared, ascent, budget = self.shared, self.shared.ascent, self.budget
        if not self.solves or ascent is None or not self._fits(ascent):
            return
        extra = SMALL_SECONDS if len(self.reduced.edge_cost) <= SMALL else 0.0
        while not shared.done and (seconds := extra + SOLVE_SHARE * budget.elapsed - self.solving) > self.attempt:
            begin, limits = budget.elapsed, self._limits(seconds)
            if len(self.reduced.edge_cost) > NARROWED * limits.pairs:
                break
            budget.count += STEPS
            least, most = shared.bound, PROHIBITIVE - 1 if shared.cost is None else shared.cost
            if len(self.reduced.edge_cost) > SMALL or self.attempt:
                most = min(most, least + int(self.ahead * (least - self.reduced.constant)) + 1)
            answer = solve_part(ascent, most, limits)
            self._take(answer)
            shared.raise_bound(answer.bound)
            taken = budget.elapsed - begin
            self.solving += taken
            if answer.proven:
                self.ahead *= FARTHER
            else:
                self.attempt = 2 * taken
                self.ahead /= FARTHER

    def _limits(self, seconds: float) -> Limits:
        """Limits of CP-SAT; with evaluations as budget, those of its deterministic time alone."""
        shared, budget = self.shared, self.budget
        seconds = min(seconds, budget.total - budget.elapsed)
        end, work = budget.elapsed + seconds, seconds if budget.evaluations is not None else math.inf
        return Limits(
            pairs=min(MAX_PAIRS, int(PAIRS * seconds)),
            stop=lambda: shared.done or budget.elapsed >= end,
            work=max(0.01, work),
            seed=int(self.random.integers(2**31)),
        )

    def _take(self, answer: Answer) -> None:
        self.budget.count += RATE * answer.work
        if answer.strategies is not None:  # a part without groups may be above the limit that was asked for
            self.shared.offer(answer.strategies, self.shared.problem.total_cost(answer.strategies))

    def _repair(self, seconds: float) -> None:
        """Frees groups near a random one, and solves them exactly with all others as in the best plan; repeats it."""
        shared, reduced, end = self.shared, self.reduced, self.budget.elapsed + seconds
        if reduced is not shared.reduced or not len(reduced.edges):
            return
        group = owners(reduced.offset)[0]
        while not shared.done and shared.cost is not None and self.budget.elapsed < end:
            keep = np.zeros(len(reduced.cost), bool)
            keep[reduced.offset[:-1] + reduced.project(shared.strategies)] = True
            keep |= self._near(int(self.freed))[group]
            self.budget.count += STEPS
            limits = self._limits(min(PART_SECONDS, PART_SHARE * self.budget.total))
            answer = solve_restricted(reduced, keep, shared.cost - 1, limits)
            self._take(answer)
            self.freed = max(5.0, min(len(self.state.label), self.freed * (1.1 if answer.proven else 0.8)))

    def _near(self, count: int) -> np.ndarray:
        """Returns `[g] bool`: `count` groups around a random one, in random order of their distance."""
        model, queue = self.model, [int(self.random.integers(len(self.state.label)))]
        near = np.zeros(len(self.state.label), bool)
        near[queue[0]] = True
        for v in queue:
            for w in self.random.permutation(model.other[model.first[v] : model.first[v + 1]]).tolist():
                if not near[w] and len(queue) < count:
                    near[w] = True
                    queue.append(w)
        return near


def _factor(wanted: float, taken: float) -> float:
    return min(2.0, max(0.5, wanted / max(1e-9, taken)))
