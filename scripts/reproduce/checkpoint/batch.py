"""Sections `batch` and `values` of the checkpoint tables.

`batch`: the largest batch that fits GPUs of several sizes, by XLA's figure. `values`: values and gradients of all
methods are equal, for small programs on CPUs and for full ones elsewhere.
"""

import functools
import math
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from graphrl.bench.machine import device_name
from graphrl.compare.report import markdown
from graphrl.errors import GraphrlError
from graphrl.xla.checkpoint.largest import PRECISION, largest_size
from reproduce.checkpoint.budgets import fitted
from reproduce.checkpoint.measured import (
    FITTED,
    GRADIENTS,
    KEEPING,
    METHODS,
    NONE,
    OURS,
    PROGRAMS,
    RULES,
    Settings,
    best,
    build,
    memory,
    plain,
    points,
)
from reproduce.measurements import Figures, Measurements
from reproduce.models.losses import Program
from reproduce.results import Table

ROOMS = (16, 40, 80)  # GB: 1e9 bytes


def batch(settings: Settings) -> Iterator[Table]:
    """Yields the table of the largest batches, with a row for each program."""
    lines, gains = [], []
    for name in settings.selected:
        methods = [NONE]
        for candidates in (RULES, OURS):
            point = best(points(settings, name, settings.among(tuple(candidates))))
            methods += [] if point is None else [point.method]
        cells = [[_of_method(settings, name, method, room) for method in methods] for room in ROOMS]
        if settings.among((FITTED,)):
            methods.append(FITTED)
            ratio = 1.0  # of graphrl's batch to the largest of others, on the GPU size before
            for sizes, room in zip(cells, ROOMS, strict=True):
                own = _fitted(settings, name, room, max(1, int(ratio * max(sizes))))
                ratio = max(1, own) / max(1, *sizes)
                sizes.append(own)
        gains.append(max(1, cells[-1][-1]) / max(1, *cells[-1][:-1]))
        lines.append([name, " / ".join(methods), *(" / ".join(map(str, sizes)) for sizes in cells)])
    how = (
        "Arguments, temporaries and results of the gradient by XLA's compiler for an H200; without a rule, with the "
        "rule that needs the least temporaries at the program's own batch, and with graphrl's plan that does; "
        f'"{FITTED}": a plan for each batch and GPU size, which XLA verifies. Each is found '
        f"by compiling: a batch {PRECISION:.0%} larger does not fit."
    )
    headings = ["program", "methods", *(f"{room} GB" for room in ROOMS)]
    gain = statistics.geometric_mean(gains)
    summary = f"On {ROOMS[-1]} GB graphrl's largest batch is {gain:.2f} times the largest of the other methods."
    yield settings.measurements.table("Largest batches", how, markdown(headings, lines), summary=summary)


def _of_method(settings: Settings, program: str, method: str, room: int) -> int:
    own = PROGRAMS[program].full["batch"]

    def needed(size: int) -> float:
        figures = memory(settings, program, method, size)
        return sum(figures[kind] for kind in ("arguments", "temporaries", "results")) if figures else float("inf")

    # Bytes are nearly linear in the batch.
    start = max(1, int(own * room * 1e9 / max(1.0, needed(own))))
    return largest_size(needed, room * 1e9, start)


def _fitted(settings: Settings, program: str, room: int, start: int) -> int:
    """Returns the largest batch for which a plan of graphrl's fits; the search starts from `start`."""

    def needed(size: int) -> float:
        key = {"what": "fitted", "program": program, "room": room, "batch": size, "size": settings.size}
        figures = settings.measurements.get(
            key, lambda: fitted(build(program, batch=size), int(room * 1e9), verify=True)[1]
        )
        fits = figures is not None and figures["predicted"] is not None  # plans use all of the room, at any size
        return 0.0 if fits else math.inf

    return largest_size(needed, room * 1e9, start)


