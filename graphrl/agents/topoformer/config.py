"""Settings of Topoformer's learner."""

import dataclasses
from typing import Literal

from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.learning.learner import MAX_COUNT, check_ranges
from graphrl.networks.topological_attention import EncoderName, encoder

Baseline = Literal["leave-one-out", "greedy-rollout"]
Decoder = Literal["priorities", "sequential", "autoregressive"]
Precision = Literal["float32", "bfloat16"]

MAX_HEADS = 256  # maximum number on one of the encoder's graphs
PROBLEM = Problem("peak_memory", 1)


@dataclasses.dataclass(frozen=True)
class TopoformerConfig:
    """Settings of a Topoformer learner. The paper's are layers=4, width=256, heads=10, head_width=64, samples=1,
    learning_rate=1e-4, decay=0.996, epoch=125, baseline=greedy-rollout; ours learn fast on two cores.

    Attributes:
      encoder: "topoformer" (the seven graphs of section 4.1) or one of section 5.3's others.
      decoder: "priorities" (one call of the network per graph, section 4.2), "sequential" (the same, then a perceptron
        at every step, which also sees the memory of the plan so far: ours, of the policy that ships) or
        "autoregressive" (a small network is called at every step, appendix B).
      layers: number of attention layers.
      width: width of all vectors and hidden layers.
      heads: number of heads on each of the encoder's graphs; or one number per graph, some of which may be 0, in the
        order of `topological_attention.GRAPHS`, as in agent.heads=2,1,1,2,1,1,4.
      head_width: width of queries, keys and values.
      tied: True if head k on every graph has the same parameters.
      alpha: standard deviation of a graph's priorities (equation 17).
      hidden: width of the hidden layer of the sequential decoder's perceptron.
      precision: dtype of the network's matrix products; priorities and parameters are always float32.
      samples: number of orders sampled per graph and update.
      baseline: baseline of an order's peak: "greedy-rollout", the paper's (the greedy order of a frozen policy, which
        is replaced when a better one is found on the held-out graphs, C.4), or "leave-one-out", the mean of the graph's
        other samples.
      learning_rate: Adam's learning rate.
      decay: factor by which the learning rate is multiplied over every `epoch` updates.
      epoch: number of updates per epoch.
      warmup: number of updates in which the learning rate rises from 0.
      max_grad_norm: gradients are clipped to this global norm.
      clip: largest absolute value of normalised advantages.
      init_checkpoint: a file of `Policy.save` or a checkpoint of the same network, from whose policy training starts;
        "" starts from new parameters. A policy of decoder "priorities" also starts one of "sequential".
      freeze: True trains only what is called at every step: encoder and priorities keep their parameters.

    Raises:
      ProblemError: a value is out of range.
    """

    encoder: EncoderName = "topoformer"
    decoder: Decoder = "priorities"
    layers: int = 3
    width: int = 64
    heads: int | tuple[int, ...] = 2
    head_width: int = 16
    tied: bool = False
    alpha: float = 5.0
    hidden: int = 16
    precision: Precision = "float32"
    samples: int = 32
    baseline: Baseline = "leave-one-out"
    learning_rate: float = 2e-3
    decay: float = 0.97
    epoch: int = 125
    warmup: int = 50
    max_grad_norm: float = 1.0
    clip: float = 3.0
    init_checkpoint: str = ""
    freeze: bool = False

    def __post_init__(self) -> None:
        integers = {
            "layers": (1, 64),
            "width": (2, 4096),
            "head_width": (1, 1024),
            "hidden": (1, 256),
            "epoch": (1, MAX_COUNT),
        }
        integers |= {"warmup": (0, MAX_COUNT), "samples": (2 if self.baseline == "leave-one-out" else 1, 4096)}
        if not isinstance(self.heads, tuple):
            integers["heads"] = (1, MAX_HEADS)
        names = {"encoder": EncoderName, "decoder": Decoder, "baseline": Baseline, "precision": Precision}
        check_ranges(
            self,
            integers=integers,
            above_zero=("alpha", "learning_rate", "decay", "max_grad_norm", "clip"),
            options=names,
        )
        if self.freeze and self.decoder != "sequential":
            raise ProblemError(f"freeze is True: decoder must be 'sequential', and is {self.decoder!r}")
        if isinstance(self.heads, tuple):
            encoder(self.encoder, heads=self.heads)  # raises if the numbers do not fit the encoder's graphs
            if max(self.heads) > MAX_HEADS:
                raise ProblemError(f"heads is {max(self.heads)}: must be at most {MAX_HEADS}")

    @property
    def problem(self) -> Problem:
        """The problem for which orders are made."""
        return PROBLEM

    @property
    def evaluations(self) -> int:
        """Number of evaluations that `graphrl evaluate` gives every method: more than any decoder needs."""
        return 100_000
