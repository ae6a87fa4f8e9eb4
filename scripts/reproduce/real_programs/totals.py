"""Donated steps by XLA's figures: arguments, temporaries, and results outside of donated arguments.

Section `totals` has training steps and other updates in their published form, which are also run. Section `zoo` has the
zoo's training steps with Adam, which are only compiled.
"""

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

import graphrl
from graphrl.compare.report import markdown
from graphrl.xla import hook
from graphrl.xla.callback import Unplanned
from graphrl.xla.planning.planner import Planner
from graphrl.xla.settings import Settings as PlanSettings
from reproduce.measurements import Figures, mebibytes, ratio, time_call
from reproduce.models.losses import Update
from reproduce.models.programs import Program
from reproduce.real_programs.memory import RECOMPUTE
from reproduce.real_programs.process_size import digest
from reproduce.real_programs.programs import QUICK, TRAINING, UPDATES, Settings, build
from reproduce.results import Table, bullets

TARGETS = {"graphrl": 0.88, "recomputed": 0.65}  # of the better scheduler, geometric means
HEADINGS = (
    "program", "arguments [MiB]", "XLA default", "XLA memory", "graphrl", "recomputed", "graphrl / better",
    "recomputed / better",
)  # fmt: skip
_ROUNDS = 7
_STEPS = {"step": "", "recomputed_step": ", recomputed"}


def totals(settings: Settings) -> Iterator[Table]:
    """Yields a table with a row for each program, and results for the targets."""
    own = [name for name in settings.programs or () if name in UPDATES]
    names = own or (["neural ODE"] if settings.quick else UPDATES)
    by_name = {name: _figures(settings, "total", name, _measure) for name in names}
    headings = [*HEADINGS, "same bits", "step ratio", "recomputed", "first call [s]", "jax's"]
    how = (
        "MiB by XLA's figures: arguments, temporaries, and results outside of donated arguments; graphrl with "
        f"seconds={settings.times[0]:g}, without and with recompute={RECOMPUTE:g}. Step ratios are graphrl's over "
        f"jax's, medians of {_ROUNDS} in turns, of order alone and recomputed. First calls are compilations in one "
        "process without plans on disk."
    )
    lines = [[*_cells(name, figures), *_run_cells(figures)] for name, figures in by_name.items()]
    notes = [*_summary(by_name), *_run_summary(by_name)]
    title, table = "Donated steps: total MiB", markdown(headings, lines)
    yield settings.measurements.table(title, how, table, bullets(notes), summary=_main(by_name))


def zoo_totals(settings: Settings) -> Iterator[Table]:
    """Yields a table with a row for each program, and results for the targets."""
    names = [name for name in settings.names_of(TRAINING) if "/training/" in name] or [QUICK[0]]
    by_name = {name: _figures(settings, "zoo total", name, _measure_zoo) for name in names}
    how = (
        "MiB by XLA's figures: arguments, temporaries, and results outside of donated arguments. A step returns "
        "its loss and, in donated buffers, the weights by Adam, its moments and the model's other state; graphrl "
        f"with seconds={settings.times[0]:g}, without and with recompute={RECOMPUTE:g}. Only compiled."
    )
    lines = [_cells(name, figures) for name, figures in by_name.items()]
    title, table = "The zoo's training steps, donated: total MiB", markdown(HEADINGS, lines)
    yield settings.measurements.table(title, how, table, bullets(_summary(by_name)), summary=_main(by_name))


def _figures(settings: Settings, what: str, name: str, measure: Callable[[str, float], Figures]) -> Figures | None:
    seconds = settings.times[0]
    key = {"what": what, "program": name, "seconds": f"{seconds:g}"}
    return settings.measurements.get(key, lambda: measure(name, seconds))


def _measure(name: str, seconds: float) -> Figures:
    step, state, batch = UPDATES[name]()
    jitted = jax.jit(step, donate_argnums=0)
    lowered, first_jax = time_call(lambda: jitted.lower(state, batch))
    theirs, compiling = time_call(lowered.compile)
    memory = hook.compile_in_order(lowered, "memory", quick=True)
    plan: dict[str, Any] = {"seconds": seconds, "cache": False}
    ours, first = time_call(lambda: graphrl.compile(jitted, state, batch, **plan))
    again = graphrl.compile(jitted, state, batch, recompute=RECOMPUTE, **plan)
    results = [digest(compiled(jax.tree.map(jnp.copy, state), batch)) for compiled in (theirs, ours, again)]
    times = _times((theirs, ours, again), state, batch)
    return {
        **_totals_of(default=theirs, memory=memory, graphrl=ours, recomputed=again),
        "same": results[0] == results[1] == results[2],
        "step": times[1] / times[0],
        "recomputed_step": times[2] / times[0],
        "first": first,
        "jax": first_jax + compiling,
        "reports": [dataclasses.asdict(each.report()) for each in (ours, again)],
    }


