"""A choice that a search changes in place."""

from collections.abc import Sequence

import numpy as np

from graphrl.solvers.budgets.choice import Choice, Cut
from graphrl.solvers.budgets.level import Gradient, Level

INSIDE, PLAIN, AGAIN = 0, 1, 2  # a place: in the segment of the one before, or the first of one


class State:
    """A choice as arrays that moves write.

    Attributes:
      keep: of each level, `[n]` int64.
      starts: of each level, `[p]` int64: INSIDE, PLAIN or AGAIN, by whether the segment that begins there is computed
        again; never INSIDE at 0.
      stretches: of each level, the steps of a stretch.
    """

    def __init__(self, keep: list[np.ndarray], starts: list[np.ndarray], stretches: Sequence[int] = ()) -> None:
        self.keep, self.starts, self.stretches = keep, starts, list(stretches) or [1] * len(keep)
        self._cuts = [self._cut(level) for level in range(len(keep))]

    @classmethod
    def plain(cls, gradient: Gradient) -> "State":
        """What jax does by itself, cut around what stays apart."""
        keep = [np.zeros(len(level.bytes), np.int64) for level in gradient.levels]
        return cls(keep, [begun(level) for level in gradient.levels])

    @classmethod
    def of(cls, choice: Choice) -> "State":
        """A choice's own."""
        begins = [np.diff(cut.segment, prepend=-1) > 0 for cut in choice]
        kinds = [np.where(cut.again[cut.segment], AGAIN, PLAIN) for cut in choice]
        starts = [np.where(first, kind, INSIDE) for first, kind in zip(begins, kinds, strict=True)]
        return cls([cut.keep.copy() for cut in choice], starts, [cut.stretch for cut in choice])

    def changed(self, level: int) -> None:
        """To be called when a level's starts or stretches have changed."""
        self._cuts[level] = self._cut(level)

    def choice(self) -> Choice:
        """As it is now; it changes with the state."""
        return tuple(self._cuts)

    def copy(self) -> "State":
        """One of its own."""
        return State([array.copy() for array in self.keep], [array.copy() for array in self.starts], self.stretches)

    def _cut(self, level: int) -> Cut:
        starts = self.starts[level]
        begins = starts != INSIDE
        return Cut(self.keep[level], np.cumsum(begins) - 1, starts[begins] == AGAIN, self.stretches[level])


def begun(level: Level) -> np.ndarray:
    """`[p]` int64: the starts of a level that is left to jax, cut around what stays apart."""
    return np.where(level.apart | np.concatenate([[True], level.apart[:-1]]), PLAIN, INSIDE)
