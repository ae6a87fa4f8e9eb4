"""What the sections share: the settings of the command line."""

import dataclasses
import functools
from pathlib import Path

from reproduce import launcher
from reproduce.launcher import option, seconds
from reproduce.measurements import Measurements


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(launcher.Settings):
    """What the command line says."""

    out: Path = option(Path("out/go"), "folder of measurements")
    times: tuple[float, ...] = option((10.0,), "seconds of a search", quick=(0.5,), parse=seconds)
    data: Path | None = option(None, "checkout of msr-fiddle/dnn-partitioning", parse=Path, metavar="FOLDER")
    graphs: int = option(1000, "of the folder at most", quick=2)

    @functools.cached_property
    def measurements(self) -> Measurements:
        """The file of figures."""
        return Measurements(self.out / "measured.jsonl", retry=self.retry)
