"""Search for the best choice within a user's limit, optionally verified by compiling with XLA.

`search` runs a solver on a gradient and returns its best choice within the limit, by the solver's estimates or, for
limits of time, by the model of `seconds.py` on the gradient traced under the plan. Its report states which values are
kept, computed again and moved, the lines of code that they come from, and which loops run in stretches.

A model predicts the memory of a plan. With `verify`, XLA compiles the gradient under the plan and reports the memory
that it needs (`compiled_bytes`). If a limit of bytes is exceeded, or is not used, the search repeats with a limit that
is lower or higher by the error of the prediction (`verified`).
"""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.extend import core

from graphrl.errors import GraphrlError
from graphrl.graphs.readers.jaxpr.work import array_bytes
from graphrl.units import format_bytes
from graphrl.xla.checkpoint import report
from graphrl.xla.checkpoint.derivative import gradient_jaxpr, split_gradient
from graphrl.xla.checkpoint.gradient import ReportableGradient
from graphrl.xla.checkpoint.program import CheckpointPlan, Program
from graphrl.xla.checkpoint.report import CheckpointReport, Figures, ReportedStretch, ReportedValue
from graphrl.xla.checkpoint.rewrite import evaluate
from graphrl.xla.checkpoint.settings import Settings, UnmetError, compiled_memory
from graphrl.xla.checkpoint.solvers.auto import find_solver
from graphrl.xla.checkpoint.solvers.choice import Choice, Price, Pricing, default_choice, is_default
from graphrl.xla.checkpoint.solvers.goal import SAME, Goal, Solution, search_timed
from graphrl.xla.checkpoint.solvers.level import KEPT, RECOMPUTED, Gradient

MOST = 10_000  # most values in a report
POINTS = 400  # most points of a timeline
CLEARLY = 0.98  # "clearly less": below this share of a peak, since predictions are not exact to the byte
LEAST = 0.3  # least share of the seconds for the search, however long the work before it took
AFTER = 0.06  # share of the seconds that the report takes
LAST = 0.1  # share of the seconds by which a search's last measurement may take longer than those before it
TRIES = 4  # most plans that are compiled for one limit of bytes, in addition to a regular one
UNUSED = 0.05  # share of a limit that may be left unused
BINDING = 0.75  # share of a limit: a plan that needs less was not limited by it, so a higher limit gains nothing
MARGIN = 0.01  # share of a limit by which the next search stays below it, after correction for the last one's error
MAYBE = 1.25  # multiple of XLA's bytes for a plan: another plan that is predicted to need more is not compiled
LEAST_LIMIT = 1.02  # limit of the next search, as a multiple of the least bytes that a search found
T = TypeVar("T")


class Result(NamedTuple):
    """A choice that a search found, and the report on it."""

    choice: Choice
    report: CheckpointReport


SearchFunction = Callable[[Goal], Result]


def search(
    name: str,
    reportable: ReportableGradient,
    pricing: Pricing,
    settings: Settings,
    begin: float,
    seconds_of: Callable[[Choice], float] | None = None,
    goal: Goal | None = None,
) -> Result:
    """Searches for the best choice within the limit.

    Args:
      name: name of the differentiated function.
      reportable: the gradient.
      pricing: pricing of the gradient.
      settings: the user's settings.
      begin: start of the work on the gradient, by `time.monotonic`: the time since then counts in the seconds.
      seconds_of: estimates the run time of the gradient under a choice in seconds, more exactly than the pricing. If
        given, limits of time and the report use it, and slowdowns (the pricing's too) are relative to its value for
        jax's default.
      goal: the limit to meet; by default that of the settings.

    Raises:
      UnmetError: the limit cannot be met; one line states the least bytes for which a plan was found.
    """
    goal = goal or settings.goal(pricing)
    timed = cached(seconds_of) if seconds_of else functools.partial(_priced_seconds, pricing, goal)
    once = time.monotonic() - begin  # a gradient was traced: a measurement takes that long
    step = pricing.step_seconds = timed(default_choice(reportable.gradient))
    is_timed = goal.slowdown is not None and seconds_of is not None
    # other searches do not measure their choices: that is done after their time
    reserved = AFTER * settings.seconds + (LAST * settings.seconds if is_timed else once)
    left = settings.seconds - reserved - (time.monotonic() - begin)

    def slowdown(choice: Choice) -> float:
        return timed(choice) / max(step, 1e-30) - 1.0

    solver = find_solver(settings.method)
    limited = functools.partial(search_timed, solver, measured=slowdown, once=once) if is_timed else solver
    seconds = max(LEAST * settings.seconds, left)
    solution = _solve(limited, pricing, goal, slowdown if is_timed else None, seed=settings.seed, seconds=seconds)
    if goal.slowdown is None and goal.excess(pricing, solution.price) > SAME:
        least = None if goal.peak is None else solution.price.peak
        raise UnmetError(_unmet_message(settings, goal, pricing, solution.price), least)
    if goal.slowdown is not None and goal.slowdown < min(0.0, slowdown(solution.choice) - 1e-6):
        raise UnmetError(f"slowdown is {settings.slowdown}: no plan was found that saves this part of jax's own time")
    step_times = step, timed(solution.choice)
    return Result(solution.choice, _report(name, reportable, solution, pricing, step_times, settings, begin))


