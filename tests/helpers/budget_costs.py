"""Cost of a choice for a gradient from live sets, step by step: the twin of `xla.checkpoint.solvers.price`."""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from graphrl.xla.checkpoint.solvers.choice import Cut
from graphrl.xla.checkpoint.solvers.level import ARGUMENT, KEPT, MOVED, RECOMPUTED, Level, Loop


class Cost(NamedTuple):
    """Cost of a choice for one level, with the places of its values and the values computed again."""

    kept: float
    moved: float
    forward: float
    backward: float
    seconds: float
    rerunning: float
    stored: list[int]
    recomputed_values: set[int]


def cost(level: Level, cut: Cut) -> Cost:
    """Prices a level by sets of live values."""
    simulated = _Backward(level, cut)
    stored = simulated.stored
    rerun = _rerun(level, stored) if cut.stretch > 1 else set()
    sent, waited = _send(level, cut, stored)
    inside = simulated.in_results()
    seconds = simulated.seconds + sum(level.keep_seconds[v] for v in range(len(stored)) if stored[v] != RECOMPUTED)
    seconds += waited + simulated.waited() + cotangent_seconds(level, cut)
    return Cost(
        sum(level.bytes[v] for v in range(len(stored)) if stored[v] == KEPT),
        sum(level.bytes[v] for v in range(len(stored)) if stored[v] == MOVED),
        _forward_peak(level, stored, sent, inside),
        simulated.peak(inside),
        seconds,
        sum(max(level.seconds[v] for v in rerun if level.op[v] == op) for op in {level.op[v] for v in rerun}),
        stored,
        simulated.recomputed_values | {v for v in rerun if stored[v] == RECOMPUTED and level.materialized[v]},
    )


def cotangent_seconds(level: Level, cut: Cut) -> float:
    """Seconds to write the gradients that recomputed segments receive from later segments."""
    if level.trips and cut.recomputed.sum() < 2:
        return 0.0  # jax puts no barrier before a segment that is alone in a step
    total = 0.0
    for h, place in enumerate(level.cotangent_place.tolist()):
        reads = slice(level.cotangent_from[h], level.cotangent_from[h + 1])
        into, homes = cut.segment[level.cotangent_to[reads]].tolist(), cut.segment[level.cotangent_home[reads]].tolist()
        waiting = {s for s, home in zip(into, homes, strict=True) if s == home and s != cut.segment[place]}
        total += level.cotangent_seconds[h] * any(cut.recomputed[s] for s in waiting)
    return total


def _rerun(level: Level, stored: Sequence[int]) -> set[int]:
    """Values that a stretch's steps compute before they run backward: for the next step, and for stored values."""
    waiting, rerun = [v for v, what in enumerate(stored) if what != RECOMPUTED], set[int]()
    waiting += [after for after in level.following.tolist() if after >= 0]
    while waiting:
        v = waiting.pop()
        waiting += [read for read in _reads(level, v) if read not in rerun]
        rerun.add(v)
    return rerun


def loop_cost_by_steps(loop: Loop, trips: int, stretch: int, step: Cost, shared: float) -> tuple[float, float, float]:
    """Bytes that a loop keeps, and bytes at the peaks of its forward and backward pass, summed step by step.

    `shared`: bytes that one step keeps and the next one keeps, too.
    """
    if stretch == 1:
        return sum(step.kept for _ in range(trips)), step.forward, step.backward
    stretches = [range(begin, min(begin + stretch, trips)) for begin in range(0, trips, stretch)]
    joined = range(trips) if len(stretches[-1]) < stretch else ()
    kept = sum(loop.begin_bytes for _ in stretches) + sum(loop.taken_bytes for _ in joined)
    forward, backward = [], []
    for steps in stretches[:1]:  # no stretch is longer than the first
        slices = steps if len(stretches) > 1 else ()
        sums = loop.sum_bytes if slices else 0.0
        forward.append(step.forward + sum(loop.taken_bytes + loop.given_bytes for _ in slices))
        others = steps[1:] if loop.is_unrolled(stretch) else steps
        own = sum(step.kept - shared for _ in others) + sum(loop.taken_bytes + loop.pulled_bytes for _ in slices) + sums
        backward += [own + peak for peak in (step.forward, step.backward)]
    more = sum(loop.given_bytes for _ in joined), sum(loop.pulled_bytes for _ in joined)
    return kept, max(forward) + more[0], max(backward) + more[1]


def _send(level: Level, cut: Cut, stored: list[int]) -> tuple[dict[int, int], float]:
    """For each moved value, the value that waits for its copy; and the seconds that the pass waits at its end.

    Outside of loops, keeps a moved value for which no value at a later place of a recomputed segment can wait.
    """
    n = len(stored)
    firsts = [v for v in range(n) if v == 0 or level.op[v] != level.op[v - 1]]
    clocks = [sum(level.seconds[u] for u in firsts if u <= v and level.needed[u]) for v in range(n)]
    heavy = [v for v in range(n) if level.heavy[v] and level.needed[v] and cut.recomputed[cut.segment[level.place[v]]]]
    end = clocks[heavy[-1]] if heavy and not level.trips else clocks[-1]
    free, late, sent = 0.0, end, dict[int, int]()
    for v in [v for v in range(n) if stored[v] == MOVED]:
        free = max(free, clocks[v]) + level.bytes[v] / level.link
        later = [u for u in heavy if level.place[u] > level.place[v]]
        there = [u for u in later if clocks[u] >= free]
        if not there and not later and not level.trips:
            stored[v] = KEPT
            continue
        last = later[-1] if later and not level.trips else n
        sent[v] = there[0] if there else last
        late = late if there else max(late, free)
    return sent, late - end


