"""Random gradients for tests of `graphrl.xla.checkpoint.solvers`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from graphrl.xla.checkpoint.solvers.choice import Cut, stretches_of
from graphrl.xla.checkpoint.solvers.level import ARGUMENT, KEPT, MOVED, RECOMPUTED, Gradient, Level, Loop

ROW = st.lists(st.integers(0, 20), max_size=3)


@st.composite
def levels(draw: Any, *, trips: int = 0, values: int = 8, places: int = 4, kernels: int = 5) -> Level:
    """A level of at most the given numbers of values, places and kernels; a loop's level has carried arguments."""
    p = draw(st.integers(1, places))
    carried = draw(st.integers(0, 2)) if trips else 0
    own = sorted(draw(st.lists(st.integers(0, p - 1), min_size=1, max_size=values - carried)))
    place = np.array([ARGUMENT] * carried + own)
    n = len(place)
    flags = st.lists(st.booleans(), min_size=n, max_size=n)
    sizes = st.lists(st.integers(0, 9), min_size=n, max_size=n)
    reads = [sorted({r % v for r in draw(ROW)}) if v else [] for v in range(n)]
    for v in range(carried):
        reads[v] = []
    is_argument = place == ARGUMENT
    free = np.array(draw(flags)) & ~is_argument
    for v in range(n):
        free[v] &= all(free[r] for r in reads[v])
    materialized = np.array(draw(flags)) | is_argument
    joined = np.array(draw(flags)) & (np.diff(place, prepend=-2) == 0) & ~is_argument  # with the op before
    op = np.cumsum(~joined) - 1
    kernel_place = np.array(sorted(draw(st.lists(st.integers(0, p - 1), max_size=kernels)), reverse=True), np.int64)
    kernel_reads = [sorted({r % n for r in draw(ROW)}) for _ in kernel_place]
    copies = draw(st.lists(st.integers(0, 3), min_size=3 * len(kernel_reads), max_size=3 * len(kernel_reads)))
    needed = np.array(draw(flags))
    for v in range(n - 1, -1, -1):
        needed[reads[v]] |= needed[v]
    last_read = [max([u for u in range(n) if v in reads[u] and materialized[u]], default=v) for v in range(n)]
    separate = np.zeros(p, bool)
    work = np.array(draw(sizes), float)
    gradients = draw(st.lists(st.tuples(st.integers(0, p - 1), st.integers(0, 9), ROW), max_size=3))
    cotangent_to = [[to % place for to in row] if place else [] for place, _, row in gradients]
    results = draw(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=0 if trips else 3))
    results = sorted((size, q % len(kernel_place)) for size, q in results if len(kernel_place))
    own_bytes = np.array(draw(sizes), float)
    homes = np.array(draw(st.lists(st.integers(0, p - 1), min_size=9, max_size=9)), np.int64)
    return Level(
        bytes=own_bytes,
        place=place,
        materialized=materialized,
        heavy=materialized & ~free & ~is_argument & np.array(draw(flags)),
        free=free,
        needed=needed,
        named=~is_argument,
        seconds=np.where(materialized & ~is_argument, work[op], 0.0),
        keep_seconds=np.array(draw(sizes), float) / 8,
        write_seconds=np.array(draw(sizes), float) / 8,
        op=op,
        following=_following(draw, n, carried),
        workspace=np.array(draw(sizes), float),
        last_read=np.array(last_read),
        reads_from=_begins(reads),
        reads=_joined(reads),
        kernel_place=kernel_place,
        kernel_bytes=np.array(
            draw(st.lists(st.integers(0, 9), min_size=len(kernel_place), max_size=len(kernel_place))), float
        ),
        kernel_seconds=np.array(
            draw(st.lists(st.integers(0, 9), min_size=len(kernel_place), max_size=len(kernel_place))), float
        ),
        kernel_from=_begins(kernel_reads),
        kernel_reads=_joined(kernel_reads),
        kernel_copies=np.array(copies[: len(_joined(kernel_reads))], float),
        result_bytes=np.array([size for size, _ in results], float),
        result_kernel=np.array([q for _, q in results], np.int64),
        fitting=np.array(sorted(np.flatnonzero(~is_argument & (own_bytes > 0)), key=lambda v: -own_bytes[v]), np.int64),
        cotangent_place=np.array([place for place, _, _ in gradients], np.int64),
        cotangent_seconds=np.array([seconds for _, seconds, _ in gradients], float) / 8,
        cotangent_from=_begins(cotangent_to),
        cotangent_to=_joined(cotangent_to),
        cotangent_home=np.minimum(_joined(cotangent_to), homes[: sum(map(len, cotangent_to))]),
        first=np.searchsorted(place, np.arange(p + 1)),
        free_values=np.flatnonzero(free),
        separate=separate,
        resident=float(draw(st.integers(0, 9))),
        link=float(draw(st.sampled_from([0.5, 1, 2, 64]))),
        trips=trips,
        forward_seconds=float(work.sum()),
        backward_seconds=float(draw(st.integers(1, 50))),
    )


