"""Settings, tasks, methods and policies of REGAL's tables.

A task defines the problem, the unseen test graphs, and the training data of its policies.
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from graphrl.agents.regal.config import Encoder, RegalConfig
from graphrl.agents.regal.network import Policy
from graphrl.agents.regal.proposers import SHIFTS
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets import zoo
from graphrl.graphs.datasets.sets import load_graphs
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.base import Budget
from reproduce import launcher
from reproduce.contest import Contest, Entrant
from reproduce.launcher import check_known, numbers, option, seconds
from reproduce.policies import copy_policy, train_policies, untrained

# Two A100s, the chip of the zoo's times, and NVLink between them: 300 GB/s each way. Over PCIe (50 GB/s) list
# scheduling leaves half of the programs on one device, and there would be nothing to decide.
LATENCY, BANDWIDTH = 5e-6, 3e11  # seconds; bytes a second
# Programs of the zoo, and the most ops of one that training and a table in an hour on one core allow. Peak memory is
# tested on training steps alone: for nearly all inference programs BRKGA finds the optimum on two devices.
MAKESPAN = {"train": ("hlo/train-split", 320), "validation": ("hlo/valid-split", 400), "test": ("hlo/test-split", 600)}
MEMORY_TEST = ("hlo/test-split/training", 1_000)
LEAST_OPS = 50  # smaller programs leave nothing to decide
_QUICK_PROGRAMS = 2  # the smallest


class Task(NamedTuple):
    """A planning task, a column of the table in the REGAL paper.

    Attributes:
      title: the task in words.
      problem: planning problem.
      graphs: function of the number of graphs and True for small ones; returns unseen graphs.
      data: function of True for small ones; returns settings of `graphrl train` that name the training graphs.
    """

    title: str
    problem: Problem
    graphs: Callable[[int, bool], list[ComputationGraph]]
    data: Callable[[bool], list[str]]


def _synthetic(count: int, quick: bool) -> list[ComputationGraph]:
    """Generates graphs of seeds from 0, as `DataConfig.test` (training: from 10,000, validation 5,000, tuning 10^6)."""
    return load_graphs([f"regal-like:{12 if quick else ''}x{count}"])


def _synthetic_data(quick: bool) -> list[str]:
    """Names training graphs of 50 to 70 ops, smaller than the test graphs (50 to 200): a policy trains in a minute."""
    if quick:
        return ["data.train=regal-like:12x8@10000", "data.validation=regal-like:12x4@5000"]
    train = ",".join(f"regal-like:{ops}x100@{first}" for ops, first in ((50, 10_000), (60, 20_000), (70, 30_000)))
    return [f"data.train={train}", "data.validation=regal-like:60x32@5000", "data.buckets=1", "training.steps=150"]


def _zoo(which: tuple[str, int], count: int, quick: bool) -> list[ComputationGraph]:
    """Loads programs of families that no policy has seen, then variants with other sizes and times, as in REGAL."""
    own = [zoo.load(name).graph for name in programs(which, quick)[:count]]
    rounds = range(-(-count // len(own)))
    varied = (graph if not i else zoo.augmented(graph, i) for i in rounds for graph in own)
    return [graph for graph, _ in zip(varied, range(count), strict=False)]


def _zoo_data(quick: bool) -> list[str]:
    sets = {name: programs(MAKESPAN[name], quick) for name in ("train", "validation")}
    named = [f"data.{name}={','.join(zoo.PREFIX + program for program in some)}" for name, some in sets.items()]
    return [*named, "data.augment=true", "data.buckets=2", "agent.genes=all", "training.steps=100"]


def programs(which: tuple[str, int], quick: bool) -> list[str]:
    """Lists compiled programs (HLO) of a split within the size limits, the smallest first."""
    words, most = which
    entries = sorted((entry.ops, entry.name) for entry in zoo.select(words) if LEAST_OPS <= entry.ops <= most)
    return [name for _, name in entries[: _QUICK_PROGRAMS if quick else None]]


TASKS = {
    "synthetic": Task("Synthetic graphs, makespan", Problem("makespan", 2), _synthetic, _synthetic_data),
    "synthetic-memory": Task("Synthetic graphs, peak memory", Problem("peak_memory", 2), _synthetic, _synthetic_data),
    # affinities are learned too: much of these programs is best left on one device
    "zoo-makespan": Task(
        "Model zoo, makespan",
        Problem("makespan", 2, "link", latency=LATENCY, bandwidth=BANDWIDTH),
        functools.partial(_zoo, MAKESPAN["test"]),
        _zoo_data,
    ),
    # policies of the synthetic graphs: some eighty updates on the zoo's own programs learned nothing
    "zoo-memory": Task(
        "Model zoo, peak memory", Problem("peak_memory", 2), functools.partial(_zoo, MEMORY_TEST), _synthetic_data
    ),
}


@functools.cache
def unseen(task: str, count: int, quick: bool) -> list[ComputationGraph]:
    """Loads the test graphs of a task, or returns them if they were loaded before."""
    return TASKS[task].graphs(count, quick)


# label in tables -> the method that plays a checkpoint, and the encoder of that checkpoint's policy
LEARNED: dict[str, tuple[str, Encoder]] = {
    "idrs": ("idrs", "message-passing"),
    "gas": ("regal", "recurrent"),
    "regal": ("regal", "message-passing"),
    "regal+": ("regal+", "message-passing"),
}
UNTRAINED = "regal untrained"
ORDER_ALONE = "order alone"
_CERTAIN = 20.0  # nats
BASELINE = "brkga"
# methods of the paper's table, with the network before training; other methods for comparison
PAPER = ("cp-sat", "metis", "random", "local-search", BASELINE, "brkga-tuned", "idrs", "gas", UNTRAINED, "regal")
OTHERS = ("list", "brkga+", "anneal-schedule", "auto", "regal+")
LONGER = "auto for longer"  # for the best known, which a few short searches would not reach
METHODS = (*PAPER, *OTHERS, LONGER)
TIMED = (BASELINE, "regal", *OTHERS)
# methods without random numbers, or slow ones: they get one seed
ONCE = ("cp-sat", "list", "metis", LONGER)
PROBLEM = ("objective", "devices", "transfer", "latency", "bandwidth")  # settings of a policy
QUICK = (
    "data.graphs=2", "data.buckets=1", "agent.evaluations=160", "agent.actions=2", "agent.width=4",
    "training.steps=2", "training.validate_every=1",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(launcher.Settings):
    """Settings of the command line."""

    out: Path = option(Path("out/regal-tables"), "folder of measurements, pictures and training")
    times: tuple[float, ...] = option((1.0, 5.0), "seconds of a run of section time", quick=(0.2, 0.5), parse=seconds)
    graphs: int = option(200, "unseen ones, of a task", quick=2)
    seeds: int = option(3, "of search and of training")
    evaluations: int = option(5_000, "of each search", quick=400)
    limits: tuple[int, ...] = option(
        (1_000, 2_000, 5_000, 10_000, 20_000, 50_000), "evaluations, of section limits", quick=(400,), parse=numbers
    )
    task: str = option("synthetic", "of the later sections", choices=list(TASKS))
    cp_sat: float = option(60.0, "seconds of CP-SAT", quick=0.5)
    longer: float = option(2.0, f"seconds of {LONGER!r}", quick=0.2)

    def check(self) -> None:
        """Checks the methods.

        Raises:
          GraphrlError: a method is unknown.
        """
        check_known("method", self.methods or (), METHODS)

    def unseen(self, task: str) -> list[ComputationGraph]:
        """Returns test graphs of a task."""
        return unseen(task, self.graphs, self.quick)

    def before_training(self, problem: Problem) -> list[Path]:
        """Returns policies with initial weights, one per seed."""
        return [self.copy(untrained(Policy, RegalConfig(problem), seed)) for seed in range(self.seeds)]

    def order_alone(self, problem: Problem) -> list[Path]:
        """Returns one policy that has learned nothing: priorities in the order in which the network visits the ops or
        expects them to start, and uniform affinities.
        """
        policy = untrained(Policy, RegalConfig(problem))
        for layer, chosen in (("device", 0), ("priority_of", SHIFTS.index(0.0))):
            policy.params[layer]["bias"] = (
                _CERTAIN * np.eye(len(policy.params[layer]["bias"]), dtype=np.float32)[chosen]
            )
        return [self.copy(policy)]

    def trained(self, task: str, encoder: Encoder) -> list[Path]:
        """Returns policies of a task, one per seed; trains the missing ones.

        Raises:
          GraphrlError: training fails or is interrupted.
        """
        problem = TASKS[task].problem
        words = [
            *(f"agent.problem.{key}={getattr(problem, key)}" for key in PROBLEM),
            f"agent.encoder={encoder}",
            *TASKS[task].data(self.quick),
            *(QUICK if self.quick else ()),
        ]
        run = self.out / "training" / f"{task}-{encoder}"
        return [self.copy(Policy.load(file)) for file in train_policies(Policy, "regal", run, self.seeds, words)]

    def copy(self, policy: Policy) -> Path:
        """Copies a policy to a file named by its digest, and returns the path."""
        return copy_policy(policy, self.out)

    def budget(self, label: str) -> Budget:
        """Returns the budget of a method in a task's table."""
        seconds = {"cp-sat": self.cp_sat, LONGER: self.longer}
        return Budget(None, seconds[label]) if label in seconds else Budget(self.evaluations)

    def entrant(self, task: str, label: str, budget: Budget, *, shipped: bool = False) -> Entrant:
        """Creates the entrant for a method of `LEARNED` or of the solvers, `UNTRAINED` or `LONGER`.

        Args:
          task: task name.
          label: method, as above.
          budget: budget of each run.
          shipped: True if learned methods play the policy of the package, the same one for every seed.
        Raises:
          GraphrlError: training fails or is interrupted.
        """
        if label == UNTRAINED:
            methods = [f"regal:checkpoint={file}" for file in self.before_training(TASKS[task].problem)]
        elif label in LEARNED and not shipped:
            method, encoder = LEARNED[label]
            methods = [f"{method}:checkpoint={file}" for file in self.trained(task, encoder)]
        else:
            methods = ["auto" if label == LONGER else label] * self.seeds
        return Entrant(label, methods[: 1 if label in ONCE else None], budget)

    def on_task(self, task: str, entrants: list[Entrant]) -> Contest:
        """Runs all entrants on a task's graphs.

        Raises:
          Interrupted: Ctrl-C; finished rows stay in the file.
        """
        return self.contest(self.unseen(task), TASKS[task].problem, entrants)
