"""What the sections share: the settings of the command line, comparisons in one file, where figures come from."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from graphrl.commands.cache import keep_compiled
from graphrl.commands.runs_bar import runs_bar
from graphrl.compare.cluster import share
from graphrl.compare.comparison import Comparison, compare
from graphrl.compare.report import provenance
from graphrl.compare.runs import Row, Run, make_runs
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets.families import sample
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.base import Budget

MODELS = ("er", "ba", "ws", "sbm")


class Interrupted(Exception):
    """Ctrl-C came during a comparison."""


class Settings(NamedTuple):
    """What the command line says.

    Attributes:
      graphs: in each table.
      first: seed of the first graph; the others follow.
      times: seconds of a run, ascending.
      methods: those that take part, or None for all.
      seeds: of each method on each graph.
      processes: runs at once.
      out: folder of runs.jsonl, tables and pictures.
      quick: whether small graphs and short times do.
      retry: whether runs that failed before are made again.
      yardstick: C++ source of an annealing to compare with, if there is one.
    """

    graphs: int
    first: int
    times: tuple[float, ...]
    methods: tuple[str, ...] | None
    seeds: int
    processes: int
    out: Path
    quick: bool
    retry: bool
    yardstick: Path | None

    @property
    def graph_seeds(self) -> range:
        """Of the graphs in a table."""
        return range(self.first, self.first + self.graphs)

    def among(self, methods: Sequence[str]) -> tuple[str, ...]:
        """Those of the methods that take part."""
        return tuple(method for method in methods if self.methods is None or method in self.methods)

    def compared(
        self, graphs: Sequence[ComputationGraph], problem: Problem, methods: Sequence[str], seconds: float
    ) -> Comparison:
        """The rows of the methods at one time.

        Raises:
          Interrupted: Ctrl-C; what is done stays in the file.
        """
        cores = share(self.processes)
        runs = make_runs(graphs, problem, methods, range(self.seeds), Budget(None, seconds), cores=cores)
        return made(runs, self.out, self.processes, self.retry)


def made(runs: Sequence[Run], folder: Path, processes: int, retry: bool) -> Comparison:
    """The rows of runs; those that the folder's runs.jsonl does not have are made now.

    Raises:
      Interrupted: Ctrl-C; what is done stays in the file.
    """
    found = compare(
        runs,
        folder / "runs.jsonl",
        processes=processes,
        retry=retry,
        watch=lambda missing: runs_bar(missing, processes),
        prepare=keep_compiled,
    )
    if found.interrupted:
        raise Interrupted
    return found


def dag(seed: int, num_ops: int | None = None) -> ComputationGraph:
    """A random DAG as REGAL describes them (`datasets/regal_like.py`); its four models take turns.

    `num_ops` counts neither the source nor the sink; by default it is drawn from 50 to 200.
    """
    return sample("regal-like", num_ops, seed, {"model": MODELS[seed % len(MODELS)]})[0]


def origin(rows: Sequence[Row]) -> str:
    """The command, the seeds, the machine and the date of a table, in a line."""
    return provenance(rows, command())


def command() -> str:
    """The command line that is running."""
    return shlex.join(["python", f"scripts/{Path(sys.argv[0]).name}", *sys.argv[1:]])
