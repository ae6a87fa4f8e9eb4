"""What values of a gradient are to the user: places in the traced function, types, and lines of code."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from graphrl.solvers.budgets.level import Gradient
from graphrl.xla.checkpoint.program import Program


class Origin(NamedTuple):
    """Where a value comes from.

    Attributes:
      place: of its equation among those of the function, after those of the loops around it.
      value: its type and shape, as jax writes them.
      line: of the user's code; "" where it is unknown.
    """

    place: tuple[int, ...]
    value: str
    line: str


class Explained(Protocol):
    """A gradient whose values can be told to the user."""

    @property
    def gradient(self) -> Gradient:
        """What a solver decides about."""

    def origin(self, number: int, value: int) -> Origin | None:
        """Of a value of a level; None where the user has no name for it."""


def line_at(program: Program, place: Sequence[int]) -> str:
    """The line of the equation at an origin's place.

    Raises:
      LookupError: the program has none there.
    """
    *loops, own = place
    for loop in loops:
        program = program.bodies[loop]
    if not 0 <= own < len(program.equations):
        raise IndexError(own)
    return line_of(program.equations[own])


def line_of(eqn: Any) -> str:
    """The line of the user's code that an equation comes from; "" where jax does not say."""
    try:
        from jax._src.source_info_util import summarize
    except ImportError:
        return ""
    return str(summarize(eqn.source_info)).replace("<unknown>", "")
