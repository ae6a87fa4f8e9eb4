"""What the sections share: the settings of the command line, and the methods that take part."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from opponents.entrants import Entrant, Found, compared

from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.base import Budget
from regal.policies import Kind, Policies, Trained
from regal.tasks import TASKS, unseen

REGAL = Kind("message-passing", "list")
# what tables call a learned method -> the method that plays a checkpoint, and what that is
LEARNED: dict[str, tuple[str, Kind]] = {
    "regal": ("regal", REGAL),
    "regal without hint": ("regal", Kind("message-passing", "none")),
    "regal+": ("regal+", REGAL),
    "idrs": ("idrs", REGAL),
    "gas": ("regal", Kind("recurrent", "list")),
}
UNTRAINED = "hint alone"
ONCE = ("cp-sat", "list", "metis")  # methods that draw no numbers, or are slow: one seed is what they get by default


class Settings(NamedTuple):
    """What the command line says.

    Attributes:
      graphs: unseen ones, of each task.
      seeds: of search and of training.
      evaluations: of each run of a table at equal evaluations.
      limits: evaluations of the runs of `limits`, ascending.
      times: seconds of a run at equal time, ascending.
      proof: seconds of CP-SAT.
      rounds: of messages, which `ablation` compares.
      task: of `limits`, `ablation` and `overhead`.
      methods: labels of those that take part, or None for all.
      once: labels of those that run with one seed only.
      processes: runs at once.
      out: folder of runs.jsonl, tables, pictures and training.
      quick: whether small graphs and short runs do.
      retry: whether runs that failed before are made again.
      policies: those that are measured.
    """

    graphs: int
    seeds: int
    evaluations: int
    limits: tuple[int, ...]
    times: tuple[float, ...]
    proof: float
    rounds: tuple[int, ...]
    task: str
    methods: tuple[str, ...] | None
    once: tuple[str, ...]
    processes: int
    out: Path
    quick: bool
    retry: bool
    policies: Policies

    def unseen(self, task: str) -> list[ComputationGraph]:
        """The graphs that a task is tested on."""
        return unseen(task, self.graphs, self.quick)

    def trained(self, task: str, kind: Kind, rounds: int | None = None) -> list[Trained]:
        """The policies of a task, one a seed, none trained on what it is tested on; see `Policies`."""
        found = self.policies.of(task, kind, rounds)
        for one in found:
            self.policies.check_unseen(one, self.unseen(task))
        return found

    def among(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Those of the methods that take part."""
        return tuple(label for label in labels if self.methods is None or label in self.methods)

    def entrant(self, task: str, label: str, budget: Budget, rounds: int | None = None) -> Entrant:
        """A method of `LEARNED` or of the solvers, with its policies if it has any, or `UNTRAINED`.

        Raises:
          GraphrlError: see `Policies.of`.
        """
        if label == UNTRAINED:
            file = self.policies.untrained(task).file
            return Entrant(label, [f"regal:checkpoint={file}"] * (1 if label in self.once else self.seeds), budget)
        if label not in LEARNED:
            return Entrant(label, [label] * (1 if label in self.once else self.seeds), budget)
        method, kind = LEARNED[label]
        files = [one.file for one in self.trained(task, kind, rounds)][: 1 if label in self.once else None]
        return Entrant(label, [f"{method}:checkpoint={file}" for file in files], budget)

    def compared(self, task: str, entrants: Sequence[Entrant]) -> Found:
        """The rows of all entrants on a task's graphs.

        Raises:
          Interrupted: Ctrl-C; what is done stays in the file.
        """
        return compared(
            self.unseen(task), TASKS[task].problem, entrants, self.out, processes=self.processes, retry=self.retry
        )
