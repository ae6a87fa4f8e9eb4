"""The policies that are measured: given as checkpoints, or trained here with one command for each seed."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from graphrl.agents.regal.config import Encoder, Hint, RegalConfig
from graphrl.agents.regal.network import Policy
from graphrl.costs.problem import Problem
from graphrl.errors import GraphrlError
from graphrl.files import shown
from graphrl.graphs.datasets.sets import load_graphs
from graphrl.graphs.graph import ComputationGraph
from graphrl.training.checkpoints import find, read_info
from graphrl.training.folder import FILE
from reproduce.policies import kept, train_seeds
from reproduce.regal.tasks import TASKS, Task

QUICK = (
    "data.graphs=2", "data.buckets=1", "agent.evaluations=160", "agent.actions=2", "agent.width=4",
    "training.steps=2", "training.validate_every=1",
)  # fmt: skip


class Kind(NamedTuple):
    """What policies differ in: fields of `RegalConfig`."""

    encoder: Encoder
    hint: Hint


class Trained(NamedTuple):
    """A policy.

    Attributes:
      policy: itself.
      file: its copy: what methods are given as `checkpoint`.
      run: the folder of its training, if that is at hand.
    """

    policy: Policy
    file: Path
    run: Path | None


class Policies:
    """Finds policies by what they are for, and trains those that are missing."""

    def __init__(self, folder: Path, seeds: int, given: Sequence[Path], settings: Sequence[str], quick: bool) -> None:
        """Reads the given checkpoints.

        Args:
          folder: where copies and runs of training go.
          seeds: of training, from 0 on.
          given: runs or checkpoints of `graphrl train regal`, or files of `Policy.save`.
          settings: as --set of `graphrl train`, on top of the task's own.
          quick: whether two small steps of training do.

        Raises:
          GraphrlError: one of the given cannot be read, or is for none of the tasks.
        """
        self._folder, self._seeds, self._settings, self._quick = folder, seeds, settings, quick
        self._given = [_trained(path, folder) for path in given]
        self._checked: set[Path] = set()
        for path, one in zip(given, self._given, strict=True):
            if one.policy.config.problem not in [task.problem for task in TASKS.values()]:
                raise GraphrlError(f"{shown(path)} is for another problem than {', '.join(TASKS)}: leave it out")

    def of(self, name: str, kind: Kind, rounds: int | None = None) -> list[Trained]:
        """The policies of a task, one a seed.

        Args:
          name: of the task.
          kind: see above.
          rounds: of messages; None takes what there is the most of among the given, else the default.

        Raises:
          GraphrlError: training fails or is interrupted, fewer are given than there are seeds, or one has been
            trained on a graph that it is tested on.
        """
        task, policies = TASKS[name], self._among(TASKS[name].problem, kind, rounds)
        if not policies:
            wanted = RegalConfig().rounds if rounds is None else rounds
            folder = self._folder / "training" / f"{name}-{kind.encoder}-{kind.hint}-{wanted}"
            runs = train_seeds(
                "regal-hint" if kind.hint == "list" else "regal",
                folder,
                self._seeds,
                self._settings_of(task, kind, wanted),
            )
            policies = [_trained(run, self._folder) for run in runs]
        if len(policies) < self._seeds:
            raise GraphrlError(
                f"{len(policies)} of --checkpoints for {name} with {kind.encoder}, hint {kind.hint}: "
                f"must be {self._seeds}, as many as --seeds"
            )
        return policies[: self._seeds]

    def untrained(self, name: str) -> Trained:
        """A policy before any training: it proposes what is around the hint."""
        config = RegalConfig(TASKS[name].problem, hint="list")
        params = Policy.initial(config, jax.random.key(0))
        policy = Policy(config, jax.tree.map(np.asarray, params), "not trained")
        return Trained(policy, kept(policy, self._folder), None)

    def check_unseen(self, trained: Trained, graphs: Sequence[ComputationGraph]) -> None:
        """Looks whether a policy has been trained on one of the graphs, or on what one is a variant of, as far as its
        run tells; once for each policy.

        Raises:
          GraphrlError: it has.
        """
        if trained.run is None or trained.file in self._checked:
            return
        seen = {graph.name for graph in load_graphs(read_info(find(trained.run)).config["data"]["train"])}
        both = [graph.name for graph in graphs if graph.name.partition("~")[0] in seen]
        if both:
            raise GraphrlError(f"{shown(trained.run)} has been trained on {both[0]}, which is tested on: leave it out")
        self._checked.add(trained.file)

    def _among(self, problem: Problem, kind: Kind, rounds: int | None) -> list[Trained]:
        """Those of the given that are for it."""
        policies = [
            one
            for one, config in ((one, one.policy.config) for one in self._given)
            if (config.problem, config.encoder, config.hint) == (problem, *kind)
        ]
        most = max((one.policy.config.rounds for one in policies), default=0)
        return [one for one in policies if one.policy.config.rounds == (most if rounds is None else rounds)]

    def _settings_of(self, task: Task, kind: Kind, rounds: int) -> list[str]:
        """Of training, as --set."""
        problem = {key: getattr(task.problem, key) for key in ("objective", "devices", "transfer", "latency")}
        problem["bandwidth"] = task.problem.bandwidth
        return [
            *(f"agent.problem.{key}={value}" for key, value in problem.items()),
            f"agent.encoder={kind.encoder}",
            f"agent.rounds={rounds}",
            *task.data(self._quick),
            *(QUICK if self._quick else ()),
            *self._settings,
        ]


def _trained(path: Path, folder: Path) -> Trained:
    """A policy, copied to where rows find it."""
    policy = Policy.load(path)
    runs = [place for place in (path, path.parent) if (place / FILE).is_file()] if path.is_dir() else []
    return Trained(policy, kept(policy, folder), runs[0] if runs else None)
