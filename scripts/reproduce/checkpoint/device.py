"""Section `device`: measured memory and time of training steps on this machine's device, with the predictions.

Each gradient is compiled in one process and run in another. Compilation tries out kernels, which takes device memory,
and the device's allocator never forgets a peak. A process that runs a gradient therefore loads what another process
compiled, and does nothing else.
"""

import functools
import os
import pickle
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.experimental import serialize_executable

from graphrl.bench.machine import device_name
from graphrl.compare.report import markdown
from graphrl.errors import GraphrlError
from graphrl.files import write_atomically
from graphrl.plan.plot import write_figure
from graphrl.xla.checkpoint.seconds import gradient_seconds
from reproduce.checkpoint.measured import GRADIENTS, LIMITS, NONE, PLANNED, RULES, Point, Settings, build, planned
from reproduce.checkpoint.rules import Curves, figure, targets
from reproduce.measurements import Figures, Measurements, in_a_line, map_in_processes, mebibytes, ratio
from reproduce.results import Table, bullets

_WARM, _LEAST, _MOST, _SECONDS = 3, 5, 50, 0.7  # warm-up steps, then least and most timed steps and their seconds
_SEED = 0
WITH_HOST = "graphrl with the host at 10%"
METHODS = (*(rule for rule in RULES if rule == NONE or rule.endswith("a layer")), *LIMITS, WITH_HOST)
_HOW = (
    "Steps of `value_and_grad`, compiled and run on the device. In MiB: temporaries that graphrl predicts, the "
    "compiler's, and the peak of the device's allocator without arguments and results. Times of steps are medians; "
    "slowdowns are against the undecorated gradient, measured and predicted."
)

_NEAR = 0.1  # relative difference at which predicted temporaries count as right
Steps = Mapping[str, Figures]  # of one program, by method


class Task(NamedTuple):
    """A gradient to compile and measure: a program and a method.

    Attributes:
      program, method: names of the program and the method.
      small: True for the program's small size.
      chip: name of the chip that predicted times are for.
      path: file of the compiled gradient.
    """

    program: str
    method: str
    small: bool
    chip: str
    path: Path


class Compiled(NamedTuple):
    """Content of a task's file.

    Attributes:
      executable: result of `serialize_executable.serialize`.
      figures: predictions and the compiler's figures.
    """

    executable: tuple[Any, ...]
    figures: Figures


def device(settings: Settings) -> Iterator[Table]:
    """Yields the table of means, then a table for each program; writes a picture to --out.

    Raises:
      GraphrlError: none of the requested methods belongs to this section, or the file has no figures of the requested
        device.
    """
    if not settings.among(METHODS):
        raise GraphrlError(f"section device has none of these methods: it has {', '.join(METHODS)}")
    stored, name = settings.stored or bool(settings.device), settings.device or device_name()
    measurements = Measurements(settings.out / "measured.jsonl", retry=settings.retry, stored=stored)
    tasks = {program: _tasks(settings, name, program) for program in settings.selected}
    missing = [task for some in tasks.values() for task in some if measurements.lacks(_key(settings, name, task))]
    failed = _compile(settings, missing)
    tables, steps = list[Table](), dict[str, Steps]()
    for program, some in tasks.items():
        each = {
            task.method: measurements.get(_key(settings, name, task), functools.partial(_run, failed, task))
            for task in some
        }
        by_method = {method: figures for method, figures in each.items() if figures is not None}
        table = measurements.table(program, _lines(by_method))
        if by_method or not stored:
            steps[program] = by_method
            tables.append(table)
    if not tables:
        raise GraphrlError(f"{settings.out} has no figures of a device {name!r}")
    curves = _curves(steps)
    if curves:
        write_figure(figure(curves, "measured slowdown [%]"), settings.out / "device.png")
    summary, *counts = targets(curves) or [f"Memory and time of steps as measured on one {name}."]
    notes = bullets([*_notes(steps), *counts])
    yield Table(f"Steps on one {name}", tables[0].origin, [_HOW, _means(steps), notes], summary)
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
    """Compiles the tasks that have no file yet. Returns the error of each task that failed."""
    for task in tasks:
        task.path.parent.mkdir(parents=True, exist_ok=True)
        if settings.retry:
            task.path.unlink(missing_ok=True)
    failed = dict[Task, str]()
    missing = [task for task in tasks if not task.path.exists()]
    for task, fault in map_in_processes(compile_task, missing, settings.processes):
        print(fault or "compiled:", task.program, task.method, file=sys.stderr, flush=True)
        if fault:
            failed[task] = fault
    return failed


def _run(failed: Mapping[Task, str], task: Task) -> Figures:
    if task in failed:
        raise GraphrlError(failed[task])
    (figures,) = map_in_processes(run_task, [task], 1)
    return figures


