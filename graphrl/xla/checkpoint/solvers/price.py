"""Memory and time of the choice for one level, in compiled code: `price` fills `Work.prices`.

The backward pass goes through the segments of a level from the last to the first. For a segment that is computed again
it first computes, in order, the values that its kernels need and that are not kept; then the kernels run. Compilers
may order ops freely within a segment, so this is an upper bound on the memory, and close to it. In other segments jax
keeps the values that kernels read; outside of loops, compilers compute values that are not materialized on the fly.
Kept values that fit use the memory of the function's results until these are written.

Moved values are copied to the host one after another, and back in the same way; each direction has a separate link
(`send`, `fetch`). A copy starts once its value is computed. The value's memory is free at the next heavy value that is
computed after the copy has arrived; in a loop, at the end of the step. The copy back starts at the start of the first
segment that reads the value, where its memory is allocated; readers wait until it has arrived.

`Work` has the arrays in which a level's price is computed. They are allocated once, so that pricing allocates nothing.
"""

from typing import NamedTuple

import numpy as np

from graphrl.compiled import entry, integer, part
from graphrl.xla.checkpoint.solvers.level import ARGUMENT, KEPT, MOVED, RECOMPUTED, Level

NOWHERE = 1 << 40  # no segment


class Work(NamedTuple):
    """Working arrays and results of `price`, for a level of n values and at most m steps of its backward pass."""

    stored: np.ndarray  # [n] int64: RECOMPUTED, KEPT or MOVED; may differ from the choice where that is impossible
    mark: np.ndarray  # [n] int64, the last segment or kernel that visited a value
    stack: np.ndarray  # [n + number of reads + 1] int64, values still to visit
    last: np.ndarray  # [n] int64, the last step of the backward pass that reads a value
    fetch_step: np.ndarray  # [n] int64, the step at which a moved value starts to come back
    first: np.ndarray  # [n] int64, the first step that reads a value from then on
    sent: np.ndarray  # [n] int64, for each moved value, the value that waits for its copy; n if no value does
    arrived: np.ndarray  # [n] float64, for each moved value, seconds from the start of the forward pass to its arrival
    position: np.ndarray  # [n] int64, the step that computes a value again
    last_run: np.ndarray  # [ops] int64, the segment that last ran an op again
    ran: np.ndarray  # [b] int64, the step of each kernel
    inside: np.ndarray  # [n] bool, kept values that are in the memory of results until these are written
    used: np.ndarray  # [g] bool, results whose memory has such a value
    rerun: np.ndarray  # [n] bool, values that a stretch of a loop computes again before it runs backward
    forward: np.ndarray  # [n + 2] float64, changes of live bytes
    backward: np.ndarray  # [m + 2] float64, changes of live bytes
    extra: np.ndarray  # [m + 2] float64, bytes in addition to the values
    seconds: np.ndarray  # [m + 2] float64, seconds
    fetched: np.ndarray  # [m + 2] float64, bytes that come back for a step to read
    fetch_since: np.ndarray  # [m + 2] int64, the step from which they come
    starts: np.ndarray  # [m + 2] float64, seconds from the start of the backward pass until a step
    # bytes kept, bytes moved, peaks of both passes, seconds, backward steps; in stretches: seconds to rerun a step, and
    # bytes that are kept twice
    prices: np.ndarray  # [8] float64


def work(level: Level) -> Work:
    """Allocates the arrays for pricing any choice of a level."""
    n, b = len(level.bytes), len(level.kernel_place)
    steps = n + b + int(level.materialized[level.free_values].sum()) * (len(level.first) - 1)
    stored, mark, last, fetch_step, first, sent, position = (np.zeros(n, np.int64) for _ in range(7))
    stack = np.zeros(n + len(level.reads) + 1, np.int64)
    last_run = np.zeros(int(level.op.max(initial=0)) + 1, np.int64)
    forward, (backward, extra, seconds, fetched, starts) = np.zeros(n + 2), (np.zeros(steps + 2) for _ in range(5))
    fetch_since, arrived, rerun, prices = np.zeros(steps + 2, np.int64), np.zeros(n), np.zeros(n, bool), np.zeros(8)
    ran, inside, used = np.zeros(b, np.int64), np.zeros(n, bool), np.zeros(len(level.result_bytes), bool)
    values = stored, mark, stack, last, fetch_step, first, sent, arrived, position, last_run, ran, inside, used, rerun
    return Work(*values, forward, backward, extra, seconds, fetched, fetch_since, starts, prices)


