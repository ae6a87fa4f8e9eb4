"""Orders on a GPU, by XLA's compiler: a test that it follows a given order, and savings of better orders."""

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from graphrl.compare.report import markdown
from graphrl.errors import GraphrlError
from graphrl.graphs.readers.hlo.module import Computation, HloModule
from graphrl.graphs.readers.hlo.reader import read_hlo
from graphrl.graphs.roofline import DEFAULT_CHIP
from graphrl.xla.assignment import predicted_bytes
from graphrl.xla.planning.cache import Places, named_orders, places_of
from graphrl.xla.planning.temp_search import search_orders, targets_of, temp_bound
from graphrl.xla.settings import Settings as PlanSettings
from reproduce.gpu_compile import GpuMemory, compile_for_gpu, missing
from reproduce.measurements import Figures, mebibytes, ratio
from reproduce.real_programs.programs import GPU_ORDERS, UPDATES, Settings, build
from reproduce.results import Table

LEAST_GAIN = 2**20  # bytes: a computation whose bound leaves less is not searched


def gpu_orders(settings: Settings) -> Iterator[Table]:
    """Yields the table of the test, and one of programs.

    Raises:
      GraphrlError: the packages are missing.
    """
    if reason := missing():
        raise GraphrlError(reason)
    yield _probes(settings)
    yield _programs(settings)


def _probes(settings: Settings) -> Table:
    """Returns the table that shows if XLA's compiler follows a given order: a bad one changes its figures."""
    lines = []
    for name, (function, args, options) in _PROBES.items():
        key = {"what": "gpu order", "program": name, "order": "breadth first"}
        figures = settings.measurements.get(key, functools.partial(_in_bad_order, function, args, options))
        lines.append([name, *_cells(figures, "temporaries", "predicted", "reordered", "donated", "reordered donated")])
    headings = ["program", "XLA", "breadth first, predicted", "breadth first", "donated", "donated, breadth first"]
    how = (
        "Temporaries, and results in donated arguments, by XLA's figures for an H200, in XLA's order and in one "
        "given to it after scheduling, in all computations: breadth first, which needs much memory."
    )
    return settings.measurements.table(
        "Orders that XLA's compiler for GPUs follows, in MiB", how, markdown(headings, lines)
    )


def _programs(settings: Settings) -> Table:
    """Returns a table with a row for each program; the geometric mean is among the notes."""
    by_name = {name: _figures(settings, name) for name in settings.names_of(GPU_ORDERS)}
    lines = [
        [
            name,
            "-" if figures is None else f"{figures['instructions']:,}",
            *_cells(figures, "temporaries", "predicted", "bound", "planned", "reordered"),
            "-" if figures is None else ratio(_gain(figures)),
        ]
        for name, figures in by_name.items()
    ]
    headings = ["program", "instructions", "XLA", "predicted", "bound", "ours, predicted", "ours", "ours / XLA"]
    how = (
        f"XLA's figures for an H200, and what graphrl predicts of them; nothing is donated. Ours is what "
        f"{settings.times[0]:g} s find, taken where it is better."
    )
    gains = [_gain(figures) for figures in by_name.values() if figures is not None]
    summary = ""
    if gains:
        mean = ratio(statistics.geometric_mean(gains))
        summary = f"On a GPU graphrl's orders need {mean} of the temporaries of XLA's (geometric mean of {len(gains)})."
    title = "Temporaries on a GPU, in MiB"
    return settings.measurements.table(title, how, markdown(headings, lines), summary=summary)


def _cells(figures: Figures | None, *columns: str) -> list[str]:
    return [mebibytes((figures or {}).get(column)) for column in columns]


def _gain(figures: Figures) -> float:
    return float(min(1.0, figures["reordered"] / figures["temporaries"])) if figures["temporaries"] else 1.0


def _figures(settings: Settings, name: str) -> Figures | None:
    seconds = settings.times[0]
    key = {"what": "gpu order", "program": name, "seconds": f"{seconds:g}"}
    return settings.measurements.get(key, lambda: _in_our_order(*_program(name), seconds))


