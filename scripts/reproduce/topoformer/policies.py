"""The policies that are measured: given as a checkpoint, or trained here with one command for each seed."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from graphrl.agents.topoformer.policy import Policy
from reproduce import policies

QUICK = (
    "data.train=layered:20x8@10000", "data.validation=layered:20x4@5000", "data.graphs=2", "agent.width=8",
    "agent.layers=1", "agent.heads=1", "agent.head_width=4", "agent.samples=2", "training.steps=2",
    "training.validate_every=1",
)  # fmt: skip


class Trained(NamedTuple):
    """A policy.

    Attributes:
      file: its copy: what methods are given as `checkpoint`.
      run: the folder of its training.
    """

    file: str
    run: Path


class Policies:
    """Keeps copies of policies, and trains those that are missing.

    Attributes:
      seeds: of training.
      given: the copy of the given checkpoint, "" for the policy that graphrl ships.
    """

    def __init__(self, folder: Path, seeds: int, given: Path | None, settings: Sequence[str], quick: bool) -> None:
        """Reads the given checkpoint.

        Args:
          folder: where copies and runs of training go.
          seeds: of training, from 0 on.
          given: a run or checkpoint of `graphrl train topoformer`, or a file of `Policy.save`; None is the shipped one.
          settings: as --set of `graphrl train`.
          quick: whether two small steps of training do.

        Raises:
          GraphrlError: the checkpoint cannot be read.
        """
        self._folder, self._settings, self.seeds = folder, [*(QUICK if quick else ()), *settings], seeds
        self.given = "" if given is None else self.kept(given)

    def trained(self, name: str, settings: Sequence[str]) -> list[Trained]:
        """Policies that are trained here, one a seed; what is interrupted goes on later.

        Args:
          name: of the folders.
          settings: as --set of `graphrl train`, under those of the command line.

        Raises:
          GraphrlError: training fails or is interrupted.
        """
        folder = self._folder / "training" / name
        runs = policies.train_seeds("topoformer", folder, self.seeds, [*settings, *self._settings])
        return [Trained(self.kept(run), run) for run in runs]

    def kept(self, path: Path) -> str:
        """The path of a policy's copy.

        Raises:
          GraphrlError: it cannot be read.
        """
        return str(policies.kept(Policy.load(path), self._folder))
