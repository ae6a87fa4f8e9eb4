"""A progress bar on standard error for long searches; nothing where that is no terminal."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from graphrl.costs.problem import Problem
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Progress
from graphrl.units import format_bytes, format_objective

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_EXACT_EVERY = 2.0  # seconds between exact looks at the best plan, which take a while for large graphs


@contextlib.contextmanager
def progress_bar(title: str, problem: Problem, budget: Budget) -> Iterator[Progress | None]:
    """Shows best value, share of the budget and time left while the `with` lasts; gives the callback, or None."""
    if not sys.stderr.isatty():
        yield None
        return
    looked = -_EXACT_EVERY
    best = ""
    with _bar(budget) as bar:
        task = bar.add_task(title[:40], total=1.0, evaluations=0, best="starting")

        def update(evaluations: int, seconds: float, plan: Callable[[], Plan], value: float) -> None:
            nonlocal looked, best
            if problem.memory_limit is None:
                best = f"best {format_objective(problem.objective, value)}"
            elif seconds - looked >= _EXACT_EVERY:  # the device's value mixes time and excess: only the plan can tell
                looked, best = seconds, best_within_limit(plan())
            bar.update(task, evaluations=evaluations, best=best)

        yield update


def best_within_limit(plan: Plan) -> str:
    """The best value, or how far the best plan is from the memory limit."""
    if plan.excess:
        return f"{format_bytes(plan.excess)} above the limit"
    return f"best {format_objective(plan.problem.objective, plan.value)}"


def share_spent(budget: Budget, evaluations: int, seconds: float) -> float:
    """Share of the budget that is spent, 0 to 1: of the limit that will be reached first."""
    by_count = 0.0 if budget.evaluations is None else evaluations / budget.evaluations
    by_time = 0.0 if budget.seconds is None else seconds / budget.seconds
    return min(1.0, max(by_count, by_time))


def _bar(budget: Budget) -> "Bar":
    """The bar; it advances with the clock too, since nothing is reported while a program compiles."""
    from rich.console import Console
    from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TextColumn
    from rich.progress import Progress as Bar
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    def share(task: Task) -> float:
        return share_spent(budget, task.fields["evaluations"], task.elapsed or 0.0)

    class Spent(BarColumn):
        def render(self, task: Task) -> ProgressBar:
            task.completed = share(task)
            return super().render(task)

    class Left(ProgressColumn):
        def render(self, task: Task) -> Text:
            spent = share(task)
            left = (task.elapsed or 0.0) * (1 / spent - 1) if spent > 0 else 0.0
            return Text(f"{task.fields['evaluations']:,} evaluations, {left:.0f} s left")

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        Spent(bar_width=24),
        TextColumn("{task.fields[best]},", markup=False),
        Left(),
    )
    return Bar(*columns, console=Console(stderr=True), transient=True)
