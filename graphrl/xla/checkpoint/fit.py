"""`graphrl.fit`: a whole training step within a limit of memory, by XLA's own figure.

The step is compiled as it is. If it does not fit, plans are searched for its gradient with 1, 2, 4, ... microbatches:
those that fit by the model are compiled in the order of estimated seconds, until none that is left is faster.
`verified` corrects the model's limit by XLA's figure of the whole step.
"""

import dataclasses
import functools
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import jax

from graphrl.errors import GraphrlError, ProblemError
from graphrl.files import cache_folder, read_document, write_document
from graphrl.graphs.readers.jaxpr.work import array_bytes
from graphrl.graphs.roofline import Chip
from graphrl.process import pause_gc
from graphrl.units import format_bytes
from graphrl.xla.checkpoint.microbatches import Loss
from graphrl.xla.checkpoint.plans import VERSION, Planner
from graphrl.xla.checkpoint.program import CheckpointPlan
from graphrl.xla.checkpoint.report import FitReport, FitTry
from graphrl.xla.checkpoint.search import Result, cached, verified
from graphrl.xla.checkpoint.settings import SECONDS, Settings, Static, UnmetError
from graphrl.xla.checkpoint.solvers.choice import Choice
from graphrl.xla.checkpoint.solvers.goal import Goal
from graphrl.xla.checkpoint.steps import Rules, Step, StepCall, TracedStep
from graphrl.xla.decorated import Decorated, function_name

FORMAT = "graphrl-fit"
LOWER = (0.75, 0.5)  # shares of the temporaries of the plan found, for which the report states the time
PRECISION = 0.02  # of the largest batch
CPU = "cpu"  # the chip whose memory is the host's
REGULAR = "regular"  # the search method for plans with alike layers


