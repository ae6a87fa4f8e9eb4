"""A progress bar on standard error for long searches; nothing where that is no terminal."""

import contextlib
import sys
from collections.abc import Callable, Iterator

from graphrl.costs.problem import Problem
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Progress
from graphrl.units import format_objective


@contextlib.contextmanager
def progress_bar(title: str, problem: Problem, budget: Budget) -> Iterator[Progress | None]:
    """Shows best value, share of the budget and time left while the `with` lasts; gives the callback, or None."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[status]}"),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(escape(title[:40]), total=1.0, status="starting")

        def update(evaluations: int, seconds: float, plan: Callable[[], Plan], value: float) -> None:
            share = share_spent(budget, evaluations, seconds)
            left = f", {seconds * (1 / share - 1):.0f} s left" if share > 0 else ""
            best = format_objective(problem.objective, value)
            bar.update(task, completed=share, status=f"best {best}, {evaluations:,} evaluations{left}")

        yield update


def share_spent(budget: Budget, evaluations: int, seconds: float) -> float:
    """Share of the budget that is spent, 0 to 1: of the limit that will be reached first."""
    by_count = 0.0 if budget.evaluations is None else evaluations / budget.evaluations
    by_time = 0.0 if budget.seconds is None else seconds / budget.seconds
    return min(1.0, max(by_count, by_time))
