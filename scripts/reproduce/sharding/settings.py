"""Settings of the command line, the contest's results, and one measured search."""

import dataclasses
import time
from pathlib import Path

from graphrl.errors import GraphrlError
from graphrl.process import count_cores
from graphrl.sharding.problem import read_problem
from graphrl.sharding.search import compile_moves, search
from graphrl.sharding.worker import Parts
from reproduce import launcher
from reproduce.launcher import check_known, names, option
from reproduce.measurements import Figures


@dataclasses.dataclass(frozen=True)
class Result:
    """Public results on an instance.

    Attributes:
      minutes: time limit.
      best: least cost of any team.
      xla: cost of XLA's auto-sharder over the best; None if it has no result.
      bound: best lower bound of the winners' experiments over the best.
    """

    minutes: int
    best: int
    xla: float | None
    bound: float


# Costs: asplos-contest/2025, misc/iopddl_final_results.csv. XLA and bounds: ti2-group/iopddl_experiments (GitHub).
RESULTS = {
    "A": Result(1, 6548641531, 2.018, 0.995),
    "B": Result(1, 532843, 1.858, 1.0),
    "C": Result(1, 84102445260, 49.9, 0.981),
    "D": Result(1, 313613524736, None, 0.951),
    "G": Result(2, 217039, 5.83, 1.0),
    "K": Result(3, 2274276676, None, 0.908),
    "L": Result(3, 1970993742, None, 0.973),
    "M": Result(3, 49928460991, None, 0.99),
    "P": Result(4, 662197407330, 0.984, 0.931),
    "S": Result(4, 1534613444, None, 0.985),
}
PARTS = {
    "all": Parts(),
    "no reduction": Parts(reduction=False),
    "no messages": Parts(messages=False),
    "no trees": Parts(trees=False),
    "no exact": Parts(exact=False),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(launcher.Settings):
    """Settings of the command line."""

    out: Path = option(Path("out/sharding"), "folder of measurements")
    data: Path = option(Path("iopddl"), "folder of the contest's instances, as downloaded")
    instances: tuple[str, ...] = option(
        tuple(RESULTS), "the only ones", quick=("B", "G"), parse=names, metavar="NAME,..."
    )
    seeds: int = option(1, "seeds of each search", quick=1)
    share: float = option(1.0, "share of the contest's time limits", quick=0.02)
    policies: tuple[str, ...] = option(
        (), "checkpoints of graphrl train sharding, for the section learning", parse=names, metavar="PATH,..."
    )
    budget: float = option(2.0, "seconds of a search on an instance in the section learning", quick=0.3)
    layers: int = option(8, "layers of the steps of `jax`", quick=2)
    processor_time: bool = option(False, "count the processor's time of one thread instead of the clock's")

    def check(self) -> None:
        """Checks the settings.

        Raises:
          GraphrlError: an instance is not known or missing, or the share is not above 0.
        """
        check_known("instance", self.instances, tuple(RESULTS))
        for option_name in ("share", "budget"):
            if not getattr(self, option_name) > 0:
                raise GraphrlError(f"--{option_name} {getattr(self, option_name):g}: must be above 0")
        for name in self.instances if {*self.sections} - {"jax"} else ():
            path(self.data, name)

    def run(self, name: str, part: str, seed: int) -> Figures | None:
        """Returns the figures of one search, measured if they are not stored."""
        seconds = 60 * RESULTS[name].minutes * self.share
        key = {
            "instance": name, "parts": part, "seed": seed, "seconds": seconds,
            "clock": "processor" if self.processor_time else "wall",
        }  # fmt: skip
        return self.measurements.get(key, lambda: measure(self, name, part, seed, seconds))


def measure(settings: Settings, name: str, part: str, seed: int, seconds: float) -> Figures:
    """Runs one search, with reading the file in its time."""
    compile_moves()
    clock = time.process_time if settings.processor_time else time.perf_counter
    started = clock()
    problem = read_problem(path(settings.data, name))
    workers = 1 if settings.processor_time else count_cores()
    plan, reduced = search(
        problem, seconds, seed=seed, parts=PARTS[part], workers=workers, started=started, clock=clock
    )
    return {
        "cost": plan.cost, "bound": plan.bound, "peak": plan.peak_bytes / problem.limit, "seconds": plan.seconds,
        "nodes": len(problem.sizes), "reduced_nodes": len(reduced.sizes), "edge_costs": len(problem.edge_cost),
        "reduced_edge_costs": len(reduced.edge_cost), "workers": workers,
    }  # fmt: skip


def path(data: Path, name: str) -> Path:
    """Returns the path of an instance.

    Raises:
      GraphrlError: the file is missing.
    """
    for file in (data / f"asplos-2025-iopddl-{name}.json.gz", data / f"asplos-2025-iopddl-{name}.json"):
        if file.is_file():
            return file
    raise GraphrlError(f"{file} is missing: download the instances of google/iopddl, and name their folder by --data")
