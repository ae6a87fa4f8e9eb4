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
from graphrl.xla.checkpoint.search import Result, cached, verified
from graphrl.xla.checkpoint.seconds import gradient_seconds
from graphrl.xla.checkpoint.settings import Settings, UnmetError
from graphrl.xla.checkpoint.solvers.choice import Choice
from graphrl.xla.checkpoint.solvers.goal import Goal
from graphrl.xla.checkpoint.steps import Rules, Step, StepMemory, TracedStep

LOWER = (0.75, 0.5)  # shares of the temporaries of the plan found, for which the report states the time
PRECISION = 0.02  # of the largest batch
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
        return self.trace(Rules())

    @functools.cached_property
    def plain_memory(self) -> StepMemory:
        """XLA's figure for the step as it is."""
        return self.plain.compile(self.chip_name)

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
        return gradient_seconds(traced.closed, self.settings.resolved_chip)

    def counts(self) -> Iterator[int]:
        """Yields numbers of microbatches, ascending: divisors of the batch, each at least twice the one before."""
        last = 1
        yield last
        for count in range(2, (self.size or 1) + 1):
            if (self.size or 1) % count == 0 and count >= 2 * last:
                last = count
                yield count


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
    begin, memory = time.monotonic(), call.plain_memory
    plain = FitTry(1, "as it is", memory.total, True, call.seconds(call.plain))
    call.show(plain)
    if memory.total <= call.limit:
        return Found(call, 1, (), 0, (plain,), time.monotonic() - begin)
    if not call.plain.losses:
        raise ProblemError("fit: the step takes no gradient by jax.grad or jax.value_and_grad, so nothing can be saved")
    if memory.outside >= call.limit:
        _unmet(call, memory.outside, "arguments and results alone need")
    candidates, waiting = list[_Candidate](), list[_Candidate]()
    best: _Best | None = None
    least, fastest = math.inf, math.inf
    for count in counts:
        candidates.append(_Candidate(call, count, moves or call.settings.offload))
        waiting.append(candidates[-1])
        if candidates[-1].is_plain or fastest < candidates[-1].seconds < math.inf:  # more of them only take more time
            best, least = _verified(waiting, best, least)
            waiting = []
            if best is not None:
                break
        fastest = min(fastest, candidates[-1].seconds)
    best, least = _verified(waiting, best, least)
    if best is None:
        _unmet(call, least, "the least found is")
    tries = [plain]
    for candidate in candidates:
        estimated = candidate.estimate()
        tries += candidate.tries or ([estimated] if estimated else [])
    candidate, chosen = best.candidate, tries.index(best.candidate.compiled(best.choice))
    tries += candidate.lower(best.choice)
    seconds = time.monotonic() - begin
    return Found(call, candidate.count, candidate.plans(best.choice), chosen, tuple(tries), seconds)


def find_largest(call: StepCall) -> Found:
    """Searches for the largest batch that fits without microbatches.

    Raises:
      UnmetError: not even one example fits.
    """
    own, found, faults = call.size or 1, dict[int, Found](), list[UnmetError]()

    def fits(size: int) -> bool:
        try:
            found[size] = find_fastest(dataclasses.replace(call, batch=size), (1,))
        except UnmetError as error:
            faults.append(error)
        return size in found

    # the lowest plan's bytes are nearly linear in the batch
    lowest = _Candidate(dataclasses.replace(call, batch=own), 1, call.settings.offload).lowest
    start = max(1, int(own * max(0.0, call.limit - call.plain_memory.outside) / max(lowest, 1.0)))
    largest = largest_size(fits, start)
    if not largest:
        raise faults[-1]
    return found[largest]


def largest_size(fits: Callable[[int], bool], start: int, precision: float = PRECISION) -> int:
    """Searches for the largest size that fits; returns 0 if not even 1 fits.

    A size larger by the share `precision`, or by 1 if that is more, does not fit. The search goes up from the start in
    steps that double, then halves the interval.
    """
    low, high, guess, part = 0, None, start, precision
    while high is None or high > low + _size_step(low, precision):
        if fits(guess):
            low = guess
        else:
            high = guess
        if high is None:
            guess = low + _size_step(low, part)
        else:
            guess = (low + high) // 2 if low else max(1, min(high - 1, math.ceil(high / (1 + part))))
        part *= 2
    return low


def _size_step(size: int, precision: float) -> int:
    return max(1, int(size * precision))


class _Best(NamedTuple):
    """A way to run a step that fits: its seconds, the candidate and its choice."""

    seconds: float
    candidate: "_Candidate"
    choice: Choice


