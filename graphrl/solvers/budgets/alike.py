"""Values and places that are alike: networks repeat their layers, and what is good for one is good for all.

Colour refinement (Weisfeiler and Leman 1968) on the values that read one another: two values are alike if they look the
same to a distance of `ROUNDS` reads.
"""

from collections import defaultdict

import numpy as np

from graphrl.solvers.budgets.level import ARGUMENT, Level

ROUNDS = 4
READ, READER = np.uint64(0x9E3779B97F4A7C15), np.uint64(0x3C6EF372FE94F82B)  # tell reads from readers


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
    readers = np.repeat(np.arange(len(level.bytes)), np.diff(level.reads_from))
    colours = np.zeros(len(level.bytes), np.uint64)
    for trait in (level.bytes, level.solid, level.free, level.seconds, level.named):
        colours = _mixed(colours + trait.astype(np.float64).view(np.uint64))
    for _ in range(ROUNDS):
        seen = _mixed(colours)
        # sums, as what is read and who reads it have no order
        np.add.at(seen, readers, _mixed(colours + READ)[level.reads])
        np.add.at(seen, level.reads, _mixed(colours + READER)[readers])
        colours = seen
    return colours.tolist()


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """`[n]` uint64, each made of one of `[n]` uint64 such that sums of some are as good as never the same (the end of
    SplitMix64, Steele et al. 2014).
    """
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
