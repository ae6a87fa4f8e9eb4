"""Sections `budgets` and `planning`: whether what graphrl foretells is what XLA needs, and how long planning takes."""

import functools
import gc
import statistics
import time
from collections.abc import Iterator

import jax

from graphrl.compare.report import markdown
from reproduce.checkpoint.figures import memory
from reproduce.checkpoint.methods import LIMITS, OURS, planned
from reproduce.checkpoint.program import undecorated
from reproduce.checkpoint.programs import LONG, build
from reproduce.checkpoint.settings import Settings
from reproduce.measurements import Figures
from reproduce.real_programs.settings import mebibytes, ratio
from reproduce.results import Table

NEAR = 0.1  # by which a figure may differ from what was foretold


def budgets(settings: Settings) -> Iterator[Table]:
    """A line a program and method."""
    lines, quotients = [], []
    for name in settings.chosen:
        for method in settings.among(tuple(OURS)):
            figures, foretold = memory(settings, name, method), planning_of(settings, name, method)
            if figures is None or foretold is None:
                continue
            quotient = figures["temporaries"] / foretold["peak"]
            quotients.append(quotient)
            cells = map(mebibytes, (foretold["peak"], figures["temporaries"]))
            lines.append([name, method, *cells, ratio(quotient), ratio(foretold["slowdown"])])
    headings = ["program", "method", "foretold, MiB", "XLA, MiB", "XLA / foretold", "slowdown foretold"]
    how = "Temporaries that graphrl foretells from the traced function, and those of XLA's compiler for an H200."
    notes = []
    if quotients:
        near = sum(abs(quotient - 1) <= NEAR for quotient in quotients)
        notes.append(
            f"within {NEAR:.0%}: {near} of {len(quotients)}; from {min(quotients):.2f} to {max(quotients):.2f}"
        )
        notes.append(f"geometric mean: {ratio(statistics.geometric_mean(quotients))}")
    yield settings.measurements.table("Budgets", how, markdown(headings, lines), notes=notes)


def planning(settings: Settings) -> Iterator[Table]:
    """A line a program, of the middle method."""
    methods = settings.among(tuple(LIMITS))
    method = methods[len(methods) // 2]
    lines = []
    for name in (*settings.chosen, *(() if settings.programs else LONG)):
        figures = planning_of(settings, name, method)
        if figures is not None:
            seconds = [f"{figures[key]:.1f}" for key in ("search", "second", "checkpoint")]
            lines.append([name, f"{figures['equations']:,}", *seconds])
    headings = ["program", "equations", "search, s", "next trace, s", "under jax.checkpoint, s"]
    how = (
        f"Seconds of the search, {method}, and to trace the gradient in the next process, which reads the plan from "
        "disk; and to trace it under jax.checkpoint."
    )
    yield settings.measurements.table("Planning", how, markdown(headings, lines))


def planning_of(settings: Settings, name: str, method: str) -> Figures | None:
    """Bytes and slowdown as foretold, and seconds of planning."""
    key = {"what": "planning", "program": name, "method": method, "size": settings.size}
    return settings.measurements.get(key, functools.partial(_planned, settings, name, method))


def _planned(settings: Settings, name: str, method: str) -> Figures:
    program = build(name, small=settings.quick)
    times = []
    for function in (planned(method, program), planned(method, program), jax.checkpoint(program.loss(undecorated))):
        gc.collect()  # each begins alike: a collection amid many traced programs takes half a second
        began = time.perf_counter()
        jaxpr = jax.make_jaxpr(jax.value_and_grad(function))(*program.args)
        times.append(time.perf_counter() - began)
    own = planned(method, program)
    jax.eval_shape(jax.value_and_grad(own), *program.args)
    report = own.report()
    return {
        "peak": report.planned.peak_bytes,
        "kept": report.planned.kept_bytes,
        "moved": report.planned.moved_bytes,
        "slowdown": report.slowdown,
        "search": report.search_seconds,
        "first": times[0],
        "second": times[1],
        "checkpoint": times[2],
        "equations": len(jaxpr.jaxpr.eqns),
    }
