"""The clock and the budget of a search on the host, and its reports to whoever watches."""

import math
import time
from collections.abc import Callable

from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Progress

REPORT_SECONDS = 0.3  # between two reports


class Watch:
    """Runs from its construction.

    Attributes:
      started, end: of the search, as `time.perf_counter` counts; the end may be infinite.
    """

    def __init__(self, budget: Budget, progress: Progress | None) -> None:
        self.started = self._reported = time.perf_counter()
        self.end = self.started + (math.inf if budget.seconds is None else budget.seconds)
        self._evaluations = math.inf if budget.evaluations is None else budget.evaluations
        self._progress = progress

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.perf_counter() - self.started

    def over(self, evaluations: int) -> bool:
        """Whether the budget is spent."""
        return evaluations >= self._evaluations or time.perf_counter() >= self.end

    def report(self, evaluations: int, plan: Callable[[], Plan], value: float) -> None:
        """Calls the progress, if there is one, and if the last call was long enough ago."""
        now = time.perf_counter()
        if self._progress is not None and now - self._reported >= REPORT_SECONDS:
            self._reported = now
            self._progress(evaluations, now - self.started, plan, value)
