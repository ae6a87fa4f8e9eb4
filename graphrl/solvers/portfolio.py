"""A portfolio: several methods in sequence, as one; each may start from the plans of earlier ones."""

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, NamedTuple

from graphrl.errors import ProblemError
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Interrupted, PlacedOrder, Task
from graphrl.solvers.solver import Solver

ROUNDING = 1e-5  # relative: the device computes values as float32; an exact check follows
SECONDS_ROUNDING = 1e-9  # relative: the makespan bound is shaved by rounding (costs/bounds)


class Stage(NamedTuple):
    """One method of a portfolio."""

    solver: Solver[Any]
    share: float = 1.0  # share of the remaining budget that it may spend
    seconds: float = math.inf  # maximum time
    options: Callable[[list[Plan]], dict[str, Any]] = lambda plans: {}  # from the plans so far, the best first
    when: Callable[[list[Plan]], bool] = lambda plans: True  # True if it runs, from the plans so far, the best first
    condition: str = ""  # the condition of `when` in words


def best_as_hint(plans: list[Plan]) -> dict[str, Any]:
    """Returns the options of a stage that starts from the best plan so far."""
    return {"hint": plans[0]}


class _Optimal(Exception):
    """Raised through a search by its progress callback: its best plan reaches the bound."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan


class Portfolio:
    """Collects plans of one task, and runs stages that add to them.

    Attributes:
      bound: best lower bound so far, given or proved by a method; None before the first.
    """

    def __init__(self, task: Task, bound: float | None = None) -> None:
        self.bound = bound
        self._task = task
        self._plans: list[Plan] = []

    def add(self, decisions: Iterable[PlacedOrder]) -> None:
        """Adds plans of rules, an evaluation each, until the budget ends or one is optimal; always adds the first."""
        for placement, order in decisions:
            if self.done:
                return
            self.keep(self._task.plan(placement, order, evaluations=1))

    def keep(self, plan: Plan) -> None:
        """Keeps a plan, and the bound that it proves."""
        self._plans.append(plan)
        self._task.best = self.best
        if plan.bound is not None:
            self.bound = max(self.bound or 0.0, plan.bound)

    def run(self, stages: Iterable[Stage]) -> Plan:
        """Runs the stages that the budget suffices for, and returns the best plan of all.

        Raises:
          Interrupted: on Ctrl-C in a stage that has a plan; it has the best plan so far.
        """
        if self._plans:
            self._task.report(self._evaluations(), self.best().value, force=True)
        try:
            for stage in stages:
                left = self._left()
                if self.done or left is None:
                    break
                if stage.when(self._ranked()):
                    self._run(stage, left)
        except _Optimal as stop:
            self._plans.append(stop.plan)
        except Interrupted as stop:
            raise Interrupted(self.best(stop.plan)) from None
        return self.best()

    @property
    def done(self) -> bool:
        """True if there is a plan and the budget is spent or the best plan is optimal."""
        return bool(self._plans) and (self._left() is None or self._is_optimal(self._ranked()[0]))

    def best(self, *more: Plan) -> Plan:
        """Returns the best plan so far, with the evaluations and seconds of all plans."""
        best = self._ranked(*more)[0]
        evaluations = self._evaluations() + sum(plan.evaluations for plan in more)
        return dataclasses.replace(
            best, method=self._task.method, evaluations=evaluations, seconds=self._task.seconds, bound=self.bound
        )

    def _run(self, stage: Stage, left: Budget) -> None:
        part = Budget(
            None if left.evaluations is None else max(1, int(stage.share * left.evaluations)),
            None if left.seconds is None else min(stage.share * left.seconds, stage.seconds),
        )
        parent = self._task
        report = functools.partial(self._report, parent.seconds)
        task = Task(parent.graph, parent.problem, part, parent.seed, report, sizes=parent.sizes)
        try:
            self.keep(stage.solver(task, **stage.options(self._ranked())))
        except ProblemError:  # the method does not take such graphs or problems
            return
        except (MemoryError, RuntimeError) as error:  # RuntimeError: jax raises it when memory runs out
            fault = " ".join(str(error).split())[:200]
            warnings.warn(f"{stage.solver.name} could not run ({fault}): the best plan so far is kept", stacklevel=4)
        finally:
            parent.exclude_time(task.excluded_seconds)

    def _report(self, begin: float, evaluations: int, seconds: float, plan: Callable[[], Plan], value: float) -> None:
        """Reports progress of a stage that started after `begin` seconds; its own `seconds` are without compilation."""
        if value <= (self.bound or 0.0) * (1 + ROUNDING) and self._is_optimal(candidate := plan()):
            raise _Optimal(candidate)
        if self._task.progress is not None:
            if self._plans:
                best = self._ranked()[0]
                value = min(value, best.value) if best.excess == 0 else value
            evaluations += self._evaluations()
            self._task.progress(evaluations, begin + seconds, lambda: self.best(plan()), value)

    def _is_optimal(self, plan: Plan) -> bool:
        rounding = 0.0 if self._task.problem.objective == "peak_memory" else SECONDS_ROUNDING
        return plan.excess == 0 and plan.value <= (self.bound or 0.0) * (1 + rounding)

    def _left(self) -> Budget | None:
        return self._task.left(self._evaluations())

    def _ranked(self, *more: Plan) -> list[Plan]:
        return sorted([*self._plans, *more], key=attrgetter("rank"))

    def _evaluations(self) -> int:
        return sum(plan.evaluations for plan in self._plans)
