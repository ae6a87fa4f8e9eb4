"""What PPO is made from."""

import dataclasses
from typing import Literal, get_args

from graphrl.errors import ProblemError
from graphrl.learning.ranges import MOST, check_ranges

Ratio = Literal["joint", "choice"]


@dataclasses.dataclass(frozen=True)
class PpoSettings:
    """Defaults are the usual ones for small control problems.

    Attributes:
      steps: t, of a roll-out.
      environments: a, of each instance.
      epochs: how often a roll-out is gone through.
      minibatches: of an epoch; each holds an equal part of every instance's steps.
      discount: of rewards that follow. Where episodes have one step it means nothing.
      trace: lambda of generalised advantage estimation: 0 trusts the values, 1 what was earned.
      ratio: what is clipped: the probability of an action as a whole, "joint", or of each of its choices, "choice"
        (ours). Of hundreds of choices the product leaves the clip's range at once, and nothing is learned from it.
      clip: how far a probability may move from that of the roll-out, as a part of it.
      normalised: whether advantages are shifted and scaled to mean 0 and deviation 1 over an instance's steps.
      entropy: what a nat is worth.
      value: of the squared error of values.
      rate: of Adam.
      gradient_norm: gradients longer than this are shortened.

    Raises:
      ProblemError: a value is out of range, or minibatches do not divide the steps of an instance.
    """

    steps: int = 128
    environments: int = 8
    epochs: int = 4
    minibatches: int = 4
    discount: float = 0.99
    trace: float = 0.95
    ratio: Ratio = "joint"
    clip: float = 0.2
    normalised: bool = True
    entropy: float = 0.01
    value: float = 0.5
    rate: float = 5e-4
    gradient_norm: float = 0.5

    def __post_init__(self) -> None:
        counts = ("steps", "environments", "epochs", "minibatches")
        check_ranges(
            self,
            integers=dict.fromkeys(counts, (1, MOST)),
            above_zero=("clip", "rate", "gradient_norm"),
            options={"ratio": get_args(Ratio)},
        )
        for name in ("discount", "trace"):
            if not 0 <= getattr(self, name) <= 1:
                raise ProblemError(f"{name} is {getattr(self, name)!r}: must be from 0 to 1")
        for name in ("entropy", "value"):
            if not getattr(self, name) >= 0:
                raise ProblemError(f"{name} is {getattr(self, name)!r}: must be at least 0")
        if self.steps * self.environments % self.minibatches:
            raise ProblemError(
                f"minibatches is {self.minibatches}: must divide steps * environments "
                f"({self.steps} * {self.environments})"
            )
