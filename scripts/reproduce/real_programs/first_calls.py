"""How long a user waits for the first call of a training step, with `jax.jit` and with `graphrl.jit`."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import graphrl
from graphrl.compare.report import markdown
from reproduce.measurements import Figures
from reproduce.real_programs.settings import Settings, mebibytes
from reproduce.real_programs.updates import UPDATES
from reproduce.results import Table


def first_calls(settings: Settings) -> Iterator[Table]:
    """One table: a line for each step, with its state kept and donated."""
    headings = ["step", "state", "jax.jit [s]", "graphrl.jit [s]", "planning [s]", "XLA [MiB]", "as it runs [MiB]",
                "bound [MiB]"]  # fmt: skip
    names = ["neural ODE"] if settings.quick else UPDATES
    lines = [_line(settings, name, donated) for name in names for donated in (False, True)]
    how = (
        f"Of the first call, which compiles; graphrl.jit with seconds={settings.times[0]:g}. Nothing is on disk. "
        "Temporaries by XLA's figure; where XLA's schedule stays by prediction, predicted."
    )
    yield settings.measurements.table("First calls", how, markdown(headings, lines))


def _line(settings: Settings, name: str, donated: bool) -> list[str]:
    seconds = settings.times[0]

    def measure() -> Figures:
        step, state, batch = UPDATES[name]()
        donate = (0,) if donated else ()
        ours = graphrl.jit(step, seconds=seconds, cache=False, donate_argnums=donate)
        on_disk = jax.config.values["jax_enable_compilation_cache"]
        jax.config.update("jax_enable_compilation_cache", False)
        try:
            theirs = _first_call(jax.jit(step, donate_argnums=donate), state, batch)
            figures = {"jax": theirs, "graphrl": _first_call(ours, state, batch)}
        finally:
            jax.config.update("jax_enable_compilation_cache", on_disk)
        (report,) = ours.reports
        return figures | {"planning": report.search_seconds, "xla": report.xla_bytes, "temp": report.temp_bytes,
                          "bound": report.bound}  # fmt: skip

    key = {"what": "first call", "program": name, "donated": str(donated), "seconds": f"{seconds:g}"}
    figures = settings.measurements.get(key, measure)
    state = "donated" if donated else "kept"
    if figures is None:
        return [name, state, *["-"] * 6]
    times = [f"{figures[column]:.1f}" for column in ("jax", "graphrl", "planning")]
    return [name, state, *times, *(mebibytes(figures[column]) for column in ("xla", "temp", "bound"))]


def _first_call(jitted: Callable[..., Any], state: Any, batch: Any) -> float:
    own = jax.block_until_ready(jax.tree.map(jnp.copy, state))
    began = time.perf_counter()
    jax.block_until_ready(jitted(own, batch))
    return time.perf_counter() - began