@part
def send(level: Level, work: Work, segment: np.ndarray, recomputed: np.ndarray) -> None:
    """Computes when copies to the host have arrived, and keeps on the device the values that no later op can wait for.

    Adds to the price the seconds for which the last heavy value waits for the copies that are still under way.
    """
    n, clock, link, passed = len(level.bytes), 0.0, 0.0, 0.0
    heavy, head, tail = -1, 0, 0
    for v in range(n):
        work.sent[v] = n
        if level.needed[v] and (v == 0 or level.op[v] != level.op[v - 1]):
            clock += level.seconds[v]
        if level.place[v] != ARGUMENT and recomputed[segment[level.place[v]]] and level.heavy[v] and level.needed[v]:
            heavy, passed = v, clock
            while (
                head < tail
                and work.arrived[work.stack[head]] <= clock
                and level.place[work.stack[head]] < level.place[v]
            ):
                work.sent[work.stack[head]] = v
                head += 1
        if work.stored[v] == MOVED:
            link = max(link, clock) + level.bytes[v] / level.link
            work.arrived[v] = link
            work.stack[tail] = v
            tail += 1
    if level.trips > 0:
        passed = clock
    for k in range(head, tail):
        v = work.stack[k]
        if level.trips == 0 and (heavy < 0 or level.place[v] >= level.place[heavy]):
            work.stored[v] = KEPT
            continue
        work.sent[v] = n if level.trips > 0 else heavy
        work.prices[4] += max(0.0, work.arrived[v] - passed)
        passed = max(passed, work.arrived[v])


@part
def fetch(level: Level, work: Work, steps: int) -> None:
    """Adds to the price the seconds for which steps of the backward pass wait for copies from the host."""
    work.fetched[: steps + 1] = 0.0
    for v in range(len(level.bytes)):
        if work.stored[v] == MOVED:
            work.fetched[work.first[v]] += level.bytes[v]
            work.fetch_since[work.first[v]] = work.fetch_step[v]
    clock = link = 0.0
    for step in range(steps):
        work.starts[step] = clock
        if work.fetched[step] > 0.0:
            link = max(link, work.starts[work.fetch_since[step]]) + work.fetched[step] / level.link
            work.prices[4] += max(0.0, link - clock)
            clock = max(clock, link)
        clock += work.seconds[step]


@entry
def price(
    level: Level, keep: np.ndarray, segment: np.ndarray, recomputed: np.ndarray, stretch: int, work: Work
) -> None:
    """Computes the memory and time of a choice for one level, into `work.stored` and `work.prices`.

    Args:
      level: the level to price.
      keep, segment, recomputed, stretch: the choice, as in `Cut`.
      work: arrays from `work(level)`, overwritten.
    """
    for v in range(len(keep)):
        work.stored[v] = keep[v]
        if keep[v] == MOVED and (level.place[v] == ARGUMENT or not recomputed[segment[level.place[v]]]):
            work.stored[v] = KEPT  # only a segment's policy moves values
    work.mark[:] = -1
    work.last_run[:] = -1
    work.last[:] = -1
    work.prices[:] = 0.0
    step, kernel, stop = 0, 0, len(segment)
    work.backward[0] = work.backward[1] = 0.0
    for s in range(len(recomputed) - 1, -1, -1):
        start = stop
        while start > 0 and segment[start - 1] == s:
            start -= 1
        kernel_stop = kernel
        while kernel_stop < len(level.kernel_place) and level.kernel_place[kernel_stop] >= start:
            kernel_stop += 1
        if recomputed[s]:
            step = _region(level, work, integer(s), integer(start), integer(stop), kernel, kernel_stop, step)
        else:
            step = _plain(level, work, integer(stop), kernel, kernel_stop, step)
        kernel, stop = kernel_stop, start
    moves = False
    for v in range(len(keep)):
        if work.last[v] < 0:  # jax keeps nothing that is not read
            work.stored[v] = RECOMPUTED
        moves = moves or work.stored[v] == MOVED
    if moves:
        send(level, work, segment, recomputed)
        fetch(level, work, step)
    _share(level, work)
    _forward(level, work)
    _backward(level, work, step)
    work.prices[4] += _cotangent_seconds(level, segment, recomputed)
    work.rerun[:] = False
    if stretch > 1:
        _rerun(level, work)


