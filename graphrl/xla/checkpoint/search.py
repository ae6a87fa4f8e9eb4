"""Search for the choice within a user's limit, checked by what XLA compiles.

`search` runs a solver on a gradient and returns its best choice within the limit, by the solver's prices or, for limits
of time, as measured on the traced gradient. Its report puts the choice into the user's terms: which values are kept,
computed again and moved, the lines of code that they come from, and which loops run in stretches.

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

from graphrl.errors import GraphrlError, ProblemError
from graphrl.graphs.readers.jaxpr.work import array_bytes
from graphrl.units import format_bytes
from graphrl.xla.checkpoint import report
from graphrl.xla.checkpoint.derivative import gradient_jaxpr
from graphrl.xla.checkpoint.gradient import Explained
from graphrl.xla.checkpoint.program import CheckpointPlan, Program
from graphrl.xla.checkpoint.report import CheckpointReport, Figures, ReportedStretch, ReportedValue
from graphrl.xla.checkpoint.rewrite import evaluate
from graphrl.xla.checkpoint.settings import Compiler, Settings, UnmetError
from graphrl.xla.checkpoint.solvers.auto import find_solver
from graphrl.xla.checkpoint.solvers.choice import Choice, Price, Pricing, is_untouched, untouched
from graphrl.xla.checkpoint.solvers.goal import SAME, Found, Goal, search_timed
from graphrl.xla.checkpoint.solvers.level import COMPUTED, KEPT, Gradient

MOST = 10_000  # values
POINTS = 400  # of a timeline
CLEARLY = 0.98  # part of a peak: predictions are not exact to the byte
LEAST = 0.3  # part of the seconds that is left for the search, however long the work before it took
AFTER = 0.06  # part of the seconds that the report takes
LAST = 0.1  # part of the seconds by which a search's last measurement may take longer than those before it
LATE = 0.35  # part of the seconds that a search may take longer while no choice is within the limit
TRIES = 4  # plans that are compiled for one limit of bytes, in addition to a regular one
UNUSED = 0.05  # part of a limit that may be left
BINDING = 0.75  # part of a limit: a plan of less than that is faster than all that need more
SPARE = 0.01  # part of a limit by which the next search stays below it, after correction for the last one's error
MAYBE = 1.25  # of XLA's bytes for a plan: another plan that is predicted to need more is not compiled
LEAST_ASKED = 1.02  # limit of the next search, as a multiple of the least bytes that a search found
T = TypeVar("T")


class Searched(NamedTuple):
    """A choice and its report."""

    choice: Choice
    report: CheckpointReport


Searching = Callable[[Goal], Searched]


def search(
    name: str,
    explained: Explained,
    pricing: Pricing,
    settings: Settings,
    begin: float,
    seconds_of: Callable[[Choice], float] | None = None,
    goal: Goal | None = None,
) -> Searched:
    """The best choice that a solver finds within the limit.

    Args:
      name: name of the function that the gradient is of.
      explained: the gradient.
      pricing: pricing of the gradient.
      settings: the user's settings.
      begin: start of the work on the gradient, by `time.monotonic`: the time since then counts in the seconds.
      seconds_of: seconds of the gradient under a choice, more exact than the pricing's. If given, it counts for limits
        of time and in the report; shares of a step, the pricing's too, then refer to its untouched gradient.
      goal: instead of that of the settings.

    Raises:
      UnmetError: the limit cannot be met; one line states the least bytes that can.
    """
    goal = goal or settings.goal(pricing)
    timed = measured_once(seconds_of) if seconds_of else functools.partial(_priced_seconds, pricing, goal)
    once = time.monotonic() - begin  # a gradient was traced: a measurement takes that long
    step = pricing.step_seconds = timed(untouched(explained.gradient))
    is_timed = goal.slowdown is not None and seconds_of is not None
    # other searches do not measure their choices: that is done after their time
    reserved = AFTER * settings.seconds + (LAST * settings.seconds if is_timed else once)
    left = settings.seconds - reserved - (time.monotonic() - begin)

    def slowdown(choice: Choice) -> float:
        return timed(choice) / max(step, 1e-30) - 1.0

    solver = find_solver(settings.method)
    late = LATE * settings.seconds
    limited = functools.partial(search_timed, solver, measured=slowdown, once=once, late=late) if is_timed else solver
    seconds = max(LEAST * settings.seconds, left)
    found = _found(limited, pricing, goal, slowdown if is_timed else None, seed=settings.seed, seconds=seconds)
    if goal.slowdown is None and goal.excess(pricing, found.price) > SAME:
        least = None if goal.peak is None else found.price.peak
        raise UnmetError(_unmet(settings, goal, pricing, found.price), least)
    if goal.slowdown is not None and goal.slowdown < min(0.0, slowdown(found.choice) - 1e-6):
        raise UnmetError(f"slowdown is {settings.slowdown}: no plan was found that is so much faster than jax's own")
    both = step, timed(found.choice)
    return Searched(found.choice, _report(name, explained, found, pricing, both, settings, begin))


def alone(name: str, explained: Explained, pricing: Pricing, settings: Settings, begin: float) -> Searched:
    """The gradient without a plan, reported as by a search. A search must have set `pricing.step_seconds` before."""
    choice, step = untouched(explained.gradient), pricing.step_seconds
    found = Found(choice, pricing(choice), 0.0, 1)
    return Searched(choice, _report(name, explained, found, pricing, (step, step), settings, begin))


def measured_once(measure: Callable[[Choice], T]) -> Callable[[Choice], T]:
    """Caches the results of `measure` by choice."""
    known: dict[tuple[bytes, ...], T] = {}

    def measured(choice: Choice) -> T:
        key = tuple(np.asarray(part).tobytes() for cut in choice for part in cut)
        if key not in known:
            known[key] = measure(choice)
        return known[key]

    return measured


def _found(
    search: Callable[..., Found],
    pricing: Pricing,
    goal: Goal,
    measured: Callable[[Choice], float] | None,
    *,
    seed: int,
    seconds: float,
) -> Found:
    """A search's choice within the limit, as `measured` or else as priced.

    If values may be moved, the best choice without moves is searched for first, in half of the seconds. For a limit of
    time, the choice with moves must need clearly less memory than that one. For limits of bytes, it must have the lower
    rank. It is also taken if it exceeds the limit by less and is not measured.
    """
    if not goal.moves:
        return search(pricing, goal, seed=seed, seconds=seconds)
    begin = time.monotonic()
    still = search(pricing, dataclasses.replace(goal, moves=False), seed=seed, seconds=seconds / 2)
    if measured is not None:  # the two measures differ there by about as much as here
        ahead = goal.slowdown_of(pricing, still.price) - measured(still.choice)
        search = functools.partial(search, ahead=min(ahead, 0.0), begun=still)
    left = seconds - (time.monotonic() - begin)
    found = search(pricing, goal, seed=seed, seconds=max(left, LEAST * seconds))
    over = goal.excess(pricing, still.price), goal.excess(pricing, found.price)
    saves = found.price.peak < CLEARLY * still.price.peak if goal.slowdown is not None else found.rank < still.rank
    better = found if saves or (measured is None and over[1] < over[0]) else still
    return better._replace(bound=None)  # the bound holds for choices without moves only


def _priced_seconds(pricing: Pricing, goal: Goal, choice: Choice) -> float:
    return pricing.step_seconds * (1.0 + goal.slowdown_of(pricing, pricing(choice)))


def _unmet(settings: Settings, goal: Goal, pricing: Pricing, least: Price) -> str:
    """Message for a limit that cannot be met."""
    plain = pricing.plain
    if goal.kept is not None:
        part = least.kept / max(plain.kept, 1.0)
        return (
            f"budget is {settings.budget}: the least found is {part:.3f} of the {format_bytes(plain.kept)} kept by jax"
        )
    return above_budget(settings, pricing, least.peak)


def above_budget(settings: Settings, pricing: Pricing, least: float) -> str:
    """Message for a budget of bytes below the least found; `least` excludes arguments, results and gradients."""
    outside = pricing.gradient.argument_bytes + pricing.gradient.result_bytes
    return (
        f"budget is {settings.budget}: the least found is {format_bytes(outside + least)} "
        f"({outside + least:,.0f} bytes), of which arguments, results and gradients are {format_bytes(outside)}"
    )


def _report(
    name: str,
    explained: Explained,
    found: Found,
    pricing: Pricing,
    seconds: tuple[float, float],
    settings: Settings,
    begin: float,
) -> CheckpointReport:
    """Report on jax's default and on the choice found, whose steps take the two `seconds`."""
    gradient = explained.gradient
    figures, timelines = [], []
    for choice, step in zip((untouched(gradient), found.choice), seconds, strict=True):
        price = pricing(choice)
        forward, backward = pricing.timeline()
        timelines.append((_thinned(forward), _thinned(backward)))
        figures.append(Figures(price.kept, price.moved, price.peak, step))
    return CheckpointReport(
        function=name,
        chip=settings.figures.name,
        plain=figures[0],
        planned=figures[1],
        argument_bytes=gradient.argument_bytes,
        result_bytes=gradient.result_bytes,
        segments=sum(int(cut.again.sum()) for cut in found.choice),
        values=reported_values(explained, found.choice, pricing),
        stretches=reported_stretches(explained, found.choice),
        timelines=tuple(timelines),
        search_seconds=time.monotonic() - begin,
        above_least=_above_least(pricing, found) if settings.slowdown is None else None,
    )


