"""Sections `budgets`, `kept` and `planning`: accuracy of predicted memory, budgets in bytes, and planning time.

Predictions are compared with XLA's figures. Budgets in bytes are checked against XLA's figure, without and with
`verify`.
"""

import functools
import gc
import statistics
import time
from collections.abc import Iterator
from typing import Any

import jax

import graphrl
from graphrl.compare.report import markdown
from graphrl.xla.checkpoint.settings import UnmetError
from reproduce.checkpoint.measured import CHIP, LIMITS, LONG, NONE, OURS, Settings, build, memory, planned
from reproduce.gpu_compile import compile_for_gpu, executable_for_gpu
from reproduce.measurements import Figures, mebibytes, ratio
from reproduce.models.losses import Program, undecorated
from reproduce.results import Table

NEAR = 0.1  # relative difference at which a prediction counts as right
SHARES = (0.6, 0.4)  # of jax's own temporaries


def budgets(settings: Settings) -> Iterator[Table]:
    """Yields the table of predicted and compiled temporaries, with a row for each program and method."""
    lines, quotients = [], []
    for name in settings.selected:
        for method in settings.among(tuple(OURS)):
            figures, predicted = memory(settings, name, method), planning_of(settings, name, method)
            if figures is None or predicted is None:
                continue
            quotient = figures["temporaries"] / predicted["peak"]
            quotients.append(quotient)
            cells = map(mebibytes, (predicted["peak"], figures["temporaries"]))
            lines.append([name, method, *cells, ratio(quotient), ratio(predicted["slowdown"])])
    headings = ["program", "method", "predicted, MiB", "XLA, MiB", "XLA / predicted", "predicted slowdown"]
    how = "Temporaries that graphrl predicts from the traced function, and those of XLA's compiler for an H200."
    notes, near = [], sum(abs(quotient - 1) <= NEAR for quotient in quotients)
    if quotients:
        notes.append(f"from {min(quotients):.2f} to {max(quotients):.2f}")
        notes.append(f"geometric mean: {ratio(statistics.geometric_mean(quotients))}")
    summary = f"XLA's temporaries are within {NEAR:.0%} of the prediction in {near} of {len(quotients)} plans."
    yield settings.measurements.table("Budgets", how, markdown(headings, lines), notes=notes, summary=summary)


