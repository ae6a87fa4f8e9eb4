"""How much a process grows while a program runs, by schedule: each measurement is a process of its own."""

import dataclasses
import statistics
from collections.abc import Iterator, Sequence

from graphrl.compare.report import markdown
from graphrl.units import format_seconds
from graphrl.xla.resident import Recipe, Schedule, measure_resident
from real_programs.measurements import Figures
from real_programs.programs import RESIDENT
from real_programs.settings import MB, Settings, megabytes
from real_programs.subject import Subject
from real_programs.temporaries import of_plan, planned_order

_REPEATS = {False: 3, True: 1}  # with --quick


def resident(settings: Settings) -> Iterator[str]:
    """One table: for each program a line a schedule."""
    headings = [
        "program", "schedule", "XLA's figure [MB]", "rise [MB]", "less than default", "by XLA's figure", "first call",
        "results",
    ]  # fmt: skip
    lines = [line for subject in settings.subjects(RESIDENT) for line in _lines(settings, subject)]
    yield (
        "## Resident size of the process\n\n"
        "The rise while the executable runs for the first time (temporaries, results "
        f"and what XLA's threads take), sampled every 2 ms; medians of {_REPEATS[settings.quick]} processes each.\n\n"
        f"{markdown(headings, lines)}\n{settings.origin()}"
    )


def _lines(settings: Settings, subject: Subject) -> Iterator[list[str]]:
    seconds = settings.times[0]
    schedules: dict[str, Schedule] = {"XLA default": "default", "XLA memory": "memory"}
    if of_plan(settings, subject, seconds) is not None:
        schedules[f"graphrl {seconds:g} s"] = planned_order(subject, seconds)
    default = None
    for name, schedule in schedules.items():
        found = _runs(settings, subject, name, schedule)
        if not found:
            yield [subject.name, name, *["-"] * 6]
            continue
        rise, temp = statistics.median(figures["rise"] for figures in found), found[0]["temp"]
        digests = {figures["digest"] for figures in found}
        default = default or (rise, temp, digests)
        same = "identical" if digests == default[2] and len(digests) == 1 else "**differ**"
        less = [f"{(before - now) / MB:,.1f}" for before, now in ((default[0], rise), (default[1], temp))]
        call = format_seconds(statistics.median(figures["seconds"] for figures in found))
        yield [subject.name, name, megabytes(temp), megabytes(rise), *less, call, same]


def _runs(settings: Settings, subject: Subject, name: str, schedule: Schedule) -> Sequence[Figures]:
    recipe = Recipe("real_programs.programs:build", {"name": subject.name})

    def measure() -> Figures:
        found = measure_resident(recipe, schedule)
        return dataclasses.asdict(found) | {"rise": found.rise}

    key = {"what": "resident", "program": subject.name, "schedule": name}
    runs = [settings.measurements.get({**key, "run": run}, measure) for run in range(_REPEATS[settings.quick])]
    return [figures for figures in runs if figures is not None]
