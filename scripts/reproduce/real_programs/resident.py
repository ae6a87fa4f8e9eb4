"""How much a process grows while a program runs, by schedule: each measurement is a process of its own."""

import dataclasses
import itertools
import statistics
from collections.abc import Iterator, Sequence

from graphrl.compare.report import markdown
from graphrl.units import format_seconds
from reproduce.measurements import Figures
from reproduce.real_programs.names import RESIDENT
from reproduce.real_programs.process_size import RETURNING, Recipe, Schedule, measure_resident
from reproduce.real_programs.settings import Settings, mebibytes
from reproduce.real_programs.subject import Subject
from reproduce.real_programs.temporaries import of_plan, planned_order
from reproduce.results import Table

_REPEATS = {False: 3, True: 1}  # with --quick


def resident(settings: Settings) -> Iterator[Table]:
    """One table: for each program a line a schedule."""
    headings = [
        "program", "schedule", "XLA's figure [MiB]", "less than default", "rise [MiB]", "less than default",
        "first call", "rise, freed memory returned [MiB]", "less than default", "first call", "results",
    ]  # fmt: skip
    lines = [line for subject in settings.subjects(RESIDENT) for line in _lines(settings, subject)]
    how = (
        "The rise while the executable runs for the first time (temporaries, results and what XLA's threads take), "
        f"sampled every 2 ms; medians of {_REPEATS[settings.quick]} processes each; as the C library has it, and with "
        f"{' '.join(map('='.join, RETURNING.items()))} (`process_size.py` says why)."
    )
    yield settings.measurements.table("Resident size of the process", how, markdown(headings, lines))


def _lines(settings: Settings, subject: Subject) -> Iterator[list[str]]:
    seconds = settings.times[0]
    schedules: dict[str, Schedule] = {"XLA default": "default", "XLA memory": "memory"}
    if of_plan(settings, subject, seconds) is not None:
        schedules[f"graphrl {seconds:g} s"] = planned_order(subject, seconds)
    default: tuple[float, ...] | None = None
    digests: set[str] = set()
    for name, schedule in schedules.items():
        both = [_runs(settings, subject, name, schedule, returning) for returning in (False, True)]
        if not all(both):
            yield [subject.name, name, *["-"] * 9]
            continue
        figures = (both[0][0]["temp"], *(_median(runs, "rise") for runs in both))
        default = default or figures
        digests |= {run["digest"] for runs in both for run in runs}
        columns = [[mebibytes(now), mebibytes(before - now)] for before, now in zip(default, figures, strict=True)]
        for column, runs in zip(columns[1:], both, strict=True):
            column.append(format_seconds(_median(runs, "seconds")))
        yield [subject.name, name, *itertools.chain(*columns), "identical" if len(digests) == 1 else "**differ**"]


def _median(runs: Sequence[Figures], name: str) -> float:
    return statistics.median(figures[name] for figures in runs)


def _runs(settings: Settings, subject: Subject, name: str, schedule: Schedule, returning: bool) -> Sequence[Figures]:
    recipe = Recipe("reproduce.real_programs.names:build", {"name": subject.name})

    def measure() -> Figures:
        measured = measure_resident(recipe, schedule, returning=returning)
        return dataclasses.asdict(measured) | {"rise": measured.rise}

    key = {"what": "resident", "program": subject.name, "schedule": name}
    if returning:
        key["allocator"] = "returning"
    runs = [settings.measurements.get({**key, "run": run}, measure) for run in range(_REPEATS[settings.quick])]
    return [figures for figures in runs if figures is not None]
