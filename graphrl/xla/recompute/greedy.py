"""Greedy choice of values to compute again, so that a schedule needs no more than a target.

A **gap** is the time between two uses of a value. Dropping the value there, and computing it again right before the
later use, relieves the memory in between. What it reads must be there then: it is alive anyway, or is small and kept
for that, or is computed again too. The gap that takes away most bytes over the target (summed over the time) for each
second of computation comes first. The gain of a gap seldom grows when others are taken, so a queue with old gains finds
the best one after a few evaluations (Minoux 1978, "lazy greedy").

Many values may be computed from the same few, as the growing concatenations of a dense network from its layers. Keeping
those few pays only once several values are dropped. With `shared`, what is kept is charged in equal parts to all values
that could be dropped for it.

At too low a target the limit is spent on whatever is cheapest for its bytes, wherever it is; at the right one it is
spent where the peak is. So `relieved` finds the target by bisection. Once the program is ordered anew, `pruned` gives
up clones that this order does not need.
"""

import heapq
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from graphrl.xla.recompute.state import State

SMALL = 0.05  # of the bytes that are dropped may be kept alive instead of computed again
SMALL_SHARED = 0.8  # the same with shared charges
MAX_CHAIN = 8  # clones for one gap
PRECISE = 0.01  # of the peak: the search for a target ends when it knows it so well
MAX_RUNS = 8


def relieved(state: State, limit: float, over: Callable[[], bool]) -> State:
    """A state of lower peak with more clones, or the state itself if there is none: a search over targets.

    Args:
      limit: seconds of all clones, those that are there included.
      over: whether to stop with what there is.
    """
    apart, shared = _tried(state, 0, limit, False, over), _tried(state, 0, limit, True, over)
    share = int(shared.profile.max()) < int(apart.profile.max())
    best = min(state, apart, shared, key=_rank)
    low, high = 0, int(best.profile.max())
    for _ in range(MAX_RUNS):
        if high - low <= PRECISE * high or over():
            break
        target = (low + high) // 2
        tried = _tried(state, target, limit, share, over)
        best = min(best, tried, key=_rank)
        high = min(high, int(tried.profile.max()))
        if high > target:
            low = target
    return best


def _tried(state: State, target: int, limit: float, shared: bool, over: Callable[[], bool]) -> State:
    tried = state.copy()
    Greedy(tried, target, shared).run(limit, over)
    return tried


def _rank(state: State) -> tuple[int, float]:
    return int(state.profile.max()), state.spent


class _Closure:
    """What computing an op again at some time takes."""

    def __init__(self, room: float) -> None:
        self.room = room  # bytes that may be kept for it
        self.order: dict[int, int] = {}  # op -> order in which it is computed; operands first
        self.reads: dict[int, dict[int, int | None]] = {}  # op -> buffer -> value; None: made here
        self.kept: dict[int, float] = {}  # values that live longer for it -> bytes charged


class _Gain(NamedTuple):
    score: float  # bytes x time over the target, less, for each second
    seconds: float
    time: int
    readers: list[int]  # nodes that read the clone
    closure: _Closure


