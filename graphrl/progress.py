"""Progress on standard error (a bar on a terminal, else lines; or a table), and the pace of work without compiling."""

import collections
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

_RECENT = 20  # intervals of work by which the pace is estimated
_PREFIX = "/jax/core/compile/"  # tracing, lowering, and compiling or loading from the cache
_COMPILED = 0.1  # share of compiling above which the pace ignores an interval of work
_COLUMN_WIDTH = 8  # minimum number of characters of a column of a table

Show = Callable[[int, str], None]  # steps done, and a text
ShowRow = Callable[[int, Mapping[str, str], str], None]  # steps done, the row's cells by column, and the time left


class Pace:
    """Estimator of the seconds per unit of each kind of work, from recent intervals with at most a tenth of compiling.

    Args:
      compiling: function that returns the seconds of compiling so far, as from `compile_clock`.
      now: function that returns the time in seconds.
    """

    def __init__(self, compiling: Callable[[], float], now: Callable[[], float] = time.perf_counter) -> None:
        self._compiling, self._now = compiling, now
        self._recent: dict[str, collections.deque[tuple[float, float]]] = {}
        self._last, self._compiled = now(), compiling()

    def add(self, kind: str, amount: float = 1.0) -> None:
        """Records an amount of work of one kind, which must be all work since the last call."""
        now, compiled = self._now(), self._compiling()
        seconds, compiling = now - self._last, compiled - self._compiled
        self._last, self._compiled = now, compiled
        if amount > 0 and compiling <= _COMPILED * seconds:
            self._recent.setdefault(kind, collections.deque(maxlen=_RECENT)).append((amount, seconds))

    def each(self, kind: str) -> float | None:
        """Returns the seconds for one unit of a kind of work; None before its first suitable interval."""
        recent = self._recent.get(kind)
        return sum(seconds for _, seconds in recent) / sum(amount for amount, _ in recent) if recent else None


@contextlib.contextmanager
def compile_clock() -> Iterator[Callable[[], float]]:
    """Context manager that gives a function, which returns the seconds of compiling since its start, in any thread.

    Nested programs have nested spans of tracing: time that several spans cover counts once.
    """
    import jax.monitoring

    spans: list[tuple[float, float]] = []

    def listen(event: str, start_time: float, end_time: float, **_: str | int) -> None:
        if event.startswith(_PREFIX):
            spans.append((start_time, end_time))

    def seconds() -> float:
        count = len(spans)
        spans[:count] = _union(spans[:count])  # stays short over many calls; other threads append meanwhile
        return sum(end - start for start, end in spans)

    jax.monitoring.register_event_time_span_listener(listen)
    try:
        yield seconds
    finally:
        jax.monitoring.unregister_event_time_span_listener(listen)


def _union(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Merges overlapping spans of time; returns disjoint ones, ascending, that cover the same time."""
    union: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if union and start <= union[-1][1]:
            union[-1] = union[-1][0], max(end, union[-1][1])
        else:
            union.append((start, end))
    return union


def on_terminal() -> bool:
    """True if standard error is a terminal, which can show a bar."""
    return sys.stderr.isatty()


@contextlib.contextmanager
def progress(total: int, done: int = 0, *, text: str = "", every: float = 0.0) -> Iterator[Show]:
    """Context manager that gives a function to call after every step, which shows the progress.

    Args:
      total: number of all steps.
      done: number of steps done before.
      text: initial text after the bar.
      every: seconds between two lines, without a terminal; the last step always has a line.
    """
    if not on_terminal():
        yield _lines(total, every)
        return
    with _terminal_bar(total, done, text) as (show, _):
        yield show


@contextlib.contextmanager
def progress_table(total: int, done: int = 0, *, text: str = "", every: float = 0.0) -> Iterator[ShowRow]:
    """Context manager that gives a function to call after every step, which prints a row of a table: on a terminal
    above a bar that shows the time left, too.

    Args:
      total, done: see `progress`.
      text: initial text after the bar; without a terminal a line before the table.
      every: seconds between two rows; the last step always has a row.
    """
    table = _Table(total, every)
    if not on_terminal():
        if text:
            _print(text)
        yield lambda step, cells, left: table.add(step, cells, left, _print)
        return
    with _terminal_bar(total, done, text) as (show, print_above):

        def show_row(step: int, cells: Mapping[str, str], left: str) -> None:
            show(step, left)
            table.add(step, cells, left, print_above)

        yield show_row


class _Table:
    """Rows of fixed columns, those of the first row, with a header before the first."""

    def __init__(self, total: int, every: float) -> None:
        self._total, self._every, self._printed = total, every, float("-inf")
        self._columns: tuple[str, ...] = ()

    def add(self, step: int, cells: Mapping[str, str], left: str, write: Callable[[str], None]) -> None:
        """Writes a row, unless the last one was written less than `every` seconds ago."""
        now = time.perf_counter()
        if now - self._printed < self._every and step != self._total:
            return
        self._printed, lines = now, []
        if not self._columns:
            self._columns = tuple(cells)
            lines.append(self._line("update", self._columns, "time left"))
        row = [cells.get(column, "-") for column in self._columns]
        lines.append(self._line(f"{step}/{self._total}", row, left.replace(" left", "")))
        write("\n".join(lines))

    def _line(self, first: str, middle: Sequence[str], last: str) -> str:
        widths = [max(_COLUMN_WIDTH, len(column)) for column in self._columns]
        cells = [cell.rjust(width) for cell, width in zip(middle, widths, strict=True)]
        return "  ".join([first.rjust(max(len("update"), 2 * len(str(self._total)) + 1)), *cells, last])


@contextlib.contextmanager
def _terminal_bar(total: int, done: int, text: str) -> Iterator[tuple[Show, Callable[[str], None]]]:
    """Gives functions that move the bar, and that print a text above it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

    columns = (
        SpinnerColumn(),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False),
    )
    shown = Console(stderr=True)
    # rich would print a standard output that goes to a file or a pipe on the terminal
    with Progress(*columns, console=shown, transient=True, redirect_stdout=sys.stdout.isatty()) as bar:
        task = bar.add_task(text, total=total, completed=done)
        plain: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}
        yield (
            lambda step, text: bar.update(task, completed=step, description=text),
            lambda text: bar.console.print(text, **plain),
        )


def _lines(total: int, every: float) -> Show:
    printed = float("-inf")

    def show(step: int, text: str) -> None:
        nonlocal printed
        now = time.perf_counter()
        if now - printed >= every or step == total:
            printed = now
            _print(f"{step}/{total} {text}")

    return show


def _print(text: str) -> None:
    print(f"{text}\n", end="", file=sys.stderr, flush=True)  # one write: Ctrl-C cannot split it
