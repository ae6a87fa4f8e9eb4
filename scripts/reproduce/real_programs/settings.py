"""What the sections share: the settings of the command line, and how figures are written."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

from reproduce import launcher
from reproduce.launcher import names, option, seconds
from reproduce.measurements import Measurements
from reproduce.real_programs.names import QUICK, parts
from reproduce.real_programs.subject import Subject

MIB = 2**20  # as the targets have it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(launcher.Settings):
    """What the command line says."""

    out: Path = option(Path("out/real_programs"), "folder of everything but the tables")
    times: tuple[float, ...] = option((10.0, 60.0), "seconds of a plan", quick=(0.2, 0.5), parse=seconds)
    methods: tuple[str, ...] | None = option(None, "of placement: leave out all others", parse=names, metavar="M,...")
    programs: tuple[str, ...] | None = option(
        None, "as in resnet50/training/b8,resnet50/inference/b1", parse=names, metavar="P,..."
    )
    cheap: bool = option(False, "predict temporaries instead of compiling (memory)")

    def check(self) -> None:
        """
        Raises:
          GraphrlError: a program's name is wrong.
        """
        from reproduce.real_programs.cases.run import CASES
        from reproduce.real_programs.totals import PROGRAMS

        for name in self.programs or ():
            if name not in (*PROGRAMS, *CASES):
                parts(name)

    @functools.cached_property
    def measurements(self) -> Measurements:
        """The file of figures."""
        return Measurements(self.out / "measured.jsonl", retry=self.retry)

    def chosen(self, own: Sequence[str], quick: Sequence[str]) -> Sequence[str]:
        """Those of --programs among a section's own, which are not of the zoo; without any, its own or small ones."""
        return [name for name in self.programs or () if name in own] or (quick if self.quick else own)

    def names_of(self, own: Sequence[str]) -> Sequence[str]:
        """The programs that a section measures: those of --programs, else its own, or small ones if that will do."""
        return self.programs or (QUICK if self.quick else own)

    def subjects(self, own: Sequence[str]) -> Iterator[Subject]:
        """The same, one after another: what is known of one takes much memory."""
        return (Subject(name, self.out) for name in self.names_of(own))


def mebibytes(value: float | None) -> str:
    """Bytes in 2^20, one digit after the point."""
    return "-" if value is None else f"{value / MIB:,.1f}"


def ratio(value: float | None) -> str:
    """A quotient in percent."""
    return "-" if value is None else f"{100 * value:.1f}%"
