"""How long work takes that is compiled at its first call."""

import statistics
import time
from collections.abc import Callable

REPEATS = 5


def median_seconds(work: Callable[[], object]) -> float:
    """Median seconds of `REPEATS` calls, after one that may compile."""
    work()
    return statistics.median(spent(work) for _ in range(REPEATS))


def spent(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
