"""What the sections share: the settings of the command line, and graphs."""

import dataclasses
import functools
from pathlib import Path

from graphrl.graphs.datasets.families import sample
from graphrl.graphs.graph import ComputationGraph
from reproduce import launcher
from reproduce.launcher import check_known, numbers, option, seconds, whole_number
from reproduce.measurements import Measurements

MODELS = ("er", "ba", "ws", "sbm")
# A transfer that nobody waits for costs nothing under "free" and, as in REGAL, under "rendezvous", where it still makes
# two devices wait for one another. Under "link" only its time counts: 1 s + bytes / (5 B/s) is 11 s for a tensor of 50
# bytes, where an op takes 50 s.
TRANSFERS: dict[str, dict[str, float]] = {"free": {}, "rendezvous": {}, "link": {"latency": 1.0, "bandwidth": 5.0}}
PLACERS = (
    "auto", "list", "hlfet", "etf", "metis", "local-search", "anneal-schedule", "brkga", "brkga-tuned", "brkga+",
    "random", "cp-sat",
)  # fmt: skip
ORDERERS = (
    "auto", "list", "xla-list", "xla-dfs", "xla-postorder", "xla", "inductor-lpmf", "inductor-bfs", "inductor-dfs",
    "inductor", "alap", "depth-first", "breadth-first", "random-ready", "random-priorities", "dfs-dp", "min-cut",
    "approximate-dp:width=1000", "approximate-dp:width=10000", "approximate-dp:width=100000", "anneal", "brkga",
    "brkga-tuned", "brkga+", "cp-sat",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(launcher.Settings):
    """What the command line says."""

    out: Path = option(Path("out/opponents"), "folder of measurements and pictures")
    times: tuple[float, ...] = option((1.0, 10.0, 60.0), "seconds of a run", quick=(0.1, 0.2), parse=seconds)
    graphs: int = option(20, "in each table", quick=2)
    sizes: tuple[int, ...] = option(
        (200, 500, 1000, 2000, 5000), "ops of random DAGs (schedules, moves)", quick=(30,), parse=numbers
    )
    programs: int = option(30, "of the model zoo", quick=1)
    first: int = option(0, "seed of the first graph; 0-3 chose auto's rule", parse=lambda text: whole_number(text, 0))
    seeds: int = option(1, "of each method on each graph")
    yardstick: Path | None = option(None, "C++ source of an annealing to compare with", parse=Path, metavar="CPP")
    schedule_yardstick: Path | None = option(None, "C++ source of one for makespan", parse=Path, metavar="CPP")

    def check(self) -> None:
        """
        Raises:
          GraphrlError: a method is unknown.
        """
        check_known("method", self.methods or (), dict.fromkeys((*PLACERS, *ORDERERS)))

    @functools.cached_property
    def measurements(self) -> Measurements:
        """The file of figures that are no rows of comparisons."""
        return Measurements(self.out / "measured.jsonl", retry=self.retry)

    @property
    def graph_seeds(self) -> range:
        """Of the graphs in a table."""
        return range(self.first, self.first + self.graphs)


def dag(seed: int, num_ops: int | None = None) -> ComputationGraph:
    """A random DAG as REGAL describes them (`datasets/regal_like.py`); its four models take turns.

    `num_ops` counts neither the source nor the sink; by default it is drawn from 50 to 200.
    """
    return sample("regal-like", num_ops, seed, {"model": MODELS[seed % len(MODELS)]})[0]
