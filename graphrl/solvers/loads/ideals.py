"""The lattice of ideals: the sets of blocks that hold with a block all that come before it, from small to large."""

from typing import NamedTuple

import numpy as np

from graphrl.errors import ProblemError
from graphrl.solvers.loads.blocks import Blocks


class Ideals(NamedTuple):
    """Ideals by size, the empty one first, and from each the ideals that lack one block of it."""

    start: np.ndarray  # [i + 1] int64, into the other two
    smaller: np.ndarray  # [x] int64, ideals
    block: np.ndarray  # [x] int64, what they lack


def ideals_of(blocks: Blocks, most: int) -> Ideals:
    """All ideals.

    Raises:
      ProblemError: there are more than `most`.
    """
    fault = ProblemError(f"there are more than {most:,} ideals, prefixes that a split can have")
    if len(blocks.before) >= most:
        raise fault
    before = [sum(1 << other for other in others) for others in blocks.before]
    after: list[list[int]] = [[] for _ in before]
    for block, others in enumerate(blocks.before):
        for other in others:
            after[other].append(block)
    number = {0: 0}
    ready = [[block for block, mask in enumerate(before) if mask == 0]]  # of each ideal
    lacking: list[list[tuple[int, int]]] = [[]]
    sets = [0]
    for ideal, members in enumerate(sets):  # which grows; sizes never fall
        if 1 << len(ready[ideal]) > most:  # any of those that are ready may join
            raise fault
        for block in ready[ideal]:
            larger = members | 1 << block
            if larger not in number:
                if len(sets) == most:
                    raise fault
                number[larger] = len(sets)
                sets.append(larger)
                new = [other for other in after[block] if before[other] & larger == before[other]]
                ready.append([other for other in ready[ideal] if other != block] + new)
                lacking.append([])
            lacking[number[larger]].append((ideal, block))
    return _lattice(lacking)


def chain_of(order: np.ndarray) -> Ideals:
    """The prefixes of one order of the blocks: what a split of consecutive blocks is made of."""
    return _lattice([[], *([(place, int(block))] for place, block in enumerate(order))])


def _lattice(lacking: list[list[tuple[int, int]]]) -> Ideals:
    start = np.cumsum([0, *map(len, lacking)])
    pairs = np.array([pair for pairs in lacking for pair in pairs], np.int64).reshape(-1, 2)
    return Ideals(start, pairs[:, 0].copy(), pairs[:, 1].copy())
