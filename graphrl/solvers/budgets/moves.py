"""Moves of annealing on a level: which values are kept, and where it is cut. Compiled.

Most change values or places that are alike together, or do with a stretch of a level what is done with another one.
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from graphrl.compiled import entry, inlined, integer
from graphrl.compiled.random import below, uniform
from graphrl.solvers.budgets.alike import alike_places, alike_values
from graphrl.solvers.budgets.level import Level
from graphrl.solvers.budgets.repeats import repeated
from graphrl.solvers.budgets.starts import MOST
from graphrl.solvers.budgets.state import AGAIN, INSIDE, PLAIN, begun

CUTTING = 0.2  # part of the moves that cut a level
SWITCHING = 0.05  # part of the others that leave segments to jax, or take them from it
REPEATING = 0.15  # part of the moves that do with a stretch what is done with another one like it
TOGETHER = 0.6  # part of the moves that change all that are alike
KINDS = 3  # COMPUTED, KEPT and MOVED


class Moves(NamedTuple):
    """What a level of p places has: groups of alike values, groups of alike places, and kinds of stretches that are
    alike; row i of each is from `..._from[i]` to `..._from[i + 1]`.
    """

    values_from: np.ndarray  # int64
    values: np.ndarray  # int64
    places_from: np.ndarray  # int64, the narrowest places first
    places: np.ndarray  # int64
    begins_from: np.ndarray  # int64
    begins: np.ndarray  # int64, the first place of each stretch
    length: np.ndarray  # int64, of the stretches of each kind, in places
    fixed: np.ndarray  # [p] bool, where a segment begins in any case
    apart: np.ndarray  # [p] bool, of the level
    first: np.ndarray  # [p + 1] int64, of the level


def moves(level: Level) -> Moves:
    """Of a level."""
    kinds = repeated(level)
    return Moves(
        *_rows(alike_values(level)),
        *_rows([group for group in alike_places(level) if len(group) <= MOST]),
        *_rows([kind.begins for kind in kinds]),
        np.array([kind.length for kind in kinds], np.int64),
        begun(level) != INSIDE,
        level.apart,
        level.first,
    )


def _rows(groups: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    ends = np.cumsum([0, *map(len, groups)], dtype=np.int64)
    return ends, np.array(list(chain.from_iterable(groups)), np.int64)


@entry
def move(own: Moves, keep: np.ndarray, starts: np.ndarray, rng: np.ndarray, moving: bool) -> None:
    """Changes a level at random.

    Args:
      own: of the level.
      keep, starts: of a `State`, written.
      rng: as `compiled.random` has it.
      moving: whether values may be moved to the host.
    """
    if len(own.length) > 0 and uniform(rng) < REPEATING:
        _repeat(own, keep, starts, rng)
    elif len(own.places_from) > 1 and uniform(rng) < CUTTING:
        _cut(own, starts, rng)
    elif len(own.values_from) > 1 and uniform(rng) >= SWITCHING:
        _flip(own, keep, rng, moving)
    else:
        _switch(own, starts, rng)


@inlined
def _flip(own: Moves, keep: np.ndarray, rng: np.ndarray, moving: bool) -> None:
    """Keeps values, moves them or does neither."""
    begin, end = _chosen(own.values_from, below(rng, len(own.values_from) - 1))
    if uniform(rng) > TOGETHER:
        begin = begin + below(rng, end - begin)
        end = begin + 1
    kinds = KINDS if moving else KINDS - 1
    kind = (keep[own.values[begin]] + 1 + below(rng, kinds - 1)) % kinds
    for k in range(begin, end):
        keep[own.values[k]] = kind


@inlined
def _cut(own: Moves, starts: np.ndarray, rng: np.ndarray) -> None:
    """Begins or ends segments at places that are alike: narrow ones more often."""
    count = len(own.places_from) - 1
    begin, end = _chosen(own.places_from, min(integer(count * uniform(rng) ** 2), count - 1))
    begins = starts[own.places[begin]] == INSIDE
    for k in range(begin, end):
        place = own.places[k]
        if begins and starts[place] == INSIDE:
            first = place
            while starts[first] == INSIDE:
                first -= 1
            starts[place] = starts[first]
        elif not begins and not own.fixed[place]:
            starts[place] = INSIDE


@inlined
def _repeat(own: Moves, keep: np.ndarray, starts: np.ndarray, rng: np.ndarray) -> None:
    """Does with one of some stretches that are alike, or with the next ones too, what is done with another one."""
    kind = below(rng, len(own.length))
    begin, end = _chosen(own.begins_from, kind)
    source = below(rng, end - begin)
    first = (source + 1 + below(rng, end - begin - 1)) % (end - begin)
    stop = first + 1
    if uniform(rng) >= TOGETHER:
        stop = first + 1 + below(rng, end - begin - first)
    taken = own.begins[begin + source]
    for other in range(first, stop):
        given = own.begins[begin + other]
        for k in range(own.first[taken + own.length[kind]] - own.first[taken]):
            keep[own.first[given] + k] = keep[own.first[taken] + k]
        for k in range(own.length[kind]):
            if starts[taken + k] != INSIDE or not own.fixed[given + k]:
                starts[given + k] = starts[taken + k]


@inlined
def _switch(own: Moves, starts: np.ndarray, rng: np.ndarray) -> None:
    """Computes all of a level again or one of its segments, or leaves it to jax."""
    count, is_any = integer(0), False
    for place in range(len(starts)):
        if starts[place] != INSIDE and not own.apart[place]:
            count += 1
            is_any |= starts[place] == AGAIN
    only = below(rng, count) if count > 1 and uniform(rng) > TOGETHER else integer(-1)
    number = integer(0)
    for place in range(len(starts)):
        if starts[place] != INSIDE and not own.apart[place]:
            if only < 0:
                starts[place] = PLAIN if is_any else AGAIN
            elif only == number:
                starts[place] = PLAIN if starts[place] == AGAIN else AGAIN
            number += 1


@inlined
def _chosen(rows: np.ndarray, row: int) -> tuple[int, int]:
    """Where a row begins and ends."""
    return rows[row], rows[row + 1]
