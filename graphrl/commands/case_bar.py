"""How far measuring is: a bar on a terminal, else a line a case; on standard error."""

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def case_bar(cases: int) -> Iterator[Callable[[str], None]]:
    """Shows on standard error what is being measured: a bar on a terminal, else a line a case."""
    seen: list[str] = []

    def count(text: str) -> int:
        case = text.rpartition(": ")[0]
        if case not in seen:
            seen.append(case)
        return len(seen)

    if not sys.stderr.isatty():
        yield lambda text: _line(text, cases, count, seen)
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), BarColumn(bar_width=20), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=cases)
        yield lambda text: bar.update(task, completed=count(text) - 1, description=escape(text))


def _line(text: str, cases: int, count: Callable[[str], int], seen: list[str]) -> None:
    before = len(seen)
    if count(text) > before:
        print(f"{before + 1}/{cases} {seen[-1]}", file=sys.stderr, flush=True)