@part
def _region(level: Level, work: Work, s: int, start: int, stop: int, kernel: int, kernel_stop: int, step: int) -> int:
    """Adds the backward steps of a segment `s` that is computed again; returns the next step.

    The segment has the places from `start` and the kernels from `kernel`, up to the stops.
    """
    for q in range(kernel, kernel_stop):
        for k in range(level.kernel_from[q], level.kernel_from[q + 1]):
            if not _is_later(level, level.kernel_reads[k], stop):
                _need(level, work, s, start, level.kernel_reads[k])
    begin = step
    for k in range(len(level.free_values)):
        step = _place(level, work, s, level.free_values[k], step)
    for v in range(level.first[start], level.first[stop]):
        if not level.free[v]:
            step = _place(level, work, s, v, step)
    for q in range(kernel, kernel_stop):
        for k in range(level.kernel_from[q], level.kernel_from[q + 1]):
            if not _is_later(level, level.kernel_reads[k], stop):
                _read(work, level.kernel_reads[k], begin, step)
        _read_later(level, work, q, s, stop, begin, step)
        work.ran[q] = step
        work.extra[step], work.seconds[step] = _extra(level, work, q, s), level.kernel_seconds[q]
        work.backward[step + 2] = 0.0
        step += 1
    for v in range(level.first[stop] - 1, level.first[start] - 1, -1):
        if not level.free[v]:
            _free(level, work, s, v, begin)
    for k in range(len(level.free_values) - 1, -1, -1):
        _free(level, work, s, level.free_values[k], begin)
    return step


@part
def _extra(level: Level, work: Work, q: int, s: int) -> float:
    """Returns the bytes that kernel `q` needs in addition to live values. Values that segment `s` recomputes need no
    transposed copy.
    """
    size = level.kernel_bytes[q]
    for k in range(level.kernel_from[q], level.kernel_from[q + 1]):
        v = level.kernel_reads[k]
        if work.stored[v] != RECOMPUTED or work.mark[v] != s:
            size += level.kernel_copies[k]
    return size


@part
def _is_later(level: Level, v: int, stop: int) -> bool:
    """True if a value is in a segment after the one that ends at `stop`; the backward pass has processed those."""
    return level.place[v] >= stop and not level.free[v]


@part
def _read_later(level: Level, work: Work, q: int, s: int, stop: int, begin: int, step: int) -> None:
    """Records that kernel `q` reads values of later segments: recomputed values of these stay in memory until now.

    Values that are not materialized are computed on the fly now. The values that this needs from other segments are
    kept, unless the current segment has them.
    """
    size = 0
    for k in range(level.kernel_from[q], level.kernel_from[q + 1]):
        work.stack[size] = level.kernel_reads[k]
        size += _is_later(level, level.kernel_reads[k], stop)
    while size:
        size -= 1
        v = work.stack[size]
        later = _is_later(level, v, stop)
        if work.mark[v] == -2 - q:
            continue
        if work.stored[v] != RECOMPUTED or work.mark[v] == s:
            _read(work, v, begin, step)
            continue
        work.mark[v] = -2 - q
        if not level.materialized[v]:
            for k in range(level.reads_from[v], level.reads_from[v + 1]):
                work.stack[size] = level.reads[k]
                size += 1
        elif later and work.last[v] >= 0:
            work.backward[max(work.last[v], work.position[v]) + 1] += level.bytes[v]
            work.backward[step + 1] -= level.bytes[v]
            work.last[v] = step
        else:
            work.stored[v] = KEPT
            work.last[v] = -1
            _read(work, v, begin, step)


