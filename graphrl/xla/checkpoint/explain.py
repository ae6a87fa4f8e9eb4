"""Which values a choice keeps, computes again and moves, and where in the user's code they come from."""

import numpy as np

from graphrl.solvers.budgets.choice import Choice, Pricing
from graphrl.solvers.budgets.price import COMPUTED, KEPT
from graphrl.xla.checkpoint import report
from graphrl.xla.checkpoint.origins import Explained
from graphrl.xla.checkpoint.report import ReportedValue

MOST = 10_000  # values


def reported_values(explained: Explained, choice: Choice, pricing: Pricing) -> tuple[ReportedValue, ...]:
    """By kind and size, largest first: what lies in memory and has a name."""
    pricing(choice)
    values = []
    for number, level in enumerate(explained.gradient.levels):
        stored, again = pricing.stored(number), pricing.computed_again(number)
        trips = explained.gradient.trips(number)
        for v in np.flatnonzero((stored != COMPUTED) | (again & level.solid)).tolist():
            origin = explained.origin(number, v)
            if origin is None:
                continue
            what = report.COMPUTED if stored[v] == COMPUTED else report.KEPT if stored[v] == KEPT else report.MOVED
            size, seconds = int(level.bytes[v]) * trips, float(level.seconds[v]) * trips
            values.append(ReportedValue(what, origin.value, size, seconds, origin.line, origin.place))
    order = (report.KEPT, report.MOVED, report.COMPUTED)
    values.sort(key=lambda value: (order.index(value.what), -value.bytes))
    return tuple(values[:MOST])
