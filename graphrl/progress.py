"""Progress on standard error (a bar on a terminal, else lines), and the pace of work without compilation time."""

import collections
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence

_RECENT = 20  # intervals of work by which the pace is estimated
_PREFIX = "/jax/core/compile/"  # tracing, lowering, and compiling or loading from the cache
_COMPILED = 0.1  # share of compiling above which the pace ignores an interval of work

Show = Callable[[int, str], None]  # steps done, and a text


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
        yield lambda step, text: bar.update(task, completed=step, description=text)


def _lines(total: int, every: float) -> Show:
    printed = float("-inf")

    def show(step: int, text: str) -> None:
        nonlocal printed
        now = time.perf_counter()
        if now - printed >= every or step == total:
            printed = now
            print(f"{step}/{total} {text}\n", end="", file=sys.stderr, flush=True)  # one write: Ctrl-C cannot split it

    return show
