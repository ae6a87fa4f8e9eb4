"""Comparison of methods as rows of a table, over seeds and over times.

- `Entrant`: a row of a table, its label and the method of each seed.
- `run_contest`: runs all entrants, and returns a `Contest`.
- `times_markdown`: the table of the same methods at several times.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from graphrl.commands.progress import runs_bar
from graphrl.compare.cluster import share
from graphrl.compare.comparison import compare
from graphrl.compare.report import markdown, notes, times_table
from graphrl.compare.runs import Row, Run, make_runs
from graphrl.compare.table import summarise
from graphrl.costs.problem import Problem
from graphrl.files import enable_compilation_cache
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes
from graphrl.methods import digest
from graphrl.solvers.base import Budget
from reproduce.results import bullets


class Interrupted(Exception):
    """Ctrl-C interrupted a comparison."""


class Entrant(NamedTuple):
    """A method in a comparison, a row of its table.

    Attributes:
      label: name in the table.
      methods: method of each seed, from seed 0 on.
      budget: budget of each run.
      graphs: number of graphs that it runs on, from the first on; None for all.
    """

    label: str
    methods: Sequence[str]
    budget: Budget
    graphs: int | None = None


class Contest(NamedTuple):
    """Results of a comparison.

    Attributes:
      by_label: rows of each entrant; their `method` is the label.
      others: all other rows of the file.
    """

    by_label: dict[str, list[Row]]
    others: list[Row]

    @property
    def rows(self) -> list[Row]:
        """Rows of all labels."""
        return [row for rows in self.by_label.values() for row in rows]

    def faults(self) -> Iterator[str]:
        """Yields a line for each kind of error of each method."""
        for label, rows in self.by_label.items():
            errors = [row.error for row in rows if row.error]
            for text in dict.fromkeys(errors):
                yield f"{label}: {text} ({errors.count(text)} runs)"


def run_contest(
    graphs: Sequence[ComputationGraph],
    problem: Problem,
    entrants: Sequence[Entrant],
    folder: Path,
    *,
    processes: int = 1,
    retry: bool = False,
) -> Contest:
    """Runs all entrants; rows that the folder's runs.jsonl has are reused.

    Raises:
      Interrupted: Ctrl-C; finished rows stay in the file.
    """
    blank = make_runs(graphs, problem, ["list"], [0], Budget(1), cores=share(processes))
    runs = {
        entrant.label: [
            dataclasses.replace(
                run,
                method=method,
                seed=seed,
                budget=entrant.budget,
                trained=digest(method, problem),
                sizes=_sizes(run, entrant),
            )
            for run in blank[: entrant.graphs]
            for seed, method in enumerate(entrant.methods)
        ]
        for entrant in entrants
    }
    place = {run.fingerprint: i for i, run in enumerate(blank)}
    # graph by graph, so that programs are compiled once a size
    in_order = sorted((run for some in runs.values() for run in some), key=lambda run: place[run.fingerprint])
    comparison = compare(
        in_order,
        folder / "runs.jsonl",
        processes=processes,
        retry=retry,
        watch=lambda missing: runs_bar(missing, processes),
        prepare=enable_compilation_cache,
    )
    if comparison.interrupted:
        raise Interrupted
    by_key = {row.key: row for row in comparison.rows}
    rows = {label: [dataclasses.replace(by_key[run.key], method=label) for run in some] for label, some in runs.items()}
    return Contest(rows, comparison.others)


def _sizes(run: Run, entrant: Entrant) -> Sizes | None:
    """Returns padded sizes as in `make_runs`; None under a budget in seconds, because padding takes time."""
    return run.sizes if entrant.budget.seconds is None else None


def mean_gaps(contests: Sequence[Contest]) -> dict[str, list[float]]:
    """Returns each method's mean gap to the best known in each contest (of the same methods); infinite on failure."""
    others = [*all_rows(contests), *contests[-1].others]
    by_time = [summarise(contest.rows, others) for contest in contests]
    gaps: dict[str, list[float]] = {}
    for one in (one for summaries in by_time for one in summaries):
        gaps.setdefault(one.method, []).append(math.inf if one.mean_gap is None else one.mean_gap)
    return gaps


def times_markdown(times: Sequence[float], contests: Sequence[Contest]) -> tuple[str, str]:
    """Returns the table of mean gaps to the best known at each time, and its notes.

    Args:
      times: seconds, ascending.
      contests: contest of the same methods at each time.
    """
    others = [*all_rows(contests), *contests[-1].others]
    by_time = [summarise(contest.rows, others) for contest in contests]
    lines = [note for contest, some in zip(contests, by_time, strict=True) for note in notes(contest.rows, some)]
    return markdown(*times_table([f"{seconds:g} s" for seconds in times], by_time)), bullets(lines)


def all_rows(contests: Sequence[Contest]) -> list[Row]:
    """Concatenates the rows of contests."""
    return [row for contest in contests for row in contest.rows]
