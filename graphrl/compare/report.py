"""The table of a comparison as text, Markdown and a dict."""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from graphrl.compare.runs import Row
from graphrl.compare.table import Summary, best_known, by_method_and_case, contradictions, mean_value, summarise
from graphrl.costs.problem import Problem
from graphrl.solvers.base import Budget
from graphrl.units import finite_or_none, format_objective, format_seconds

HEADINGS = ("method", "mean gap", "worst gap", "to bound", "optimal", "won", "won or tied", "seconds", "failed")
_MAX_GRAPHS, _MAX_METHODS = 12, 8  # up to which values are printed in a separate table
_COMPILED = 0.05  # share of the time above which compiling is noted


def cells(summary: Summary) -> list[str]:
    """Formats a method's line of the table: one cell for each of `HEADINGS`."""
    gaps = (percent(gap) for gap in (summary.mean_gap, summary.worst_gap, summary.bound_gap))
    shares = (f"{100 * share:.0f}%" for share in (summary.optimal, summary.won, summary.won_or_tied))
    seconds = "-" if summary.seconds is None else f"{summary.seconds:.3g}"
    failed = f"{summary.failed} of {summary.runs}" if summary.failed else ""
    return [summary.method, *gaps, *shares, seconds, failed]


def percent(gap: float | None) -> str:
    """Formats a gap in percent, with two digits after the point below 10%."""
    if gap is None or not math.isfinite(gap):
        return "-" if gap is None else "inf"
    return f"{100 * gap:.2f}%" if abs(gap) < 0.0995 else f"{100 * gap:.1f}%"


def problem_line(problem: Problem) -> str:
    """Describes the problem in words."""
    parts = [f"{problem.objective.replace('_', ' ')} on {problem.devices} device{'s' * (problem.devices > 1)}"]
    if problem.devices > 1:
        bandwidth = "infinite bandwidth" if math.isinf(problem.bandwidth) else f"{problem.bandwidth:g} B/s"
        parts.append(f"{problem.transfer} transfers, {format_seconds(problem.latency)} and {bandwidth}")
    if problem.memory_limit is not None:
        parts.append(f"at most {problem.memory_limit:,} bytes a device")
    if problem.resident_weights:
        parts.append("weights resident")
    return ", ".join(parts)


def budget_line(budget: Budget) -> str:
    """Describes the budget in words."""
    limits = [] if budget.evaluations is None else [f"{budget.evaluations:,} evaluations"]
    limits += [] if budget.seconds is None else [f"{budget.seconds:g} s"]
    return " or ".join(limits) + " a run"


def notes(rows: Sequence[Row], summaries: Sequence[Summary], others: Sequence[Row] = ()) -> list[str]:
    """Writes notes for readers of the table (failures, contradictions and the like), one line each."""
    lines = []
    for case in contradictions([*rows, *others]):
        names = {row.graph for row in rows if row.case == case}
        lines.append(f"a value of {', '.join(names) or case[0]} is below its lower bound: one of them is wrong")
    for method, cases in by_method_and_case(rows).items():
        noted = [row for group in cases.values() for row in group if row.error or row.note]
        lines += group_faults((method, row.error or row.note or "") for row in noted)
        above_limit = sum(row.error is None and not row.feasible for group in cases.values() for row in group)
        if above_limit:
            lines.append(f"{method}: {above_limit} plan{'s' * (above_limit > 1)} above the memory limit")
    compiled = [one for one in summaries if one.compile_share > _COMPILED]
    lines += [f"{one.method}: {one.compile_share:.0%} of its time was compilation" for one in compiled]
    machines = {(row.machine, row.cores) for row in rows}
    if len(machines) > 1:
        lines.append("rows are of different machines: " + "; ".join(f"{m}, {c} cores" for m, c in sorted(machines)))
    return lines


def group_faults(faults: Iterable[tuple[str, str]]) -> list[str]:
    """Lists the errors of runs, pairs of method and text; equal pairs share one line with their number."""
    counts = Counter(faults)
    return [f"{method}: {text}" + f" ({n} runs)" * (n > 1) for (method, text), n in counts.items()]


