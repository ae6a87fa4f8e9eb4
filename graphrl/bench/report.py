"""The rows as a table for people and as JSON lines for machines."""

import json
from collections.abc import Sequence
from typing import Any, Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from graphrl.bench.cases import METHODS, Row


class Measured(Protocol):
    """What the rows of all tables have: `cases.Row` says what each is."""

    @property
    def device_kind(self) -> str: ...
    @property
    def jax(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def pinned(self) -> bool: ...
    @property
    def clock(self) -> str: ...
    @property
    def repeats(self) -> int: ...
    def to_dict(self) -> dict[str, Any]: ...


def json_lines(rows: Sequence[Measured]) -> str:
    """One JSON object a line."""
    return "".join(json.dumps(row.to_dict(), allow_nan=False) + "\n" for row in rows)


def title(row: Row) -> str:
    """What was measured, in words, without the size."""
    if row.what == "brkga":
        return f"BRKGA, {(row.objective or '').replace('_', ' ')}"
    parts = row.what.removeprefix("decode + ")
    return f"{parts}, {row.transfer}" if "makespan" in parts else parts


def machine_line(rows: Sequence[Measured]) -> str:
    """What was measured on, and how, in one line."""
    first = rows[0]
    cores = "1 thread, pinned to one core" if first.pinned else f"{first.threads} thread" + "s" * (first.threads > 1)
    clock = "CPU time" if first.clock == "cpu" else "wall time"
    return f"{first.device_kind} · {cores} · jax {first.jax} · {clock}, median of {first.repeats}"


def print_table(rows: Sequence[Row], console: Console | None = None) -> None:
    """Prints evaluations a second, their ratios and graphrl's compile seconds, then the shares of its BRKGA runs."""
    console = console or make_console()
    cases = _by_case(rows)
    methods = [method for method in METHODS if any(row.method == method for row in rows)]
    others = [method for method in methods if method != "graphrl" and "graphrl" in methods]
    columns = *methods, *(f"/ {other}" for other in others), "compile s"
    table = make_table(f"Evaluations a second\n{machine_line(rows)}", "ops", "case", *columns)
    for last, (ops, what), found in cases:
        ours = found.get("graphrl")
        ratios = (_ratio(getattr(ours, f"ratio_to_{other}", None)) for other in others)
        seconds = _shown(getattr(ours, "compile_s", None), "{:.1f}")
        table.add_row(ops, what, *(_rate(found.get(method)) for method in methods), *ratios, seconds, end_section=last)
    console.print(table)
    searches = [row for row in rows if row.method == "graphrl" and row.what == "brkga"]
    if searches:
        table = make_table("graphrl's BRKGA runs", "ops", "case", "own work", "Beta draws", "compile s, cached")
        for row in searches:
            shares = (_shown(share, "{:.0%}") for share in (row.own_share, row.beta_share))
            table.add_row(f"{row.n:,}", title(row), *shares, _shown(row.cached_compile_s, "{:.1f}"))
        console.print(table)
    for note in dict.fromkeys(f"{row.method}: {row.note}" for row in rows if row.note):
        console.print(note, markup=False)
    if "reference" in methods:
        console.print("reference decodes ops only (no transfer nodes, no transfer keys): less work an evaluation")


def make_console() -> Console:
    """Where tables go: the terminal, or lines wide enough for them."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=140)


def make_table(heading: str, *columns: str) -> Table:
    """An empty table; all columns but that of the case are numbers."""
    table = Table(title=heading, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1))
    for column in columns:
        table.add_column(column, justify="left" if column == "case" else "right")
    return table


def _by_case(rows: Sequence[Row]) -> list[tuple[bool, tuple[str, str], dict[str, Row]]]:
    """(whether the next case is of another size, (ops, title), rows by method), in order."""
    cases: dict[tuple[int, str], dict[str, Row]] = {}
    for row in rows:
        cases.setdefault((row.n, title(row)), {})[row.method] = row
    sizes = [ops for ops, _ in cases]
    last = [a != b for a, b in zip(sizes, [*sizes[1:], -1], strict=True)]
    return [(end, (f"{ops:,}", what), found) for end, ((ops, what), found) in zip(last, cases.items(), strict=True)]


def _rate(row: Row | None) -> str:
    if row is None or row.evaluations_per_s is None:
        return "-"
    rate = row.evaluations_per_s
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
