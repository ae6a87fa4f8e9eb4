"""What the sections share: the settings of the command line, and what a method needs on a program: memory by XLA's
compiler for an H200 and estimated time, as a point of a curve.
"""

import dataclasses
import functools
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from graphrl.graphs.readers.hlo.module import parse_module
from graphrl.graphs.readers.hlo.reader import read_hlo
from graphrl.graphs.roofline import find_chip
from graphrl.xla.checkpoint.seconds import gradient_seconds
from reproduce import launcher
from reproduce.checkpoint.methods import FITTED, GRADIENTS, NONE, XLA, Gradient, plain
from reproduce.checkpoint.programs import LONG, PROGRAMS, build
from reproduce.gpu_compile import executable_for_gpu, memory_of
from reproduce.launcher import check_known, names, option
from reproduce.measurements import Figures, Measurements
from reproduce.models.losses import Program

QUICK = ("transformer in a scan", "LSTM")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(launcher.Settings):
    """What the command line says."""

    out: Path = option(Path("out/checkpoint"), "folder of measurements and pictures")
    programs: tuple[str, ...] | None = option(None, "leave out all others", parse=names, metavar="P,...")
    methods: tuple[str, ...] | None = option(
        None, "leave out all others; split at ';'", parse=lambda text: tuple(text.split(";")), metavar="M;..."
    )
    chip: str = option("h200", "whose figures the estimated times are of")
    device: str = option(
        "", "of which sections `device` and `values` have figures in --out, if not the one that is here", metavar="NAME"
    )

    def check(self) -> None:
        """
        Raises:
          GraphrlError: a program, method or chip is not known.
        """
        check_known("program", self.programs or (), PROGRAMS | LONG)
        check_known("method", self.methods or (), (*GRADIENTS, *XLA, FITTED))
        find_chip(self.chip)

    @functools.cached_property
    def measurements(self) -> Measurements:
        """The file of figures."""
        return Measurements(self.out / "measured.jsonl", retry=self.retry)

    @property
    def chosen(self) -> tuple[str, ...]:
        """The programs that are measured."""
        return tuple(self.programs or (QUICK if self.quick else PROGRAMS))

    @property
    def size(self) -> str:
        """Which of the programs' sizes, in the keys of measurements."""
        return "small" if self.quick else "full"


# XLA leaves a fifth of a device's memory alone, and a twentieth of what arguments do not take of the rest.
_OF_DEVICE, _OF_REST = 0.8, 0.95


def memory(settings: Settings, program: str, method: str, batch: int | None = None) -> Figures | None:
    """XLA's figures in bytes (`gpu_compile.GpuMemory`), seconds to trace and to compile, and what the compiled module's
    instructions take one after another by roofline ("seconds").

    Args:
      settings: whose file keeps them.
      program: its name.
      method: of `GRADIENTS` or `XLA`.
      batch: instead of the program's own.
    """
    key: dict[str, Any] = {"what": "memory", "program": program, "method": method, "size": settings.size}
    if batch is not None:
        key["batch"] = batch
    if method not in XLA:
        return settings.measurements.get(key, lambda: _compiled(settings, program, method, batch))
    whole = memory(settings, program, NONE, batch)
    if whole is None:
        return None
    return settings.measurements.get(key, lambda: _compiled_in_less(settings, program, XLA[method], whole))


def slowdown(settings: Settings, program: str, method: str) -> float | None:
    """Estimated time of the traced gradient over that of the undecorated one, less 1; None where it failed.

    XLA's own recomputation is in no traced function: for it it is that of compiled modules.
    """
    if method in XLA:
        return compiled_slowdown(settings, program, method)
    own, undecorated = (_seconds(settings, program, name) for name in (method, NONE))
    return own / undecorated - 1 if own and undecorated else None


def compiled_slowdown(settings: Settings, program: str, method: str) -> float | None:
    """The same by the instructions of the compiled modules."""
    own, undecorated = (memory(settings, program, name) for name in (method, NONE))
    return own["seconds"] / undecorated["seconds"] - 1 if own and undecorated else None


def _seconds(settings: Settings, program: str, method: str) -> float | None:
    key = {"what": "seconds", "program": program, "method": method, "chip": settings.chip, "size": settings.size}
    figures = settings.measurements.get(key, functools.partial(_estimated, settings, program, method))
    return None if figures is None else figures["seconds"]


def _estimated(settings: Settings, name: str, method: str) -> Figures:
    program = build(name, small=settings.quick)
    return {"seconds": gradient_seconds(jax.make_jaxpr(GRADIENTS[method](program))(*program.args), settings.chip)}


def _compiled(settings: Settings, name: str, method: str, batch: int | None) -> Figures:
    program = build(name, small=settings.quick, batch=batch)
    return _of_gradient(settings, program, GRADIENTS[method](program))


def _compiled_in_less(settings: Settings, name: str, share: float, whole: Figures) -> Figures:
    """The undecorated gradient on a GPU that has room for a share of its temporaries."""
    program = build(name, small=settings.quick)
    room = (share * whole["temporaries"] / _OF_REST + whole["arguments"]) / _OF_DEVICE
    return _of_gradient(settings, program, plain(program), device_bytes=int(room))


def _of_gradient(settings: Settings, program: Program, gradient: Gradient, **options: Any) -> Figures:
    args, began = program.args, time.perf_counter()
    equations = len(jax.make_jaxpr(gradient)(*args).jaxpr.eqns)
    traced = time.perf_counter()
    compiled = executable_for_gpu(gradient, *args, **options)
    taken = {"trace": traced - began, "compile": time.perf_counter() - traced}
    seconds = _of_instructions(compiled, settings.chip)
    return {**memory_of(compiled)._asdict(), "equations": equations, **taken, "seconds": seconds}


def _of_instructions(compiled: Any, chip: str) -> float:
    """Seconds of a compiled module's instructions, one after another."""
    (module,) = compiled.runtime_executable().hlo_modules()
    graph = read_hlo(parse_module(module.as_serialized_hlo_module_proto(), "XLA's module"), chip=chip).graph
    return sum(op.runtime for op in graph.ops)


class Point(NamedTuple):
    """A method on a program.

    Attributes:
      method: its name.
      temporaries: in bytes, by XLA's compiler.
      share: of the undecorated gradient's temporaries.
      slowdown: estimated time over the undecorated gradient's, less 1.
    """

    method: str
    temporaries: int
    share: float
    slowdown: float


def points(settings: Settings, program: str, methods: Iterable[str]) -> list[Point]:
    """Those of the methods that could be measured."""
    whole, there = memory(settings, program, NONE), []
    for method in methods:
        figures, time = memory(settings, program, method), slowdown(settings, program, method)
        if whole and figures and time is not None:
            temporaries = figures["temporaries"]
            there.append(Point(method, temporaries, temporaries / whole["temporaries"], time))
    return there


def least(candidates: Sequence[Point], slowdown: float) -> Point | None:
    """The one with the least temporaries among those that are no slower, if there is one."""
    return min((point for point in candidates if point.slowdown <= slowdown), key=_by_memory, default=None)


def best(candidates: Sequence[Point]) -> Point | None:
    """The one with the least temporaries, the fastest of those."""
    return min(candidates, key=_by_memory, default=None)


def _by_memory(point: Point) -> tuple[int, float]:
    return point.temporaries, point.slowdown