def reported_values(explained: Explained, choice: Choice, pricing: Pricing) -> tuple[ReportedValue, ...]:
    """Named values in memory or computed again, by kind and size, largest first; at most `MOST`."""
    pricing(choice)
    values = []
    for number, level in enumerate(explained.gradient.levels):
        stored, again = pricing.stored(number), pricing.computed_again(number)
        trips, at_once = explained.gradient.trips(number), _at_once(explained.gradient, choice, number)
        for v in np.flatnonzero((stored != COMPUTED) | (again & level.solid)).tolist():
            origin = explained.origin(number, v)
            if origin is None:
                continue
            what = report.COMPUTED if stored[v] == COMPUTED else report.KEPT if stored[v] == KEPT else report.MOVED
            size = int(level.bytes[v]) * (at_once if stored[v] == KEPT else trips)
            seconds = float(level.seconds[v]) * trips
            values.append(ReportedValue(what, origin.value, size, seconds, origin.line, origin.place))
    order = (report.KEPT, report.MOVED, report.COMPUTED)
    values.sort(key=lambda value: (order.index(value.what), -value.bytes))
    return tuple(values[:MOST])


def reported_stretches(explained: Explained, choice: Choice) -> tuple[ReportedStretch, ...]:
    """Loops that run in stretches, in the order of the function."""
    stretches = []
    for outer, loops in enumerate(explained.gradient.loops):
        for number, loop in loops.items():
            steps, trips = choice[number].stretch, explained.gradient.levels[number].trips
            origins = [origin for v in loop.outputs if (origin := explained.origin(outer, v)) is not None]
            if steps > 1 and origins:
                where = origins[0]
                stretches.append(ReportedStretch(trips, steps, loop.is_unrolled(steps), where.line, where.place))
    return tuple(sorted(stretches, key=lambda loop: loop.place))


