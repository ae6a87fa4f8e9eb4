"""Time to plan large programs, and growth of a process while a program runs.

Growth is measured in a new process for each run of a schedule.
"""

import dataclasses
import itertools
import statistics
from collections.abc import Iterator, Sequence

from graphrl.compare.report import percent
from graphrl.compare.runs import Executor, make_runs
from graphrl.errors import GraphrlError
from graphrl.process import count_cores
from graphrl.solvers.base import Budget
from graphrl.units import format_seconds
from graphrl.xla.settings import PROBLEM
from reproduce.measurements import Figures, mebibytes
from reproduce.real_programs.memory import of_plan, planned_order
from reproduce.real_programs.process_size import RETURNING, Recipe, Schedule, measure_resident
from reproduce.real_programs.programs import PLANNING, RESIDENT, Settings, Subject
from reproduce.results import Table, markdown

NEAR = 0.01  # of the final value
_LARGE = 5000  # instructions from which a program gets the longest time


def planning(settings: Settings) -> Iterator[Table]:
    """Yields a table with a row for each program."""
    headings = ["program", "instructions", "budget [s]", "planning [s]", "compiling", f"within {NEAR:.0%} after",
                "final after", "peak [MiB]", "to bound"]  # fmt: skip
    lines = []
    for subject in settings.subjects(PLANNING):
        instructions = len(subject.module("default").entry.instructions)
        seconds = settings.times[-1] if instructions >= _LARGE else settings.times[0]
        cells = _search_cells(_search(settings, subject, seconds))
        lines.append([subject.name, f"{instructions:,}", f"{seconds:g}", *cells])
    how = (
        "Method auto, from a graph in memory to its plan, without a warm-up: times include JAX's compilations. The "
        "last two times are those at which the plan had that quality."
    )
    largest, size, _, seconds_text, *_ = lines[-1]
    summary = f"{largest}, of {size} instructions, is planned in {seconds_text} s."
    yield settings.measurements.table("Planning", how, markdown(headings, lines), summary=summary)


def _search(settings: Settings, subject: Subject, seconds: float) -> Figures | None:
    def measure() -> Figures:
        budget = Budget(None, seconds)
        (run,) = make_runs([subject.hlo.graph], PROBLEM, ("auto",), (0,), budget, cores=count_cores(), warm_up=False)
        row = Executor().execute(run)
        if row.value is None:
            raise GraphrlError(row.error or "no plan")
        near = next(at for at, _, value in row.curve if value <= (1 + NEAR) * row.value)
        final = next(at for at, _, value in row.curve if value <= row.value)
        times = {"seconds": row.seconds, "compiling": row.compile_seconds, "near": near, "final": final}
        return {"value": row.value, "bound": row.bound, **times}

    return settings.measurements.get({"what": "search", "program": subject.name, "seconds": seconds}, measure)


def _search_cells(figures: Figures | None) -> list[str]:
    if figures is None:
        return ["-"] * 6
    times = [f"{figures[name]:.2f}" for name in ("seconds", "compiling", "near", "final")]
    gap = figures["value"] / figures["bound"] - 1 if figures["bound"] else None
    return [*times, mebibytes(figures["value"]), percent(gap)]


_REPEATS = {False: 3, True: 1}  # with --quick


def resident(settings: Settings) -> Iterator[Table]:
    """Yields a table with a row for each program and schedule."""
    headings = [
        "program", "schedule", "XLA's figure [MiB]", "less than default", "rise [MiB]", "less than default",
        "first call", "rise, freed memory returned [MiB]", "less than default", "first call", "results",
    ]  # fmt: skip
    lines = [line for subject in settings.subjects(RESIDENT) for line in _lines(settings, subject)]
    how = (
        "The rise while the executable runs for the first time (temporaries, results and allocations of XLA's "
        f"threads), sampled every 2 ms; medians of {_REPEATS[settings.quick]} processes each; as the C library has "
        f"it, and with {' '.join(map('='.join, RETURNING.items()))} (`reproduce.real_programs.process_size` explains "
        "it)."
    )
    first, *_, last = [line for line in lines if line[0] == lines[0][0]]
    summary = f"{first[0]} grows by {first[4]} MiB under {first[1]}, by {last[4]} MiB under {last[1]}."
    yield settings.measurements.table("Resident size of the process", how, markdown(headings, lines), summary=summary)


def _lines(settings: Settings, subject: Subject) -> Iterator[list[str]]:
    seconds = settings.times[0]
    schedules: dict[str, Schedule] = {"XLA default": "default"}
    if not settings.quick:
        schedules["XLA memory"] = "memory"
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
    recipe = Recipe("reproduce.real_programs.programs:build", {"name": subject.name})

    def measure() -> Figures:
        measured = measure_resident(recipe, schedule, returning=returning)
        return dataclasses.asdict(measured) | {"rise": measured.rise}

    key = {"what": "resident", "program": subject.name, "schedule": name}
    if returning:
        key["allocator"] = "returning"
    runs = [settings.measurements.get({**key, "run": run}, measure) for run in range(_REPEATS[settings.quick])]
    return [figures for figures in runs if figures is not None]