@part
def _need(level: Level, work: Work, s: int, start: int, value: int) -> None:
    """Marks the values that segment `s` must recompute to have `value`, and keeps those that it cannot recompute."""
    work.stack[0] = value
    size = 1
    while size:
        size -= 1
        v = work.stack[size]
        if work.mark[v] == s:
            continue
        work.mark[v] = s
        work.last[v] = -1 if work.stored[v] == RECOMPUTED else work.last[v]
        if work.stored[v] != RECOMPUTED:
            continue
        if not level.free[v] and level.place[v] < start:
            work.stored[v] = KEPT
            continue
        for k in range(level.reads_from[v], level.reads_from[v + 1]):
            if work.mark[level.reads[k]] != s:
                work.stack[size] = level.reads[k]
                size += 1


@part
def _place(level: Level, work: Work, s: int, v: int, step: int) -> int:
    """Adds the step that recomputes a value into memory, if the segment does so; returns the next step."""
    if work.mark[v] != s or work.stored[v] != RECOMPUTED or not level.materialized[v]:
        return step
    work.position[v] = step
    work.extra[step], work.seconds[step] = level.workspace[v], 0.0
    work.backward[step + 2] = 0.0
    if work.last_run[level.op[v]] != s:
        work.last_run[level.op[v]] = s
        work.seconds[step] = level.seconds[v]
        work.prices[4] += level.seconds[v]
    return step + 1


@part
def _free(level: Level, work: Work, s: int, v: int, begin: int) -> None:
    """Frees a recomputed value after its last read; must be called for all readers of the value first.

    What it is computed from is read when it is; if it is not materialized, each time that it is read.
    """
    if work.mark[v] != s or work.stored[v] != RECOMPUTED:
        return
    when = work.last[v]
    first = min(work.first[v], when)
    if level.materialized[v]:
        first = when = work.position[v]
        work.backward[when] += level.bytes[v]
        work.backward[max(work.last[v], when) + 1] -= level.bytes[v]
    for k in range(level.reads_from[v], level.reads_from[v + 1]):
        _read(work, level.reads[k], begin, first)
        _read(work, level.reads[k], begin, when)


@part
def _read(work: Work, v: int, begin: int, step: int) -> None:
    """Records that a value is read at `step`, in a segment that starts at step `begin`."""
    if work.last[v] < 0:
        work.fetch_step[v] = begin
        work.first[v] = step
    if begin == work.fetch_step[v]:
        work.first[v] = min(work.first[v], step)
    work.last[v] = max(work.last[v], step)


@part
def _plain(level: Level, work: Work, stop: int, kernel: int, kernel_stop: int, step: int) -> int:
    """Adds the backward steps of a segment for which jax keeps all operands of kernels; returns the next step."""
    for q in range(kernel, kernel_stop):
        _read_later(level, work, q, integer(NOWHERE), stop, step, step)
        size = 0
        for k in range(level.kernel_from[q], level.kernel_from[q + 1]):
            work.stack[size] = level.kernel_reads[k]
            size += not _is_later(level, level.kernel_reads[k], stop)
        while size:
            size -= 1
            v = work.stack[size]
            if level.trips == 0 and work.stored[v] == RECOMPUTED and not level.materialized[v]:
                if work.mark[v] != -2 - q:
                    work.mark[v] = -2 - q
                    for k in range(level.reads_from[v], level.reads_from[v + 1]):
                        work.stack[size] = level.reads[k]
                        size += 1
                continue
            if work.stored[v] == RECOMPUTED:
                work.stored[v] = KEPT
                work.last[v] = -1  # a later segment that computed the value separately does not load it
            _read(work, v, step, step)
        work.ran[q] = step
        work.extra[step], work.seconds[step] = _extra(level, work, q, integer(NOWHERE)), level.kernel_seconds[q]
        work.backward[step + 2] = 0.0
        step += 1
    return step


@part
def _share(level: Level, work: Work) -> None:
    """Finds kept values, largest first, that use the memory of a result until its kernel runs: the smallest one that
    has room for it. Kept values are all in memory when the backward pass starts, so each result has room for one.
    """
    work.inside[:] = False
    work.used[:] = False
    for k in range(len(level.fitting)):
        v = level.fitting[k]
        if work.stored[v] != KEPT:
            continue
        for g in range(len(level.result_bytes)):
            is_free = not work.used[g] and level.result_bytes[g] >= level.bytes[v]
            if is_free and work.last[v] < work.ran[level.result_kernel[g]]:
                work.inside[v] = work.used[g] = True
                break


