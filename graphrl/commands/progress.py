"""Progress of the commands on standard error: of a search, a comparison, or a benchmark."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from graphrl.plan import Plan
from graphrl.progress import Pace, compile_clock, on_terminal, progress
from graphrl.solvers.base import Budget
from graphrl.units import format_bytes, format_end, format_objective, format_seconds

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from graphrl.compare.runs import Row, Run

_GUESS = 1.0  # seconds that a run without a limit is expected to take before the first one is done
_EXACT_EVERY = 2.0  # seconds between exact evaluations of the best plan, which are slow for large graphs


class _Update(Protocol):
    """Progress callback of a search, as `solvers.base.Progress`, for plans or memory maps."""

    def __call__(self, evaluations: int, seconds: float, plan: Callable[[], Any], value: float) -> None: ...


@contextlib.contextmanager
def progress_bar(title: str, objective: str, budget: Budget, *, limited: bool = False) -> Iterator[_Update | None]:
    """Context manager that shows best value, share of the budget and time left; gives the progress callback.

    The callback is None if standard error is no terminal.

    Args:
      title: title of the search, such as the graph's name.
      objective: as in `format_objective`; memory maps have seconds.
      budget: budget of the search.
      limited: True if plans have a memory limit.
    """
    if not on_terminal():
        yield None
        return
    evaluated_at = -_EXACT_EVERY  # seconds
    best = ""
    with _compiling(budget) as compiling, _bar(budget, time_left := TimeLeft(budget, Pace(compiling))) as bar:
        task = bar.add_task(title[:40], total=1.0, evaluations=0, best="starting")

        def update(evaluations: int, seconds: float, plan: Callable[[], Any], value: float) -> None:
            nonlocal evaluated_at, best
            if not limited:
                best = f"best {format_objective(objective, value)}"
            elif seconds - evaluated_at >= _EXACT_EVERY:  # the device's value mixes time and excess, the plan does not
                evaluated_at, best = seconds, value_or_excess(plan())
            time_left.update(evaluations)
            bar.update(task, evaluations=evaluations, best=best)

        yield update


def value_or_excess(plan: Plan) -> str:
    """Formats the best plan's value, or the bytes by which it exceeds the memory limit."""
    if plan.excess:
        return f"{format_bytes(plan.excess)} above the limit"
    return f"best {format_objective(plan.problem.objective, plan.value)}"


def share_spent(budget: Budget, evaluations: int, seconds: float) -> float:
    """Returns the share of the budget that is spent, 0 to 1: of evaluations or of seconds, whichever is larger."""
    by_count = 0.0 if budget.evaluations is None else evaluations / budget.evaluations
    by_time = 0.0 if budget.seconds is None else seconds / budget.seconds
    return min(1.0, max(by_count, by_time))


class TimeLeft:
    """Estimator of the time left in a search, from its limit in seconds or its pace of evaluations so far."""

    def __init__(self, budget: Budget, pace: Pace) -> None:
        self._budget, self._pace = budget, pace
        self._evaluations: int | None = None  # of the last update

    def update(self, evaluations: int) -> None:
        """Records the number of evaluations so far."""
        if self._evaluations is None:
            self._pace.add("preparing")
        else:
            self._pace.add("evaluation", evaluations - self._evaluations)
        self._evaluations = evaluations

    def text(self, elapsed: float) -> str:
        """Formats the time left, `elapsed` seconds after the start; "compiling" until it is known."""
        limits = []
        if self._budget.seconds is not None:
            limits.append(self._budget.seconds - elapsed)
        each = self._pace.each("evaluation")
        if self._budget.evaluations is not None and each is not None:
            limits.append((self._budget.evaluations - (self._evaluations or 0)) * each)
        return f"{max(0.0, min(limits)):.0f} s left" if limits else "compiling"


def _compiling(budget: Budget) -> contextlib.AbstractContextManager[Callable[[], float]]:
    """Returns a `compile_clock`, which imports JAX, only if the time left depends on the pace of evaluations."""
    # needed even if JAX is not imported yet: the search may import it later
    return contextlib.nullcontext(lambda: 0.0) if budget.evaluations is None else compile_clock()


def _bar(budget: Budget, time_left: TimeLeft) -> "Bar":
    """Creates a search's bar; it also advances with time, since a search reports nothing while a program compiles."""
    from rich.console import Console
    from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TextColumn
    from rich.progress import Progress as Bar
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    def share(task: Task) -> float:
        return share_spent(budget, task.fields["evaluations"], task.elapsed or 0.0)

    class BudgetColumn(BarColumn):
        def render(self, task: Task) -> ProgressBar:
            task.completed = share(task)
            return super().render(task)

    class TimeLeftColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.fields['evaluations']:,} evaluations, {time_left.text(task.elapsed or 0.0)}")

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BudgetColumn(bar_width=24),
        TextColumn("{task.fields[best]},", markup=False),
        TimeLeftColumn(),
    )
    return Bar(*columns, console=Console(stderr=True), transient=True)


