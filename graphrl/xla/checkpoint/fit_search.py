"""Ways to run a training step within a limit of memory: numbers of microbatches, each with plans for its gradients.

The step is compiled as it is. If it does not fit, plans are searched for its gradient with 1, 2, 4, ... microbatches:
those that fit by the model are compiled in the order of estimated seconds, until none that is left is faster.
`verified` corrects the model's limit by XLA's figure of the whole step.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from graphrl.errors import ProblemError
from graphrl.graphs.readers.jaxpr.work import array_bytes
from graphrl.process import pause_gc
from graphrl.units import format_bytes, format_seconds, parse_bytes
from graphrl.xla.checkpoint.microbatches import Loss
from graphrl.xla.checkpoint.plans import Planner
from graphrl.xla.checkpoint.program import CheckpointPlan
from graphrl.xla.checkpoint.search import Result, cached, or_lowest, verified
from graphrl.xla.checkpoint.seconds import gradient_seconds
from graphrl.xla.checkpoint.settings import Settings, UnmetError
from graphrl.xla.checkpoint.solvers.choice import Choice
from graphrl.xla.checkpoint.solvers.goal import Goal
from graphrl.xla.checkpoint.steps import Rules, Step, StepMemory, TracedStep

LOWER = (0.75, 0.5)  # shares of the temporaries of the plan found, for which the report states the time
NO_GRADIENT = "fit: the step takes no gradient by jax.grad or jax.value_and_grad, so nothing can be saved"
REGULAR = "regular"  # the search method for plans with alike layers


@dataclasses.dataclass(frozen=True)
class FitTry:
    """A way to run a training step, and its memory and time.

    Attributes:
      microbatches: number of microbatches.
      plan: what its gradient does, in a few words. "as it is, gradients wait": only the step's own `jax.checkpoint`s
        compute again, and gradients wait for one another, which saves memory.
      bytes: bytes of the step at the peak: arguments, results and temporaries, less results in donated arguments.
      is_compiled: whether the bytes are XLA's figure; else they are predicted.
      seconds: estimated run time of the step in seconds, by roofline.
    """

    microbatches: int
    plan: str
    bytes: int
    is_compiled: bool
    seconds: float


@dataclasses.dataclass(frozen=True)
class StepCall:
    """A call of a step to fit.

    Attributes:
      step: the step.
      name: its name.
      args, kwargs: its arguments.
      settings: the options; the budget is the limit of memory.
      progress: as in `fit`.
      batch: batch size in place of that of the arguments.
    """

    step: Step
    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    settings: Settings
    progress: Callable[[str], None] | None
    batch: int | None = None

    @functools.cached_property
    def limit(self) -> int:
        """The limit of memory in bytes."""
        return parse_bytes(str(self.settings.budget))

    @functools.cached_property
    def size(self) -> int | None:
        """The batch size; None if no argument has the batch."""
        if self.batch is not None or not self.step.batch_axis:
            return self.batch
        return self.step.batch(self.args, self.kwargs)

    def trace(self, rules: Rules, count: int = 1) -> TracedStep:
        """Traces the step, with one of `count` parts of its batch."""
        batch = self.batch if count == 1 or self.size is None else self.size // count
        return self.step.trace(rules, self.args, self.kwargs, batch)

    @functools.cached_property
    def plain(self) -> TracedStep:
        """The step as it is."""
        return self.trace(Rules()).with_shards(self.settings.resolved_chip, self.settings.link)

    @functools.cached_property
    def plain_memory(self) -> StepMemory:
        """XLA's figure for the step as it is."""
        return self.plain.compile(self.chip_name)

    @functools.cached_property
    def as_it_is(self) -> FitTry:
        """The step as it is, compiled; reports progress."""
        way = FitTry(1, "as it is", self.plain_memory.total, True, self.seconds(self.plain))
        self.show(way)
        return way

    @property
    def outside(self) -> int:
        """Bytes of arguments and results, less those of results in donated arguments, by their types."""
        return self.plain.outside_bytes

    @property
    def chip_name(self) -> str | None:
        """Name of the chip to compile for; None for jax's first device."""
        return None if self.settings.chip is None else self.settings.resolved_chip.name

    def show(self, way: FitTry) -> None:
        """Reports progress: a way that XLA has compiled."""
        if self.progress is not None:
            fits = "fits" if way.bytes <= self.limit else f"does not fit {format_bytes(self.limit)}"
            parts = f"{way.microbatches} microbatches, " if way.microbatches > 1 else ""
            batch = "" if self.size is None else f"batch {self.size}, {parts}"
            self.progress(
                f"{self.name}: {batch}{way.plan}: {format_bytes(way.bytes)}, {fits}; {format_seconds(way.seconds)}"
            )

    def seconds(self, traced: TracedStep) -> float:
        """Estimates the run time of a traced step in seconds."""
        return gradient_seconds(traced.on_one_device(), self.settings.resolved_chip)

    def compile(self, traced: TracedStep, count: int, plan: str) -> FitTry:
        """Compiles a traced step of `count` microbatches, whose plan is described in a few words; reports progress."""
        way = FitTry(count, plan, traced.compile(self.chip_name).total, True, self.seconds(traced))
        self.show(way)
        return way

    def counts(self) -> Iterator[int]:
        """Yields numbers of microbatches, ascending: each at least twice the one before, and such that devices split
        all microbatches evenly.
        """
        last = 1
        yield last
        for count in numbers_of_microbatches(self.size or 1, self.plain.parts):
            if count >= 2 * last:
                last = count
                yield count