def _lines(steps: Steps) -> str:
    """Returns a table with a row for each method."""
    lines = []
    for method, own in steps.items():
        peak = None if own["peak"] is None else own["peak"] - own["results"]
        sizes = map(mebibytes, (own["predicted"], own["temporaries"], peak))
        milliseconds = (f"{1e3 * own[which]:.2f}" for which in ("step", "seconds"))
        slowdowns = _slowdowns(steps, method) if NONE in steps else (None, None)
        lines.append([method, *sizes, *milliseconds, *map(ratio, slowdowns)])
    headings = [
        "method", "predicted, MiB", "compiler's", "the device's", "step, ms", "predicted, ms", "slowdown",
        "predicted slowdown",
    ]  # fmt: skip
    return markdown(headings, lines)


def _slowdowns(steps: Steps, method: str) -> tuple[float, float]:
    """Returns measured and predicted slowdown against the undecorated gradient, which must have been measured."""
    measured, predicted = (steps[method][which] / steps[NONE][which] - 1 for which in ("step", "seconds"))
    return measured, predicted


def _curves(steps: Mapping[str, Steps]) -> dict[str, Curves]:
    """Returns points with measured slowdowns, of programs whose undecorated gradient was measured."""
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
    """Returns the table of means over programs, with a row for each method."""
    lines = []
    for method in METHODS:
        some = [own for own in steps.values() if method in own and NONE in own]
        if some:
            share = statistics.geometric_mean(own[method]["temporaries"] / own[NONE]["temporaries"] for own in some)
            times = map(statistics.fmean, zip(*(_slowdowns(own, method) for own in some), strict=True))
            lines.append([method, str(len(some)), *map(ratio, (share, *times))])
    return markdown(["method", "programs", "/ none", "slowdown", "predicted slowdown"], lines)


def _notes(steps: Mapping[str, Steps]) -> Iterator[str]:
    """Yields the accuracy of the predictions, and the XLA flags of the measurements."""
    apart, near = list[float](), list[bool]()
    for own in steps.values():
        for method, figures in own.items():
            if method != NONE and NONE in own:
                measured, predicted = _slowdowns(own, method)
                apart.append(100 * abs(measured - predicted))
            if figures["predicted"] is not None:
                near.append(abs(figures["temporaries"] / figures["predicted"] - 1) <= _NEAR)
    if apart:
        points = f"{statistics.median(apart):.1f} points by the median, {max(apart):.1f} at most"
        yield f"measured slowdowns differ from predicted ones by {points}"
    if near:
        yield f"the compiler's temporaries are within {_NEAR:.0%} of the prediction: {sum(near)} of {len(near)}"
    for flags in sorted({figures["flags"] for own in steps.values() for figures in own.values()} - {""}):
        yield f"compiled with XLA_FLAGS: `{flags}`"


def compile_task(task: Task) -> tuple[Task, str]:
    """Compiles a task and writes its file. Returns the task and the error, "" if there was none."""
    jax.config.update("jax_enable_compilation_cache", False)  # an executable from the cache serializes without its code
    try:
        content = pickle.dumps(tuple(_compiled(task)))
    except Exception as fault:  # one failure must not end the other tasks
        return task, in_a_line(fault)
    write_atomically(task.path, lambda file: file.write(content), binary=True)
    return task, ""


def run_task(task: Task) -> Figures:
    """Runs a compiled task, whose file must exist; returns its measurements."""
    program, file = build(task.program, small=task.small), Compiled(*pickle.loads(task.path.read_bytes()))
    args = jax.block_until_ready(jax.device_put(program.draw(_SEED)))
    step = serialize_executable.deserialize_and_load(*file.executable)
    return {**file.figures, "peak": _peak(step, args), **_times(step, args)}


def _compiled(task: Task) -> Compiled:
    program, started = build(task.program, small=task.small), time.perf_counter()
    own = planned(task.method, program) if task.method in PLANNED else None
    traced = jax.jit(GRADIENTS[task.method](program) if own is None else jax.value_and_grad(own)).trace(*program.args)
    at = time.perf_counter()
    executable = traced.lower().compile()
    memory = executable.memory_analysis()
    figures = {
        "predicted": None if own is None else own.report().planned.peak_bytes,
        "seconds": gradient_seconds(traced.jaxpr, task.chip),
        "trace": at - started,
        "compile": time.perf_counter() - at,
        "arguments": memory.argument_size_in_bytes,
        "results": memory.output_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "flags": os.environ.get("XLA_FLAGS", ""),
    }
    return Compiled(serialize_executable.serialize(executable), figures)


def _peak(step: Any, args: Any) -> int | None:
    """Measures a step's peak bytes in use, less the bytes in use before it; None if the device reports no memory."""
    before = _stats().get("bytes_in_use")
    jax.block_until_ready(step(*args))
    return None if before is None else _stats()["peak_bytes_in_use"] - before


def _times(step: Any, args: Any) -> Figures:
    for _ in range(_WARM):
        jax.block_until_ready(step(*args))
    times, started = list[float](), time.perf_counter()
    while len(times) < _LEAST or (len(times) < _MOST and time.perf_counter() - started < _SECONDS):
        at = time.perf_counter()
        jax.block_until_ready(step(*args))
        times.append(time.perf_counter() - at)
    return {"step": statistics.median(times), "fastest": min(times), "steps": len(times)}


def _stats() -> dict[str, int]:
    return jax.local_devices()[0].memory_stats() or {}