def planning(settings: Settings) -> Iterator[Table]:
    """Yields the table of planning times by the middle method, with a row for each program."""
    methods = settings.among(tuple(LIMITS))
    method = methods[len(methods) // 2]
    lines, searches = [], [0.0]
    for name in (*settings.selected, *(() if settings.programs else LONG)):
        figures = planning_of(settings, name, method)
        if figures is not None:
            searches.append(figures["search"])
            seconds = [f"{figures[key]:.1f}" for key in ("search", "second", "checkpoint")]
            lines.append([name, f"{figures['equations']:,}", *seconds])
    headings = ["program", "equations", "search, s", "next trace, s", "under jax.checkpoint, s"]
    how = (
        f"Seconds of the search, {method}, and to trace the gradient in the next process, which reads the plan from "
        "disk; and to trace it under jax.checkpoint."
    )
    summary = f"A search takes at most {max(searches):.1f} s, and a later process reads its plan from disk."
    yield settings.measurements.table("Planning", how, markdown(headings, lines), summary=summary)


def planning_of(settings: Settings, name: str, method: str) -> Figures | None:
    """Returns the predicted bytes, the predicted slowdown and the planning time in seconds of one method."""
    key = {"what": "planning", "program": name, "method": method, "size": settings.size}
    return settings.measurements.get(key, functools.partial(_planned, settings, name, method))


def _planned(settings: Settings, name: str, method: str) -> Figures:
    program = build(name, small=settings.quick)
    times = []
    for function in (planned(method, program), planned(method, program), jax.checkpoint(program.loss(undecorated))):
        gc.collect()  # start all alike: a collection amid many traced programs takes half a second
        started = time.perf_counter()
        jaxpr = jax.make_jaxpr(jax.value_and_grad(function))(*program.args)
        times.append(time.perf_counter() - started)
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


def kept(settings: Settings) -> Iterator[Table]:
    """Yields the table of budgets in bytes, with a row for each program and budget."""
    lines, by_verify = [], {False: list[tuple[Figures, int]](), True: list[tuple[Figures, int]]()}
    for name in settings.selected:
        for share in SHARES:
            plain = memory(settings, name, NONE)
            if plain is None:
                continue
            room = int(share * plain["temporaries"])
            budget = plain["arguments"] + plain["results"] + room
            line = [name, f"{share:.0%}", mebibytes(budget)]
            for verify in (False, True):
                own = _kept_figures(settings, name, share, budget, verify=verify)
                by_verify[verify] += [] if own is None else [(own, room)]
                line += _kept_cells(own, room)
            lines.append(line)
    headings = [
        "program", "budget for temporaries", "the step, MiB", "XLA / budget for temporaries", "XLA / report",
        "slowdown", "planning, s", "verified: XLA / budget", "XLA / report", "slowdown", "planning, s",
    ]  # fmt: skip
    how = (
        "Plans for budgets in bytes: arguments and results of the gradient and a share of jax's own temporaries. XLA's "
        "temporaries as shares of the budget for temporaries and of the report's figure, as compiled for an H200 "
        "afterwards: without `verify`, and with it, where planning has compilations, four at most, and the report has "
        "XLA's figure. `above`: a refused budget, and the least temporaries found, predicted or (`verify`) compiled, "
        "as a share of the budget for temporaries."
    )
    notes = [_kept_counted(which, by_verify[verify]) for verify, which in ((False, "predicted"), (True, "verified"))]
    counts = [sum(_is_kept(*each) for each in by_verify[verify]) for verify in (True, False)]
    summary = f"Plans keep {counts[0]} of {len(by_verify[True])} budgets with `verify`, {counts[1]} without."
    yield settings.measurements.table("Budgets in bytes", how, markdown(headings, lines), notes=notes, summary=summary)


def _kept_cells(own: Figures | None, room: int) -> list[str]:
    if own is None:
        return ["-"] * 4
    if own["temporaries"] is None:
        least = "all" if own["least"] is None else ratio(own["least"] / room)
        return [f"above: {least}", "-", "-", f"{own['seconds']:.0f}"]
    quotients = own["temporaries"] / room, own["temporaries"] / _reported(own), own["slowdown"]
    return [*map(ratio, quotients), f"{own['seconds']:.0f}"]


def _is_kept(own: Figures, room: int) -> bool:
    return own["temporaries"] is not None and own["temporaries"] <= room


def _reported(own: Figures) -> float:
    """Returns XLA's temporaries according to the report."""
    return own["predicted"] if own["compiled"] is None else own["compiled"]


def _kept_counted(which: str, figures: list[tuple[Figures, int]]) -> str:
    met = [(own, room) for own, room in figures if own["temporaries"] is not None]
    within = sum(_is_kept(*each) for each in met)
    near = sum(abs(own["temporaries"] / _reported(own) - 1) <= NEAR for own, _ in met)
    return (
        f"{which}: of {len(figures)} budgets {len(figures) - len(met)} were refused, {within} kept; "
        f"XLA's figure within {NEAR:.0%} of the report's in {near} of {len(met)}"
    )


def _kept_figures(settings: Settings, name: str, share: float, budget: int, *, verify: bool) -> Figures | None:
    key = {"what": "kept", "program": name, "share": share, "verify": verify, "size": settings.size}
    return settings.measurements.get(key, functools.partial(_within, settings, name, budget, verify))


def _within(settings: Settings, name: str, budget: int, verify: bool) -> Figures:
    """Plans for a budget; returns its figures, and XLA's temporaries of the result, None if the budget was refused."""
    program = build(name, small=settings.quick)
    gradient, figures = fitted(program, budget, verify=verify)
    refused = figures["predicted"] is None
    return {"temporaries": None if refused else compile_for_gpu(gradient, *program.args).temporaries, **figures}


def fitted(program: Program, budget: int, *, verify: bool) -> tuple[Any, Figures]:
    """Plans a step for a total budget in bytes.

    Returns:
      The gradient function, and figures. These are the predicted temporaries, those of XLA's compilation for an H200
      during planning (None without `verify`), the predicted slowdown, and seconds of planning. If the budget was
      refused: the least peak that was found (None if unknown) and seconds.
    """
    compiler = executable_for_gpu if verify else False
    own = graphrl.checkpoint(program.loss(undecorated), budget=f"{budget}B", chip=CHIP, verify=compiler, cache=False)
    gradient, started = jax.value_and_grad(own), time.perf_counter()
    try:
        jax.eval_shape(gradient, *program.args)
    except UnmetError as error:
        return gradient, {"predicted": None, "least": error.least, "seconds": time.perf_counter() - started}
    seconds, report = time.perf_counter() - started, own.report()
    return gradient, {
        "predicted": report.planned.peak_bytes,
        "compiled": report.compiled_bytes,
        "slowdown": report.slowdown,
        "seconds": seconds,
    }
