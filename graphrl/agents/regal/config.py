"""Settings of REGAL's learner."""

import dataclasses
from typing import Literal

from graphrl.costs.problem import Problem
from graphrl.envs.proposal import CodingName
from graphrl.errors import ProblemError
from graphrl.learning.learner import MOST, check_ranges
from graphrl.learning.reinforce import Baseline
from graphrl.solvers.chromosomes.brkga import Parameters

Genes = Literal["all", "priorities"]
Hint = Literal["list", "none"]
Encoder = Literal["message-passing", "recurrent"]


@dataclasses.dataclass(frozen=True)
class RegalConfig:
    """Settings of a REGAL learner. The papers give none of the numbers: they are ours.

    Attributes:
      problem: what is planned for; the policy has outputs for its devices.
      evaluations: of BRKGA in a step of training, for the standard run and for each action.
      parameters: of BRKGA.
      coding: how an op's Beta distributions are chosen: "moments" (mean and variance together, ICLR) or "shapes"
        (alpha and beta apart, workshop).
      genes: that proposals are learned for: "all" of an op, the papers', or its "priorities" alone; its affinities to
        devices are then uniform. Without a hint, affinities learned at few evaluations cost 0.4 to 2.9 points at 5000
        (synthetic graphs, makespan and peak memory, every policy that we took them out of).
      hint: what the network sees beside REGAL's features: "none", as in the papers; or "list", which is one plan of
        list scheduling, and the untrained policy then prefers the distributions around that.
      encoder: "message-passing" (REGAL) or "recurrent" (its baseline GAS).
      rounds: of messages, T; 0 sees ops alone.
      width: of all vectors and hidden layers.
      preference: the untrained policy prefers the uniform distribution (with a hint, that around it) by so many nats to
        each other option: without a hint it starts close to standard BRKGA.
      actions: sampled for each graph and update.
      learning_rate: of Adam.
      gradient_norm: gradients longer than this are shortened.
      entropy, baseline_error, clip: see `reinforce.Weights`.
      baseline: what rewards are compared with: see `reinforce.Weights`.
      start: a file of `Policy.save` or a checkpoint whose policy training begins with, of the same network; "" begins
        anew. Few evaluations teach the coarse things cheaply, then many the rest.

    Raises:
      ProblemError: a value is out of range.
    """

    problem: Problem = Problem("makespan", 2)
    evaluations: int = 400
    parameters: Parameters = Parameters()
    coding: CodingName = "shapes"
    genes: Genes = "all"
    hint: Hint = "none"
    encoder: Encoder = "message-passing"
    rounds: int = 2
    width: int = 32
    preference: float = 3.0
    actions: int = 8
    learning_rate: float = 3e-3
    gradient_norm: float = 1.0
    entropy: float = 5e-3
    baseline_error: float = 1.0
    clip: float = 3.0
    baseline: Baseline = "leave-one-out"
    start: str = ""

    def __post_init__(self) -> None:
        integers = {"evaluations": (1, MOST), "rounds": (0, 64), "width": (2, 4096)}
        integers["actions"] = (1 if self.baseline == "learned" else 2, 4096)
        names = {"coding": CodingName, "genes": Genes, "hint": Hint, "encoder": Encoder, "baseline": Baseline}
        check_ranges(
            self,
            integers=integers,
            above_zero=("learning_rate", "gradient_norm", "clip"),
            not_below_zero=("preference", "entropy", "baseline_error"),
            options=names,
        )
        if self.encoder == "recurrent" and self.width % 2:
            raise ProblemError(f"width is {self.width}: must be even for a recurrent encoder, half for each direction")

    @property
    def fixed_genes(self) -> int:
        """How many of an op's genes, the first ones, nothing is learned for: those of its affinities, or none."""
        return self.problem.devices if self.genes == "priorities" else 0

    @property
    def hint_for(self) -> Problem | None:
        """What `instance` makes its hint for; None for none."""
        return self.problem if self.hint == "list" else None
