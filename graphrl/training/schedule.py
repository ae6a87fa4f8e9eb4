"""When the loop does what."""

import dataclasses

from graphrl.errors import ProblemError


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Steps of training, and what happens every so many.

    Attributes:
      steps: updates of the parameters in all.
      validate_every: steps between two looks at the held-out graphs; the first is before any training.
      checkpoint_every: steps between two checkpoints, beside those at every validation.
      ahead: updates that the device is given before the metrics of the first are waited for, so that it need not wait
        itself. A metric that is no number ends the run so many steps later, but before there is another checkpoint.
      keep: of the latest checkpoints; the best by validation stays besides.

    Raises:
      ProblemError: a value is out of range.
    """

    steps: int = 300
    validate_every: int = 25
    checkpoint_every: int = 10
    ahead: int = 2
    keep: int = 2

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "ahead" else 1
            if not least <= value < 2**31:
                raise ProblemError(f"{field.name} is {value!r}: must be at least {least}")

    def validates(self, step: int) -> bool:
        """Whether the held-out graphs are looked at after this step."""
        return step % self.validate_every == 0 or step >= self.steps

    def validations_after(self, step: int) -> int:
        """How many looks at the held-out graphs are still to come."""
        every = self.validate_every
        return self.steps // every - step // every + (self.steps % every > 0) if step < self.steps else 0

    def saves(self, step: int) -> bool:
        """Whether there is a checkpoint after this step."""
        return step % self.checkpoint_every == 0 or self.validates(step)