class Forecast:
    """Forecast of when all runs will be done, from each method's mean seconds so far or else from the budget.

    Compilation in a run does not count, nor does overhead during the first run of a method, which warms up.
    """

    def __init__(self, runs: Sequence["Run"], processes: int) -> None:
        self._remaining: dict[str, int] = {}
        for run in runs:
            self._remaining[run.method] = self._remaining.get(run.method, 0) + 1
        self._default = max((run.budget.seconds or _GUESS for run in runs), default=_GUESS)
        self._spent: dict[str, list[float]] = {}
        self._processes = processes
        self._elapsed, self._run_seconds = 0.0, 0.0  # seconds between rows, and seconds of their runs
        self._last = time.perf_counter()

    def add(self, row: "Row") -> None:
        """Records a finished run."""
        now = time.perf_counter()
        if row.method in self._spent:
            self._elapsed += now - self._last
            self._run_seconds += row.seconds
        self._last = now
        self._remaining[row.method] -= 1
        self._spent.setdefault(row.method, []).append(max(0.0, row.seconds - row.compile_seconds))

    def seconds_left(self) -> float:
        """Returns the expected number of seconds until all runs are done."""
        return self._overhead() / self._processes * sum(n * self._mean(method) for method, n in self._remaining.items())

    def _overhead(self) -> float:
        """Returns the elapsed seconds per second of a run, at least 1, due to checks, bounds and transfers."""
        run_seconds = self._run_seconds / self._processes
        return max(1.0, self._elapsed / run_seconds) if run_seconds > _GUESS else 1.0

    def _mean(self, method: str) -> float:
        spent = self._spent.get(method)
        return sum(spent) / len(spent) if spent else self._default


@contextlib.contextmanager
def runs_bar(runs: Sequence["Run"], processes: int) -> Iterator[Callable[["Row"], None]]:
    """Context manager that gives a callback to call with every row of a comparison.

    On a terminal it shows a bar with the expected end, else one line for each run.
    """
    forecast, done = Forecast(runs, processes), 0
    with progress(len(runs), text=format_end(forecast.seconds_left())) as show:

        def update(row: "Row") -> None:
            nonlocal done
            done += 1
            forecast.add(row)
            end = f"{format_end(forecast.seconds_left())}; last: " if on_terminal() else ""
            show(done, f"{end}{_line(row)}")

        yield update


def _line(row: "Row") -> str:
    value = row.error or ("above the memory limit" if row.excess else "")
    value = value or format_objective(row.problem.objective, row.value or 0)
    return f"{row.graph}, {row.method}, seed {row.seed}: {value} in {format_seconds(row.seconds)}"


@contextlib.contextmanager
def case_bar(cases: int) -> Iterator[Callable[[str], None]]:
    """Context manager that gives a callback to call with every "case: detail" of a benchmark.

    On a terminal it shows a bar, else one line for each case.
    """
    reported: list[str] = []
    with progress(cases, text="starting") as show:

        def update(text: str) -> None:
            case = text.rpartition(": ")[0]
            new = case not in reported
            reported.extend([case] * new)
            if on_terminal():
                show(len(reported) - 1, text)
            elif new:
                show(len(reported), case)

        yield update


@contextlib.contextmanager
def titles_bar(titles: Sequence[str], seconds_left: Callable[[], float]) -> Iterator[Callable[[str], None]]:
    """Context manager that gives a callback to call with every "title: detail" of a benchmark.

    It shows which case is measured, the time left and the next case: on a terminal as a bar, else one line a case.

    Args:
      titles: titles of all cases, in order; some may be left out.
      seconds_left: function that returns the seconds left in the time limit.
    """
    started, number = time.perf_counter(), -1
    with progress(len(titles), text="starting") as show:

        def update(text: str) -> None:
            nonlocal number
            before, number = number, titles.index(text.rpartition(": ")[0])
            expected = [seconds_left()]
            if number > 0:
                expected.append((time.perf_counter() - started) / number * (len(titles) - number))
            end = "" if math.isinf(min(expected)) else f"at most {format_end(max(0.0, min(expected)))}"
            rest = "; ".join([part for part in (end, *(f"next {title}" for title in titles[number + 1 :][:1])) if part])
            if on_terminal():
                show(number, f"{text}; {rest}" if rest else text)
            elif number > before:
                show(number + 1, f"{titles[number]} ({rest})" if rest else titles[number])

        yield update
