"""Stretches of a function that are repeated, such as layers: what is chosen for one may be chosen for another.

Moves of values that are alike change all layers at once, moves of one value a single one. Neither leads from a choice
that treats all layers alike to one that treats some of them as another choice does.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from graphrl.solvers.budgets.alike import alike_places
from graphrl.solvers.budgets.level import Level

KINDS = 32  # of stretches, at most


class Repeated(NamedTuple):
    """Stretches of a level that are alike, place by place.

    Attributes:
      begins: places.
      length: of each, in places.
    """

    begins: np.ndarray
    length: int


def repeated(level: Level) -> list[Repeated]:
    """Stretches between alike places, the narrowest first."""
    found = []
    for places in alike_places(level):
        found += [kind for kind in _between(level, places) if len(kind.begins) > 1]
        if len(found) >= KINDS:
            break
    return found[:KINDS]


def _between(level: Level, places: np.ndarray) -> Iterator[Repeated]:
    """Those that begin at some places and are as long as it is from most of them to the next."""
    if len(places) < 2:
        return
    lengths, counts = np.unique(np.diff(places), return_counts=True)
    length = int(lengths[counts.argmax()])
    alike: dict[bytes, list[int]] = {}
    for begin in places[places + length < len(level.first)].tolist():
        first = level.first[begin : begin + length + 1]
        values = slice(first[0], first[-1])
        traits = np.diff(first), level.apart[begin : begin + length], level.bytes[values], level.solid[values]
        look = b"".join(trait.tobytes() for trait in traits)
        alike.setdefault(look, []).append(begin)
    for begins in alike.values():
        yield Repeated(np.array(begins), length)
