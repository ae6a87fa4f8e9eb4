"""Seconds of what is compiled at its first call."""

import statistics
import time
from collections.abc import Callable

REPEATS = 5


def median_seconds(work: Callable[[], object]) -> float:
    """Median of `REPEATS` calls, after one that may compile."""
    work()
    return statistics.median(seconds(work) for _ in range(REPEATS))


def seconds(work: Callable[[], object]) -> float:
    """Of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
