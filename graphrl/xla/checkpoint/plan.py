"""What a gradient keeps, computes again and moves: the decisions about a program."""

import dataclasses
from collections.abc import Mapping

Name = tuple[int, int]  # a value: the place of the equation that writes it, and which of its results it is


@dataclasses.dataclass(frozen=True)
class Region:
    """Consecutive equations that the backward pass computes again as far as it needs them.

    Attributes:
      first, stop: places of the equations, without `stop`.
      kept: values that stay in memory for the backward pass.
      moved: values that wait for it in the memory of the host.
      ends: of each of these, the place whose results wait for its copy, in this region or a later one; empty in bodies
        of loops, where a trip ends with its copies.
    """

    first: int
    stop: int
    kept: tuple[Name, ...] = ()
    moved: tuple[Name, ...] = ()
    ends: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class CheckpointPlan:
    """Decisions about a program.

    Attributes:
      regions: disjoint, in order. Of equations outside of them jax keeps what it always does.
      copied: places of equations that every region which needs their results computes for itself, from arguments.
      bodies: plans for the bodies of scans, by place; others are left as they are.
      stretch: of a scan's body, steps that run forward once more together before they run backward; 1 where none do.
      unrolled: whether these steps stand one after the other, and are no loop.
    """

    regions: tuple[Region, ...] = ()
    copied: tuple[int, ...] = ()
    bodies: Mapping[int, "CheckpointPlan"] = dataclasses.field(default_factory=dict)
    stretch: int = 1
    unrolled: bool = False

    @property
    def orders(self) -> bool:
        """Whether it says of gradients which ones wait: where anything is computed again. See `ties`."""
        return bool(self.regions or self.bodies)

    @property
    def is_plain(self) -> bool:
        """Whether a loop's body with this plan is left as it is."""
        return not self.regions and not self.bodies and self.stretch == 1
