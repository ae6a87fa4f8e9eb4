"""Means with 95% intervals, over seeds or over graphs."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

# two-sided 95% quantiles of Student's t by degrees of freedom, from 1 on
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_NORMAL = 1.960


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
    """Of one value a seed or graph; NaN of none."""
    if not values:
        return Estimate(math.nan, None)
    mean, freedom = math.fsum(values) / len(values), len(values) - 1
    if freedom == 0:
        return Estimate(mean, None)
    quantile = _T[freedom - 1] if freedom <= len(_T) else _NORMAL
    return Estimate(mean, quantile * statistics.stdev(values) / math.sqrt(len(values)))