def _following(draw: Any, values: int, carried: int) -> np.ndarray:
    """For each carried value, the value that takes its place in the next step, or -1."""
    following = np.full(values, -1)
    following[:carried] = draw(st.lists(st.integers(-1, values - 1), min_size=carried, max_size=carried))
    return following


def chain(random: np.random.Generator, values: int, places: int) -> Gradient:
    """A chain: each value reads the one before and sometimes one more; the backward pass reads them in reverse."""
    place = np.sort(np.append(np.arange(places), random.integers(0, places, values - places)))
    reads = [sorted({v - 1, int(random.integers(0, v))}) if v else [] for v in range(values)]
    kernels = [sorted({v, max(v - 1, 0)}) for v in range(values - 1, -1, -1)]
    materialized = random.random(values) < 0.7
    return Gradient(
        (
            Level(
                bytes=random.integers(1, 10, values).astype(float),
                place=place,
                materialized=materialized,
                heavy=materialized & (random.random(values) < 0.5),
                free=np.zeros(values, bool),
                needed=np.ones(values, bool),
                named=np.ones(values, bool),
                seconds=np.where(materialized, random.integers(1, 10, values), 0).astype(float),
                keep_seconds=np.where(materialized, 0, random.integers(1, 4, values)).astype(float),
                write_seconds=np.zeros(values),
                op=np.arange(values),
                following=np.full(values, -1),
                workspace=np.zeros(values),
                last_read=np.minimum(np.arange(values) + 1, values - 1),
                reads_from=_begins(reads),
                reads=_joined(reads),
                kernel_place=place[::-1].copy(),
                kernel_bytes=random.integers(0, 3, values).astype(float),
                kernel_seconds=np.full(values, 2.0),
                kernel_from=_begins(kernels),
                kernel_reads=_joined(kernels),
                kernel_copies=np.zeros(len(_joined(kernels))),
                result_bytes=np.zeros(0),
                result_kernel=np.zeros(0, np.int64),
                fitting=np.zeros(0, np.int64),
                cotangent_place=place[::-1].copy(),
                cotangent_seconds=random.integers(0, 3, values).astype(float),
                cotangent_from=np.cumsum([0, *(place[::-1] > 0)]),
                cotangent_to=place[::-1][place[::-1] > 0] - 1,
                cotangent_home=place[::-1][place[::-1] > 0] - 1,
                first=np.searchsorted(place, np.arange(places + 1)),
                free_values=np.zeros(0, np.int64),
                separate=np.zeros(places, bool),
                resident=0.0,
                link=4.0,
                trips=0,
                forward_seconds=20.0,
                backward_seconds=40.0,
            ),
        ),
        ({},),
        0,
        0,
    )


