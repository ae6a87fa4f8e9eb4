"""The interface of an agent to the training loop and the commands: all that a new agent has to provide."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from jax.sharding import Mesh

from graphrl.costs.maps.chip import MemoryChip
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets.sets import load_graphs
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import common_sizes
from graphrl.learning.learner import Batch, Learner
from graphrl.training.config import RunConfig, Schedule
from graphrl.training.data import Data, DataConfig, Padded, Shared
from graphrl.training.policy import Policy


class AgentConfig(Protocol):
    """The settings of an agent: a frozen dataclass whose defaults work (see `config.updated` for its fields)."""

    @property
    def problem(self) -> Problem | MemoryChip:
        """What plans are optimised for, or the chip that maps are."""

    @property
    def evaluations(self) -> int:
        """Of each search that training makes; what `graphrl evaluate` gives every method."""

    @property
    def start(self) -> str:
        """A policy's path, see `Policy.load`: what training begins with; "" begins anew."""


@dataclasses.dataclass(frozen=True)
class Agent:
    """What `graphrl train NAME` needs to know of an agent.

    Attributes:
      policy: what it trains; its `settings` are those of the agent (`AgentConfig`).
      learner: (settings, mesh, data) -> the learner of such settings, which the loop compiles for the mesh (`on_mesh`);
        the data are the run's, for one whose state has the shapes of its graphs.
      batch: (settings, graphs, sizes) -> the learner's batch of graphs padded to the sizes, as NumPy arrays.
      methods: those that play a checkpoint with such settings, as in "regal:checkpoint=PATH".
      opponents: the methods that `graphrl evaluate` compares them with, as far as they are for the problem's objective;
        the first is the baseline.
      data, schedule: default settings of the data and of the loop.
      load: the graphs of names of sets, as the agent sees them.
      sizes: that hold all of some graphs.
      shares: what devices share: the "graphs" of each step's batch; or "individuals", which all play the same graphs,
        so that a batch is the whole training set.
    """

    policy: type[Policy[Any]]
    learner: Callable[[Any, Mesh, Data], Learner]
    batch: Callable[[Any, Sequence[ComputationGraph], Any], Batch]
    methods: Callable[[Any], tuple[str, ...]]
    opponents: tuple[str, ...] = ("brkga", "list")
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    schedule: Schedule = dataclasses.field(default_factory=Schedule)
    load: Callable[[Sequence[str]], list[ComputationGraph]] = load_graphs
    sizes: Callable[[Sequence[ComputationGraph]], Padded] = common_sizes
    shares: Shared = "graphs"

    def shared(self, config: RunConfig[Any]) -> tuple[int, str]:
        """How many the devices share, and what."""
        if self.shares == "graphs":
            return config.data.graphs, "graphs a batch"
        return config.agent.individuals, "individuals"