def _times(executables: Any, state: Any, batch: Any) -> list[float]:
    """Measures the median seconds of a call of each executable, in turns."""
    rounds = []
    for _ in range(_ROUNDS):
        seconds_of_round = []
        for compiled in executables:
            own = jax.block_until_ready(jax.tree.map(jnp.copy, state))
            seconds_of_round.append(time_call(lambda: jax.block_until_ready(compiled(own, batch)))[1])  # noqa: B023
        rounds.append(seconds_of_round)
    return [statistics.median(column) for column in zip(*rounds, strict=True)]


def _measure_zoo(name: str, seconds: float) -> Figures:
    step, state, batch = _with_adam(build(name))
    lowered = jax.jit(step, donate_argnums=0).lower(state, batch)
    xla = {name: hook.compile_in_order(lowered, name, quick=True) for name in ("default", "memory")}
    planners = [Planner(PlanSettings(seconds=seconds, cache=False, recompute=part)) for part in (0.0, RECOMPUTE)]
    ours, again = (_planned(lowered, planner) for planner in planners)
    reports = [dataclasses.asdict(report) for planner in planners for report in planner.reports.values()]
    return {**_totals_of(**xla, graphrl=ours, recomputed=again), "reports": reports}


def _with_adam(program: Program) -> Update:
    """Builds the training step `(state, batch) -> (state, loss)` with Adam and abstract arguments."""
    rule = optax.adam(1e-4)
    weights, carried, batch = program.args

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        weights, carried, moments = state
        (loss, carried), gradient = program.fn(weights, carried, batch)
        updates, moments = rule.update(gradient, moments, weights)
        return (optax.apply_updates(weights, updates), carried, moments), loss

    return step, (weights, carried, jax.eval_shape(rule.init, weights)), batch


def _planned(lowered: jax.stages.Lowered, planner: Planner) -> jax.stages.Compiled:
    try:
        return hook.compile_by(lowered, planner.rule, quick=True)
    except Unplanned as unplanned:
        planner.plan(lowered, unplanned)
    return hook.compile_by(lowered, planner.rule, quick=True)


def _totals_of(*, default: Any, memory: Any, graphrl: Any, recomputed: Any) -> Figures:
    """Returns the total bytes of a step's executables by XLA's schedulers and by graphrl, and of its arguments."""
    executables = {"default": default, "memory": memory, "graphrl": graphrl, "recomputed": recomputed}
    arguments = default.memory_analysis().argument_size_in_bytes
    return {"arguments": arguments, **{name: _total(compiled) for name, compiled in executables.items()}}


def _total(compiled: Any) -> int:
    figures = compiled.memory_analysis()
    return int(
        figures.argument_size_in_bytes
        + figures.temp_size_in_bytes
        + figures.output_size_in_bytes
        - figures.alias_size_in_bytes
    )


def _cells(name: str, figures: Figures | None) -> list[str]:
    """Formats a program's row under `HEADINGS`."""
    if figures is None:
        return [name, *["-"] * (len(HEADINGS) - 1)]
    sizes = [mebibytes(figures[column]) for column in ("arguments", "default", "memory", "graphrl", "recomputed")]
    return [name, *sizes, *(ratio(figures[which] / _better(figures)) for which in TARGETS)]


def _run_cells(figures: Figures | None) -> list[str]:
    if figures is None:
        return ["-"] * 5
    steps = [f"{figures[name]:.2f}" for name in _STEPS]
    return ["yes" if figures["same"] else "**no**", *steps, f"{figures['first']:.1f}", f"{figures['jax']:.1f}"]


def _main(by_name: Mapping[str, Figures | None]) -> str:
    """Returns means against the better of XLA's schedulers, in a sentence."""
    order, recomputed = (ratio(_mean(by_name, name)) for name in TARGETS)
    return f"A step needs {order} of the better XLA scheduler's total by order alone, {recomputed} with recomputation."


def _mean(by_name: Mapping[str, Figures | None], name: str) -> float | None:
    quotients = [figures[name] / _better(figures) for figures in _measured(by_name)]
    return statistics.geometric_mean(quotients) if quotients else None


def _summary(by_name: Mapping[str, Figures | None]) -> Iterator[str]:
    """Yields results for the targets."""
    measured = _measured(by_name)
    for name, target in TARGETS.items():
        if (mean := _mean(by_name, name)) is not None:
            met = "met" if mean <= target else "**not met**"
            yield f"{name}: {ratio(mean)} of the better scheduler's total, target {ratio(target)}: {met}"
    above = sum(max(figures[name] for name in TARGETS) > _better(figures) for figures in measured)
    yield f"above the better scheduler: {above} of {len(measured)}"


def _run_summary(by_name: Mapping[str, Figures | None]) -> Iterator[str]:
    measured = _measured(by_name)
    yield f"the same bits: {sum(figures['same'] for figures in measured)} of {len(measured)}"
    for name, what in _STEPS.items():
        if steps := [figures[name] for figures in measured]:
            yield f"step time{what}: median {statistics.median(steps):.3f}, worst {max(steps):.3f}"


def _measured(by_name: Mapping[str, Figures | None]) -> Sequence[Figures]:
    return [figures for figures in by_name.values() if figures is not None]


def _better(figures: Figures) -> int:
    return int(min(figures["default"], figures["memory"]))
