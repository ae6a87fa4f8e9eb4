"""Section `device`: memory and time of steps on the device of this machine, beside what was foretold."""

import functools
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax

from graphrl.bench.machine import device_name
from graphrl.compare.report import markdown
from graphrl.errors import GraphrlError
from graphrl.plan.plot import write_figure
from reproduce.apart import each_apart
from reproduce.checkpoint.curve import Curves, figure, targets
from reproduce.checkpoint.methods import LIMITS, NONE, RULES
from reproduce.checkpoint.points import Point
from reproduce.checkpoint.settings import Settings
from reproduce.checkpoint.stepping import Task, compile_task, run_task
from reproduce.measurements import Figures, Measurements
from reproduce.real_programs.settings import mebibytes, ratio
from reproduce.results import Table, bullets

WITH_HOST = "graphrl with the host at 10%"
METHODS = (*(rule for rule in RULES if rule == NONE or rule.endswith("a layer")), *LIMITS, WITH_HOST)
_HOW = (
    "Steps of `value_and_grad` as compiled and run there. In MiB: temporaries that graphrl foretells, the compiler's, "
    "and the most that the device's allocator held beside arguments and results. Times of steps are medians; slowdowns "
    "are against the undecorated gradient, measured and foretold."
)
_NEAR = 0.1  # part by which temporaries may differ from what was foretold
Steps = Mapping[str, Figures]  # of one program, by method


def device(settings: Settings) -> Iterator[Table]:
    """Means, a table a program, and a picture in --out.

    Raises:
      GraphrlError: none of the methods that are asked for is one of this section, or there are no figures of the
        device that is asked for.
    """
    if not settings.among(METHODS):
        raise GraphrlError(f"section device has none of these methods: it has {', '.join(METHODS)}")
    stored, name = bool(settings.device), settings.device or device_name()
    measurements = Measurements(settings.out / "measured.jsonl", retry=settings.retry, stored=stored)
    tasks = {program: _tasks(settings, name, program) for program in settings.chosen}
    missing = [task for some in tasks.values() for task in some if measurements.lacks(_key(settings, name, task))]
    failed = _compile(settings, missing)
    tables, steps = list[Table](), dict[str, Steps]()
    for program, some in tasks.items():
        each = {
            task.method: measurements.get(_key(settings, name, task), functools.partial(_run, failed, task))
            for task in some
        }
        there = {method: figures for method, figures in each.items() if figures is not None}
        table = measurements.table(program, _lines(there))
        if there or not stored:
            steps[program] = there
            tables.append(table)
    if not tables:
        raise GraphrlError(f"{settings.out} has no figures of a device {name!r}")
    curves = _curves(steps)
    if curves:
        write_figure(figure(curves, "measured slowdown [%]"), settings.out / "device.png")
    notes = bullets([*_notes(steps), *targets(curves)])
    yield Table(f"Steps on one {name}", tables[0].origin, [_HOW, _means(steps), notes])
    yield from tables


def _key(settings: Settings, name: str, task: Task) -> dict[str, Any]:
    of_task = {"program": task.program, "method": task.method, "size": settings.size}
    return {"what": "device", **of_task, "chip": settings.chip, "device": name}


def _tasks(settings: Settings, name: str, program: str) -> list[Task]:
    folder = settings.out / "compiled" / f"{name}, jax {jax.__version__}, {settings.chip}"
    return [
        Task(program, method, settings.quick, settings.chip, folder / f"{settings.size} {program} {method}.bin")
        for method in settings.among(METHODS)
    ]


def _compile(settings: Settings, tasks: Sequence[Task]) -> dict[Task, str]:
    """Compiles what no file is there of; returns what failed, and why."""
    for task in tasks:
        task.path.parent.mkdir(parents=True, exist_ok=True)
        if settings.retry:
            task.path.unlink(missing_ok=True)
    failed = dict[Task, str]()
    missing = [task for task in tasks if not task.path.exists()]
    for task, fault in each_apart(compile_task, missing, settings.processes):
        print(fault or "compiled:", task.program, task.method, file=sys.stderr, flush=True)
        if fault:
            failed[task] = fault
    return failed


def _run(failed: Mapping[Task, str], task: Task) -> Figures:
    if task in failed:
        raise GraphrlError(failed[task])
    (figures,) = each_apart(run_task, [task], 1)
    return figures


def _lines(steps: Steps) -> str:
    """A line a method."""
    lines = []
    for method, own in steps.items():
        peak = None if own["peak"] is None else own["peak"] - own["results"]
        sizes = map(mebibytes, (own["foretold"], own["temporaries"], peak))
        milliseconds = (f"{1e3 * own[which]:.2f}" for which in ("step", "seconds"))
        slowdowns = _slowdowns(steps, method) if NONE in steps else (None, None)
        lines.append([method, *sizes, *milliseconds, *map(ratio, slowdowns)])
    headings = [
        "method", "foretold, MiB", "compiler's", "the device's", "step, ms", "foretold, ms", "slowdown",
        "slowdown foretold",
    ]  # fmt: skip
    return markdown(headings, lines)


def _slowdowns(steps: Steps, method: str) -> tuple[float, float]:
    """As measured and as foretold, where the undecorated gradient was measured, too."""
    measured, foretold = (steps[method][which] / steps[NONE][which] - 1 for which in ("step", "seconds"))
    return measured, foretold


def _curves(steps: Mapping[str, Steps]) -> dict[str, Curves]:
    """Points with measured slowdowns, of programs whose undecorated gradient was measured."""
    return {
        program: Curves(_points(own, RULES), [], _points(own, LIMITS)) for program, own in steps.items() if NONE in own
    }


def _points(steps: Steps, methods: Iterable[str]) -> list[Point]:
    whole = steps[NONE]["temporaries"]
    return [
        Point(method, own["temporaries"], own["temporaries"] / whole, _slowdowns(steps, method)[0])
        for method in methods
        if (own := steps.get(method)) is not None
    ]


def _means(steps: Mapping[str, Steps]) -> str:
    """A line a method."""
    lines = []
    for method in METHODS:
        some = [own for own in steps.values() if method in own and NONE in own]
        if some:
            share = statistics.geometric_mean(own[method]["temporaries"] / own[NONE]["temporaries"] for own in some)
            times = map(statistics.fmean, zip(*(_slowdowns(own, method) for own in some), strict=True))
            lines.append([method, str(len(some)), *map(ratio, (share, *times))])
    return markdown(["method", "programs", "of none's", "slowdown", "slowdown foretold"], lines)


def _notes(steps: Mapping[str, Steps]) -> Iterator[str]:
    """How true what was foretold is."""
    apart, near = list[float](), list[bool]()
    for own in steps.values():
        for method, figures in own.items():
            if method != NONE and NONE in own:
                measured, foretold = _slowdowns(own, method)
                apart.append(100 * abs(measured - foretold))
            if figures["foretold"] is not None:
                near.append(abs(figures["temporaries"] / figures["foretold"] - 1) <= _NEAR)
    if apart:
        points = f"{statistics.median(apart):.1f} points by the median, {max(apart):.1f} at most"
        yield f"measured slowdowns differ from those foretold by {points}"
    if near:
        yield f"the compiler's temporaries are within {_NEAR:.0%} of what was foretold: {sum(near)} of {len(near)}"
    for flags in sorted({figures["flags"] for own in steps.values() for figures in own.values()} - {""}):
        yield f"compiled with XLA_FLAGS: `{flags}`"