class Greedy:
    """Relieves a state, in place.

    Args:
      state: to change.
      target: bytes.
      shared: whether to charge what is kept to several values.
    """

    def __init__(self, state: State, target: int, shared: bool = False) -> None:
        self._state, self._target, self._shared = state, target, shared
        self._queue: list[tuple[float, int, int]] = []  # (-score, value, time of the later use)
        self._charged = self._charges() if shared else {}

    def run(self, limit: float, over: Callable[[], bool]) -> None:
        """Takes gaps until nothing is over the target, or the limit (seconds of all clones) is reached, or `over`."""
        state = self._state
        for value in list(state.values):
            self._offer(value)
        while self._queue and state.profile.max() > self._target and not over():
            _, value, time = heapq.heappop(self._queue)
            gain = self._gain(value, time)
            if gain is None or state.spent + gain.seconds > limit:
                continue
            if self._queue and -gain.score > self._queue[0][0]:
                heapq.heappush(self._queue, (-gain.score, value, time))
                continue
            self._take(value, gain)

    def _offer(self, value: int) -> None:
        """Puts all gaps of a value into the queue."""
        state = self._state
        v = state.values[value]
        if not state.facts.repeatable[state.op[v.writer]]:
            return
        for time in sorted({state.time[node] for node in v.readers})[1:]:
            gain = self._gain(value, time)
            if gain is not None:
                heapq.heappush(self._queue, (-gain.score, value, time))

    def _gain(self, value: int, time: int) -> _Gain | None:
        """What dropping a value before its use at a time gains; None if that is nothing, or cannot be."""
        state = self._state
        v = state.values[value]
        late = [node for node in v.readers if state.time[node] >= time]
        earlier = [state.time[node] for node in v.readers if state.time[node] < time]
        if not earlier or min((state.time[node] for node in late), default=0) != time:
            return None
        begin, at = max(earlier), time & ~1
        if begin >= at or any((state.op[node], v.buffer) in state.facts.fixed for node in late):
            return None
        over = state.profile[begin + 1 : at] - self._target
        size = state.size(value)
        if len(over) == 0 or over.max() <= 0:
            return None
        closure = _Closure((SMALL_SHARED if self._shared else SMALL) * size)
        if not self._close(state.op[v.writer], at, closure):
            return None
        seconds = sum(state.facts.seconds[op] for op in closure.order)
        relief = self._relief(size, begin, at, closure)
        return _Gain(relief / seconds, seconds, at, late, closure) if relief > 0 else None

    def _relief(self, size: int, begin: int, at: int, closure: _Closure) -> float:
        """Bytes over the target, summed over the time, that dropping `size` bytes from `begin` to `at` takes away."""
        state = self._state
        first = begin + 1
        ends = {value: state.death(value) + (value not in state.taken) for value in closure.kept}
        first = min([first, *ends.values()])
        change = np.zeros(at + 1 - first)
        change[begin + 1 - first : -1] -= size
        for value, end in ends.items():
            change[end - first :] += closure.kept[value]
        buffers = [state.facts.flow.writes[op][0] for op in closure.order]
        change[-1] += sum(state.facts.flow.size[buffer] for buffer in buffers) - size
        over = state.profile[first : at + 1] - self._target
        return float(np.maximum(over, 0).sum() - np.maximum(over + change, 0).sum())

    def _close(self, op: int, at: int, closure: _Closure) -> bool:
        """Adds an op and all that it needs; whether it can be computed at that time."""
        state, flow = self._state, self._state.facts.flow
        if len(closure.order) + 1 > MAX_CHAIN:
            return False
        reads: dict[int, int | None] = {}
        for buffer in flow.reads[op]:
            writer = state.facts.writer[buffer]
            if writer in closure.order:
                reads[buffer] = None
                continue
            value = self._last_before(buffer, at)
            if value is None:
                return False
            if not flow.pinned[buffer] and flow.size[buffer] and state.death(value) < at:
                charge = self._charged[buffer] if self._shared else flow.size[buffer]
                again = state.facts.repeatable[writer] and (op, buffer) not in state.facts.fixed
                if not (again and self._shared) and charge <= closure.room:
                    again = False
                elif not again:
                    return False
                if again:
                    if not self._close(writer, at, closure):
                        return False
                    reads[buffer] = None
                    continue
                closure.room -= charge if value not in closure.kept else 0
                closure.kept[value] = charge
            reads[buffer] = value
        closure.order[op] = len(closure.order)
        closure.reads[op] = reads
        return len(closure.order) <= MAX_CHAIN

    def _charges(self) -> dict[int, float]:
        """Bytes that keeping each buffer costs one of those who need it."""
        state, flow = self._state, self._state.facts.flow
        top = int(state.profile.argmax())
        charges = {}
        for buffer in state.facts.writer:
            again = [flow.writes[user][0] for user in flow.users[buffer] if state.facts.repeatable[user]]
            sharing = sum(state.birth(value) <= top < state.death(value) for value in again)
            charges[buffer] = flow.size[buffer] / max(1, sharing)
        return charges

    def _last_before(self, buffer: int, at: int) -> int | None:
        """The youngest value of a buffer that is there at a time."""
        state = self._state
        births = [(state.birth(value), value) for value in state.versions[buffer] if state.birth(value) <= at]
        return max(births)[1] if births else None

    def _take(self, value: int, gain: _Gain) -> None:
        state, closure = self._state, gain.closure
        begin = max(state.time[node] for node in state.values[value].readers if state.time[node] < gain.time)
        end = state.death(value)
        for kept in closure.kept:
            state.profile[state.death(kept) + (kept not in state.taken) : gain.time + 1] += state.size(kept)
            state.taken.discard(kept)
        new: dict[int, int] = {}
        for op in closure.order:
            reads = {b: new[state.facts.writer[b]] if v is None else v for b, v in closure.reads[op].items()}
            new[op] = state.add(op, gain.time, reads)
            state.profile[gain.time] += state.size(new[op])
        again = new[state.op[state.values[value].writer]]
        for node in gain.readers:
            state.move(node, again)
        state.profile[begin + 1 : gain.time + 1] -= state.size(value)
        if value in state.taken:
            state.taken.discard(value)
            state.taken.add(again)
        assert end == state.death(again)
        read = {v for reads in closure.reads.values() for v in reads.values() if v is not None}
        for offered in (*new.values(), *sorted(read)):  # uses are new, or later
            self._offer(offered)


