"""How far a run is: a bar with the expected end on a terminal, else now and then a line; on standard error."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping

from graphrl.units import format_end

_LINE_EVERY = 10.0  # seconds
_RECENT = 20  # steps that the expected end is estimated from, so that compiling is soon forgotten

Show = Callable[[int, Mapping[str, float]], None]


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


class Progress:
    """Shows the values of every update, and beside them those of the last validation: an `Observer` of the loop."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._held_out: dict[str, float] = {}

    def update(self, step: int, seconds: float, bucket: int, values: Mapping[str, float]) -> None:
        """See `loop.Observer`."""
        self._show(step, {**values, **self._held_out})

    def validation(self, step: int, values: Mapping[str, float]) -> None:
        """See `loop.Observer`."""
        self._held_out = {f"held-out {name}": value for name, value in values.items()}


@contextlib.contextmanager
def training_progress(steps: int, done: int) -> Iterator[Progress]:
    """Shows the progress of a run for the length of a `with`.

    Args:
      steps: in all.
      done: before this process began.
    """
    clock = Clock(steps)
    if not sys.stderr.isatty():
        yield Progress(_Lines(steps, clock))
        return
    from rich import progress
    from rich.console import Console

    text = progress.TextColumn("{task.description}", markup=False)
    columns = progress.SpinnerColumn(), progress.BarColumn(bar_width=20), progress.MofNCompleteColumn(), text
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("compiling", total=steps, completed=done)

        def update(step: int, values: Mapping[str, float]) -> None:
            description = f"{format_end(clock.seconds_left(step))}; {_words(values)}"
            bar.update(task, completed=step, description=description)

        yield Progress(update)


class _Lines:
    """Prints the first step (compiled at last), then a line every ten seconds, and the last step."""

    def __init__(self, steps: int, clock: Clock) -> None:
        self._steps, self._clock, self._printed = steps, clock, float("-inf")

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        left, now = self._clock.seconds_left(step), time.perf_counter()
        if now - self._printed >= _LINE_EVERY or step == self._steps:
            self._printed = now
            print(f"{step}/{self._steps} {format_end(left)}; {_words(values)}", file=sys.stderr, flush=True)


def _words(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())
