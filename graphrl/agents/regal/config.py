"""Settings of REGAL's learner."""

import dataclasses
from typing import Literal

from graphrl.costs.problem import Problem
from graphrl.envs.proposal import CodingName, TransferKeys
from graphrl.errors import ProblemError
from graphrl.learning.learner import MAX_COUNT, check_ranges
from graphrl.learning.reinforce import Baseline
from graphrl.solvers.chromosomes.brkga import Parameters

Genes = Literal["all", "priorities"]
Encoder = Literal["message-passing", "recurrent"]
Placement = Literal["sequential", "independent"]


@dataclasses.dataclass(frozen=True)
class RegalConfig:
    """Settings of a REGAL learner. The papers give none of the numbers: they are ours.

    Attributes:
      problem: the problem for which plans are made; the policy has outputs for its devices.
      evaluations: number of evaluations per BRKGA run in training: the standard run and one run per action.
      placement: "sequential" places the ops one after another, each choice given the earlier ones (ours); "independent"
        makes all choices in parallel, as in the papers.
      parameters: parameters of BRKGA.
      coding: encoding of an op's Beta distributions: "moments" (mean and variance jointly, ICLR) or, for placement
        "independent", "shapes" (alpha and beta separately, workshop).
      genes: genes of an op with learned proposals: "all", as in the papers, or, for placement "independent",
        "priorities" alone; its affinities to devices are then uniform. Independent affinities learned at few
        evaluations cost 0.4 to 2.9 points at 5000 (synthetic graphs, makespan and peak memory, every policy from which
        we removed them).
      transfer_keys: distributions of the keys of transfers (`ProposalEnv`): "readers" (ours) or "uniform", the papers'.
      encoder: "message-passing" (REGAL) or "recurrent" (its baseline GAS).
      rounds: number of message-passing rounds, T; with 0 an op's vector depends only on its own features.
      width: width of all vectors and hidden layers.
      preference: nats by which the initial policy prefers the uniform distribution to each other option, so that it
        starts close to standard BRKGA; for placement "sequential" only of priorities.
      actions: number of actions sampled per graph and update.
      learning_rate: Adam's learning rate.
      decay_steps: number of updates over which the learning rate falls to a twentieth along a cosine; 0 keeps it.
      max_grad_norm: gradients are clipped to this global norm.
      entropy_coefficient: weight of the entropy bonus in the loss: normalised advantage per nat.
      value_coefficient: weight of the learned baseline's squared error in the loss.
      clip: largest absolute value of normalised advantages.
      baseline: baseline of the rewards: "learned", the papers'; or "leave-one-out", the mean of the graph's other
        actions.
      init_checkpoint: a file of `Policy.save` or a checkpoint of the same network, from whose policy training starts;
        "" starts from new parameters. Training with few evaluations learns coarse properties cheaply; many evaluations
        then refine them.

    Raises:
      ProblemError: a value is out of range.
    """

    problem: Problem = Problem("makespan", 2)
    evaluations: int = 400
    parameters: Parameters = Parameters()
    placement: Placement = "sequential"
    coding: CodingName = "moments"
    genes: Genes = "all"
    transfer_keys: TransferKeys = "readers"
    encoder: Encoder = "message-passing"
    rounds: int = 2
    width: int = 32
    preference: float = 2.0
    actions: int = 8
    learning_rate: float = 3e-3
    decay_steps: int = 0
    max_grad_norm: float = 1.0
    entropy_coefficient: float = 5e-3
    value_coefficient: float = 1.0
    clip: float = 3.0
    baseline: Baseline = "leave-one-out"
    init_checkpoint: str = ""

    def __post_init__(self) -> None:
        integers = {"evaluations": (1, MAX_COUNT), "rounds": (0, 64), "width": (2, 4096), "decay_steps": (0, MAX_COUNT)}
        integers["actions"] = (1 if self.baseline == "learned" else 2, 4096)
        names = {"coding": CodingName, "genes": Genes, "encoder": Encoder, "baseline": Baseline, "placement": Placement}
        names["transfer_keys"] = TransferKeys
        check_ranges(
            self,
            integers=integers,
            above_zero=("learning_rate", "max_grad_norm", "clip"),
            not_below_zero=("preference", "entropy_coefficient", "value_coefficient"),
            options=names,
        )
        for name, value in (("coding", "moments"), ("genes", "all")) if self.placement == "sequential" else ():
            if getattr(self, name) != value:
                raise ProblemError(f"{name} is {getattr(self, name)!r}: must be {value!r} for placement 'sequential'")
        if self.encoder == "recurrent" and self.width % 2:
            raise ProblemError(f"width is {self.width}: must be even for a recurrent encoder, half for each direction")

    @property
    def fixed_genes(self) -> int:
        """Number of an op's first genes without learned proposals: its affinities to devices, or 0 for genes "all"."""
        return self.problem.devices if self.genes == "priorities" else 0