def unplanned(name: str, reportable: ReportableGradient, pricing: Pricing, settings: Settings, begin: float) -> Result:
    """Reports on the gradient without a plan, as `search` does, which must have set `pricing.step_seconds` before."""
    choice, step = default_choice(reportable.gradient), pricing.step_seconds
    solution = Solution(choice, pricing(choice), 0.0, 1)
    return Result(choice, _report(name, reportable, solution, pricing, (step, step), settings, begin))


def cached(measure: Callable[[Choice], T]) -> Callable[[Choice], T]:
    """Caches the results of `measure` by choice."""
    results: dict[tuple[bytes, ...], T] = {}

    def measured(choice: Choice) -> T:
        key = tuple(np.asarray(part).tobytes() for cut in choice for part in cut)
        if key not in results:
            results[key] = measure(choice)
        return results[key]

    return measured


def _solve(
    search: Callable[..., Solution],
    pricing: Pricing,
    goal: Goal,
    measured: Callable[[Choice], float] | None,
    *,
    seed: int,
    seconds: float,
) -> Solution:
    """Runs a search, and a second one with moves to the host if the goal allows them; returns the better solution.

    The search without moves is first, in half of the seconds. For a limit of time, the choice with moves must need
    clearly less memory to be taken. For limits of bytes, it must have the lower rank. Without `measured` (the measured
    slowdown of a choice), it is also taken if it exceeds the limit by less.
    """
    if not goal.moves:
        return search(pricing, goal, seed=seed, seconds=seconds)
    begin = time.monotonic()
    unmoved = search(pricing, dataclasses.replace(goal, moves=False), seed=seed, seconds=seconds / 2)
    if measured is not None:  # the two measures differ there by about as much as here
        ahead = goal.slowdown_of(pricing, unmoved.price) - measured(unmoved.choice)
        search = functools.partial(search, ahead=min(ahead, 0.0), start=unmoved)
    left = seconds - (time.monotonic() - begin)
    solution = search(pricing, goal, seed=seed, seconds=max(left, LEAST * seconds))
    over = goal.excess(pricing, unmoved.price), goal.excess(pricing, solution.price)
    saves = solution.rank < unmoved.rank
    if goal.slowdown is not None:
        saves = solution.price.peak < CLEARLY * unmoved.price.peak
    better = solution if saves or (measured is None and over[1] < over[0]) else unmoved
    return better._replace(bound=None)  # the bound holds for choices without moves only


def _priced_seconds(pricing: Pricing, goal: Goal, choice: Choice) -> float:
    return pricing.step_seconds * (1.0 + goal.slowdown_of(pricing, pricing(choice)))


def _unmet_message(settings: Settings, goal: Goal, pricing: Pricing, least: Price) -> str:
    """Returns the message for a limit that cannot be met; `least` is the price of the best choice found."""
    plain = pricing.plain
    if goal.kept is not None:
        part = least.kept / max(plain.kept, 1.0)
        return (
            f"budget is {settings.budget}: the least found is {part:.3f} of the {format_bytes(plain.kept)} kept by jax"
        )
    return above_budget(settings, pricing, least.peak)


