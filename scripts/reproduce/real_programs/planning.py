"""How long large programs take: to trace, read and plan, and to predict and write a schedule."""

import time
from collections.abc import Callable, Iterator
from typing import Any

from graphrl.compare.report import markdown, percent
from graphrl.compare.runs import Executor, make_runs
from graphrl.errors import GraphrlError
from graphrl.graphs.readers.hlo.module import parse_module
from graphrl.graphs.readers.hlo.reader import read_hlo
from graphrl.graphs.roofline import DEFAULT_CHIP
from graphrl.process import count_cores
from graphrl.solvers.base import Budget
from graphrl.xla.assignment import TempPredictor
from graphrl.xla.callback import rescheduled
from graphrl.xla.hook import captured
from graphrl.xla.settings import PROBLEM
from reproduce.measurements import Figures
from reproduce.real_programs.names import PLANNING
from reproduce.real_programs.settings import Settings, mebibytes
from reproduce.real_programs.subject import Subject
from reproduce.results import Table

NEAR = 0.01  # of the final value
_LARGE = 5000  # instructions from which a program gets the longest time


def planning(settings: Settings) -> Iterator[Table]:
    """Two tables: searching, and everything around it."""
    around = {subject.name: _around(settings, subject) for subject in settings.subjects(PLANNING)}
    headings = ["program", "instructions", "ops", "trace and lower", "XLA, to its schedule", "parse", "read", "predict",
                "write schedule"]  # fmt: skip
    lines = [[name, *_around_cells(figures)] for name, figures in around.items()]
    yield settings.measurements.table("Around planning", "Seconds.", markdown(headings, lines))
    headings = ["program", "instructions", "budget [s]", "taken [s]", "compiling", f"within {NEAR:.0%} after",
                "final after", "peak [MiB]", "to bound"]  # fmt: skip
    lines = []
    for subject in settings.subjects(PLANNING):
        figures = around[subject.name]
        if figures is not None:
            seconds = settings.times[-1] if figures["instructions"] >= _LARGE else settings.times[0]
            lines.append([subject.name, f"{figures['instructions']:,}", f"{seconds:g}",
                          *_search_cells(_search(settings, subject, seconds))])  # fmt: skip
    how = (
        "Method auto, from a graph in memory to its plan, without a warm-up: what JAX compiles is in the time. The "
        "last two times are those at which the plan was that good."
    )
    yield settings.measurements.table("Planning", how, markdown(headings, lines))


def _around(settings: Settings, subject: Subject) -> Figures | None:
    def measure() -> Figures:
        fresh = Subject(subject.name, settings.out)
        lower, _ = _timed(lambda: fresh.lowered)
        capture, module = _timed(lambda: captured(fresh.lowered))
        data = module.message.SerializeToString()
        parse, module = _timed(lambda: parse_module(data))
        read, program = _timed(lambda: read_hlo(module, chip=DEFAULT_CHIP))
        predict, _ = _timed(lambda: TempPredictor(module)(module.order(module.entry)))
        write, _ = _timed(lambda: rescheduled(module, {module.entry.name: program.sequence(program.schedule)}))
        sizes = {"instructions": len(module.entry.instructions), "ops": len(program.graph.ops)}
        return sizes | {
            "lower": lower, "capture": capture, "parse": parse, "read": read, "predict": predict, "write": write
        }  # fmt: skip

    return settings.measurements.get({"what": "around planning", "program": subject.name}, measure)


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    value = work()
    return time.perf_counter() - started, value


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


def _around_cells(figures: Figures | None) -> list[str]:
    if figures is None:
        return ["-"] * 8
    counts = [f"{figures[name]:,}" for name in ("instructions", "ops")]
    return counts + [f"{figures[name]:.2f}" for name in ("lower", "capture", "parse", "read", "predict", "write")]


def _search_cells(figures: Figures | None) -> list[str]:
    if figures is None:
        return ["-"] * 6
    times = [f"{figures[name]:.2f}" for name in ("seconds", "compiling", "near", "final")]
    gap = figures["value"] / figures["bound"] - 1 if figures["bound"] else None
    return [*times, mebibytes(figures["value"]), percent(gap)]
