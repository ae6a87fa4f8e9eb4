"""What HDP is made from."""

import dataclasses

from graphrl.errors import ProblemError
from graphrl.learning.ranges import MOST, check_ranges


@dataclasses.dataclass(frozen=True)
class HdpConfig:
    """The defaults are those of TensorFlow's hierarchical_controller.py, unless it is said otherwise.

    Attributes:
      groups: of ops; 0 is 20 a device, at most 256.
      grouper: width of the grouper's hidden layer, which has no non-linearity.
      hidden: width of the placer, an LSTM in both directions (half of it each) and one that attends to it; even.
      tanh_constant: logits of devices are between minus this and this.
      noise: deviation of noise on all logits, parts of their root mean square, until `noisy` updates.
      noisy: updates with noise.
      sampled: updates with sampled devices of groups; after them each is that of the largest logit, where TensorFlow's
        repeats what it sampled last. Groups of ops are sampled throughout.
      updates: after which it begins anew, with other parameters.
      children: placements that are tried for an update.
      rate: of Adam; from `decay_from` updates on it falls by `decay` every `decay_every`.
      gradient_norm: longer gradients are shortened.
      memory: of the baseline, a moving average of rewards that begins at that of a failure.

    Raises:
      ProblemError: a value is out of range.
    """

    groups: int = 0
    grouper: int = 64
    hidden: int = 512
    tanh_constant: float = 1.0
    noise: float = 0.5
    noisy: int = 750
    sampled: int = 500
    updates: int = 1000
    children: int = 1
    rate: float = 0.1
    decay: float = 0.95
    decay_every: int = 50
    decay_from: int = 400
    gradient_norm: float = 1.0
    memory: float = 0.9

    def __post_init__(self) -> None:
        integers = {"groups": (0, 4096), "grouper": (1, 4096), "hidden": (2, 4096), "children": (1, 1024)}
        integers |= {"noisy": (0, MOST), "sampled": (0, MOST), "updates": (1, MOST)}
        integers |= {"decay_every": (1, MOST), "decay_from": (0, MOST)}
        check_ranges(
            self, integers=integers, above_zero=("tanh_constant", "rate", "decay", "gradient_norm"), options={}
        )
        if self.hidden % 2:
            raise ProblemError(f"hidden is {self.hidden}: must be even, half for each direction")
        if not self.noise >= 0:
            raise ProblemError(f"noise is {self.noise!r}: must be at least 0")
        if not 0 <= self.memory < 1:
            raise ProblemError(f"memory is {self.memory!r}: must be from 0 to below 1")

    def groups_for(self, devices: int) -> int:
        """How many groups there are for so many devices."""
        return self.groups or min(256, 20 * devices)