def _forward_peak(level: Level, stored: Sequence[int], sent: Mapping[int, int], inside: Container[int]) -> float:
    """Peak bytes of the forward pass, without those `inside` the memory of results.

    A value is live from its computation to its last reader; a kept value outside of loops, to the end; a moved value,
    at least until its copy is done.
    """
    peak, n = level.resident, len(stored)
    for now in range(n):
        live = [
            v
            for v in range(now + 1)
            if level.place[v] != ARGUMENT
            and v not in inside
            and (stored[v] != RECOMPUTED or (level.needed[v] and level.materialized[v]))
            and (now <= max(v, level.last_read[v], sent.get(v, 0)) or (stored[v] == KEPT and level.trips == 0))
        ]
        extra = level.workspace[now] if level.needed[now] else 0.0
        peak = max(peak, level.resident + extra + sum(level.bytes[v] for v in live))
    return peak


class _Backward:
    """The backward pass, segment by segment from the last."""

    def __init__(self, level: Level, cut: Cut) -> None:
        self.level, self.stored = level, cut.keep.tolist()
        for v, place in enumerate(level.place):
            if self.stored[v] == MOVED and (place == ARGUMENT or not cut.recomputed[cut.segment[place]]):
                self.stored[v] = KEPT
        self.step_seconds: list[float] = []  # seconds of each step
        self.steps: list[tuple[float, set[int], int | None]] = []  # other bytes, values read, value computed
        self.fetched: dict[int, int] = {}  # the step from which a moved or kept value is in memory
        self.ran: dict[int, int] = {}  # the step of each kernel
        self.spans: list[tuple[int, int]] = []  # first and end step of each segment, the last segment first
        self.seconds, self.recomputed_values = 0.0, set[int]()
        for s in reversed(range(len(cut.recomputed))):
            places = np.flatnonzero(cut.segment == s).tolist()
            kernels = [q for q, place in enumerate(level.kernel_place) if place in places]
            begin = len(self.steps)
            if cut.recomputed[s]:
                self._compute_again(places, kernels)
            else:
                self._keep_what_is_read(places, kernels)
            self.spans.append((begin, len(self.steps)))
            for step in range(begin, len(self.steps)):
                for v in self.steps[step][1]:
                    if self.stored[v] != RECOMPUTED:
                        self.fetched.setdefault(v, begin if cut.recomputed[s] else step)
        read = {v for _, reads, _ in self.steps for v in reads}
        self.stored = [what if v in read else RECOMPUTED for v, what in enumerate(self.stored)]

    def in_results(self) -> set[int]:
        """Kept values in the memory of results, which are written after the values' last readers."""
        level, inside = self.level, set[int]()
        left = [*zip(level.result_bytes, level.result_kernel, strict=True)]
        for v in level.fitting.tolist():
            if self.stored[v] != KEPT:
                continue
            last = max(step for step, (_, reads, _) in enumerate(self.steps) if v in reads)
            fits = [k for k, (size, q) in enumerate(left) if size >= level.bytes[v] and self.ran[q] > last]
            if fits:
                inside.add(v)
                left.pop(fits[0])
        return inside

    def peak(self, inside: Container[int]) -> float:
        """Peak of live bytes, workspace and copies, without the values `inside` the memory of results."""
        peaks = [extra + self._live(step, inside) for step, (extra, _, _) in enumerate(self.steps)]
        return self.level.resident + max(peaks, default=0.0)

    def waited(self) -> float:
        """Seconds that steps wait for moved values; the copy back starts with the segment for recomputed ones, else at
        the read.
        """
        clock, free, waited, begins = 0.0, 0.0, 0.0, list[float]()
        back = {v for v, what in enumerate(self.stored) if what == MOVED}
        for step, (_, reads, _) in enumerate(self.steps):
            begins.append(clock)
            coming = sorted(reads & back)
            back -= reads
            if any(self.level.bytes[v] for v in coming):
                free = max(free, begins[self.fetched[coming[0]]])
                free += sum(self.level.bytes[v] for v in coming) / self.level.link
                waited += max(0.0, free - clock)
                clock = max(clock, free)
            clock += self.step_seconds[step]
        return waited

    def _live(self, now: int, inside: Container[int]) -> float:
        level, total = self.level, 0.0
        for v in range(len(self.stored)):
            waits = self.stored[v] == KEPT and level.trips == 0
            if (
                v in inside
                or self.stored[v] == RECOMPUTED
                or (level.trips > 0 and not level.materialized[v] and self.stored[v] == KEPT)
            ):
                continue
            begin = 0 if waits else self.fetched[v]
            last = max(step for step, (_, reads, _) in enumerate(self.steps) if v in reads)
            total += level.bytes[v] * (begin <= now <= last)
        for begin, stop in self.spans:
            for step in range(begin, min(stop, now + 1)):
                made = self.steps[step][2]
                if made is not None:  # earlier segments may read it, too, unless each of them computes it for itself
                    until = stop if level.free[made] or self.stored[made] != RECOMPUTED else len(self.steps)
                    last = max([s for s in range(begin, until) if made in self.steps[s][1]], default=step)
                    total += level.bytes[made] * (now <= max(step, last))
        return total

    def _compute_again(self, places: Sequence[int], kernels: Sequence[int]) -> None:
        """Recomputes in order the values that kernels need and that are not stored; values of earlier segments are
        kept.
        """
        level, recomputed = self.level, set[int]()
        own, later = self._split(places, kernels)
        waiting = [v for reads in own for v in reads]
        while waiting:
            v = waiting.pop()
            if self.stored[v] != RECOMPUTED or v in recomputed:
                continue
            if level.free[v] or level.place[v] >= places[0]:
                recomputed.add(v)
                waiting += _reads(level, v)
            else:
                self.stored[v] = KEPT
        in_order = sorted(recomputed, key=lambda v: (not level.free[v], v))
        ops = set[int]()
        for v in in_order:
            if level.materialized[v]:
                self.steps.append((level.workspace[v], self._memory(_reads(level, v)), v))
                self.step_seconds.append(level.seconds[v] * (level.op[v] not in ops))
                self.seconds += self.step_seconds[-1]
                ops.add(int(level.op[v]))
        self.recomputed_values |= {v for v in recomputed if level.materialized[v]}
        for q, reads, in_memory in zip(kernels, own, later, strict=True):
            self.ran[q] = len(self.steps)
            extra = level.kernel_bytes[q] + _copied(level, q, recomputed)
            self.steps.append((extra, self._memory(reads) | self._in_memory(in_memory, places, recomputed), None))
            self.step_seconds.append(level.kernel_seconds[q])

    def _split(self, places: Sequence[int], kernels: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
        """Values that each kernel reads from its own and earlier segments, and those from later segments."""
        reads = [_read_by(self.level, q) for q in kernels]
        own = [[v for v in read if not self._is_later(v, places)] for read in reads]
        return own, [[v for v in read if self._is_later(v, places)] for read in reads]

    def _is_later(self, v: int, places: Sequence[int]) -> bool:
        return bool(self.level.place[v] > places[-1] and not self.level.free[v])

    def _in_memory(self, values: Iterable[int], places: Sequence[int], recomputed: Iterable[int]) -> set[int]:
        """Values in memory behind `values`, preferring those that later segments computed; this segment computes
        `recomputed`.
        """
        made, in_memory = {value for _, _, value in self.steps}, set[int]()
        for v in values:
            if self.stored[v] == RECOMPUTED and v in recomputed:
                in_memory |= self._memory([v])
            elif self.stored[v] == RECOMPUTED and not self.level.materialized[v]:
                in_memory |= self._in_memory(_reads(self.level, v), places, recomputed)
            else:
                if self.stored[v] == RECOMPUTED and not (self._is_later(v, places) and v in made):
                    self.stored[v] = KEPT
                in_memory.add(v)
        return in_memory

    def _keep_what_is_read(self, places: Sequence[int], kernels: Sequence[int]) -> None:
        """Without a region, a loop keeps the values that its kernels read; a function keeps the values in memory behind
        them.
        """
        level = self.level
        for q, own, later in zip(kernels, *self._split(places, kernels), strict=True):
            in_memory = self._in_memory(later, places, ())
            reads = set(own) if level.trips else self._memory(own)
            for v in reads:
                self.stored[v] = KEPT if self.stored[v] == RECOMPUTED else self.stored[v]
            self.ran[q] = len(self.steps)
            self.steps.append((level.kernel_bytes[q] + _copied(level, q, ()), reads | in_memory, None))
            self.step_seconds.append(level.kernel_seconds[q])

    def _memory(self, values: Iterable[int]) -> set[int]:
        """Values read from memory for `values`: a value that is not in memory is computed on the way."""
        read = set[int]()
        for v in values:
            in_memory = self.stored[v] != RECOMPUTED or self.level.materialized[v]
            read |= {v} if in_memory else self._memory(_reads(self.level, v))
        return read


def _reads(level: Level, v: int) -> list[int]:
    return level.reads[level.reads_from[v] : level.reads_from[v + 1]].tolist()


def _read_by(level: Level, kernel: int) -> list[int]:
    return level.kernel_reads[level.kernel_from[kernel] : level.kernel_from[kernel + 1]].tolist()


def _copied(level: Level, kernel: int, made: Container[int]) -> float:
    """Bytes of copies that a kernel needs of the values it reads, except those that its segment has computed."""
    copies = level.kernel_copies[level.kernel_from[kernel] : level.kernel_from[kernel + 1]]
    return sum(size for v, size in zip(_read_by(level, kernel), copies, strict=True) if v not in made)