@st.composite
def cuts(draw: Any, level: Level, kinds: Sequence[int] = (RECOMPUTED, KEPT, MOVED)) -> Cut:
    """Any choice for a level."""
    n, p = len(level.bytes), len(level.separate)
    keep = draw(st.lists(st.sampled_from(kinds), min_size=n, max_size=n))
    starts = draw(st.lists(st.booleans(), min_size=p, max_size=p))
    segment = np.cumsum([False, *starts[1:]])
    count = int(segment[-1]) + 1
    again = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    stretch = draw(st.integers(1, max(1, level.trips)))
    return Cut(np.where(level.free, RECOMPUTED, np.array(keep, np.int64)), segment, np.array(again, bool), stretch)


@st.composite
def gradients(draw: st.DrawFn, /, **sizes: int) -> Gradient:
    """A function without loops, or with one whose results and residuals are its first place's values."""
    outer = draw(levels(**sizes))
    if draw(st.booleans()):
        return Gradient((outer,), ({},), 0, 0)
    inner = draw(levels(trips=draw(st.integers(1, 5)), **sizes))
    slices = draw(st.lists(st.integers(0, 9), min_size=5, max_size=5))
    return looped(outer, inner, slices, draw(st.integers(1, 4)))


def looped(outer: Level, inner: Level, slices: Sequence[int], unrolled: int) -> Gradient:
    """A level behind a loop of two values: a result, and all values that the loop keeps.

    `slices`: bytes of the loop's slices taken, given and pulled, of its sums, and at the start of a stretch.
    """
    more = {name: getattr(outer, name) for name in Level._fields}

    def prepend(name: str, *first: Any) -> None:
        more[name] = np.concatenate([np.array(first, more[name].dtype), more[name]])

    for name, first in {
        "bytes": (4, 0),
        "place": (0, 0),
        "materialized": (True, True),
        "heavy": (True, True),
        "free": (False, False),
        "needed": (True, False),
        "named": (True, True),
        "seconds": (5, 5),
        "keep_seconds": (0, 0),
        "workspace": (0, 0),
        "following": (-1, -1),
        "write_seconds": (0, 0),
        "separate": (True,),
    }.items():
        prepend(name, *first)
    more["place"][2:] += 1
    more["op"] = np.concatenate([[0, 0], outer.op + 1])
    more["last_read"] = np.concatenate([[0, 1], outer.last_read + 2])
    more["reads_from"] = np.concatenate([[0, 0], outer.reads_from])
    more["reads"] = outer.reads + 2
    more["kernel_place"] = np.concatenate([outer.kernel_place + 1, [0]])
    more["kernel_bytes"] = np.concatenate([outer.kernel_bytes, [2.0]])
    more["fitting"] = outer.fitting + 2
    more["kernel_seconds"] = np.concatenate([outer.kernel_seconds, [3.0]])
    more["kernel_from"] = np.concatenate([outer.kernel_from, [outer.kernel_from[-1] + 1]])
    more["kernel_reads"] = np.concatenate([outer.kernel_reads + 2, [1]])
    more["kernel_copies"] = np.concatenate([outer.kernel_copies, [0.0]])
    more |= {name: getattr(outer, name) + 1 for name in ("cotangent_place", "cotangent_to", "cotangent_home")}
    more["first"] = np.searchsorted(more["place"], np.arange(len(more["separate"]) + 1))
    more["free_values"] = np.flatnonzero(more["free"])
    taken, given, pulled, summed, begin = map(float, slices)
    kinds = stretches_of(inner.trips)
    loop = Loop(0, (0,), (1,), len(outer.kernel_place), taken, given, pulled, summed, begin, kinds, unrolled)
    return Gradient((Level(**more), inner), ({1: loop}, {}), 0, 0)


def _begins(rows: Sequence[Sequence[int]]) -> np.ndarray:
    return np.cumsum([0, *map(len, rows)]).astype(np.int64)


def _joined(rows: Sequence[Sequence[int]]) -> np.ndarray:
    return np.array([number for row in rows for number in row], np.int64)
