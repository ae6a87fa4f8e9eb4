"""What the sections share: the settings of the command line."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

from graphrl.costs.problem import Transfer
from graphrl.graphs.datasets.workloads import go
from graphrl.methods import find_solver
from reproduce import launcher
from reproduce.go.methods import Entry, entry_of, with_policy
from reproduce.launcher import check_known, names, option, seconds
from reproduce.measurements import Figures, Key, Measurements
from reproduce.workloads.setting import OVER


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(launcher.Settings):
    """What the command line says."""

    out: Path = option(Path("out/go"), "folder of measurements")
    times: tuple[float, ...] = option((10.0,), "seconds of a search", quick=(0.2,), parse=seconds)
    methods: tuple[str, ...] | None = option(
        None, "in place of a section's own; NAME@S has seconds of its own", parse=launcher.methods, metavar="M,..."
    )
    seeds: int = option(3, "of each search", quick=1)
    data: Path | None = option(None, "checkout of msr-fiddle/dnn-partitioning", parse=Path, metavar="FOLDER")
    graphs: int = option(1000, "of the folder, or of each kind of graphs, at most", quick=2)
    gdp: Path | None = option(None, "of gdp: a file or a run of graphrl train gdp (default: untrained)")
    workloads: tuple[str, ...] = option(
        tuple(go.WORKLOADS), "of tables 2 and 3", quick=("transformer-xl-2",), parse=names, metavar="NAME,..."
    )
    transfers: tuple[Transfer, ...] = option(tuple(OVER), "transfer models", parse=names, metavar="NAME,...")
    stored: bool = option(False, "measure nothing: tables of what --out has, with a dash for what it lacks")

    def check(self) -> None:
        """
        Raises:
          GraphrlError: a workload, a transfer model or a method is unknown.
        """
        check_known("workload", self.workloads, go.WORKLOADS)
        check_known("transfer model", self.transfers, OVER)
        for method in self.methods or ():
            find_solver(entry_of(method, 1.0).method)

    def entries(self, methods: tuple[str, ...]) -> list[Entry]:
        """The methods of a section, or those of the command line; those of GO and GDP with their policies."""
        entries = [entry_of(method, self.times[-1]) for method in self.methods or methods]
        return [with_policy(entry, self.gdp, self.out) for entry in entries]

    @functools.cached_property
    def measurements(self) -> Measurements:
        """The file of figures."""
        return Measurements(self.out / "measured.jsonl", retry=self.retry, stored=self.stored)

    def of_seeds(self, key: Key, run: Callable[[int], Figures], seeds: int | None = None) -> list[Figures]:
        """The figures of each seed, by default of all; those of runs that failed are left out."""
        numbers = range(self.seeds if seeds is None else seeds)
        runs = self.measurements.get_all([({**key, "seed": seed}, functools.partial(run, seed)) for seed in numbers])
        return [figures for figures in runs if figures is not None]
