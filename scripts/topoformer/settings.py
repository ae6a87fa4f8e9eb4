"""What the sections share: the settings of the command line, graphs, and the methods that take part."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from opponents.entrants import Entrant, Found, compared

from graphrl.costs.problem import Problem
from graphrl.graphs.datasets.families import sample
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.base import Budget
from topoformer.policies import Policies

PROBLEM = Problem()  # peak memory of one device
ENDS = Budget(None, 3600.0)  # of methods that come to an end: with a limit in seconds programs are compiled before

DP, RANDOM = "approximate DP", "random 100"
# label -> method; those of the second group get --slow graphs
FAST = {
    RANDOM: "random-priorities",
    "depth first": "depth-first",
    "breadth first": "breadth-first",
    "xla-list": "xla-list",
    "xla-dfs": "xla-dfs",
    "xla-postorder": "xla-postorder",
    "xla": "xla",
    "inductor-lpmf": "inductor-lpmf",
    "inductor-bfs": "inductor-bfs",
    "inductor-dfs": "inductor-dfs",
    "inductor": "inductor",
}
DECODED = {
    "greedy": "topoformer:decode=greedy",
    "sample": "topoformer:decode=sample,samples=16",
    "beam": "topoformer:decode=beam,samples=16",
}
TIMED = {"anneal": "anneal", "topoformer+": "topoformer+"}
METHODS = (DP, "dfs-dp", *FAST, *DECODED, *TIMED)


class Settings(NamedTuple):
    """What the command line says.

    Attributes:
      graphs: unseen layered ones of each size.
      slow: how many of these the slow methods get: approximate DP, dfs-dp, and what takes over a second.
      first: seed of the first graph; the others follow.
      sizes: ops of the layered graphs.
      ablation_sizes: ops of those that the ablations are measured on.
      times: seconds of what searches until its time is up, ascending.
      width: sets that approximate DP keeps, K.
      dfs_seconds: of dfs-dp.
      most_ops: of the programs of `real`.
      methods: labels of those that take part, or None for all.
      networks: of the ablations that take part, or None for all.
      processes: runs at once.
      out: folder of runs.jsonl, tables, pictures and training.
      quick: whether small graphs and short runs do.
      retry: whether runs that failed before are made again.
      train_real: whether `real` trains a policy on programs.
      run: of training, for `budget`; None is that of `encoders`.
      policies: those that are measured.
    """

    graphs: int
    slow: int
    first: int
    sizes: tuple[int, ...]
    ablation_sizes: tuple[int, ...]
    times: tuple[float, ...]
    width: int
    dfs_seconds: float
    most_ops: int
    methods: tuple[str, ...] | None
    networks: tuple[str, ...] | None
    processes: int
    out: Path
    quick: bool
    retry: bool
    train_real: bool
    run: Path | None
    policies: Policies

    @property
    def layered_sizes(self) -> tuple[int, ...]:
        """Ops of the graphs of `layered`: those of a published graph too."""
        return self.sizes if self.quick else tuple(sorted({*self.sizes, 250}))

    @property
    def graph_seeds(self) -> range:
        """Of the layered graphs of a size."""
        return range(self.first, self.first + self.graphs)

    def layered(self, ops: int) -> list[ComputationGraph]:
        """The unseen layered graphs of a size."""
        return [sample("layered", ops, seed)[0] for seed in self.graph_seeds]

    def compared(self, graphs: Sequence[ComputationGraph], entrants: Sequence[Entrant]) -> Found:
        """The rows of all entrants.

        Raises:
          Interrupted: Ctrl-C; what is done stays in the file.
        """
        return compared(graphs, PROBLEM, entrants, self.out, processes=self.processes, retry=self.retry)

    def reference(self) -> Entrant:
        """Approximate dynamic programming."""
        return Entrant(DP, [f"beam:width={self.width}"], ENDS, self.slow)

    def classical(self) -> list[Entrant]:
        """Every method without learning that takes part; always those that gaps are measured from."""
        found = [self.reference(), Entrant("dfs-dp", ["dfs-dp"], Budget(None, self.dfs_seconds), self.slow)]
        found += [Entrant(label, [method], ENDS) for label, method in FAST.items()]
        found += self._at_times("anneal", "anneal")
        return [one for one in found if one.label in (DP, RANDOM) or self._takes_part(one.label)]

    def learned(self) -> list[Entrant]:
        """The policy's decodings and its warm start of annealing, as far as they take part."""
        checkpoint = self.policies.given
        found = [*self.decoded([checkpoint]), *self._at_times("topoformer+", played("topoformer+", checkpoint))]
        return [one for one in found if self._takes_part(one.label)]

    def decoded(self, checkpoints: Sequence[str], mark: str = "") -> list[Entrant]:
        """The three decodings of policies, one a seed; `mark` is put behind the labels."""
        return [
            Entrant(f"{label}{mark}", [played(method, path) for path in checkpoints], ENDS)
            for label, method in DECODED.items()
        ]

    def _at_times(self, label: str, method: str) -> list[Entrant]:
        return [
            Entrant(f"{label} {seconds:g} s", [method], Budget(None, seconds), self.slow if seconds > 1 else None)
            for seconds in self.times
        ]

    def _takes_part(self, label: str) -> bool:
        return self.methods is None or label in self.methods or label.partition(" ")[0] in self.methods


def played(method: str, checkpoint: str) -> str:
    """A learned method with a policy, "" for the shipped one."""
    if not checkpoint:
        return method
    return f"{method}{',' if ':' in method else ':'}checkpoint={checkpoint}"
