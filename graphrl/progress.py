"""How far work is: a bar on a terminal, else now and then a line; on standard error."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

_RECENT = 20  # steps that the expected end is estimated from, so that compiling is soon forgotten

Show = Callable[[int, str], None]  # how much is done, and what there is to say


class Clock:
    """Expected seconds to the end, from the time that recent steps took."""

    def __init__(self, steps: int, now: Callable[[], float] = time.perf_counter) -> None:
        self._steps, self._now = steps, now
        self._times: list[float] = [now()]

    def seconds_left(self, step: int) -> float:
        """After a step; to be asked after every one."""
        self._times = [*self._times[-_RECENT:], self._now()]
        each = (self._times[-1] - self._times[0]) / (len(self._times) - 1)
        return each * (self._steps - step)


def on_terminal() -> bool:
    """Whether there is one to show a bar on."""
    return sys.stderr.isatty()


@contextlib.contextmanager
def progress(total: int, done: int = 0, *, text: str = "", every: float = 0.0) -> Iterator[Show]:
    """Gives what to call after every step.

    Args:
      total: steps in all.
      done: before this began.
      text: to begin with.
      every: seconds between two lines, where there is no terminal; the last step always has one.
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
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=total, completed=done)
        yield lambda step, text: bar.update(task, completed=step, description=text)


def _lines(total: int, every: float) -> Show:
    printed = float("-inf")

    def show(step: int, text: str) -> None:
        nonlocal printed
        now = time.perf_counter()
        if now - printed >= every or step == total:
            printed = now
            print(f"{step}/{total} {text}\n", end="", file=sys.stderr, flush=True)  # in one, for Ctrl-C not to part it

    return show
