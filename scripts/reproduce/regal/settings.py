"""What the sections share: the settings of the command line, and the methods that take part."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.base import Budget
from reproduce import launcher
from reproduce.contest import Contest, Entrant
from reproduce.launcher import check_known, names, numbers, option, seconds
from reproduce.regal.policies import Kind, Policies, Trained
from reproduce.regal.tasks import TASKS, unseen

REGAL, HINTED = Kind("message-passing", "none"), Kind("message-passing", "list")
# what tables call a learned method -> the method that plays a checkpoint, and what that is
LEARNED: dict[str, tuple[str, Kind]] = {
    "regal": ("regal", REGAL),
    "idrs": ("idrs", REGAL),
    "gas": ("regal", Kind("recurrent", "none")),
    "regal-hint": ("regal-hint", HINTED),
    "idrs-hint": ("idrs-hint", HINTED),
    "gas-hint": ("regal-hint", Kind("recurrent", "list")),
    "regal+": ("regal+", HINTED),
}
UNTRAINED = "regal-hint untrained"
BASELINE = "brkga"
# methods of the paper's table; those that are told a list schedule; and others beside them
PAPER = ("cp-sat", "metis", "random", "local-search", BASELINE, "brkga-tuned", "idrs", "gas", "regal")
TOLD = ("list", "brkga+", "idrs-hint", "gas-hint", UNTRAINED, "regal-hint")
BESIDE = ("anneal-schedule", "auto", "regal+")
LONGER = "auto for longer"  # for the best known: without it the best of a few short searches would stand for it
METHODS = (*PAPER, *TOLD, *BESIDE, LONGER)
TIMED = (BASELINE, "regal", "list", "brkga+", "regal-hint", *BESIDE)
# methods that draw no numbers, or are slow: one seed is what they get by default
ONCE = ("cp-sat", "list", "metis", LONGER)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(launcher.Settings):
    """What the command line says."""

    out: Path = option(Path("out/regal-tables"), "folder of measurements, pictures and training")
    times: tuple[float, ...] = option((1.0, 5.0), "seconds of a run of section time", quick=(0.2, 0.5), parse=seconds)
    graphs: int = option(200, "unseen ones, of a task", quick=2)
    seeds: int = option(3, "of search and of training")
    evaluations: int = option(5_000, "of each search", quick=400)
    limits: tuple[int, ...] = option(
        (1_000, 2_000, 5_000, 10_000, 20_000, 50_000), "evaluations, of section limits", quick=(200, 400), parse=numbers
    )
    rounds: tuple[int, ...] = option((0, 1, 2, 4), "of messages, which the ablation compares", parse=numbers)
    task: str = option("synthetic", "of the later sections", choices=list(TASKS))
    once: tuple[str, ...] = option(ONCE, "methods with one seed only", parse=names, metavar="M,...")
    cp_sat: float = option(60.0, "seconds of CP-SAT", quick=0.5)
    longer: float = option(2.0, f"seconds of {LONGER!r}", quick=0.2)
    checkpoints: Sequence[Path] = option((), "policies to measure", parse=Path, nargs="+", metavar="PATH")
    set: Sequence[str] = option(
        (), "of `graphrl train` where policies are trained", parse=str, action="append", metavar="KEY=VALUE"
    )

    def check(self) -> None:
        """
        Raises:
          GraphrlError: an unknown method, or a checkpoint that cannot be read.
        """
        check_known("method", [*(self.methods or ()), *self.once], METHODS)
        _ = self.policies

    @functools.cached_property
    def policies(self) -> Policies:
        """Those that are measured."""
        return Policies(self.out, self.seeds, self.checkpoints, self.set, self.quick)

    def unseen(self, task: str) -> list[ComputationGraph]:
        """The graphs that a task is tested on."""
        return unseen(task, self.graphs, self.quick)

    def trained(self, task: str, kind: Kind, rounds: int | None = None) -> list[Trained]:
        """The policies of a task, one a seed, none trained on what it is tested on; see `Policies`."""
        policies = self.policies.of(task, kind, rounds)
        for one in policies:
            self.policies.check_unseen(one, self.unseen(task))
        return policies

    def budget(self, label: str) -> Budget:
        """What a method gets in a task's table."""
        seconds = {"cp-sat": self.cp_sat, LONGER: self.longer}
        return Budget(None, seconds[label]) if label in seconds else Budget(self.evaluations)

    def entrant(
        self, task: str, label: str, budget: Budget, rounds: int | None = None, *, shipped: bool = False
    ) -> Entrant:
        """A method of `LEARNED` or of the solvers, `UNTRAINED` or `LONGER`.

        Args:
          task: its name.
          label: see above.
          budget: of each run.
          rounds: of messages of a learned method, see `Policies.of`.
          shipped: whether learned methods play the policy of the package, with every seed the same one.

        Raises:
          GraphrlError: see `Policies.of`.
        """
        if label == UNTRAINED:
            methods = [f"regal-hint:checkpoint={self.policies.untrained(task).file}"] * self.seeds
        elif label in LEARNED and not shipped:
            method, kind = LEARNED[label]
            methods = [f"{method}:checkpoint={one.file}" for one in self.trained(task, kind, rounds)]
        else:
            methods = ["auto" if label == LONGER else label] * self.seeds
        return Entrant(label, methods[: 1 if label in self.once else None], budget)

    def on_task(self, task: str, entrants: Sequence[Entrant]) -> Contest:
        """The rows of all entrants on a task's graphs.

        Raises:
          Interrupted: Ctrl-C; what is done stays in the file.
        """
        return self.contest(self.unseen(task), TASKS[task].problem, entrants)