@part
def _forward(level: Level, work: Work) -> None:
    """Computes the bytes kept and moved, the seconds to keep values, and the peak of the forward pass."""
    n = len(level.bytes)
    work.forward[:] = 0.0
    for v in range(n):
        stored = work.stored[v]
        work.prices[0] += level.bytes[v] * (stored == KEPT)
        work.prices[1] += level.bytes[v] * (stored == MOVED)
        work.prices[4] += level.keep_seconds[v] * (stored != RECOMPUTED)
        if work.inside[v] or level.place[v] == ARGUMENT:
            continue
        if stored == RECOMPUTED and not (level.needed[v] and level.materialized[v]):
            continue
        work.forward[v] += level.bytes[v]
        if stored != KEPT or level.trips > 0:  # a loop writes kept values directly into its own array
            last = max(v, level.last_read[v], work.sent[v] if stored == MOVED else 0)
            work.forward[last + 1] -= level.bytes[v]
    live, peak = level.resident, level.resident
    for v in range(n):
        live += work.forward[v]
        peak = max(peak, live + (level.workspace[v] if level.needed[v] else 0.0))
    work.prices[2] = peak


@part
def _backward(level: Level, work: Work, steps: int) -> None:
    """Computes the peak of the backward pass."""
    for v in range(len(level.bytes)):
        if work.stored[v] == RECOMPUTED or work.last[v] < 0 or work.inside[v]:
            continue
        if level.trips > 0 and not level.materialized[v] and work.stored[v] == KEPT:  # read from the loop's array
            continue
        begin = 0 if work.stored[v] == KEPT and level.trips == 0 else work.fetch_step[v]
        work.backward[begin] += level.bytes[v]
        work.backward[work.last[v] + 1] -= level.bytes[v]
    live, peak = level.resident, level.resident
    for step in range(steps):
        live += work.backward[step]
        peak = max(peak, live + work.extra[step])
    work.prices[3] = peak
    work.prices[5] = steps


@part
def _cotangent_seconds(level: Level, segment: np.ndarray, recomputed: np.ndarray) -> float:
    """Returns the seconds to write the gradients that recomputed segments wait for. Such segments start behind a
    barrier, except for the only recomputed one in a loop body.
    """
    seconds, count = 0.0, 0
    for s in range(len(recomputed)):
        count += recomputed[s]
    if level.trips > 0 and count < 2:
        return 0.0
    for h in range(len(level.cotangent_place)):
        at, is_waited_for = segment[level.cotangent_place[h]], False
        for k in range(level.cotangent_from[h], level.cotangent_from[h + 1]):
            to = segment[level.cotangent_to[k]]
            is_waited_for |= to < at and recomputed[to] and to == segment[level.cotangent_home[k]]
        seconds += level.cotangent_seconds[h] * is_waited_for
    return seconds


@part
def _rerun(level: Level, work: Work) -> None:
    """Adds the seconds of one more forward pass of a loop step, which computes the values that the next step or the
    backward pass needs. Values that both keep are stored twice in a loop: `prices[7]` counts their bytes.
    """
    op, counted = integer(-1), 0.0
    for v in range(len(level.bytes)):
        after = level.following[v]
        if after >= 0:
            work.rerun[after] = True
            both = work.stored[v] == KEPT and work.stored[after] == KEPT
            work.prices[7] += level.bytes[after] * both
    for v in range(len(level.bytes) - 1, -1, -1):
        work.rerun[v] |= work.stored[v] != RECOMPUTED
        if not work.rerun[v]:
            continue
        if level.op[v] != op:
            op, counted = level.op[v], 0.0
        work.prices[6] += max(level.seconds[v] - counted, 0.0)
        counted = max(level.seconds[v], counted)
        for k in range(level.reads_from[v], level.reads_from[v + 1]):
            work.rerun[level.reads[k]] = True