def heading(rows: Sequence[Row]) -> str:
    """Describes the comparison in two lines; the rows are of one problem and budget."""
    counts = (len({row.fingerprint for row in rows}), "graph"), (len({row.seed for row in rows}), "seed")
    parts = [f"{count} {name}{'s' * (count > 1)}" for count, name in counts]
    return f"{problem_line(rows[0].problem)}\n{', '.join(parts)}, {budget_line(rows[0].budget)}"


def values_by_graph(rows: Sequence[Row], others: Sequence[Row] = ()) -> tuple[list[str], list[list[str]]]:
    """Builds a table of mean values over seeds, one line per graph and one column per method: headings, lines."""
    by_method, best = by_method_and_case(rows), best_known([*rows, *others])
    lines = []
    for row in {row.case: row for row in rows}.values():
        values = [mean_value(cases.get(row.case, [])) for cases in by_method.values()]
        least, bound = best[row.case]
        columns = [*values, least, bound if math.isfinite(least) else math.inf]  # without a plan there is no bound
        words = ["-" if math.isinf(value) else format_objective(row.problem.objective, value) for value in columns]
        lines.append([row.graph, f"{row.ops:,}", *words])
    return ["graph", "ops", *by_method, "best known", "bound"], lines


def times_table(times: Sequence[str], by_time: Sequence[Sequence[Summary]]) -> tuple[list[str], list[list[str]]]:
    """Builds a table of the same methods at several budgets; returns headings and lines.

    There is a column of mean gaps for each budget; the other columns are at the last budget.

    Args:
      times: each budget in words.
      by_time: summaries from `summarise` at each budget.
    """
    headings = ["method", *times, "worst", "to bound", "optimal", "won or tied", "seconds", "failed"]
    lines = []
    for summaries in zip(*by_time, strict=True):
        name, _, *rest = cells(summaries[-1])
        del rest[HEADINGS.index("won") - 2]
        lines.append([name, *(percent(one.mean_gap) for one in summaries), *rest])
    return headings, lines


def print_tables(rows: Sequence[Row], others: Sequence[Row] = ()) -> None:
    """Prints the values per graph (if there are few graphs), the table, and the notes.

    Args:
      rows: rows of one problem and budget.
      others: further rows that the best known values and bounds may come from.
    """
    summaries = summarise(rows, others)
    if len({row.case for row in rows}) <= _MAX_GRAPHS and len(summaries) <= _MAX_METHODS:
        print_table("Values, means over seeds", *values_by_graph(rows, others))
    print_table(heading(rows), HEADINGS, [cells(summary) for summary in summaries])
    for note in notes(rows, summaries, others):
        print(note)


def print_table(title: str, headings: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Prints a table to standard output."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=160)
    table = Table(title=escape(title), title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for i, text in enumerate(headings):
        table.add_column(escape(text), justify="right" if i else "left", no_wrap=i == 0)
    for line in lines:
        table.add_row(*map(escape, line))
    console.print(table)


def markdown(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Formats a table as Markdown."""

    def row(texts: Sequence[str]) -> str:
        return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |\n"

    return row(headings) + row(["---", *["---:"] * (len(headings) - 1)]) + "".join(map(row, lines))


def as_dict(rows: Sequence[Row], others: Sequence[Row] = ()) -> dict[str, Any]:
    """Converts the tables to a JSON object: bytes, seconds and fractions, null for missing values."""
    best = best_known([*rows, *others])
    summaries = summarise(rows, others)
    graphs = [
        {"graph": row.graph, "fingerprint": row.fingerprint, "ops": row.ops}
        | {name: finite_or_none(value) for name, value in zip(("best", "bound"), best[row.case], strict=True)}
        for row in {row.case: row for row in rows}.values()
    ]
    methods = [finite_fields(summary) for summary in summaries]
    return {"methods": methods, "graphs": graphs, "notes": notes(rows, summaries, others)}


def finite_fields(value: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass, with None for floats that JSON cannot represent."""
    return {key: finite_or_none(item) for key, item in dataclasses.asdict(value).items()}
