"""How far a budget is spent, at any step: what a temperature falls with."""

import time

from graphrl.solvers.base import Budget


class Clock:
    """Tells the share of a budget that is spent, and what a step adds to it.

    With evaluations alone it depends on nothing else, so that runs repeat exactly.

    Args:
      budget: of the search.
      evaluations: of one step.
    """

    def __init__(self, budget: Budget, evaluations: int) -> None:
        self._budget = budget
        self._steps = None if budget.evaluations is None else max(1, budget.evaluations // evaluations)
        self._done = 0
        self._deadline = time.perf_counter() + (budget.seconds or 0.0)
        self._first = 0.0  # when the first step was done: it compiles, the temperature falls from there on

    def spend(self, steps: int) -> tuple[float, float]:
        """The share spent before the next `steps` steps, and the share of one of them; both in [0, 1]."""
        now = time.perf_counter()
        if self._done <= 1:
            self._first = now
        shares = [(0.0, 0.0)] if self._steps is None else [(self._done / self._steps, 1 / self._steps)]
        if self._budget.seconds is not None:
            length = max(self._deadline - self._first, 1e-9)
            spent = (now - self._first) / length
            shares.append((spent, spent / max(1, self._done - 1)))
        self._done += steps
        share, step = max(shares)
        return min(1.0, share), min(1.0, step)
