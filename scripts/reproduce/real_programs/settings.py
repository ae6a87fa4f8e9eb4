"""What the sections share: the settings of the command line, and a program under measurement."""

import dataclasses
import functools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from graphrl.files import write_atomically
from graphrl.graphs.readers.hlo.module import HloModule, parse_module
from graphrl.graphs.readers.hlo.reader import HloProgram, read_hlo
from graphrl.graphs.roofline import DEFAULT_CHIP
from graphrl.xla.assignment import TempPredictor
from graphrl.xla.callback import Scheduler
from graphrl.xla.hook import captured, compile_in_order
from graphrl.xla.planning.cache import Places, named_orders, places_of
from reproduce import launcher
from reproduce.launcher import names, option, seconds
from reproduce.measurements import Measurements
from reproduce.models.programs import Program
from reproduce.real_programs.programs import QUICK, UPDATES, build, parts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(launcher.Settings):
    """What the command line says."""

    out: Path = option(Path("out/real_programs"), "folder of everything but the tables")
    times: tuple[float, ...] = option((10.0, 60.0), "seconds of a plan", quick=(0.2, 0.5), parse=seconds)
    methods: tuple[str, ...] | None = option(None, "of placement: leave out all others", parse=names, metavar="M,...")
    programs: tuple[str, ...] | None = option(
        None, "as in resnet50/training/b8,resnet50/inference/b1", parse=names, metavar="P,..."
    )

    def check(self) -> None:
        """
        Raises:
          GraphrlError: a program's name is wrong.
        """
        for name in self.programs or ():
            if name not in UPDATES:
                parts(name)

    @functools.cached_property
    def measurements(self) -> Measurements:
        """The file of figures."""
        return Measurements(self.out / "measured.jsonl", retry=self.retry)

    def names_of(self, own: Sequence[str]) -> Sequence[str]:
        """The programs that a section measures: those of --programs, else its own, or small ones if that will do."""
        return self.programs or (QUICK if self.quick else own)

    def subjects(self, own: Sequence[str]) -> "Iterator[Subject]":
        """The same, one after another: what is known of one takes much memory."""
        return (Subject(name, self.out) for name in self.names_of(own))


class Subject:
    """A program by name: lowered, captured and planned once, however many sections ask.

    Captured modules and orders are kept in files of `out`, since they cost minutes. An order is that of all
    computations by places (`planning.cache.Places`): they are the same in every process, as names need not be.
    """

    def __init__(self, name: str, out: Path) -> None:
        self.name = name
        self._out = out
        self._modules: dict[str, HloModule] = {}

    @functools.cached_property
    def program(self) -> Program:
        """The function and its abstract arguments."""
        return build(self.name)

    @functools.cached_property
    def lowered(self) -> jax.stages.Lowered:
        """What XLA compiles."""
        return jax.jit(self.program.fn).lower(*self.program.args)

    @functools.cached_property
    def hlo(self) -> HloProgram:
        """The module of XLA's default scheduler as a graph."""
        return read_hlo(self.module("default"), chip=DEFAULT_CHIP)

    @functools.cached_property
    def predict(self) -> TempPredictor:
        """Temporaries of a sequence of the default scheduler's module."""
        return TempPredictor(self.module("default"))

    def module(self, scheduler: Scheduler) -> HloModule:
        """The module as one of XLA's schedulers leaves it."""
        if scheduler not in self._modules:
            path = self._file("hlo", f"{scheduler}.pb")
            if not path.exists():
                data = captured(self.lowered, scheduler).message.SerializeToString()
                write_atomically(path, lambda file: file.write(data), binary=True)
            self._modules[scheduler] = parse_module(path.read_bytes(), str(path))
        return self._modules[scheduler]

    def order(self, scheduler: Scheduler) -> Places:
        """The orders of one of XLA's schedulers."""
        return places_of(self.module(scheduler))

    def predicted(self, order: Places) -> int:
        """Temporaries of orders of the default scheduler's module."""
        module = self.module("default")
        orders = named_orders(module, order)
        return self.predict(orders[module.entry.name], orders)

    def compiled(self, schedule: Scheduler | Places, *, quick: bool = False) -> Any:
        """The executable of one of XLA's schedulers or of orders; `quick`: as `hook.compile_in_order`."""
        return compile_in_order(self.lowered, schedule, quick=quick)

    def keep_order(self, what: str, order: Places) -> None:
        """Keeps an order for `kept_order`, also for the next process."""
        write_atomically(self._file("orders", f"{what}.json"), lambda file: json.dump(list(order), file))

    def kept_order(self, what: str) -> Places:
        """The order that was kept under this name."""
        orders = json.loads(self._file("orders", f"{what}.json").read_text(encoding="utf-8"))
        return tuple(tuple(order) for order in orders)

    def _file(self, folder: str, ending: str) -> Path:
        path = self._out / folder / f"{self.name.replace('/', '-')}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path