def _program(name: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    if name in UPDATES:
        step, *args = UPDATES[name]()
        return step, tuple(args)
    program = build(name)
    return program.fn, program.args


class _Compiled(NamedTuple):
    """XLA's figures of a compiled function, and its scheduled module."""

    memory: GpuMemory
    module: HloModule


def _compiled(function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> _Compiled:
    modules: list[HloModule] = []
    memory = compile_for_gpu(function, *args, rule=modules.append, **options)
    return _Compiled(memory, modules[-1])


def _reordered(function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any], order: Places) -> Any:
    return compile_for_gpu(function, *args, rule=lambda module: named_orders(module, order), **options)


def _in_our_order(function: Callable[..., Any], args: tuple[Any, ...], seconds: float) -> Figures:
    memory, module = _compiled(function, args, {})
    schedule = {c.name: module.order(c) for c in module.sequential}
    end = time.perf_counter() + seconds
    plan = search_orders(module, targets_of(module), [schedule], PlanSettings(seconds=seconds), end, LEAST_GAIN)
    planned = module.with_orders(plan.schedule)
    return {
        "instructions": sum(len(c.instructions) for c in module.sequential),
        "temporaries": memory.temporaries,
        "predicted": predicted_bytes(module),
        "bound": temp_bound(read_hlo(planned, chip=DEFAULT_CHIP), planned.order(planned.entry)),
        "planned": predicted_bytes(planned),
        "reordered": _reordered(function, args, {}, places_of(planned)).temporaries,
        "found_by": plan.found_by,
    }


def _in_bad_order(function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Figures:
    memory, module = _compiled(function, args, options)
    bad = module.with_orders({c.name: _breadth_first(module, c) for c in module.sequential})
    reordered = _reordered(function, args, options, places_of(bad))
    return {
        "temporaries": memory.temporaries,
        "predicted": predicted_bytes(dataclasses.replace(bad, input_output_aliases=())),
        "reordered": reordered.temporaries,
        "donated": memory.donated,
        "reordered donated": reordered.donated,
    }


def _breadth_first(module: HloModule, computation: Computation) -> tuple[str, ...]:
    """Orders instructions by depth, the length of the longest chain of instructions that ends with one."""
    depth: dict[str, int] = {}
    for name in module.order(computation):
        i = computation.by_name[name]
        depth[name] = 1 + max((depth[other] for other in (*i.operands, *i.control_predecessors)), default=0)
    return tuple(sorted(depth, key=lambda name: depth[name]))


def _array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _towers(x: jax.Array, weights: list[tuple[jax.Array, jax.Array]]) -> jax.Array:
    """Computes wide values, one for each pair of weights; a good order keeps only one of them at a time."""
    return jnp.concatenate([jnp.sin(x @ wide) @ narrow for wide, narrow in weights], 1)


def _towers_in_a_scan(x: jax.Array, weights: list[tuple[jax.Array, jax.Array]]) -> jax.Array:
    return jax.lax.scan(lambda x, w: (_towers(x, w), None), x, weights)[0]


def _step(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
    def loss(weights: list[jax.Array]) -> jax.Array:
        return (functools.reduce(lambda x, w: jnp.tanh(x @ w), weights, x) ** 2).mean()

    return [w - 0.1 * gradient for w, gradient in zip(weights, jax.grad(loss)(weights), strict=True)]


_WIDTHS = range(3, 11)  # all different, so that no two products are merged
_PROBES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "eight towers": (
        _towers,
        (_array(2048, 256), [(_array(256, 1024 * k), _array(1024 * k, 8 * k)) for k in _WIDTHS]),
        {},
    ),
    "eight towers in a scan": (
        _towers_in_a_scan,
        (_array(2048, 256), [(_array(4, 256, 1024 * k), _array(4, 1024 * k, 32)) for k in _WIDTHS]),
        {},
    ),
    "a training step, donated": (_step, ([_array(1024, 1024)] * 6, _array(2048, 1024)), {"donate_argnums": 0}),
}
