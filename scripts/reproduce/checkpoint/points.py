"""Methods as points of memory and time, and which is best."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from reproduce.checkpoint.figures import memory, slowdown
from reproduce.checkpoint.methods import NONE
from reproduce.checkpoint.settings import Settings


class Point(NamedTuple):
    """A method on a program.

    Attributes:
      method: its name.
      temporaries: in bytes, by XLA's compiler.
      share: of the undecorated gradient's temporaries.
      slowdown: estimated time over the undecorated gradient's, less 1.
    """

    method: str
    temporaries: int
    share: float
    slowdown: float


def points(settings: Settings, program: str, methods: Iterable[str]) -> list[Point]:
    """Those of the methods that could be measured."""
    whole, there = memory(settings, program, NONE), []
    for method in methods:
        figures, time = memory(settings, program, method), slowdown(settings, program, method)
        if whole and figures and time is not None:
            temporaries = figures["temporaries"]
            there.append(Point(method, temporaries, temporaries / whole["temporaries"], time))
    return there


def least(candidates: Sequence[Point], slowdown: float) -> Point | None:
    """The one with the least temporaries among those that are no slower, if there is one."""
    return min((point for point in candidates if point.slowdown <= slowdown), key=_by_memory, default=None)


def best(candidates: Sequence[Point]) -> Point | None:
    """The one with the least temporaries, the fastest of those."""
    return min(candidates, key=_by_memory, default=None)


def _by_memory(point: Point) -> tuple[int, float]:
    return point.temporaries, point.slowdown