def _verified(candidates: "Sequence[_Candidate]", best: _Best | None, least: float) -> tuple[_Best | None, float]:
    """Verifies candidates, the fastest by estimate first, until none is faster than the best that fits.

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


def _unmet(call: StepCall, least: float, what: str) -> NoReturn:
    """Raises the error that a limit cannot be met."""
    fault = f"memory is {call.settings.budget}: {what} {format_bytes(least)} ({least:,.0f} bytes)"
    raise UnmetError(fault, least)


class _Candidate:
    """A step with a number of microbatches: plans for its gradients, of which the one that needs most is verified.

    Args:
      call: a call of the step.
      count: number of microbatches.
      moves: whether values may be moved to the host.

    Attributes:
      count: as given.
      tries: all that was compiled.
      compiled: choice -> XLA's figure for it.
    """

    def __init__(self, call: StepCall, count: int, moves: bool) -> None:
        self._call, self._moves, self.count, self.tries = call, moves, count, list[FitTry]()
        self._small = call.plain.losses if count == 1 else call.trace(Rules(), count).losses
        self._waits = any(each.program.has_rules for each in self._small)  # gradients, for the user's own rules too
        self._planners = [Planner(call.name, each.program, each.wanted, call.settings) for each in self._small]
        peaks = [planner.pricing.plain.peak for planner in self._planners]
        self._main = peaks.index(max(peaks))
        self._room = call.limit - call.plain_memory.outside
        self._gradients = sum(map(array_bytes, _gradient_types(self._small[self._main])))
        self._plans = [
            CheckpointPlan() if number == self._main else self._other(planner)
            for number, planner in enumerate(self._planners)
        ]
        self._traced, self.compiled = cached(self._trace), cached(self._compiled)
        self._searched = functools.lru_cache(self._search)

    @functools.cached_property
    def first(self) -> Result | None:
        """The first plan by the model; None if none fits by the model."""
        try:
            return self._searched(float(self._room), None)
        except UnmetError:
            return None

    @functools.cached_property
    def seconds(self) -> float:
        """Estimated seconds of the step under the first plan; infinite without."""
        return math.inf if self.first is None else self._call.seconds(self._traced(self.first.choice))

    @property
    def lowest(self) -> float:
        """Predicted bytes of temporaries, with the gradients, of the lowest plan with alike layers."""
        try:
            return self._searched(1.0, REGULAR).report.planned.peak_bytes
        except UnmetError as error:
            return error.least or math.inf

    @property
    def is_plain(self) -> bool:
        """True if by the model nothing need be computed again."""
        return self.first is not None and self.plan(self.first.choice).is_plain

    def plan(self, choice: Choice) -> CheckpointPlan:
        """Returns the plan of the verified gradient for a choice."""
        return self._planners[self._main].plan(choice)

    def plans(self, choice: Choice) -> tuple[CheckpointPlan, ...]:
        """Returns the plans of all gradients, given the choice for the verified one."""
        return tuple(self.plan(choice) if k == self._main else plan for k, plan in enumerate(self._plans))

    def verify(self) -> Choice:
        """Returns the fastest choice that fits by XLA's figure.

        Raises:
          UnmetError: no plan found fits; its `least` are all bytes of the step.
        """
        outside = self._call.plain_memory.outside

        def needed(choice: Choice) -> int:
            return self.compiled(choice).bytes - outside

        try:
            result = verified(
                lambda goal: self._searched(goal.peak, None),
                lambda goal: self._searched(goal.peak, REGULAR),
                self._planners[self._main].unplanned,
                Goal(peak=self._room, moves=self._moves),
                needed,
                str,
            )
        except UnmetError as error:
            raise UnmetError(str(error), None if error.least is None else error.least + outside) from None
        return result.choice

    def lower(self, choice: Choice) -> Iterator[FitTry]:
        """Yields estimates of plans that need less than a choice."""
        outside = self._call.plain_memory.outside
        for part in LOWER:
            peak = part * (self.compiled(choice).bytes - outside)
            try:
                yield self._predicted(self._searched(peak, None))
            except UnmetError:
                return

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
        for each in dict.fromkeys([REGULAR, self._call.settings.method] if method is None else [method]):
            try:
                results.append(self._planners[self._main].search(goal, each))
            except UnmetError as error:
                faults.append(error)
        if not results:
            least = min(math.inf if error.least is None else error.least for error in faults)
            raise UnmetError(str(faults[0]), least + self._gradients)
        result = min(results, key=lambda each: self._call.seconds(self._traced(each.choice)))
        planned = result.report.planned
        planned = dataclasses.replace(planned, peak_bytes=planned.peak_bytes + self._gradients)
        return result._replace(report=dataclasses.replace(result.report, planned=planned))

    def _other(self, planner: Planner) -> CheckpointPlan:
        """Returns the plan of a gradient that is not verified: within the limit by the model, or else the lowest."""
        if planner.pricing.plain.peak <= self._room:
            return CheckpointPlan()
        goal = Goal(peak=float(max(self._room - self._gradients, 1)), moves=self._moves)
        try:
            return planner.plan(planner.search(goal).choice)
        except UnmetError as error:
            lowest = dataclasses.replace(goal, peak=1.02 * (error.least or math.inf))
            return planner.plan(planner.search(lowest).choice)

    def _trace(self, choice: Choice) -> TracedStep:
        small = self._small if self.count > 1 else ()
        return self._call.trace(Rules(self.plans(choice), self.count, small))

    def _compiled(self, choice: Choice) -> FitTry:
        if self.count == 1 and not self._waits and all(plan.is_plain for plan in self.plans(choice)):
            return self._try(choice, self._call.plain_memory.total, is_compiled=True)  # compiled before
        each = self._try(choice, self._traced(choice).compile(self._call.chip_name).total, is_compiled=True)
        self.tries.append(each)
        self._call.show(each)
        return each

    def _predicted(self, result: Result) -> FitTry:
        size = int(self._call.plain_memory.outside + result.report.planned.peak_bytes)
        return self._try(result.choice, size, is_compiled=False)

    def _try(self, choice: Choice, size: int, *, is_compiled: bool) -> FitTry:
        plan = self.plan(choice)
        summary = f"{plan.summary}, gradients wait" if plan.is_plain and self._waits else plan.summary
        return FitTry(self.count, summary, size, is_compiled, self._call.seconds(self._traced(choice)))


def _gradient_types(loss: Loss) -> list[Any]:
    pairs = zip(loss.program.closed.in_avals, loss.wanted, strict=True)
    return [aval for aval, wanted in pairs if wanted]
