"""Methods on the same graphs at several times: their rows, and the table with a column a time."""

from collections.abc import Sequence

from graphrl.compare.report import markdown, notes, times_table
from graphrl.compare.runs import Row
from graphrl.compare.table import summarise
from reproduce.contest import Contest
from reproduce.results import bullets


def times_markdown(times: Sequence[float], contests: Sequence[Contest]) -> tuple[str, str]:
    """The table, mean gaps to the best known at each time, and what a reader must know beside it.

    Args:
      times: seconds, ascending.
      contests: of the same methods at each.
    """
    rows = all_rows(contests)
    by_time = [summarise(contest.rows, [*rows, *contests[-1].others]) for contest in contests]
    lines = [
        note for contest, summaries in zip(contests, by_time, strict=True) for note in notes(contest.rows, summaries)
    ]
    return markdown(*times_table([f"{seconds:g} s" for seconds in times], by_time)), bullets(lines)


def all_rows(contests: Sequence[Contest]) -> list[Row]:
    """The rows at all times."""
    return [row for contest in contests for row in contest.rows]
