"""Section `values`: the same values and gradients under every method, of small programs on CPUs, of full ones else."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from graphrl.bench.machine import device_name
from graphrl.compare.report import markdown
from graphrl.errors import GraphrlError
from reproduce.checkpoint.measured import Settings
from reproduce.checkpoint.methods import GRADIENTS, KEEPING, METHODS, NONE, plain
from reproduce.checkpoint.programs import build
from reproduce.measurements import Figures, Measurements
from reproduce.models.losses import Program
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
    small = settings.quick or not device
    size = "small" if small else "full"
    measurements = Measurements(settings.out / "measured.jsonl", retry=settings.retry, stored=bool(settings.device))
    found = dict[str, dict[str, Figures]]()
    for name in settings.chosen:
        key = {"what": "values", "program": name, "size": size, "device": device}
        each = {
            method: measurements.get({**key, "method": method}, functools.partial(_compared, name, method, small))
            for method in methods
        }
        found[name] = {method: figures for method, figures in each.items() if figures is not None}
    if settings.device and not any(found.values()):
        raise GraphrlError(f"{settings.out} has no figures of a device {device!r}")
    how = (
        f"Loss and gradient of the programs, of {size} size, against the undecorated ones: of how many methods all "
        "bits are the same, and the greatest difference, over the largest number (of loss, of gradient)."
    )
    yield measurements.table("Values and gradients", how, _lines(found), notes=[*_notes(found)])


def _lines(found: Mapping[str, Mapping[str, Figures]]) -> str:
    """A line a program."""
    lines = []
    for name, each in found.items():
        worst = max((figures["difference"] for figures in each.values()), default=0.0)
        bits = sum(figures["same bits"] for figures in each.values())
        lines.append([name, str(len(each)), str(bits), f"{worst:.1e}"])
    return markdown(["program", "methods", "same bits", "greatest difference"], lines)


def _notes(found: Mapping[str, Mapping[str, Figures]]) -> Iterator[str]:
    """What is farther apart than it should be, and how products were computed."""
    for name, each in found.items():
        for method, figures in each.items():
            if figures["difference"] > TOLERANCE:
                yield f"{name}, {method}: {figures['difference']:.1e} is over {TOLERANCE:g}"
    precisions = {figures["precision"] for each in found.values() for figures in each.values()}
    for precision in sorted(precisions - {""}):
        yield f"products computed in jax's precision `{precision}`"


def _compared(name: str, method: str, small: bool) -> Figures:
    program = build(name, small=small)
    expected = _undecorated(name, small)
    got = _run(GRADIENTS[method](program), program, small)
    return {
        "precision": jax.config.jax_default_matmul_precision or "",  # type: ignore[attr-defined]
        "same bits": all(np.array_equal(a, b) for a, b in zip(map(_flat, expected), map(_flat, got), strict=True)),
        "difference": max(_difference(_flat(a), _flat(b)) for a, b in zip(expected, got, strict=True)),
    }


@functools.lru_cache(maxsize=1)
def _undecorated(name: str, small: bool) -> tuple[Any, Any]:
    program = build(name, small=small)
    return _run(plain(program), program, small)


def _run(gradient: Any, program: Program, small: bool) -> tuple[Any, Any]:
    return jax.jit(gradient, compiler_options=_HASTE if small else {})(*program.draw(_SEED))


def _flat(tree: Any) -> np.ndarray:
    """All numbers of a pytree."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def _difference(expected: np.ndarray, got: np.ndarray) -> float:
    return float(np.abs(expected - got).max() / np.abs(expected).max())