def above_budget(settings: Settings, pricing: Pricing, least: float) -> str:
    """Returns the message for a budget below `least`: the fewest bytes found, without arguments, results, gradients."""
    outside = pricing.gradient.argument_bytes + pricing.gradient.result_bytes
    return (
        f"budget is {settings.budget}: the least found is {format_bytes(outside + least)} "
        f"({outside + least:,.0f} bytes), of which arguments, results and gradients are {format_bytes(outside)}"
    )


def _report(
    name: str,
    reportable: ReportableGradient,
    solution: Solution,
    pricing: Pricing,
    seconds: tuple[float, float],
    settings: Settings,
    begin: float,
) -> CheckpointReport:
    """Reports on jax's default and on the choice found; `seconds` has the run times of a step under both."""
    gradient = reportable.gradient
    figures, timelines = [], []
    for choice, step in zip((default_choice(gradient), solution.choice), seconds, strict=True):
        price = pricing(choice)
        forward, backward = pricing.timeline()
        timelines.append((_thinned(forward), _thinned(backward)))
        figures.append(Figures(price.kept, price.moved, price.peak, step))
    return CheckpointReport(
        function=name,
        chip=settings.resolved_chip.name,
        plain=figures[0],
        planned=figures[1],
        argument_bytes=gradient.argument_bytes,
        result_bytes=gradient.result_bytes,
        segments=sum(int(cut.recomputed.sum()) for cut in solution.choice),
        values=reported_values(reportable, solution.choice, pricing),
        stretches=reported_stretches(reportable, solution.choice),
        timelines=tuple(timelines),
        search_seconds=time.monotonic() - begin,
        above_least=_above_least(pricing, solution) if settings.slowdown is None else None,
    )


def reported_values(reportable: ReportableGradient, choice: Choice, pricing: Pricing) -> tuple[ReportedValue, ...]:
    """Lists named values that are kept, moved or recomputed, sorted by kind and size, largest first; at most `MOST`."""
    pricing(choice)
    values = []
    for number, level in enumerate(reportable.gradient.levels):
        stored, recomputed = pricing.stored(number), pricing.recomputed_values(number)
        trips, at_once = reportable.gradient.trips(number), _at_once(reportable.gradient, choice, number)
        for v in np.flatnonzero((stored != RECOMPUTED) | (recomputed & level.materialized)).tolist():
            origin = reportable.origin(number, v)
            if origin is None:
                continue
            what = report.RECOMPUTED if stored[v] == RECOMPUTED else report.KEPT if stored[v] == KEPT else report.MOVED
            size = int(level.bytes[v]) * (at_once if stored[v] == KEPT else trips)
            seconds = float(level.seconds[v]) * trips
            values.append(ReportedValue(what, origin.value, size, seconds, origin.line, origin.place))
    order = list(report.HEADINGS)
    values.sort(key=lambda value: (order.index(value.what), -value.bytes))
    return tuple(values[:MOST])


def reported_stretches(reportable: ReportableGradient, choice: Choice) -> tuple[ReportedStretch, ...]:
    """Lists the loops that run in stretches, in the order of the function."""
    stretches = []
    for outer, loops in enumerate(reportable.gradient.loops):
        for number, loop in loops.items():
            steps, trips = choice[number].stretch, reportable.gradient.levels[number].trips
            origins = [origin for v in loop.outputs if (origin := reportable.origin(outer, v)) is not None]
            if steps > 1 and origins:
                where = origins[0]
                stretches.append(ReportedStretch(trips, steps, loop.is_unrolled(steps), where.line, where.place))
    return tuple(sorted(stretches, key=lambda loop: loop.place))


def _at_once(gradient: Gradient, choice: Choice, number: int) -> int:
    """Returns the number of loop steps whose kept values, in level `number`, are in memory at the same time."""
    steps = choice[number].stretch if choice[number].stretch > 1 else max(1, gradient.levels[number].trips)
    around = [outer for outer, loops in enumerate(gradient.loops) if number in loops]
    return steps * (_at_once(gradient, choice, around[0]) if around else 1)


