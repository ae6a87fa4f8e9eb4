"""Section `values`: the same values and gradients under every method, of small programs on CPUs, of full ones else."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from graphrl.bench.machine import device_name
from graphrl.compare.report import markdown
from graphrl.errors import GraphrlError
from reproduce.checkpoint.methods import GRADIENTS, KEEPING, METHODS, NONE, plain
from reproduce.checkpoint.program import Program
from reproduce.checkpoint.programs import build
from reproduce.checkpoint.settings import Settings
from reproduce.measurements import Figures, Measurements
from reproduce.results import Table

TOLERANCE = 1e-6  # of the largest number of the gradient
_SEED = 0
# Small programs take longer to compile than all else.
_HASTE: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def values(settings: Settings) -> Iterator[Table]:
    """A line a program.

    Raises:
      GraphrlError: there are no figures of the device that is asked for.
    """
    methods = [method for method in settings.among((*METHODS, *KEEPING)) if method != NONE]
    device = settings.device or (device_name() if jax.default_backend() != "cpu" else "")
    size = "full" if device and not settings.quick else "small"
    measurements = Measurements(settings.out / "measured.jsonl", retry=settings.retry, stored=bool(settings.device))
    lines, notes, every = [], list[str](), list[Figures]()
    for name in settings.chosen:
        keys = [
            {"what": "values", "program": name, "method": method, "size": size, "device": device} for method in methods
        ]
        measured = [measurements.get(key, functools.partial(_compared, size, name, key["method"])) for key in keys]
        there = [figures for figures in measured if figures is not None]
        every += there
        worst = max((figures["difference"] for figures in there), default=0.0)
        bits = sum(figures["same bits"] for figures in there)
        lines.append([name, str(len(there)), str(bits), f"{worst:.1e}"])
        notes += [
            f"{name}, {method}: {figures['difference']:.1e} is over {TOLERANCE:g}"
            for method, figures in zip(methods, measured, strict=True)
            if figures is not None and figures["difference"] > TOLERANCE
        ]
    if settings.device and not every:
        raise GraphrlError(f"{settings.out} has no figures of a device {device!r}")
    precisions = {figures["precision"] for figures in every} - {""}
    notes += [f"products computed in jax's precision `{precision}`" for precision in sorted(precisions)]
    how = (
        f"Loss and gradient of the programs, of {size} size, against the undecorated ones: of how many methods all "
        "bits are the same, and the greatest difference, over the largest number (of loss, of gradient)."
    )
    headings = ["program", "methods", "same bits", "greatest difference"]
    yield measurements.table("Values and gradients", how, markdown(headings, lines), notes=notes)


def _compared(size: str, name: str, method: str) -> Figures:
    program = build(name, small=size == "small")
    expected = _undecorated(size, name)
    got = _run(GRADIENTS[method](program), program, size)
    return {
        "precision": jax.config.jax_default_matmul_precision or "",  # type: ignore[attr-defined]
        "same bits": all(np.array_equal(a, b) for a, b in zip(map(_flat, expected), map(_flat, got), strict=True)),
        "difference": max(_difference(_flat(a), _flat(b)) for a, b in zip(expected, got, strict=True)),
    }


@functools.lru_cache(maxsize=1)
def _undecorated(size: str, name: str) -> tuple[Any, Any]:
    program = build(name, small=size == "small")
    return _run(plain(program), program, size)


def _run(gradient: Any, program: Program, size: str) -> tuple[Any, Any]:
    return jax.jit(gradient, compiler_options=_HASTE if size == "small" else {})(*program.draw(_SEED))


def _flat(tree: Any) -> np.ndarray:
    """All numbers of a pytree."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def _difference(expected: np.ndarray, got: np.ndarray) -> float:
    return float(np.abs(expected - got).max() / np.abs(expected).max())