def _at_once(gradient: Gradient, choice: Choice, number: int) -> int:
    """Number of copies of a level's kept values that are in memory at the same time."""
    steps = choice[number].stretch if choice[number].stretch > 1 else max(1, gradient.levels[number].trips)
    around = [outer for outer, loops in enumerate(gradient.loops) if number in loops]
    return steps * (_at_once(gradient, choice, around[0]) if around else 1)


def _above_least(pricing: Pricing, found: Found) -> float | None:
    if found.bound is None:
        return None
    return max(0.0, (pricing.pass_seconds + found.price.seconds) / max(pricing.pass_seconds + found.bound, 1e-30) - 1.0)


def _thinned(line: np.ndarray) -> tuple[float, ...]:
    """A line of at most `POINTS` points, the largest of each stretch."""
    if len(line) <= POINTS:
        return tuple(line.tolist())
    return tuple(float(part.max()) for part in np.array_split(line, POINTS))


def compiled_bytes(program: Program, wanted: Sequence[bool], plan: CheckpointPlan, compiler: Compiler) -> int:
    """Bytes that XLA reports for the gradient under a plan, without arguments, results and gradients.

    Cotangents of results that are arrays are included, as in all predictions.

    Args:
      program: the program to differentiate.
      wanted: for each argument, whether to differentiate by it.
      plan: the plan to follow.
      compiler: compiles gradients.

    Raises:
      GraphrlError: XLA does not compile the gradient alone, the gradient takes several devices, or the backend does not
        report memory.
      ProblemError: the compiler does not return a `jax.stages.Compiled`.
    """
    jaxpr, _ = gradient_jaxpr(program, wanted, functools.partial(evaluate, program, plan))
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in jaxpr.in_avals]

    def gradient(*args: Any) -> list[Any]:
        return core.jaxpr_as_fun(jaxpr)(*args)

    try:
        compiled = compiler(gradient, *shapes)
    except Exception as error:  # jax raises many types, some without a message
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200].rstrip(" :")
        fault = f"verify: XLA does not compile the gradient by itself (plan without verify): {reason}"
        raise GraphrlError(fault) from error
    if not hasattr(compiled, "memory_analysis"):
        raise ProblemError(f"verify gave a {type(compiled).__name__}: must be a jax.stages.Compiled")
    shardings = jax.tree.leaves(getattr(compiled, "input_shardings", ()))
    devices = max((sharding.num_devices for sharding in shardings), default=1)
    if devices > 1:
        raise GraphrlError(f"verify: the gradient takes {devices} devices, and budgets are of one: plan without verify")
    memory = compiled.memory_analysis()
    if memory is None:
        raise GraphrlError("verify: this backend does not say what a compiled function needs")
    cotangents = jaxpr.in_avals[len(program.closed.in_avals) :]
    return int(memory.temp_size_in_bytes) + sum(array_bytes(aval) for aval in cotangents if aval.ndim)