def _above_least(pricing: Pricing, solution: Solution) -> float | None:
    if solution.bound is None:
        return None
    passes = pricing.pass_seconds
    return max(0.0, (passes + solution.price.seconds) / max(passes + solution.bound, 1e-30) - 1.0)


def _thinned(line: np.ndarray) -> tuple[float, ...]:
    """Downsamples a line to at most `POINTS` points, the largest of each part."""
    if len(line) <= POINTS:
        return tuple(line.tolist())
    return tuple(float(part.max()) for part in np.array_split(line, POINTS))


def compiled_bytes(program: Program, wanted: Sequence[bool], plan: CheckpointPlan, settings: Settings) -> int:
    """Compiles the gradient under a plan, and returns the bytes that XLA reports for it, on one device.

    Arguments, results and gradients are not included. Cotangents of results that are arrays are, as in all predictions.

    Args:
      program: the program to differentiate.
      wanted: for each argument, whether to differentiate by it.
      plan: the plan to follow.
      settings: the user's settings; `verify` is how to compile.

    Raises:
      GraphrlError: XLA does not compile the gradient alone, it uses several devices that no `in_shardings` describe, or
        the backend does not report memory.
      ProblemError: the compiler does not return a `jax.stages.Compiled`.
    """
    jaxpr, _ = gradient_jaxpr(program, wanted, functools.partial(evaluate, program, plan))
    arguments, results = split_gradient(program, wanted)
    sharding = (lambda spec: None) if program.shards is None else settings.shardings(program.shards.layout)
    shapes = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding(spec))
        for aval, spec in zip(jaxpr.in_avals, arguments, strict=True)
    ]

    def gradient(*args: Any) -> list[Any]:
        outputs = zip(core.jaxpr_as_fun(jaxpr)(*args), map(sharding, results), strict=True)
        return [out if split is None else jax.lax.with_sharding_constraint(out, split) for out, split in outputs]

    assert settings.compiler is not None
    memory, devices = compiled_memory(settings.compiler, "the gradient alone", gradient, shapes)
    if devices > 1 and program.shards is None:
        raise GraphrlError(f"verify: the gradient uses {devices} devices: give in_shardings=, or plan without verify")
    cotangents = list(zip(jaxpr.in_avals, shapes, strict=True))[len(program.closed.in_avals) :]
    return int(memory.temp_size_in_bytes) + sum(_device_bytes(aval, shape.sharding) for aval, shape in cotangents)


def _device_bytes(aval: Any, sharding: Any) -> int:
    """Returns the bytes of one device's part of an array; 0 for a scalar."""
    part = aval if sharding is None else aval.update(shape=sharding.shard_shape(aval.shape))
    return array_bytes(part) if aval.ndim else 0


def verified(
    search: SearchFunction,
    regular: SearchFunction,
    unplanned: Callable[[], Result],
    goal: Goal,
    needed: Callable[[Choice], int],
    message: Callable[[int], str],
) -> Result:
    """Searches for plans and compiles them; for a limit of bytes, returns the fastest one within it by XLA's figure.

    If no plan is within a limit of bytes, the gradient without a plan is tried, and then the regular plan of least
    memory. For limits of time a regular plan is tried too, and for these and for limits of kept bytes the gradient
    without a plan: it is returned if XLA needs no more memory for it. The reasons: for one of several plans with equal
    predictions XLA may need clearly less memory, often for one that treats all layers alike; and some compilers undo
    the recomputation of a plan. The report of the result has XLA's bytes.

    Args:
      search: returns the plan found for a goal.
      regular: likewise, but tries only plans that treat all layers alike.
      unplanned: returns the gradient without a plan; called after a search.
      goal: the user's limit.
      needed: compiles a choice and returns XLA's bytes, comparable to the goal's.
      message: returns the error message for a limit of bytes, given the least bytes of all plans found.

    Raises:
      UnmetError: no plan found is within the limit.
    """
    if goal.peak is None:
        return _or_unplanned(_or_regular(search, regular, goal, needed), unplanned, goal, needed)
    tries: list[tuple[int, Result]] = []
    limit: float | None = goal.peak
    fault: UnmetError | None = None
    while limit is not None and len(tries) < TRIES:
        try:
            result, is_lowest = or_lowest(search, dataclasses.replace(goal, peak=limit), LEAST_LIMIT)
        except UnmetError as error:
            fault = error
            break
        compiled = needed(result.choice)
        tries.append((compiled, result))
        limit = None if is_lowest and compiled > goal.peak else _next_limit(goal.peak, limit, result, compiled)
    for other in (unplanned, lambda: or_lowest(regular, dataclasses.replace(goal, peak=0.0), 1.0)[0]):
        if all(compiled > goal.peak for compiled, _ in tries):
            with contextlib.suppress(GraphrlError):  # it may not compile, although others did
                result = other()
                tries.append((needed(result.choice), result))
    kept = [(compiled, result) for compiled, result in tries if compiled <= goal.peak]
    if not kept:
        if fault is not None and not tries:
            raise fault
        least = min(compiled for compiled, _ in tries)
        raise UnmetError(message(least), least)
    compiled, result = min(kept, key=lambda each: each[1].report.planned.seconds)
    return _with_compiled(result, compiled, None)  # the bound holds within the predicted bytes, not the compiled ones


