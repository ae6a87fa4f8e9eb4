"""Section `device`: memory and time of steps on the device of this machine, beside what was foretold."""

import functools
import os
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from graphrl.bench.machine import device_name
from graphrl.compare.report import markdown
from graphrl.errors import GraphrlError
from graphrl.plan.plot import write_figure
from reproduce.apart import each_apart
from reproduce.checkpoint.curve import Curves, figure
from reproduce.checkpoint.methods import LIMITS, NONE, RULES
from reproduce.checkpoint.points import Point, best, least
from reproduce.checkpoint.settings import Settings
from reproduce.checkpoint.stepping import Task, compile_task, run_tasks
from reproduce.measurements import Figures, Measurements
from reproduce.real_programs.settings import mebibytes, ratio
from reproduce.results import Table, bullets

HOSTED = "graphrl with the host at 10%"
_HOW = (
    "Steps of `value_and_grad` as compiled and run there. In MiB: temporaries that graphrl foretells, the compiler's, "
    "and the most that the device's allocator held beside arguments and results. Times of steps are medians; slowdowns "
    "are against the undecorated gradient, measured and foretold."
)
METHODS = (*(rule for rule in RULES if rule == NONE or rule.endswith("a layer")), *LIMITS, HOSTED)
_NEAR = 0.1
By = Mapping[str, Mapping[str, Figures]]  # program and method


def device(settings: Settings) -> Iterator[Table]:
    """Means, a table a program, and a picture in --out.

    Raises:
      GraphrlError: there are no figures of the device that is asked for; or a process died.
    """
    # Each process takes what it needs, not most of the device at once.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    stored, name = bool(settings.device), settings.device or device_name()
    measurements = Measurements(settings.out / "measured.jsonl", retry=settings.retry, stored=stored)
    tasks = {program: _tasks(settings, program) for program in settings.chosen}
    failed = {} if stored else _compile(settings, [task for some in tasks.values() for task in some])
    tables, by_program = list[Table](), dict[str, dict[str, Figures]]()
    for program, some in tasks.items():
        run = functools.cache(functools.partial(_run, [task for task in some if task not in failed]))
        by_program[program] = {}
        for task in some:
            key = {"what": "device", "program": program, "method": task.method, "size": settings.size, "device": name}
            figures = measurements.get(key, functools.partial(_figures, run, failed, task))
            if figures is not None:
                by_program[program][task.method] = figures
        table = measurements.table(program, _lines(by_program[program]))
        tables += [table] if by_program[program] or not stored else []
    if not tables:
        raise GraphrlError(f"{settings.out} has no figures of a device {name!r}")
    write_figure(figure(_curves(by_program), "measured slowdown"), settings.out / "device.png")
    yield Table(f"Steps on one {name}", tables[0].origin, [_HOW, _means(by_program), bullets(_notes(by_program))])
    yield from tables


def _tasks(settings: Settings, program: str) -> list[Task]:
    folder = settings.out / "compiled"
    return [
        Task(program, method, settings.quick, settings.chip, folder / f"{settings.size} {program} {method}.bin")
        for method in settings.among(METHODS)
    ]


def _compile(settings: Settings, tasks: Sequence[Task]) -> dict[Task, str]:
    """Compiles what no file is there of; returns what failed, and why."""
    missing = [task for task in tasks if not task.path.exists()]
    (settings.out / "compiled").mkdir(exist_ok=True)
    failed = dict[Task, str]()
    for task, fault in each_apart(compile_task, missing, settings.processes):
        print(fault or "compiled:", task.program, task.method, file=sys.stderr, flush=True)
        if fault:
            failed[task] = fault
    return failed


def _run(tasks: Sequence[Task]) -> dict[str, Figures | str]:
    """In a process of its own, with what the device's allocator has held at most."""
    return next(each_apart(run_tasks, [list(tasks)], 1)) if tasks else {}


def _figures(run: Any, failed: Mapping[Task, str], task: Task) -> Figures:
    figures = failed[task] if task in failed else run()[task.method]
    if isinstance(figures, str):
        raise GraphrlError(figures)
    return figures


def _lines(figures: Mapping[str, Figures]) -> str:
    """A line a method."""
    lines = []
    for method, own in figures.items():
        peak = None if own["peak"] is None else own["peak"] - own["results"]
        sizes = map(mebibytes, (own["foretold"], own["temporaries"], peak))
        times = [ratio(_slowdown(figures, method, which)) for which in ("step", "seconds")]
        milliseconds = (f"{1e3 * own[which]:.2f}" for which in ("step", "seconds"))
        lines.append([method, *sizes, *milliseconds, *times])
    headings = [
        "method", "foretold, MiB", "compiler's", "the device's", "step, ms", "foretold", "slowdown", "foretold",
    ]  # fmt: skip
    return markdown(headings, lines)


def _slowdown(figures: Mapping[str, Figures], method: str, which: str) -> float | None:
    """By measured steps ("step") or as foretold ("seconds")."""
    return figures[method][which] / figures[NONE][which] - 1 if NONE in figures else None


def _curves(by_program: By) -> dict[str, Curves]:
    """Points with measured slowdowns."""
    return {
        program: Curves(_points(figures, RULES), [], _points(figures, LIMITS))
        for program, figures in by_program.items()
        if NONE in figures
    }


def _points(figures: Mapping[str, Figures], methods: Iterable[str]) -> list[Point]:
    whole = figures[NONE]["temporaries"]
    return [
        Point(method, own["temporaries"], own["temporaries"] / whole, own["step"] / figures[NONE]["step"] - 1)
        for method in methods
        if (own := figures.get(method)) is not None
    ]


def _means(by_program: By) -> str:
    """A line a method."""
    lines = []
    for method in METHODS:
        some = [figures for figures in by_program.values() if method in figures and NONE in figures]
        if some:
            shares = [figures[method]["temporaries"] / figures[NONE]["temporaries"] for figures in some]
            times = [
                statistics.fmean(cast(float, _slowdown(figures, method, which)) for figures in some)
                for which in ("step", "seconds")
            ]
            cells = map(ratio, (statistics.geometric_mean(shares), *times))
            lines.append([method, str(len(some)), *cells])
    return markdown(["method", "programs", "of none's", "slowdown", "foretold"], lines)


def _notes(by_program: By) -> Iterator[str]:
    """How true what was foretold is, and the best rule of each program against ours that is no slower there."""
    apart, near, quotients = list[float](), list[bool](), list[float]()
    for figures in by_program.values():
        for method, own in figures.items():
            if method != NONE and NONE in figures:
                slowdowns = [cast(float, _slowdown(figures, method, which)) for which in ("step", "seconds")]
                apart.append(abs(slowdowns[0] - slowdowns[1]))
            if own["foretold"] is not None:
                near.append(abs(own["temporaries"] / own["foretold"] - 1) <= _NEAR)
    for curves in _curves(by_program).values():
        rule = best(curves.rules)
        own_best = rule and least(curves.ours, rule.slowdown)
        if rule and own_best:
            quotients.append(own_best.temporaries / rule.temporaries)
    if apart:
        points = f"{100 * statistics.median(apart):.1f} points by the median, {100 * max(apart):.1f} at most"
        yield f"measured slowdowns differ from those foretold by {points}"
    if near:
        yield f"the compiler's temporaries are within {_NEAR:.0%} of what was foretold: {sum(near)} of {len(near)}"
    if quotients:
        mean = ratio(statistics.geometric_mean(quotients))
        yield f"ours over the best rule at its measured slowdown, geometric mean of {len(quotients)}: {mean}"