def verified(
    search: Searching,
    regular: Searching,
    alone: Callable[[], Searched],
    goal: Goal,
    needed: Callable[[Choice], int],
    unmet: Callable[[int], str],
) -> Searched:
    """A search's plan with XLA's figure in its report; for a limit of bytes, the fastest plan within it by that figure.

    If no plan is within a limit of bytes, the gradient without a plan is tried, and then the regular plan of least
    memory. For limits of time a regular plan is tried too, and for these and for limits of kept bytes the gradient
    without a plan: it is returned if XLA needs no more memory for it. Of plans with equal predictions, XLA may need
    clearly less memory for one, and a rule for each layer gives such a plan. Some compilers undo the recomputation of a
    plan.

    Args:
      search: returns the plan found for a goal.
      regular: likewise, but tries only plans that treat all layers alike.
      alone: gives the gradient without a plan; called after a search.
      goal: the user's.
      needed: bytes that XLA needs under a choice, counted as the goal's.
      unmet: the message for a limit of bytes, given the least bytes of all plans found, which exceed it.

    Raises:
      UnmetError: no plan found is within the limit.
    """
    if goal.peak is None:
        return _or_alone(_lower(search, regular, goal, needed), alone, goal, needed)
    tries: list[tuple[int, Searched]] = []
    asked: float | None = goal.peak
    fault: UnmetError | None = None
    while asked is not None and len(tries) < TRIES:
        try:
            found, is_lowest = _or_lowest(search, dataclasses.replace(goal, peak=asked), LEAST_ASKED)
        except UnmetError as error:
            fault = error
            break
        own = needed(found.choice)
        tries.append((own, found))
        asked = None if is_lowest and own > goal.peak else _next(goal.peak, asked, found, own)
    for other in (alone, lambda: _or_lowest(regular, dataclasses.replace(goal, peak=0.0), 1.0)[0]):
        if all(own > goal.peak for own, _ in tries):
            with contextlib.suppress(GraphrlError):  # it may not compile, although others did
                found = other()
                tries.append((needed(found.choice), found))
    kept = [(own, found) for own, found in tries if own <= goal.peak]
    if not kept:
        if fault is not None and not tries:
            raise fault
        least = min(own for own, _ in tries)
        raise UnmetError(unmet(least), least)
    own, found = min(kept, key=lambda each: each[1].report.planned.seconds)
    return _with_compiled(found, own, None)  # the bound holds within the predicted bytes, not the compiled ones