def _or_regular(search: SearchFunction, regular: SearchFunction, goal: Goal, needed: Callable[[Choice], int]) -> Result:
    """Returns the plan found; for a limit of time, a regular plan instead if XLA needs clearly less memory for it."""
    result = search(goal)
    compiled, bound = needed(result.choice), result.report.above_least
    if goal.slowdown is not None:
        with contextlib.suppress(GraphrlError):  # no regular plan is that fast, or it may not compile
            other = regular(goal)
            if not is_default(other.choice) and other.report.planned.peak_bytes < MAYBE * compiled:
                others = needed(other.choice)
                if others < CLEARLY * compiled:
                    return _with_compiled(other, others, None)
    return _with_compiled(result, compiled, bound)


def _or_unplanned(result: Result, unplanned: Callable[[], Result], goal: Goal, needed: Callable[..., int]) -> Result:
    """Returns a search's plan, or the gradient without a plan if XLA needs no more memory for it and it is no slower.

    Within a slowdown, the gradient without a plan may be slower if XLA needs less memory for it. It is not compiled if
    time must be saved, or if the model was accurate for the plan and predicts far more memory without one.
    """
    compiled = result.report.compiled_bytes or 0
    predicted, plain = result.report.planned, result.report.plain
    is_accurate = compiled < MAYBE * predicted.peak_bytes and predicted.peak_bytes < MAYBE * compiled
    is_too_slow = goal.slowdown is not None and goal.slowdown < 0
    if is_default(result.choice) or is_too_slow or (is_accurate and plain.peak_bytes > MAYBE * compiled):
        return result
    with contextlib.suppress(GraphrlError):  # it may not compile, although the other did
        other = unplanned()
        others, is_faster = needed(other.choice), plain.seconds <= predicted.seconds
        if others <= compiled and (is_faster or (goal.slowdown is not None and others < compiled)):
            return _with_compiled(other, others, None)
    return result


def _with_compiled(result: Result, compiled: int, above_least: float | None) -> Result:
    """Adds XLA's bytes to the report of a plan."""
    return result._replace(report=dataclasses.replace(result.report, compiled_bytes=compiled, above_least=above_least))


def or_lowest(search: SearchFunction, goal: Goal, part: float) -> tuple[Result, bool]:
    """Searches within the goal; if no plan is predicted to meet it, within `part` times the least bytes predicted.
    Returns the plan, and whether the second search was needed.
    """
    try:
        return search(goal), False
    except UnmetError as error:
        if error.least is None:
            raise
        return search(dataclasses.replace(goal, peak=part * error.least)), True


def _next_limit(limit: float, last_limit: float, result: Result, compiled: int) -> float | None:
    """Returns the limit for the next search, given that XLA needs `compiled` bytes for the plan found with the limit
    `last_limit`; None if another search would gain little.
    """
    predicted = result.report.planned.peak_bytes
    following = (1 - MARGIN) * limit * predicted / max(compiled, 1)
    binds = predicted > BINDING * last_limit and not is_default(result.choice)
    gains = binds and following > (1 + UNUSED) * max(last_limit, predicted)
    return following if gains or compiled > limit else None
