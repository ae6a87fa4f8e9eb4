"""Which values a choice keeps, computes again and moves, and where in the user's code they come from."""

from typing import Any

import numpy as np

from graphrl.solvers.budgets.choice import Choice, Pricing
from graphrl.solvers.budgets.price import COMPUTED, KEPT
from graphrl.xla.checkpoint import report
from graphrl.xla.checkpoint.gradient import NamedGradient
from graphrl.xla.checkpoint.report import ReportedValue

MOST = 1_000  # values


def reported_values(named: NamedGradient, choice: Choice, pricing: Pricing) -> tuple[ReportedValue, ...]:
    """By kind and size, largest first: what lies in memory and has a name."""
    pricing(choice)
    values = []
    for number, level in enumerate(named.gradient.levels):
        stored, again = pricing.stored(number), pricing.computed_again(number)
        for v in np.flatnonzero((stored != COMPUTED) | (again & level.solid)).tolist():
            name = named.names[number][v]
            if name is None:
                continue
            eqn = named.programs[number].equations[name[0]]
            what = report.COMPUTED if stored[v] == COMPUTED else report.KEPT if stored[v] == KEPT else report.MOVED
            trips = named.gradient.trips(number)
            size = int(level.bytes[v]) * trips
            seconds = float(level.seconds[v]) * trips
            values.append(ReportedValue(what, eqn.outvars[name[1]].aval.str_short(), size, seconds, line_of(eqn)))
    order = (report.KEPT, report.MOVED, report.COMPUTED)
    values.sort(key=lambda value: (order.index(value.what), -value.bytes))
    return tuple(values[:MOST])


def line_of(eqn: Any) -> str:
    """The line of the user's code that an equation comes from; "" where jax does not say."""
    try:
        from jax._src.source_info_util import summarize
    except ImportError:
        return ""
    return str(summarize(eqn.source_info)).replace("<unknown>", "")
