"""Means and intervals of a table."""

import math

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from graphrl.compare.table import estimate


@pytest.mark.parametrize("count", [2, 16])
def test_intervals_are_those_of_students_t_however_many_values_there_are(count: int) -> None:
    values = np.random.default_rng(count).normal(0.1, 0.05, count)
    low, high = ttest_1samp(values, 0.0).confidence_interval(0.95)
    interval = estimate(values.tolist())
    assert interval.half is not None
    assert (interval.mean - interval.half, interval.mean + interval.half) == pytest.approx((low, high))


def test_of_one_value_and_of_none() -> None:
    assert estimate([0.5]) == (0.5, None)
    assert math.isnan(estimate([]).mean)
    assert estimate([0.01, 0.03]).percent(True) == "+2.00% ± 12.71"