def numbers_of_microbatches(size: int, parts: int) -> list[int]:
    """Returns the numbers of equal microbatches of a batch, ascending, given into how many parts devices split it."""
    return [count for count in range(1, size + 1) if size % count == 0 and (size // count) % parts == 0]


@dataclasses.dataclass(frozen=True)
class Found:
    """How a step fits.

    Attributes:
      call: the call of the step, with the batch that fits.
      count: number of microbatches.
      plans: plans for the functions of its gradients; none if the step stays as it is.
      chosen: index of this way in `tries`.
      tries: all ways: the step as it is first; at the end those that need less than the one chosen, by estimate.
      seconds: seconds that the search took.
    """

    call: StepCall
    count: int
    plans: tuple[CheckpointPlan, ...]
    chosen: int
    tries: tuple[FitTry, ...]
    seconds: float


@pause_gc()
def find_fastest(call: StepCall, counts: Iterable[int], moves: bool = False) -> Found:
    """Searches for the fastest way to fit a step.

    Args:
      call: a call of the step.
      counts: numbers of microbatches, ascending.
      moves: whether values may be moved to the host.

    Raises:
      UnmetError: nothing found fits; one line states the least bytes.
    """
    begin, plain = time.monotonic(), call.as_it_is
    if plain.bytes <= call.limit:
        return Found(call, 1, (), 0, (plain,), time.monotonic() - begin)
    if not call.plain.losses:
        raise ProblemError(NO_GRADIENT)
    if call.plain_memory.outside >= call.limit:
        unmet(call, call.plain_memory.outside, "arguments and results alone need")
    candidates, waiting = list[Candidate](), list[Candidate]()
    best: _Best | None = None
    least, fastest = math.inf, math.inf
    for count in counts:
        candidates.append(Candidate(call, count, moves or call.settings.offload))
        waiting.append(candidates[-1])
        if candidates[-1].is_plain or fastest < candidates[-1].seconds < math.inf:  # more of them only take more time
            best, least = _verified(waiting, best, least)
            waiting = []
            if best is not None:
                break
        fastest = min(fastest, candidates[-1].seconds)
    best, least = _verified(waiting, best, least)
    if best is None:
        parts = call.plain.parts
        fewest = (
            f", with at least {parts} examples in a microbatch, one for each part of the batch," if parts > 1 else ""
        )
        unmet(call, least, f"the least found{fewest} is")
    tries = [plain]
    for candidate in candidates:
        estimated = candidate.estimate()
        tries += candidate.tries or ([estimated] if estimated else [])
    candidate, chosen = best.candidate, tries.index(best.candidate.compiled(best.choice))
    tries += candidate.lower(best.choice)
    seconds = time.monotonic() - begin
    return Found(call, candidate.count, candidate.plans(best.choice), chosen, tuple(tries), seconds)


class _Best(NamedTuple):
    """A way to run a step that fits: its seconds, the candidate and its choice."""

    seconds: float
    candidate: "Candidate"
    choice: Choice


def _verified(candidates: "Sequence[Candidate]", best: _Best | None, least: float) -> tuple[_Best | None, float]:
    """Verifies candidates, the fastest by estimate first; stops at those that are no faster than the best that fits.

    Returns:
      the best, or None; and the least bytes of all that does not fit.
    """
    for candidate in sorted(candidates, key=lambda each: each.seconds):
        if best is not None and candidate.seconds >= best.seconds:
            break
        try:
            choice = candidate.verify()
        except UnmetError as error:
            least = min(least, error.least or math.inf)
            continue
        seconds = candidate.compiled(choice).seconds
        if best is None or seconds < best.seconds:
            best = _Best(seconds, candidate, choice)
    return best, least


def unmet(call: StepCall, least: float, what: str) -> NoReturn:
    """Raises the error that a limit cannot be met."""
    raise UnmetError(f"memory is {call.settings.budget}: {what} {format_bytes(least)} ({least:,.0f} bytes)", least)


class Candidate:
    """A step with a number of microbatches: plans for its gradients, of which the one that needs most is verified.

    Args:
      call: a call of the step.
      count: number of microbatches.
      moves: whether values may be moved to the host.

    Attributes:
      call, count: as given.
      tries: all that was compiled.
      compiled: choice -> XLA's figure for it.
    """

    def __init__(self, call: StepCall, count: int, moves: bool) -> None:
        self.call, self._moves, self.count, self.tries = call, moves, count, list[FitTry]()
        shared = call.plain.shared
        self._small = call.plain.losses if count == 1 else call.trace(Rules(shared=shared), count).losses
        self._waits = any(each.program.has_rules for each in self._small)  # gradients, for the user's own rules too
        self._planners = [Planner(call.name, each.program, each.wanted, call.settings) for each in self._small]
        peaks = [planner.pricing.plain.peak for planner in self._planners]
        self._main = peaks.index(max(peaks))
        self.room = call.limit - call.outside
        self._gradients = _gradient_bytes(self._small[self._main])
        self._plans = [
            CheckpointPlan() if number == self._main else self._other(planner)
            for number, planner in enumerate(self._planners)
        ]
        self._traced, self.compiled = cached(self._trace), cached(self._compiled)
        self._searched = functools.lru_cache(self._search)

    @property
    def planner(self) -> Planner:
        """The planner of the verified gradient."""
        return self._planners[self._main]

    def within(self, peak: float) -> Choice:
        """Returns the choice found for a limit of the bytes of temporaries, with the gradients.

        Raises:
          UnmetError: no choice is within the limit by the model.
        """
        return self._searched(peak, None).choice

    @functools.cached_property
    def first(self) -> Result | None:
        """The first plan by the model; None if no plan fits by the model."""
        try:
            return self._searched(float(self.room), None)
        except UnmetError:
            return None

    @functools.cached_property
    def seconds(self) -> float:
        """Estimated seconds of the step under the first plan; infinite without."""
        return math.inf if self.first is None else self.call.seconds(self._traced(self.first.choice))

    @property
    def is_plain(self) -> bool:
        """True if by the model nothing need be computed again."""
        return self.first is not None and self.plan(self.first.choice).is_plain

    def plan(self, choice: Choice) -> CheckpointPlan:
        """Returns the plan of the verified gradient for a choice."""
        return self.planner.plan(choice)

    def plans(self, choice: Choice) -> tuple[CheckpointPlan, ...]:
        """Returns the plans of all gradients, given the choice for the verified one."""
        return tuple(self.plan(choice) if k == self._main else plan for k, plan in enumerate(self._plans))

    def verify(self) -> Choice:
        """Returns the fastest choice that fits by XLA's figure.

        Raises:
          UnmetError: no plan found fits; its `least` are all bytes of the step.
        """
        try:
            result = verified(
                lambda goal: self._searched(goal.peak, None),
                lambda goal: self._searched(goal.peak, REGULAR),
                self.planner.unplanned,
                Goal(peak=self.room, moves=self._moves),
                self.temporaries,
                str,
            )
        except UnmetError as error:
            raise UnmetError(str(error), None if error.least is None else error.least + self.call.outside) from None
        return result.choice

    def lower(self, choice: Choice) -> Iterator[FitTry]:
        """Yields estimates of plans that need less than a choice."""
        for part in LOWER:
            try:
                yield self._predicted(self._searched(part * self.temporaries(choice), None))
            except UnmetError:
                return

    def predicted(self, choice: Choice) -> float:
        """Returns predicted bytes of temporaries, with the gradients."""
        return self.planner.pricing(choice).peak + self._gradients

    def error(self, choice: Choice) -> float:
        """Returns XLA's bytes of temporaries over those predicted."""
        return self.temporaries(choice) / max(1.0, self.predicted(choice))

    def temporaries(self, choice: Choice) -> int:
        """Returns XLA's bytes without arguments and results."""
        return self.compiled(choice).bytes - self.call.outside

    def seconds_of(self, choice: Choice) -> float:
        """Estimates the run time of the step under a choice, in seconds."""
        return self.call.seconds(self._traced(choice))

    def simplest(self, peak: float) -> Choice:
        """Returns the choice with alike layers in fewest segments, within a limit of bytes by the model."""
        return self.planner.simplest(peak - self._gradients)

    def lowest(self, method: str) -> Choice:
        """Returns the choice of least memory that a search method finds, by the model."""
        return or_lowest(lambda goal: self._searched(goal.peak, method), Goal(peak=1.0), 1.0)[0].choice

    def stays(self, choice: Choice) -> bool:
        """True if under a choice the step stays as it is."""
        return self.count == 1 and not self._waits and all(plan.is_plain for plan in self.plans(choice))

    def unplanned(self) -> FitTry:
        """Returns the model's figures for the step as it is."""
        peak = self.planner.pricing.plain.peak + self._gradients
        return FitTry(1, "as it is", int(self.call.outside + peak), False, self.call.seconds(self.call.plain))

    def estimate(self) -> FitTry | None:
        """Returns the model's figures for the first plan; None without."""
        return None if self.first is None else self._predicted(self.first)

    def _search(self, peak: float, method: str | None) -> Result:
        """Searches for a plan of the verified gradient; without `method`, takes the faster of the plan found by that
        of the settings and the one with alike layers, by the estimate of the whole step.

        Args:
          peak: limit of bytes for temporaries, with the gradients.
          method: search method.
        """
        goal = Goal(peak=max(peak - self._gradients, 1.0), moves=self._moves)
        results, faults = list[Result](), list[UnmetError]()
        for each in dict.fromkeys([REGULAR, self.call.settings.method] if method is None else [method]):
            try:
                results.append(self.planner.search(goal, each))
            except UnmetError as error:
                faults.append(error)
        if not results:
            least = min(math.inf if error.least is None else error.least for error in faults)
            raise UnmetError(str(faults[0]), least + self._gradients)
        result = min(results, key=lambda each: self.seconds_of(each.choice))
        planned = result.report.planned
        planned = dataclasses.replace(planned, peak_bytes=planned.peak_bytes + self._gradients)
        return result._replace(report=dataclasses.replace(result.report, planned=planned))

    def _other(self, planner: Planner) -> CheckpointPlan:
        """Returns the plan of a gradient that is not verified: within the limit by the model, or else the lowest."""
        if planner.pricing.plain.peak <= self.room:
            return CheckpointPlan()
        goal = Goal(peak=float(max(self.room - self._gradients, 1)), moves=self._moves)
        try:
            return planner.plan(planner.search(goal).choice)
        except UnmetError as error:
            lowest = dataclasses.replace(goal, peak=1.02 * (error.least or math.inf))
            return planner.plan(planner.search(lowest).choice)

    def _trace(self, choice: Choice) -> TracedStep:
        small = self._small if self.count > 1 else ()
        return self.call.trace(Rules(self.plans(choice), self.count, small, self.call.plain.shared))

    def _compiled(self, choice: Choice) -> FitTry:
        if self.stays(choice):
            return self.call.as_it_is  # compiled once
        self.tries.append(self.call.compile(self._traced(choice), self.count, self._summary(choice)))
        return self.tries[-1]

    def _predicted(self, result: Result) -> FitTry:
        size = int(self.call.outside + result.report.planned.peak_bytes)
        return FitTry(self.count, self._summary(result.choice), size, False, self.seconds_of(result.choice))

    def _summary(self, choice: Choice) -> str:
        plan = self.plan(choice)
        return f"{plan.summary}, gradients wait" if plan.is_plain and self._waits else plan.summary


def _gradient_bytes(loss: Loss) -> int:
    """Returns the bytes of a function's gradients on one device."""
    closed, shards = loss.program.closed, loss.program.shards
    values = zip(closed.jaxpr.invars, closed.in_avals, loss.wanted, strict=True)
    wanted = [(var, aval) for var, aval, is_wanted in values if is_wanted]
    if shards is None:
        return sum(array_bytes(aval) for _, aval in wanted)
    return int(sum(shards.layout.bytes(aval, shards.spec(var)) for var, aval in wanted))
