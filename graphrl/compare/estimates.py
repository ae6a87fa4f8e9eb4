"""Means with 95% intervals, over seeds or over graphs."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Estimate(NamedTuple):
    """A mean, and half of its 95% interval; None of a single value."""

    mean: float
    half: float | None

    def percent(self, sign: bool = False) -> str:
        """As a table has it; both are fractions."""
        if math.isnan(self.mean):
            return "-"
        text = f"{100 * self.mean:{'+' if sign else ''}.2f}%"
        return text if self.half is None else f"{text} ± {100 * self.half:.2f}"


def estimate(values: Sequence[float]) -> Estimate:
    """Of one value a seed or graph, its interval by Student's t; NaN of none."""
    from scipy.stats import t  # takes a second to import, so only where it is needed

    if not values:
        return Estimate(math.nan, None)
    mean, freedom = math.fsum(values) / len(values), len(values) - 1
    if freedom == 0:
        return Estimate(mean, None)
    return Estimate(mean, float(t.ppf(0.975, freedom)) * statistics.stdev(values) / math.sqrt(len(values)))
