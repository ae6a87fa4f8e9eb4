"""Values and places that are alike: networks repeat their layers, and what is good for one is good for all.

Colour refinement (Weisfeiler and Leman 1968) on the values that read one another: two values are alike if they look the
same to a distance of `ROUNDS` reads.
"""

from collections import defaultdict

import numpy as np

from graphrl.solvers.budgets.level import ARGUMENT, Level

ROUNDS = 4


def alike_values(level: Level) -> list[np.ndarray]:
    """Groups of named values that are alike, each sorted; all values that can be kept are in one."""
    colours = _colours(level)
    groups = defaultdict(list)
    for value in np.flatnonzero(level.named & ~level.free & (level.place != ARGUMENT)).tolist():
        groups[colours[value]].append(value)
    return [np.array(group) for group in groups.values()]


def alike_places(level: Level) -> list[np.ndarray]:
    """Groups of places at which a level might be cut, each sorted; the narrowest first, by the bytes across."""
    colours, across = _colours(level), crossing(level)
    groups = defaultdict(list)
    for place in range(1, len(level.first) - 1):
        last, value = level.first[place] - 1, level.first[place]
        if last >= 0 and value < level.first[place + 1] and level.place[last] == place - 1:
            groups[colours[last], colours[value], across[place]].append(place)
    ranked = sorted(groups.items(), key=lambda group: (group[0][2], -len(group[1]), group[1]))
    return [np.array(group) for _, group in ranked]


def crossing(level: Level) -> np.ndarray:
    """`[p + 1]` float64: at each place, bytes of the values from before that it or a later one reads, but for free
    ones.
    """
    places = len(level.first) - 1
    last = level.place.copy()
    readers = np.repeat(level.place, np.diff(level.reads_from))
    np.maximum.at(last, level.reads, readers)
    changes = np.zeros(places + 2)
    counted = (~level.free) & (level.place != ARGUMENT)
    np.add.at(changes, level.place[counted] + 1, level.bytes[counted])
    np.add.at(changes, last[counted] + 1, -level.bytes[counted])
    return np.cumsum(changes)[: places + 1]


def _colours(level: Level) -> list[int]:
    """A number for each value, the same for those that are alike."""
    traits = zip(level.bytes, level.solid, level.free, level.seconds, level.named, strict=True)
    colours = [hash(tuple(float(trait) for trait in value)) for value in traits]
    bounds = zip(level.reads_from[:-1], level.reads_from[1:], strict=True)
    reads = [level.reads[begin:end] for begin, end in bounds]
    readers = defaultdict(list)
    for value, read in enumerate(reads):
        for each in read.tolist():
            readers[each].append(value)
    for _ in range(ROUNDS):
        colours = [
            hash((colours[v], *sorted(colours[r] for r in read.tolist()), 0, *sorted(colours[r] for r in readers[v])))
            for v, read in enumerate(reads)
        ]
    return colours
