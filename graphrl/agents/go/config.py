"""What GO's networks are made from."""

import dataclasses
from typing import Literal, get_args

from graphrl.errors import ProblemError, clipped
from graphrl.learning.ranges import check_ranges
from graphrl.networks.graph_sage import Neighbours
from graphrl.networks.superposition import Superposition
from graphrl.networks.task_heads import Coupling

Task = Literal["placement", "priority", "fusion"]


@dataclasses.dataclass(frozen=True)
class GoConfig:
    """Settings of GO's networks. The paper's text gives none of the numbers: they are ours.

    How many devices, priorities and fusion priorities there are is no setting: they are inputs, and one policy serves
    any number. GO's predecessor GDP is superposition="none" and coupling="none", on one task (`graphrl train gdp`).

    Attributes:
      tasks: what is decided of every op, in the order in which one decision is told of another: "placement" (its
        device), "priority" (of the ready ops the highest runs first) and "fusion" (its priority there, for observations
        that have it as a task).
      width: of all vectors: a multiple of the heads.
      rounds: of GraphSAGE; 0 sees ops alone.
      neighbours: whether GraphSAGE pools an op's predecessors and successors "together", as in the paper, or "apart".
      layers: of attention along the ops in topological order, beside the heads of the tasks; 0 for none.
      heads: of attention.
      segment: ops of a segment, within which attention sees all; a segment that holds the graph is a whole transformer.
      cached: whether attention sees the segment before, too.
      superposition: whether the features that enter each layer are rescaled by factors of the "graph", by factors of
        each of its "ops", or not ("none").
      coupling: whether tasks have attention and are told of one another's decisions ("recurrent"), or not ("none").
      iterations: how often the network decides, each time in the light of the probabilities before.
      spread: deviation of the untrained policy's logits, about, in nats; see `TaskHeads`.
      preference: the untrained policy prefers what was chosen last by so many nats.
      changes: of each task so many of the ops are expected to choose anew, a share: where to change is learned, and how
        much is not (see `network.changing`); 0 leaves that to the policy too.
      votes: whether an op sees for each of its options how many of the ops around it have chosen that (ours).
      played: whether an op sees the schedule that was played: when it and others ran, what they waited for, and what
        each device did meanwhile (ours).

    Raises:
      ProblemError: a value is out of range.
    """

    tasks: tuple[Task, ...] = ("placement", "priority")
    width: int = 64
    rounds: int = 2
    neighbours: Neighbours = "apart"
    layers: int = 2
    heads: int = 4
    segment: int = 128
    cached: bool = True
    superposition: Superposition = "graph"
    coupling: Coupling = "recurrent"
    iterations: int = 1
    spread: float = 1.0
    preference: float = 0.0
    votes: bool = False
    played: bool = False
    changes: float = 0.0

    def __post_init__(self) -> None:
        integers = {"width": (1, 4096), "rounds": (0, 64), "layers": (0, 64), "heads": (1, 256)}
        integers |= {"segment": (1, 65_536), "iterations": (1, 64)}
        names = {"neighbours": Neighbours, "superposition": Superposition, "coupling": Coupling}
        options = {name: get_args(choices) for name, choices in names.items()}
        check_ranges(self, integers=integers, above_zero=("spread",), options=options)
        if not self.tasks or len(set(self.tasks)) < len(self.tasks) or not set(self.tasks) <= set(get_args(Task)):
            text = f"must be one or more of {', '.join(get_args(Task))}, each once"
            raise ProblemError(f"tasks are {clipped(', '.join(map(str, self.tasks))) or 'none'}: {text}")
        if self.width % self.heads:
            raise ProblemError(f"heads is {self.heads}: must divide the width, {self.width}")
        if not 0 <= self.preference < float("inf"):
            raise ProblemError(f"preference is {self.preference!r}: must be at least 0 and finite")
        if not 0 <= self.changes < 1:
            raise ProblemError(f"changes is {self.changes!r}: must be at least 0 and below 1")
