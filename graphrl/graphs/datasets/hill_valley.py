"""Orders of least peak memory where every tensor has one reader and the dependencies are series-parallel.

Such an op changes the bytes that live by a fixed amount, whatever ran before: it needs `hill` bytes above the level at
its start and leaves the level changed by `net`. Minimising the highest level over series-parallel precedences is
polynomial (Abdel-Wahab and Kameda 1978; Monma and Sidney 1979), and trees (Liu 1987, "An application of generalized
tree pebbling to sparse matrix factorization") and two-terminal series-parallel graphs (Kayaaslan, Lambert, Marchal and
Ucar, TCS 707, 2018) are cases of it:

- a *segment* is a run of ops that some best order keeps together, with the hill and the net of the run;
- of two segments that may run in either order, this one goes first: one that frees (net < 0) before one that does not;
  of two that free, the one of lower hill; of two that do not, the one of larger hill - net. (Liu's rule; run backwards
  it is the rule for those that free, which is how Kayaaslan et al. treat what lies before a minimum cut.)
- in series, where the order is given, neighbours that this rule would exchange become one segment.

The best orders of parts are parts of a best order of the whole, so a graph is solved from the inside out with `series`
and `parallel`. Ops are plain numbers; a segment's ops are kept as a tree of pairs, so that joining costs nothing.
"""

from collections.abc import Iterable
from typing import NamedTuple

Ops = int | tuple["Ops", "Ops"]


class Segment(NamedTuple):
    """A run of ops: bytes above the level at its start that it reaches, and by which it leaves the level changed."""

    hill: int
    net: int
    ops: Ops

    @property
    def rank(self) -> tuple[bool, int]:
        """Segments that may run in any order run by ascending rank."""
        return (True, self.net - self.hill) if self.net >= 0 else (False, self.hill)


def op_segment(op: int, reads: int, writes: int, workspace: int) -> Segment:
    """The segment of one op: its inputs live at its start and are freed after it, its outputs live on (bytes)."""
    return Segment(writes + workspace, writes - reads, op)


def series(*parts: Iterable[Segment]) -> list[Segment]:
    """The segments of parts that run one after the other: ascending ranks."""
    joined: list[Segment] = []
    for part in parts:
        for segment in part:
            while joined and joined[-1].rank >= segment.rank:
                before = joined.pop()
                hill = max(before.hill, before.net + segment.hill)
                segment = Segment(hill, before.net + segment.net, (before.ops, segment.ops))
            joined.append(segment)
    return joined


def parallel(parts: Iterable[list[Segment]]) -> list[Segment]:
    """The segments of parts that do not depend on one another, each as `series` or this function gave it."""
    return sorted((segment for part in parts for segment in part), key=lambda segment: segment.rank)


def peak(segments: Iterable[Segment]) -> int:
    """The highest level that the segments reach from level 0, bytes."""
    level = highest = 0
    for segment in segments:
        highest = max(highest, level + segment.hill)
        level += segment.net
    return highest


def order(segments: Iterable[Segment]) -> list[int]:
    """The ops of the segments, in order."""
    ops: list[int] = []
    for segment in segments:
        left: list[Ops] = [segment.ops]
        while left:  # trees of pairs can be deeper than Python's stack
            item = left.pop()
            if isinstance(item, int):
                ops.append(item)
            else:
                left += (item[1], item[0])
    return ops
