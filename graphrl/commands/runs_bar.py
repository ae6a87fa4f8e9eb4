"""How far a comparison is: a bar with the expected end on a terminal, else a line a run; on standard error."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from graphrl.units import format_end, format_objective, format_seconds

if TYPE_CHECKING:
    from graphrl.compare.runs import Row, Run

_GUESS = 1.0  # seconds that a run is taken to last before anything is known


class Forecast:
    """When everything will be done: by each method's mean seconds so far, before that by the budget."""

    def __init__(self, runs: Sequence["Run"], processes: int) -> None:
        self._left: dict[str, int] = {}
        for run in runs:
            self._left[run.method] = self._left.get(run.method, 0) + 1
        self._guess = max((run.budget.seconds or _GUESS for run in runs), default=_GUESS)
        self._spent: dict[str, list[float]] = {}
        self._processes = processes
        self._overhead = 1.0  # seconds that pass for each second of a run: warm-up, checks, bounds
        self._started = time.perf_counter()

    def add(self, row: "Row") -> None:
        """A run is done."""
        self._left[row.method] -= 1
        self._spent.setdefault(row.method, []).append(row.seconds)
        total = sum(map(sum, self._spent.values())) / self._processes
        if total > _GUESS:
            self._overhead = max(1.0, (time.perf_counter() - self._started) / total)

    def seconds_left(self) -> float:
        """Expected seconds to the end."""
        return self._overhead / self._processes * sum(n * self._mean(method) for method, n in self._left.items())

    def _mean(self, method: str) -> float:
        spent = self._spent.get(method)
        return sum(spent) / len(spent) if spent else self._guess


@contextlib.contextmanager
def runs_bar(runs: Sequence["Run"], processes: int) -> Iterator[Callable[["Row"], None]]:
    """Gives what to call with every row; shows it while the `with` lasts."""
    if not sys.stderr.isatty():
        yield _Lines(len(runs))
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

    columns = (
        SpinnerColumn(),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False),
    )
    forecast = Forecast(runs, processes)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(format_end(forecast.seconds_left()), total=len(runs))

        def update(row: "Row") -> None:
            forecast.add(row)
            bar.update(task, advance=1, description=f"{format_end(forecast.seconds_left())}; last: {_line(row)}")

        yield update


class _Lines:
    """Prints a line a run."""

    def __init__(self, runs: int) -> None:
        self._runs, self._done = runs, 0

    def __call__(self, row: "Row") -> None:
        self._done += 1
        print(f"{self._done}/{self._runs} {_line(row)}", file=sys.stderr, flush=True)


def _line(row: "Row") -> str:
    value = row.error or ("above the memory limit" if row.excess else "")
    value = value or format_objective(row.problem.objective, row.value or 0)
    return f"{row.graph}, {row.method}, seed {row.seed}: {value} in {format_seconds(row.seconds)}"
