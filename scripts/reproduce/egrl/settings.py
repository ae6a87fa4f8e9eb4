"""What the sections share: the settings of the command line."""

import dataclasses
import functools
from pathlib import Path

from graphrl.costs.maps.chip import find_chip
from graphrl.graphs.datasets.workloads.egrl import WORKLOADS
from graphrl.methods import MAP_METHODS
from reproduce import launcher
from reproduce.launcher import check_known, names, option, seconds
from reproduce.measurements import Measurements


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(launcher.Settings):
    """What the command line says."""

    out: Path = option(Path("out/egrl"), "folder of measurements and pictures")
    workloads: tuple[str, ...] = option(tuple(WORKLOADS), "that maps are for", quick=("resnet50",), parse=names)
    chip: str = option("nnp-i", "a chip's name or file", metavar="CHIP")
    evaluations: int = option(4000, "of a run", quick=200)
    times: tuple[float, ...] = option((1.0, 60.0), "seconds of a run", quick=(0.2,), parse=seconds, metavar="S,...")
    seeds: int = option(5, "of each method on each workload", quick=2)

    def check(self) -> None:
        """
        Raises:
          GraphrlError: a method, a workload or the chip is unknown.
        """
        check_known("method", [method.partition(":")[0] for method in self.methods or ()], MAP_METHODS)
        check_known("workload", self.workloads, WORKLOADS)
        find_chip(self.chip)

    @functools.cached_property
    def measurements(self) -> Measurements:
        """The file of figures."""
        return Measurements(self.out / "measured.jsonl", retry=self.retry)
