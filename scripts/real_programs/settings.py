"""What the sections share: the settings of the command line, and how figures are written."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from opponents.settings import Settings as Comparisons
from opponents.settings import command

from real_programs.measurements import Measurements, provenance
from real_programs.programs import QUICK
from real_programs.subject import Subject

MB = 2**20  # as XLA's reports have it


class Settings(NamedTuple):
    """What the command line says.

    Attributes:
      programs: those that take part, or None for a section's own.
      times: seconds of a plan, ascending.
      methods: of placement: those that take part, or None for all.
      out: folder of everything that is written.
      quick: whether small programs and short times do.
      cheap: whether temporaries are predicted in place of compiled.
      measurements: the file of figures.
      comparisons: settings of comparisons of methods on graphs.
    """

    programs: tuple[str, ...] | None
    times: tuple[float, ...]
    methods: tuple[str, ...] | None
    out: Path
    quick: bool
    cheap: bool
    measurements: Measurements
    comparisons: Comparisons

    def names(self, own: Sequence[str]) -> Sequence[str]:
        """The programs that a section measures: those of --programs, else its own, or small ones if that will do."""
        return self.programs or (QUICK if self.quick else own)

    def subjects(self, own: Sequence[str]) -> Iterator[Subject]:
        """The same, one after another: what is known of one takes much memory."""
        return (Subject(name, self.out) for name in self.names(own))

    def origin(self) -> str:
        """Where the figures since the last call come from, in a line, after lines on what failed."""
        used, self.measurements.used = self.measurements.used, []
        return provenance(used, command())


def megabytes(value: float | None) -> str:
    """Bytes in 2^20, one digit after the point."""
    return "-" if value is None else f"{value / MB:,.1f}"


def ratio(value: float | None) -> str:
    """A quotient in percent."""
    return "-" if value is None else f"{100 * value:.1f}%"
