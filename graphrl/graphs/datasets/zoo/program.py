"""One program of the zoo."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from graphrl.graphs.datasets.zoo.splits import SPLITS, Split
from graphrl.graphs.graph import ComputationGraph

KINDS = ("inference", "training")
LEVELS = ("jaxpr", "hlo")


@dataclasses.dataclass(frozen=True)
class ZooProgram:
    """A traced model as a graph, and what XLA does with it.

    Attributes:
      architecture, family: which model; families are the keys of `splits.SPLITS`.
      kind: "inference", or "training": value and gradient of a loss.
      batch: examples.
      level: "jaxpr" (one op per equation, as `from_jax` gives it) or "hlo" (XLA's optimised instructions).
      graph: of n ops; at level "hlo" in the order of XLA's default schedule.
      schedules: level "hlo": "default" and "memory", XLA's two schedulers' orders: `[n] int32` op indices.
      temp_bytes: level "hlo": what XLA allocates beside arguments and results in these orders, by our model of its
        buffer assignment.
      versions: of jax, jaxlib and, where they have a part in it, keras and keras_hub.
      date: when it was traced, as in 2026-11-21.
      colocation: `[n] int32`, the group of each op (`workloads/go.py`), or None.
    """

    architecture: str
    family: str
    kind: str
    batch: int
    level: str
    graph: ComputationGraph
    schedules: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    temp_bytes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    date: str = ""
    colocation: np.ndarray | None = None

    @property
    def name(self) -> str:
        """As in `efficientnetb0/training/b8/hlo`."""
        return program_name(self.architecture, self.kind, self.batch, self.level)

    @property
    def split(self) -> Split:
        """The set that its family is in."""
        return SPLITS[self.family]


def program_name(architecture: str, kind: str, batch: int, level: str) -> str:
    """The name of a program: architecture, kind, batch and level."""
    return f"{architecture}/{kind}/b{batch}/{level}"
