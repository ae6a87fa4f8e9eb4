"""Training steps and the like as people publish them, donated: all that they need beside what they are given."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import graphrl
from graphrl.compare.report import markdown
from graphrl.xla import hook
from reproduce.measurements import Figures
from reproduce.real_programs import donated
from reproduce.real_programs.agents import AGENTS
from reproduce.real_programs.layers import Update
from reproduce.real_programs.process_size import digest
from reproduce.real_programs.scanned import SCANNED
from reproduce.real_programs.settings import Settings
from reproduce.real_programs.temporaries import RECOMPUTE
from reproduce.real_programs.unrolled import UNROLLED
from reproduce.results import Table, bullets

PROGRAMS: dict[str, Callable[[], Update]] = {**SCANNED, **UNROLLED, **AGENTS}
_ROUNDS = 7
_STEPS = {"step": "", "recomputed_step": ", recomputed"}


def totals(settings: Settings) -> Iterator[Table]:
    """One table, a line a program, and whether the targets are met."""
    by_name = {name: _figures(settings, name) for name in settings.chosen(tuple(PROGRAMS), ("neural ODE",))}
    headings = ["program", *donated.HEADINGS, "same bits", "step", "recomputed", "first call [s]", "jax's"]
    how = (
        f"MiB by XLA's figures: arguments, temporaries, and results that lie in no donated argument; graphrl with "
        f"seconds={settings.times[0]:g}, without and with recompute={RECOMPUTE:g}. The step is graphrl's over jax's, "
        f"medians of {_ROUNDS} in turns, of order alone and recomputed. First calls are compilations, of one process, "
        "nothing on disk."
    )
    lines = [[name, *donated.cells(figures), *_cells(figures)] for name, figures in by_name.items()]
    notes = _summary([figures for figures in by_name.values() if figures is not None])
    yield settings.measurements.table("Donated steps: MiB in all", how, markdown(headings, lines), bullets(list(notes)))


def _figures(settings: Settings, name: str) -> Figures | None:
    seconds = settings.times[0]
    key = {"what": "total", "program": name, "seconds": f"{seconds:g}"}
    return settings.measurements.get(key, lambda: _measure(PROGRAMS[name], seconds))


def _measure(build: Callable[[], Update], seconds: float) -> Figures:
    step, state, batch = build()
    jitted = jax.jit(step, donate_argnums=0)
    lowered, first_jax = _timed(lambda: jitted.lower(state, batch))
    theirs, compiling = _timed(lowered.compile)
    memory = hook.compile_in_order(lowered, "memory", quick=True)
    plan: dict[str, Any] = {"seconds": seconds, "cache": False}
    ours, first = _timed(lambda: graphrl.compile(jitted, state, batch, **plan))
    again = graphrl.compile(jitted, state, batch, recompute=RECOMPUTE, **plan)
    results = [_results(compiled, state, batch) for compiled in (theirs, ours, again)]
    times = _times((theirs, ours, again), state, batch)
    return {
        **donated.totals_of(default=theirs, memory=memory, graphrl=ours, recomputed=again),
        "same": results[0] == results[1] == results[2],
        "step": times[1] / times[0],
        "recomputed_step": times[2] / times[0],
        "first": first,
        "jax": first_jax + compiling,
        "reports": [dataclasses.asdict(each.report()) for each in (ours, again)],
    }


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    return work(), time.perf_counter() - began


def _results(compiled: Any, state: Any, batch: Any) -> str:
    """The bits of a call's results."""
    return digest(compiled(jax.tree.map(jnp.copy, state), batch))


def _times(executables: Any, state: Any, batch: Any) -> list[float]:
    """Median seconds of a call of each, in turns."""
    rounds = []
    for _ in range(_ROUNDS):
        taken = []
        for compiled in executables:
            own = jax.block_until_ready(jax.tree.map(jnp.copy, state))
            taken.append(_timed(lambda: jax.block_until_ready(compiled(own, batch)))[1])  # noqa: B023
        rounds.append(taken)
    return [statistics.median(column) for column in zip(*rounds, strict=True)]


def _cells(figures: Figures | None) -> list[str]:
    if figures is None:
        return ["-"] * 5
    steps = [f"{figures[name]:.2f}" for name in _STEPS]
    times = [*steps, f"{figures['first']:.1f}", f"{figures['jax']:.1f}"]
    return ["yes" if figures["same"] else "**no**", *times]


def _summary(measured: Sequence[Figures]) -> Iterator[str]:
    if not measured:
        return
    yield from donated.summary(measured)
    yield f"the same bits: {sum(figures['same'] for figures in measured)} of {len(measured)}"
    for name, what in _STEPS.items():
        steps = [figures[name] for figures in measured]
        yield f"step time{what}: median {statistics.median(steps):.3f}, worst {max(steps):.3f}"