def _lower(search: Searching, regular: Searching, goal: Goal, needed: Callable[[Choice], int]) -> Searched:
    """The plan found or, for a limit of time, a regular plan if XLA needs clearly less memory for that."""
    found = search(goal)
    own, bound = needed(found.choice), found.report.above_least
    if goal.slowdown is not None:
        with contextlib.suppress(GraphrlError):  # no regular plan is that fast, or it may not compile
            other = regular(goal)
            if not is_untouched(other.choice) and other.report.planned.peak_bytes < MAYBE * own:
                others = needed(other.choice)
                if others < CLEARLY * own:
                    return _with_compiled(other, others, None)
    return _with_compiled(found, own, bound)


def _or_alone(found: Searched, alone: Callable[[], Searched], goal: Goal, needed: Callable[[Choice], int]) -> Searched:
    """A search's plan, or the gradient without a plan if XLA needs no more memory for it and it is no slower.

    Within a slowdown, the gradient without a plan may be slower if XLA needs less memory for it. It is not tried if
    time must be saved, or if an accurate model predicts far more memory for it.
    """
    own = found.report.compiled_bytes or 0
    foretold, plain = found.report.planned, found.report.plain
    is_as_foretold = own < MAYBE * foretold.peak_bytes and foretold.peak_bytes < MAYBE * own
    is_too_slow = goal.slowdown is not None and goal.slowdown < 0
    if is_untouched(found.choice) or is_too_slow or (is_as_foretold and plain.peak_bytes > MAYBE * own):
        return found
    with contextlib.suppress(GraphrlError):  # it may not compile, although the other did
        other = alone()
        others, is_faster = needed(other.choice), plain.seconds <= foretold.seconds
        if others <= own and (is_faster or (goal.slowdown is not None and others < own)):
            return _with_compiled(other, others, None)
    return found


def _with_compiled(found: Searched, own: int, above_least: float | None) -> Searched:
    """The same plan, with XLA's bytes in its report."""
    return found._replace(report=dataclasses.replace(found.report, compiled_bytes=own, above_least=above_least))


def _or_lowest(search: Searching, goal: Goal, part: float) -> tuple[Searched, bool]:
    """The plan found, and False; if no plan is predicted to meet the goal, a plan within `part` times the least bytes
    predicted, and True.
    """
    try:
        return search(goal), False
    except UnmetError as error:
        if error.least is None:
            raise
        return search(dataclasses.replace(goal, peak=part * error.least)), True


def _next(limit: float, asked: float, found: Searched, own: int) -> float | None:
    """Limit for the next search after XLA needs `own` bytes for the plan found with the limit `asked`; None if a search
    gains little.
    """
    foretold = found.report.planned.peak_bytes
    following = (1 - SPARE) * limit * foretold / max(own, 1)
    binds = foretold > BINDING * asked and not is_untouched(found.choice)
    gains = binds and following > (1 + UNUSED) * max(asked, foretold)
    return following if gains or own > limit else None
