"""What the sections share: the settings of the command line."""

import dataclasses
import functools
from pathlib import Path

from graphrl.graphs.roofline import find_chip
from reproduce import launcher
from reproduce.checkpoint.methods import FITTED, GRADIENTS, XLA
from reproduce.checkpoint.programs import LONG, PROGRAMS
from reproduce.launcher import check_known, names, option
from reproduce.measurements import Measurements

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
