"""What an agent offers to the training loop and to the commands: all that a new agent has to bring."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes
from graphrl.learning.learner import Batch, Learner
from graphrl.training.data import DataConfig
from graphrl.training.policy import Policy
from graphrl.training.schedule import Schedule


class AgentConfig(Protocol):
    """The settings of an agent: a frozen dataclass whose defaults work (see `config.updated` for its fields)."""

    @property
    def problem(self) -> Problem:
        """What plans are optimised for."""

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
      learner: the learner of such settings.
      batch: (settings, graphs, sizes) -> the learner's batch of graphs padded to the sizes, as NumPy arrays.
      methods: those that play a checkpoint with such settings, as in "regal:checkpoint=PATH".
      opponents: the methods that `graphrl evaluate` compares them with; the first is the baseline.
      data, schedule: default settings of the data and of the loop.
    """

    policy: type[Policy[Any]]
    learner: Callable[[Any], Learner]
    batch: Callable[[Any, Sequence[ComputationGraph], Sizes], Batch]
    methods: Callable[[Any], tuple[str, ...]]
    opponents: tuple[str, ...] = ("brkga", "list")
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    schedule: Schedule = dataclasses.field(default_factory=Schedule)