Clones = list[tuple[int, frozenset[int]]]


def pruned(state: State) -> list[int]:
    """Gives up clones, the most expensive first, whose value may as well be kept from its last use on without a higher
    peak; and those that only they read. `state` is changed: it still has their nodes, but nobody reads them.

    Returns:
      The nodes given up.
    """
    n, peak = state.facts.n, int(state.profile.max())
    written = {v.writer: number for number, v in state.values.items()}
    gone: list[int] = []
    for node in sorted(range(n, len(state.op)), key=lambda node: -state.facts.seconds[state.op[node]]):
        value = written[node]
        if state.values[value].readers and _may_go(state, value, peak):
            gone += _give_up(state, node, written)
    return gone


def _earlier(state: State, value: int) -> int | None:
    """The youngest other value of the same buffer that is there when this one is written."""
    versions = state.versions[state.values[value].buffer]
    birth = state.birth(value)
    births = [(state.birth(v), v) for v in versions if v != value and state.birth(v) <= birth and _in_use(state, v)]
    return max(births)[1] if births else None


def _in_use(state: State, value: int) -> bool:
    v = state.values[value]
    return v.writer < state.facts.n or bool(v.readers)


def _may_go(state: State, value: int, peak: int) -> bool:
    earlier = _earlier(state, value)
    if earlier is None:
        return False
    begin = state.death(earlier) + (earlier not in state.taken)
    added = state.profile[begin : state.birth(value)]
    return not len(added) or int(added.max()) + state.size(value) <= peak


def _give_up(state: State, node: int, written: dict[int, int]) -> list[int]:
    """Has the readers of a clone read the value before it; the nodes that nobody needs then."""
    value = written[node]
    earlier = _earlier(state, value)
    assert earlier is not None
    begin = state.death(earlier) + (earlier not in state.taken)
    state.profile[begin : state.birth(value)] += state.size(value)
    state.taken.discard(earlier)
    if value in state.taken:
        state.taken.add(earlier)
    for reader in list(state.values[value].readers):
        state.move(reader, earlier)
    return _unread(state, node, written)


def _unread(state: State, node: int, written: dict[int, int]) -> list[int]:
    gone = [node]
    for value in state.reads[node].values():
        v = state.values[value]
        v.readers.discard(node)
        if not v.readers and v.writer >= state.facts.n:
            gone += _unread(state, v.writer, written)
    return gone


def without(state: State, gone: list[int]) -> tuple[list[int], Clones]:
    """The order and the clones that are left, renumbered, as `State` takes them."""
    n, dropped = state.facts.n, set(gone)
    kept = [node for node in range(len(state.op)) if node not in dropped]
    number = {node: k for k, node in enumerate(kept)}
    rank = state.facts.flow.graph.arrays.rank
    order = [number[node] for node in sorted(kept, key=lambda node: (state.time[node], rank[state.op[node]]))]
    written = {v.writer: v for v in state.values.values() if v.writer >= n}
    clones = [
        (state.op[node], frozenset(number[reader] for reader in written[node].readers if reader in number))
        for node in kept[n:]
    ]
    return order, clones
