"""Which values a choice keeps, computes again and moves, how it runs loops, and where in the user's code they are."""

import numpy as np

from graphrl.solvers.budgets.choice import Choice, Pricing
from graphrl.solvers.budgets.level import Gradient
from graphrl.solvers.budgets.work import COMPUTED, KEPT
from graphrl.xla.checkpoint import report
from graphrl.xla.checkpoint.origins import Explained
from graphrl.xla.checkpoint.report import ReportedStretch, ReportedValue

MOST = 10_000  # values


def reported_values(explained: Explained, choice: Choice, pricing: Pricing) -> tuple[ReportedValue, ...]:
    """By kind and size, largest first: what lies in memory and has a name."""
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
    """Loops in stretches, in the order of the function."""
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
    """How often what is kept of a level is there at the same time."""
    steps = choice[number].stretch if choice[number].stretch > 1 else max(1, gradient.levels[number].trips)
    around = [outer for outer, loops in enumerate(gradient.loops) if number in loops]
    return steps * (_at_once(gradient, choice, around[0]) if around else 1)