def fit(
    step: Callable[..., Any],
    *args: Any,
    memory: str,
    batch_axis: Mapping[str, int] | None = None,
    largest_batch: bool = False,
    chip: str | Chip | None = None,
    offload: bool | None = None,
    method: str = "auto",
    seconds: float = SECONDS,
    seed: int = 0,
    cache: bool = True,
    progress: Callable[[str], None] | None = None,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
    **kwargs: Any,
) -> "FittedFunction":
    """Returns a training step that fits into a limit of memory, by XLA's own figure for the whole step.

    A step takes a gradient by `jax.grad` or `jax.value_and_grad` (or those of NNX and Equinox) and updates weights. If
    it fits as it is, it stays as it is. Otherwise its gradient gets a plan, as by `graphrl.checkpoint`: values are
    computed again or moved to the host, and loops run in stretches. If `batch_axis` is given, the batch may also be
    split into microbatches, whose gradients are averaged. Of all that fit, the fastest by estimate is taken.

        step = jax.jit(step, donate_argnums=(0, 1))
        step = graphrl.fit(step, params, state, batch, memory="80GiB", batch_axis={"batch": 0})
        print(step.report())
        params, state, loss = step(params, state, batch)

    Microbatches give the results of the step if its loss is a mean over the batch, which is not checked. Statistics
    over the batch, as in batch normalisation, become those of a microbatch. Auxiliary results of the loss are averaged,
    or joined if they have the batch axis. Typed random keys differ in each microbatch.

    With other shapes, dtypes or static values the returned function follows the same plan where it applies; it is not
    verified for these. Microbatches sum gradients in the dtype of the weights.

    Args:
      step: a function of arrays and pytrees, or the result of `jax.jit`, `nnx.jit` or `eqx.filter_jit`. It runs on one
        device.
      *args: its arguments, arrays or `jax.ShapeDtypeStruct`s: it is traced, not run.
      memory: limit such as "80GiB": arguments, results and temporaries, less results in donated arguments.
      batch_axis: for each argument of the step that has the batch, by name, the batch axis of its arrays. The loss must
        be a mean over the batch.
      largest_batch: whether to search for the largest batch, to 2%, that fits without microbatches; `batch` of the
        result states it. The shapes of the arguments in `batch_axis` are scaled.
      chip: the chip, as in `checkpoint`. If it is not here (an H100 or H200), XLA compiles for it by the extra
        `gpu-compile`; by default jax's first device.
      offload: whether values may be moved to host memory; by default, only if nothing fits otherwise.
      method, seed, cache: as in `checkpoint`; largest batches are not stored.
      seconds: time of each search for a plan, in seconds; there are some for each number of microbatches.
      progress: called with a line about each way of running the step that XLA has compiled, such as `print`.
      donate_argnums: as in `jax.jit`, if the step is not jitted yet; so are `static_argnums` and `static_argnames`.
      static_argnums, static_argnames: static arguments; of a jitted step, those that it was jitted with.
      **kwargs: the step's keyword arguments.

    Returns:
      A function like `step`; its `report()` is a table of what was tried.

    Raises:
      ProblemError: an option is at fault; nothing found fits (one line states the least); or the loss cannot run in
        microbatches.
      GraphrlError: XLA has no compiler for the chip here, or reports no memory.
    """
    if not callable(step):
        raise ProblemError(f"step is of type {type(step).__name__}: must be a function")
    if batch_axis is not None and not isinstance(batch_axis, Mapping):
        raise ProblemError(f'batch_axis is {batch_axis!r}: must name arguments, such as {{"batch": 0}}')
    if largest_batch and not batch_axis:
        raise ProblemError('largest_batch needs batch_axis, such as {"batch": 0}')
    if progress is not None and not callable(progress):
        raise ProblemError(f"progress is {progress!r}: must be a function of a line, such as print")
    if not isinstance(memory, str):
        raise ProblemError(f'memory is {memory!r}: must be bytes such as "80GiB"')
    may_offload = False if offload is None else offload
    settings = Settings(memory, None, chip, may_offload, method, seconds, seed, cache, verify=True)
    is_last = offload is None and settings.resolved_chip.name != CPU  # the host is tried last
    static = Static.of(static_argnums, static_argnames)
    options = {
        name: value
        for name, value in (
            ("donate_argnums", donate_argnums),
            ("static_argnums", static.argnums),
            ("static_argnames", static.argnames),
        )
        if value != ()
    }
    whole = Step(step, options, static, dict(batch_axis or {}))
    call = StepCall(whole, function_name(step), args, kwargs, settings, progress)
    fitting = _largest(call) if largest_batch else _stored(call, is_last)
    return FittedFunction(step, whole, fitting)


@dataclasses.dataclass(frozen=True)
class Fitting:
    """How a step fits, as stored on disk.

    Attributes:
      count: number of microbatches.
      microbatch: examples in each; None if the batch is unknown.
      plans: plans for the functions of its gradients; none if the step stays as it is.
      report: what was tried.
    """

    count: int
    microbatch: int | None
    plans: tuple[CheckpointPlan, ...]
    report: FitReport


