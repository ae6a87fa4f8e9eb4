"""What a learner offers to the training loop, and an agent to the commands: all that a new agent has to bring."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
from jax.sharding import Mesh

from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes
from graphrl.training.data import DataConfig
from graphrl.training.schedule import Schedule

Metrics = Mapping[str, jax.Array]  # [] float32 each, means over the graphs of a batch, the same on all devices
Batch = Any  # pytree of arrays, leading axis g (graphs) on each


class LearnerState(Protocol):
    """Everything that training changes: a pytree of arrays, no typed keys among them."""

    @property
    def params(self) -> Any:
        """What `evaluate` needs: the parameters of the networks."""


class Learner(Protocol):
    """Functions on states. Every random number comes from the keys, so that equal seeds give equal parameters.

    Attributes:
      score: the metric of `evaluate` that is to be as large as possible: it chooses the best checkpoint.
    """

    score: str

    def init(self, key: jax.Array) -> Any:
        """The state (`LearnerState`) before training; made alike in every process, then replicated over the mesh."""

    def template(self) -> Any:
        """What a state looks like: `jax.ShapeDtypeStruct`s in place of its arrays. Reads none of the files
        that `init` may begin with: a run goes on without them.
        """

    def update(self, state: Any, key: jax.Array, batch: Batch) -> tuple[Any, Metrics]:
        """One step of learning: the new state, and what to record. The old state may be donated.

        Args:
          state: `LearnerState`, replicated over the mesh.
          key: a typed key of this step, replicated.
          batch: leaves `[g, ...]`, sharded over the mesh's axis.
        """

    def evaluate(self, params: Any, key: jax.Array, batch: Batch) -> Metrics:
        """How good the parameters are on held-out graphs; arguments as of `update`."""

    def validated(self, state: Any, values: Mapping[str, float]) -> Any:
        """The state to go on with once the held-out graphs were looked at: where a learner keeps what changes only when
        they say so, as a frozen baseline.

        Args:
          state: `LearnerState`, replicated over the mesh.
          values: means of `evaluate` of this state, by name, alike in every process.
        """


class AgentConfig(Protocol):
    """The settings of an agent: a frozen dataclass whose defaults work (see `config.updated` for its fields)."""

    @property
    def problem(self) -> Problem:
        """What plans are optimised for."""

    @property
    def evaluations(self) -> int:
        """Of each search that training makes; what `graphrl evaluate` gives every method."""


@dataclasses.dataclass(frozen=True)
class Agent:
    """What `graphrl train NAME` needs to know of an agent.

    Attributes:
      config: makes the default settings, a frozen dataclass (`AgentConfig`).
      learner: the learner of such settings on a mesh (one axis "graphs").
      batch: (settings, graphs, sizes) -> the learner's batch of graphs padded to the sizes, as NumPy arrays.
      methods: the solvers that play a checkpoint, as in "regal:checkpoint=PATH".
      opponents: the methods that `graphrl evaluate` compares them with; the first is the baseline.
      data, schedule: default settings of the data and of the loop.
    """

    config: Callable[[], AgentConfig]
    learner: Callable[[Any, Mesh], Learner]
    batch: Callable[[Any, Sequence[ComputationGraph], Sizes], Batch]
    methods: tuple[str, ...]
    opponents: tuple[str, ...] = ("brkga", "list")
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    schedule: Schedule = dataclasses.field(default_factory=Schedule)
