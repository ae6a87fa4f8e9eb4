"""The largest batch of a training step that fits into a limit of memory, by few compilations.

XLA's bytes of a step under one plan are nearly linear in the batch. So plans of least memory are searched for one
batch, near the largest one by the model; the leanest of them by XLA's figure is compiled for other batches, each on the
line through two known ones; and for the largest that fits a faster plan is searched.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping

from graphrl.errors import ProblemError
from graphrl.process import pause_gc
from graphrl.xla.checkpoint.fit_search import NO_GRADIENT, REGULAR, Candidate, FitTry, Found, StepCall, unmet
from graphrl.xla.checkpoint.search import CLEARLY, MARGIN, MAYBE
from graphrl.xla.checkpoint.settings import UnmetError
from graphrl.xla.checkpoint.solvers.choice import Choice, default_choice
from graphrl.xla.checkpoint.steps import Rules

PRECISION = 0.02  # of the largest batch
MOST_GROWTH = 4  # the next size tried, over one that fits, by a line through known sizes
BELOW = 0.25  # share of the precision by which a size stays below one that is too large
BISECTED = 4  # every fourth size is the middle of two known ones, not one on the line
FASTER = 2  # most plans compiled for the largest batch in search of one that is faster than the leanest


@pause_gc()
def find_largest(call: StepCall) -> Found:
    """Searches for the largest batch that fits without microbatches.

    Raises:
      UnmetError: not even one example fits.
      ProblemError: the step takes no gradient.
    """
    begin, parts = time.monotonic(), call.plain.parts
    if not call.plain.losses:
        raise ProblemError(NO_GRADIENT)
    own = max(1, (call.size or 1) // parts)  # examples of one device
    model = _candidate(call, own * parts)
    lowest = model.predicted(model.lowest(REGULAR))
    start = max(1, int(own * max(0, call.limit - call.outside) / max(1.0, lowest)))
    first = _candidate(call, start * parts)
    choice = _leanest(first)
    plans, compiled, stays = first.plans(choice), first.compiled(choice), first.stays(choice)

    @functools.cache
    def leanest(share: int) -> FitTry:
        if share == start:
            return compiled
        other = dataclasses.replace(call, batch=share * parts)
        if stays:
            return other.as_it_is
        return other.compile(other.trace(Rules(plans, shared=other.plain.shared)), 1, compiled.plan)

    share = largest_size(lambda share: leanest(share).bytes, call.limit, start)
    if not share:
        unmet(call, leanest(1).bytes, f"the least found, for a batch of {parts}, is")
    least = best = leanest(share)
    if stays:
        return Found(dataclasses.replace(call, batch=share * parts), 1, (), 0, (best,), time.monotonic() - begin)
    last = first if share == start else _candidate(call, share * parts)
    faster = _faster(last, best.seconds, first.error(choice))
    plain = last.unplanned()
    if faster is not None:
        best, plans = last.compiled(faster), last.plans(faster)
        if last.stays(faster):
            plain, plans = best, ()
    tries = tuple(dict.fromkeys((plain, least, *last.tries)))
    return Found(last.call, 1, plans, tries.index(best), tries, time.monotonic() - begin)


def largest_size(needed: Callable[[int], float], limit: float, start: int, precision: float = PRECISION) -> int:
    """Searches for the largest size that needs at most `limit`; returns 0 if not even 1 does.

    A size larger by the share `precision`, or by 1 if that is more, needs more. The next size tried is on the line
    through the two known ones that are nearest to the limit, or if that is too large, through the largest that fits and
    the smallest that does not. Few are tried if needs are nearly linear in the size.

    Args:
      needed: returns the need of a size, such as bytes; 0 or infinite if only known to be within or above the limit.
      limit: the limit.
      start: the first size to try.
      precision: relative precision of the result.
    """
    known, part, guess, low = dict[int, float](), precision, start, 0
    high: int | None = None
    while high is None or high > low + _size_step(low, precision):
        known[guess] = needed(guess)
        low, high = (guess, high) if known[guess] <= limit else (low, guess)
        on_line = _size_on_line(known, limit)
        if low and high is not None and on_line is not None and on_line >= high:  # needs jump between these two
            on_line = _size_on_line({size: known[size] for size in (low, high)}, limit)
        if on_line is not None and len(known) % BISECTED:
            guess = _near(on_line, low, high, precision)
        elif high is None:
            guess = low + _size_step(low, part)
        else:
            guess = (low + high) // 2 if low else max(1, min(high - 1, math.ceil(high / (1 + part))))
        part *= 2
    return low


def _size_step(size: int, precision: float) -> int:
    return max(1, int(size * precision))


def _size_on_line(known: Mapping[int, float], limit: float) -> float | None:
    """Returns the size that needs the limit, by a line through the two known sizes nearest to it, or through one and
    the origin; None without.
    """
    points = [(abs(need - limit), size, need) for size, need in known.items() if 0 < need < math.inf]
    (_, size, need), (_, other, others) = (*sorted(points)[:2], *2 * [(0.0, 0, 0.0)])[:2]
    rise = (size - other) * (need - others)
    return size + (limit - need) * (size - other) / (need - others) if rise > 0 else None


def _near(size: float, low: int, high: int | None, precision: float) -> int:
    """Returns the size to try between two known ones, of which the upper may be None, given the size expected to need
    the limit. If that is within the precision of the lower one, it is the size that shows it; if it is near the upper
    one, a slightly smaller size, which more often fits.
    """
    least = low + _size_step(low, precision)
    if high is None:
        return max(least, int(min(size, MOST_GROWTH * low)))
    return min(max(least if low else 1, min(int(size), math.ceil(high / (1 + BELOW * precision)))), high - 1)


def _candidate(call: StepCall, batch: int) -> Candidate:
    return Candidate(dataclasses.replace(call, batch=batch), 1, call.settings.offload)


def _leanest(candidate: Candidate) -> Choice:
    """Returns the choice of least memory by XLA's figure, of a few of little memory by the model.

    These are alike layers in few segments, in any number, and the choice of the settings' method. One is compiled if
    clearly less is predicted for it than the least so far, corrected by the greatest error so far, and taken if it
    needs clearly less. The step as it is, is compiled if the model is wrong about the choice, or predicts little gain.
    """
    lowest = candidate.lowest(REGULAR)
    choice = candidate.simplest(MAYBE * candidate.predicted(lowest))
    worst = max(1.0, candidate.error(choice))
    for method in (REGULAR, candidate.call.settings.method):
        other, most = candidate.lowest(method), CLEARLY * candidate.temporaries(choice)
        if worst * candidate.predicted(other) < most:
            worst = max(worst, candidate.error(other))
            choice = other if candidate.temporaries(other) < most else choice
    plain = default_choice(candidate.planner.pricing.gradient)
    is_accurate = 1 / MAYBE < candidate.error(choice) < MAYBE
    if is_accurate and candidate.predicted(plain) > MAYBE * candidate.predicted(choice):
        return choice
    return min((plain, choice), key=lambda each: candidate.compiled(each).bytes)


def _faster(candidate: Candidate, seconds: float, error: float) -> Choice | None:
    """Returns a choice for which the whole step takes less than `seconds`, and fits by XLA's figure; None without.
    `error` is XLA's bytes of temporaries over those predicted.
    """
    for _ in range(FASTER):
        try:
            choice = candidate.within((1 - MARGIN) * candidate.room / error)
        except UnmetError:
            return None
        if candidate.seconds_of(choice) >= seconds:
            return None
        if candidate.compiled(choice).bytes <= candidate.call.limit:
            return choice
        error = candidate.error(choice)
    return None
