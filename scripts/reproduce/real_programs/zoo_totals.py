"""The zoo's training steps with Adam, their state donated: all that they need beside what they are given."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import optax

from graphrl.compare.report import markdown
from graphrl.xla import hook
from graphrl.xla.callback import Unplanned
from graphrl.xla.planning.planner import Planner
from graphrl.xla.settings import Settings as PlanSettings
from reproduce.measurements import Figures
from reproduce.real_programs import donated
from reproduce.real_programs.layers import Update
from reproduce.real_programs.names import QUICK, TRAINING, build
from reproduce.real_programs.programs import Program
from reproduce.real_programs.settings import Settings
from reproduce.real_programs.temporaries import RECOMPUTE
from reproduce.results import Table, bullets


def zoo_totals(settings: Settings) -> Iterator[Table]:
    """One table, a line a program, and whether the targets are met."""
    names = [name for name in settings.names_of(TRAINING) if "/training/" in name] or [QUICK[0]]
    by_name = {name: _figures(settings, name) for name in names}
    how = (
        f"MiB by XLA's figures: arguments, temporaries, and results that lie in no donated argument. A step gives its "
        f"loss and, in the place of what it is given, the weights by Adam, its moments and all else that the model "
        f"carries; graphrl with seconds={settings.times[0]:g}, without and with recompute={RECOMPUTE:g}. Only compiled."
    )
    lines = [[name, *donated.cells(figures)] for name, figures in by_name.items()]
    measured = [figures for figures in by_name.values() if figures is not None]
    notes = list(donated.summary(measured)) if measured else []
    yield settings.measurements.table(
        "The zoo's training steps, donated: MiB in all",
        how,
        markdown(["program", *donated.HEADINGS], lines),
        bullets(notes),
    )


def _figures(settings: Settings, name: str) -> Figures | None:
    seconds = settings.times[0]
    key = {"what": "zoo total", "program": name, "seconds": f"{seconds:g}"}
    return settings.measurements.get(key, lambda: _measure(build(name), seconds))


def _measure(program: Program, seconds: float) -> Figures:
    step, state, batch = _with_adam(program)
    lowered = jax.jit(step, donate_argnums=0).lower(state, batch)
    xla = {name: hook.compile_in_order(lowered, name, quick=True) for name in ("default", "memory")}
    planners = [Planner(PlanSettings(seconds=seconds, cache=False, recompute=part)) for part in (0.0, RECOMPUTE)]
    ours, again = (_planned(lowered, planner) for planner in planners)
    reports = [dataclasses.asdict(report) for planner in planners for report in planner.reports.values()]
    return {**donated.totals_of(**xla, graphrl=ours, recomputed=again), "reports": reports}


def _planned(lowered: jax.stages.Lowered, planner: Planner) -> jax.stages.Compiled:
    try:
        return hook.compile_by(lowered, planner.rule, quick=True)
    except Unplanned as unplanned:
        planner.plan(lowered, unplanned)
    return hook.compile_by(lowered, planner.rule, quick=True)


def _with_adam(program: Program) -> Update:
    """A training step `(state, batch) -> (state, loss)`, with abstract arguments."""
    rule = optax.adam(1e-4)
    weights, carried, batch = program.args

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        weights, carried, moments = state
        (loss, carried), gradient = program.fn(weights, carried, batch)
        updates, moments = rule.update(gradient, moments, weights)
        return (optax.apply_updates(weights, updates), carried, moments), loss

    return step, (weights, carried, jax.eval_shape(rule.init, weights)), batch