TOLERANCE = 1e-6  # of the largest number of the gradient
_SEED = 0
# Small programs take longer to compile than to run.
_FAST_COMPILE: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def values(settings: Settings) -> Iterator[Table]:
    """Yields the table of differences from the undecorated values and gradients, with a row for each program.

    Raises:
      GraphrlError: the file has no figures of the requested device.
    """
    methods = [method for method in settings.among((*METHODS, *KEEPING)) if method != NONE]
    device = settings.device or (device_name() if jax.default_backend() != "cpu" else "")
    small = settings.quick or not device
    size = "small" if small else "full"
    stored = settings.stored or bool(settings.device)
    measurements = Measurements(settings.out / "measured.jsonl", retry=settings.retry, stored=stored)
    by_program = dict[str, dict[str, Figures]]()
    for name in settings.selected:
        key = {"what": "values", "program": name, "size": size, "device": device}
        each = {
            method: measurements.get({**key, "method": method}, functools.partial(_compared, name, method, small))
            for method in methods
        }
        by_program[name] = {method: figures for method, figures in each.items() if figures is not None}
    if settings.device and not any(by_program.values()):
        raise GraphrlError(f"{settings.out} has no figures of a device {device!r}")
    how = (
        f"Loss and gradient of the programs, of {size} size, against the undecorated ones: number of methods with the "
        "same bits, and the greatest difference, relative to the largest number (of loss, of gradient)."
    )
    worst = max((figures["difference"] for each in by_program.values() for figures in each.values()), default=0.0)
    summary = f"Values and gradients of all methods are those of the undecorated function to within {worst:.1e}."
    lines, notes = _lines(by_program), [*_notes(by_program)]
    yield measurements.table("Values and gradients", how, lines, notes=notes, summary=summary)


def _lines(by_program: Mapping[str, Mapping[str, Figures]]) -> str:
    """Returns a table with a row for each program."""
    lines = []
    for name, each in by_program.items():
        worst = max((figures["difference"] for figures in each.values()), default=0.0)
        bits = sum(figures["same bits"] for figures in each.values())
        lines.append([name, str(len(each)), str(bits), f"{worst:.1e}"])
    return markdown(["program", "methods", "same bits", "greatest difference"], lines)


def _notes(by_program: Mapping[str, Mapping[str, Figures]]) -> Iterator[str]:
    """Yields methods beyond the tolerance, and the precision of matrix products."""
    for name, each in by_program.items():
        for method, figures in each.items():
            if figures["difference"] > TOLERANCE:
                yield f"{name}, {method}: {figures['difference']:.1e} is over {TOLERANCE:g}"
    precisions = {figures["precision"] for each in by_program.values() for figures in each.values()}
    for precision in sorted(precisions - {""}):
        yield f"products computed in jax's precision `{precision}`"


def _compared(name: str, method: str, small: bool) -> Figures:
    program = build(name, small=small)
    expected = _undecorated(name, small)
    result = _run(GRADIENTS[method](program), program, small)
    return {
        "precision": jax.config.jax_default_matmul_precision or "",  # type: ignore[attr-defined]
        "same bits": all(np.array_equal(a, b) for a, b in zip(map(_flat, expected), map(_flat, result), strict=True)),
        "difference": max(_difference(_flat(a), _flat(b)) for a, b in zip(expected, result, strict=True)),
    }


@functools.lru_cache(maxsize=1)
def _undecorated(name: str, small: bool) -> tuple[Any, Any]:
    program = build(name, small=small)
    return _run(plain(program), program, small)


def _run(gradient: Any, program: Program, small: bool) -> tuple[Any, Any]:
    return jax.jit(gradient, compiler_options=_FAST_COMPILE if small else {})(*program.draw(_SEED))


def _flat(tree: Any) -> np.ndarray:
    """Concatenates all numbers of a pytree into one vector."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def _difference(expected: np.ndarray, result: np.ndarray) -> float:
    return float(np.abs(expected - result).max() / np.abs(expected).max())