class FittedFunction(Decorated):
    """The function that `graphrl.fit` returns. A pickle by value contains the plans, but nothing compiled."""

    def __init__(self, fn: Callable[..., Any], step: Step, fitting: Fitting) -> None:
        super().__init__(fn)
        self._step, self._fitting = step, fitting
        self._rules: dict[Any, Rules] = {}  # keys: types of the arguments, and static values

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._step.call(self._rules_for(args, kwargs), args, kwargs)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for copies and pickles."""
        return super().__getstate__() | {"_options": self._step.options, "_fitting": self._fitting}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Restores the state of `__getstate__`."""
        fn = self._function(state)
        self.__init__(fn, Step(fn, *state["_options"]), state["_fitting"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"<graphrl.fit of {self._fn!r}>"

    @property
    def batch(self) -> int | None:
        """The batch size for which the step fits; None without `batch_axis`."""
        return self._fitting.report.batch

    def report(self) -> FitReport:
        """Returns the report: what was tried, and its memory and time."""
        return self._fitting.report

    def _rules_for(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Rules | None:
        """Returns the rules for a call; None for a step that stays as it is."""
        plans, microbatch = self._fitting.plans, self._fitting.microbatch
        if not plans:
            return None
        key = *map(_type_of, jax.tree.leaves((args, kwargs))), *self._step.static_values(args, kwargs)
        if key not in self._rules:
            count, small = 1, tuple[Loss, ...]()
            if self._fitting.count > 1 and microbatch is not None:
                size = self._step.batch(args, kwargs)
                count = next(k for k in range(1, size + 1) if size % k == 0 and size // k <= microbatch)
                if count > 1:
                    small = self._step.trace(Rules(), args, kwargs, batch=size // count).losses
            self._rules[key] = Rules(plans, count, small)
        return self._rules[key]


def _type_of(leaf: Any) -> Any:
    """Returns what a trace reads of an argument: shape and dtype, or the value if it can only be static."""
    if hasattr(leaf, "shape"):
        return leaf.shape, getattr(leaf, "dtype", None)
    return leaf if isinstance(leaf, str | bool) else type(leaf)


class _Candidate:
    """A step with a number of microbatches: plans for its gradients, of which the one that needs most is verified.

    Args:
      call: a call of the step.
      count: number of microbatches.
      moves: whether values may be moved to the host.

    Attributes:
      count: as given.
      tries: all that was compiled.
    """

    def __init__(self, call: StepCall, count: int, moves: bool) -> None:
        self._call, self._moves, self.count, self.tries = call, moves, count, list[FitTry]()
        self._small = call.plain.losses if count == 1 else call.trace(Rules(), count).losses
        self._planners = [Planner(call.name, each.program, each.wanted, call.settings) for each in self._small]
        peaks = [planner.pricing.plain.peak for planner in self._planners]
        self._main = peaks.index(max(peaks))
        self._room = call.limit - call.plain_memory.outside
        self._gradients = sum(map(array_bytes, _gradient_types(self._small[self._main])))
        self._plans = [
            CheckpointPlan() if number == self._main else self._other(planner)
            for number, planner in enumerate(self._planners)
        ]
        self._traced, self._measure = cached(self._trace), cached(self._compiled)
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
            return self._measure(choice).bytes - outside

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

    def compiled(self, choice: Choice) -> FitTry:
        """Returns XLA's figure for a choice."""
        return self._measure(choice)

    def lower(self, choice: Choice) -> Iterator[FitTry]:
        """Yields estimates of plans that need less than a choice."""
        outside = self._call.plain_memory.outside
        for part in LOWER:
            peak = part * (self._measure(choice).bytes - outside)
            try:
                result = self._searched(peak, None)
            except UnmetError:
                return
            predicted = int(outside + result.report.planned.peak_bytes)
            yield self._try(result.choice, self._traced(result.choice), predicted, is_compiled=False)

    def estimate(self) -> FitTry | None:
        """Returns the model's figures for the first plan; None without."""
        if self.first is None:
            return None
        predicted = int(self._call.plain_memory.outside + self.first.report.planned.peak_bytes)
        traced = self._traced(self.first.choice)
        return self._try(self.first.choice, traced, predicted, is_compiled=False)

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
        traced = self._traced(choice)
        has_rules = any(loss.program.has_rules for loss in self._small)
        if self.count == 1 and not has_rules and all(plan.is_plain for plan in self.plans(choice)):
            return self._try(choice, traced, self._call.plain_memory.total, is_compiled=True)  # compiled before
        each = self._try(choice, traced, traced.compile(self._call.chip_name).total, is_compiled=True)
        self.tries.append(each)
        self._call.show(each)
        return each

    def _try(self, choice: Choice, traced: TracedStep, size: int, *, is_compiled: bool) -> FitTry:
        seconds = self._call.seconds(traced)
        return FitTry(self.count, self.plan(choice).summary, size, is_compiled, seconds)


def _gradient_types(loss: Loss) -> list[Any]:
    pairs = zip(loss.program.closed.in_avals, loss.wanted, strict=True)
    return [aval for aval, wanted in pairs if wanted]


def _stored(call: StepCall, host_is_last: bool) -> Fitting:
    """Returns how a step fits: as found before, or by a new search, and another with the host if nothing fits."""
    path = cache_folder("fits") / f"{call.fingerprint((VERSION, host_is_last))}.json"
    if call.settings.cache:
        try:
            fitting = read_document(path, Fitting, FORMAT, VERSION)
            return dataclasses.replace(fitting, report=dataclasses.replace(fitting.report, from_cache=True))
        except (GraphrlError, ValueError):
            pass
    try:
        fitting = _search(call, call.counts())
    except UnmetError:
        if not host_is_last:
            raise
        fitting = _search(call, call.counts(), moves=True)
    if call.settings.cache:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_document(path, fitting, FORMAT, VERSION)
        except (OSError, GraphrlError) as error:
            warnings.warn(f"graphrl: the plan cannot be stored for the next process: {error}", stacklevel=3)
    return fitting


@pause_gc()
def _search(call: StepCall, counts: Iterable[int], moves: bool = False) -> Fitting:
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
        return _fitting(call, None, [plain], begin)
    if not call.plain.losses:
        raise ProblemError("fit: the step takes no gradient by jax.grad or jax.value_and_grad, so nothing can be saved")
    if memory.outside >= call.limit:
        _unmet(call, memory.outside, "arguments and results alone need")
    candidates, waiting = list[_Candidate](), list[_Candidate]()
    best: _Found | None = None
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
    lower = best.candidate.lower(best.choice)
    return _fitting(call, best, [*tries, *lower], begin)


class _Found(NamedTuple):
    """A way to run a step that fits: its seconds, the candidate and its choice."""

    seconds: float
    candidate: _Candidate
    choice: Choice


def _verified(candidates: Sequence[_Candidate], best: _Found | None, least: float) -> tuple[_Found | None, float]:
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
            best = _Found(seconds, candidate, choice)
    return best, least


def _unmet(call: StepCall, least: float, what: str) -> NoReturn:
    """Raises the error that a limit cannot be met."""
    fault = f"memory is {call.settings.budget}: {what} {format_bytes(least)} ({least:,.0f} bytes)"
    raise UnmetError(fault, least)


def _fitting(call: StepCall, found: _Found | None, tries: Sequence[FitTry], begin: float) -> Fitting:
    """Creates the result of a search; None is found if the step stays as it is."""
    count, plans, chosen = 1, tuple[CheckpointPlan, ...](), tries[0]
    if found is not None:
        count, plans = found.candidate.count, found.candidate.plans(found.choice)
        chosen = found.candidate.compiled(found.choice)
    report = FitReport(
        function=call.name,
        chip=call.settings.resolved_chip.name,
        limit=call.limit,
        outside_bytes=call.plain_memory.outside,
        batch=call.size,
        chosen=tries.index(chosen),
        tries=tuple(tries),
        search_seconds=time.monotonic() - begin,
    )
    return Fitting(count, None if call.size is None else call.size // count, plans, report)


def _largest(call: StepCall) -> Fitting:
    """Searches for the largest batch that fits without microbatches.

    Raises:
      UnmetError: not even one example fits.
    """
    own, fittings, faults = call.size or 1, dict[int, Fitting](), list[UnmetError]()

    def fits(size: int) -> bool:
        try:
            fittings[size] = _search(dataclasses.replace(call, batch=size), (1,))
        except UnmetError as error:
            faults.append(error)
        return size in fittings

    # the lowest plan's bytes are nearly linear in the batch
    lowest = _Candidate(dataclasses.replace(call, batch=own), 1, call.settings.offload).lowest
    start = max(1, int(own * max(0.0, call.limit - call.plain_memory.outside) / max(lowest, 1.0)))
    largest = largest_size(fits, start)
    if not largest:
        raise faults[-1]
    return fittings[largest]


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
