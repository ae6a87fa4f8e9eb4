"""Tables of results files: Markdown below a line with command, seeds, hardware, versions and date."""

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax

import graphrl
from graphrl.bench.machine import device_name
from graphrl.compare import report
from graphrl.compare.runs import Row
from graphrl.errors import GraphrlError
from graphrl.process import count_cores

NOT_MEASURED = "nothing was measured yet: leave --stored out"


class Origin(NamedTuple):
    """Provenance of a table's figures."""

    seeds: frozenset[int]
    hardware: frozenset[str]
    versions: frozenset[str]
    dates: frozenset[str]


class Table(NamedTuple):
    """A part of a section.

    Attributes:
      title: title, one line.
      origin: origin of its figures.
      parts: pieces of Markdown, separated by empty lines; empty pieces are left out.
      summary: main result, one sentence.
    """

    title: str
    origin: Origin
    parts: Sequence[str]
    summary: str = ""

    @property
    def text(self) -> str:
        """All parts, joined by empty lines."""
        return "\n\n".join(part.strip("\n") for part in self.parts if part) + "\n"


def of_rows(rows: Iterable[Row]) -> Origin:
    """Collects the origin of comparison rows."""
    rows = list(rows)
    return Origin(
        frozenset(row.seed for row in rows),
        frozenset(f"{row.machine}, {row.cores} core{'s' * (row.cores > 1)} a run" for row in rows),
        frozenset(f"graphrl {row.graphrl}" for row in rows),
        frozenset(row.date[:10] for row in rows),
    )


def here() -> Origin:
    """Returns the origin of measurements made now, in this process."""
    versions = f"graphrl {graphrl.__version__}, jax {jax.__version__}"
    hardware, today = f"{device_name()}, {count_cores()} core{'s' * (count_cores() > 1)}", time.strftime("%Y-%m-%d")
    return Origin(frozenset([0]), frozenset([hardware]), frozenset([versions]), frozenset([today]))


def bullets(lines: Iterable[str]) -> str:
    """Formats lines as a Markdown list, without duplicates."""
    return "\n".join(f"- {line}" for line in dict.fromkeys(lines))


def markdown(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Formats a Markdown table, without columns that have no figures."""
    places = [i for i in range(len(headings)) if i == 0 or any(line[i] not in ("", "-") for line in lines)]
    return report.markdown([headings[i] for i in places], [[line[i] for i in places] for line in lines])


def results_text(title: str, tables: Sequence[Table], command: str, summary: str = "") -> str:
    """Builds the text of a section's file. It starts with its summary, by default the first one of the tables.

    Raises:
      GraphrlError: the tables have no figures.
    """
    seeds, hardware, versions, dates = (
        sorted(frozenset().union(*parts)) for parts in zip(*(table.origin for table in tables), strict=True)
    )
    if not dates:
        raise GraphrlError(f"{title}: {NOT_MEASURED}")
    where = (
        f"Command: `{command}`. Seed: {', '.join(map(str, seeds))}. "
        f"Hardware: {'; '.join(hardware)}. Versions: {'; '.join(versions)}. "
        f"Date: {' to '.join(dict.fromkeys((dates[0], dates[-1])))}.\n"
    )
    texts = [table.text if len(tables) == 1 else f"## {table.title}\n\n{table.text}" for table in tables]
    summaries = [f"{text}\n" for text in (summary, *(table.summary for table in tables)) if text]
    return "\n".join([f"# {tables[0].title if len(tables) == 1 else title}\n", *summaries[:1], where, *texts])
