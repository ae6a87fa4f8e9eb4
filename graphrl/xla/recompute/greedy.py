"""Greedy choice of values to compute again, so that a schedule needs at most a target number of bytes.

A `State` is a schedule with clones, as live ranges of values over time. The op at position p of the order runs at time
2 p + 1; the clones for it run at time 2 p, right before. A **node** is one of n ops (its index) or a clone of one
(numbers from n on). A **value** is a version of a buffer, written by one node. Values of ops have the numbers of their
buffers, values of clones further numbers.

A **gap** is the time between two uses of a value. Dropping the value there, and computing it again right before the
later use, frees memory in between. The operands must exist then: each is alive anyway, is small and kept for that, or
is computed again too. Gaps are chosen by their score: bytes over the target that they remove, summed over time, per
second of computation. Scores seldom grow when other gaps are chosen, so a queue of old scores finds the best gap after
a few evaluations (Minoux 1978, "lazy greedy").

Many values may be computed from the same few operands, such as the growing concatenations of a dense network from its
layers. Keeping these operands pays only if several values are dropped. With `shared`, a kept operand is charged in
equal parts to all values that could be dropped because of it.

If the target is too low, the limit is spent on the clones that are cheapest for their bytes, even away from the peak.
At the right target it is spent at the peak. So `lower_peak` finds the target by bisection.
"""

import dataclasses
import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.flow import Flow

SMALL = 0.05  # operands of at most this share of the dropped bytes may be kept alive instead of computed again
SMALL_SHARED = 0.8  # the same with shared charges
MAX_CHAIN = 8  # most clones for one gap
PRECISE = 0.01  # share of the peak: the bisection of the target ends at this interval
MAX_RUNS = 8  # most steps of the bisection


class Facts:
    """Facts about a graph of n ops that do not depend on the schedule.

    Attributes:
      flow: the graph as lists.
      seconds: estimated run time of each op.
      repeatable: whether each op may be computed again.
      fixed: pairs (op, buffer): the op must read the original value of the buffer, not a clone's.
    """

    def __init__(
        self,
        graph: ComputationGraph,
        seconds: Sequence[float],
        repeatable: Sequence[bool],
        may_read_clone: Callable[[str, str], bool],
    ) -> None:
        """`may_read_clone(reader, origin)`: whether op `reader` may read a clone of op `origin`; both are names."""
        self.flow = Flow(graph)
        self.seconds, self.repeatable = seconds, repeatable
        self.n = graph.arrays.num_ops
        self.workspace = graph.arrays.workspace_bytes
        self.writer = {b: op for op, buffers in enumerate(self.flow.writes) for b in buffers}
        self.fixed = {
            (user, buffer)
            for buffer, writer in self.writer.items()
            if repeatable[writer]
            for user in self.flow.users[buffer]
            if not may_read_clone(graph.ops[user].name, graph.ops[writer].name)
        }
        self.reuses: dict[int, list[tuple[int, int]]] = {}  # op -> (buffer written, buffer that it may take over)
        for buffer, source in sorted(self.flow.reuses.items()):
            pairs = self.reuses.setdefault(self.writer[buffer], [])
            if source not in {other for _, other in pairs}:
                pairs.append((buffer, source))


class State:
    """An order of ops and clones, and the live ranges of their values.

    Attributes:
      facts: facts about the graph.
      op: for each node, the op that it computes.
      time: for each node, the time at which it runs.
      reads: for each node, a table: buffer -> the value of it that the node reads.
      values: number -> value; values that clones write have numbers above those of all buffers.
      versions: buffer -> numbers of its values.
      clone_seconds: estimated run time of all clones together.
      profile: `[2 n]` int64, bytes in use at each time.
    """

    def __init__(self, facts: Facts, order: Sequence[int], clones: Sequence[tuple[int, frozenset[int]]] = ()) -> None:
        """Builds the state of an order.

        Args:
          facts: facts about the graph.
          order: all nodes (ops and clones) in execution order.
          clones: for each clone, its op and the nodes that read it; the k-th clone is node n + k.
        """
        self.facts, flow = facts, facts.flow
        self.op = [*range(facts.n), *(op for op, _ in clones)]
        self.reads: list[dict[int, int]] = [{b: b for b in flow.reads[op]} for op in self.op]
        self.values = {b: Value(b, op, set()) for b, op in facts.writer.items()}
        self.versions = {b: [b] for b in facts.writer}
        self._next_value = max(facts.writer, default=0) + 1
        for k, (op, readers) in enumerate(clones):
            (buffer,) = flow.writes[op]
            self._version(buffer, facts.n + k)
            for node in readers:
                self.reads[node][buffer] = self._next_value - 1
        for node, reads in enumerate(self.reads):
            for value in reads.values():
                self.values[value].readers.add(node)
        self.time = [0] * len(order)
        for place, node in enumerate(order):
            self.time[node] = 2 * place + 1
        self.clone_seconds = sum(facts.seconds[op] for op, _ in clones)
        self.overwritten = self._overwritten()
        self.profile = self._profile(len(order))

    def copy(self) -> "State":
        """Returns an independent copy; `facts` is shared."""
        other = object.__new__(State)
        other.facts, other.overwritten = self.facts, self.overwritten
        other.clone_seconds, other._next_value = self.clone_seconds, self._next_value
        other.op, other.time, other.profile = list(self.op), list(self.time), self.profile.copy()
        other.reads = [dict(reads) for reads in self.reads]
        other.values = {number: Value(v.buffer, v.writer, set(v.readers)) for number, v in self.values.items()}
        other.versions = {buffer: list(numbers) for buffer, numbers in self.versions.items()}
        return other

    @property
    def clones(self) -> list[tuple[int, frozenset[int]]]:
        """The clones, as the constructor takes them."""
        n = self.facts.n
        written = {v.writer: v for v in self.values.values() if v.writer >= n}
        return [(self.op[node], frozenset(written[node].readers)) for node in range(n, len(self.op))]

    def size(self, value: int) -> int:
        """Returns the size of a value in bytes."""
        return self.facts.flow.size[self.values[value].buffer]

    def birth(self, value: int) -> int:
        """Returns the time at which a value is written."""
        return self.time[self.values[value].writer]

    def death(self, value: int) -> int:
        """Returns the time of a value's last use, or at which it is written if it has no readers."""
        v = self.values[value]
        return max((self.time[node] for node in v.readers), default=self.time[v.writer])

    def add(self, op: int, time: int, reads: Mapping[int, int]) -> int:
        """Adds a clone of an op, without readers.

        Args:
          op: the op.
          time: time at which the clone runs.
          reads: buffer -> the value of it that the clone reads.

        Returns:
          The number of the value that it writes.
        """
        node = len(self.op)
        self.op.append(op)
        self.time.append(time)
        self.reads.append(dict(reads))
        for value in reads.values():
            self.values[value].readers.add(node)
        (buffer,) = self.facts.flow.writes[op]
        self._version(buffer, node)
        self.clone_seconds += self.facts.seconds[op]
        return self._next_value - 1

    def move(self, node: int, value: int) -> None:
        """Redirects a node's read of a buffer to another value of it."""
        buffer = self.values[value].buffer
        self.values[self.reads[node][buffer]].readers.remove(node)
        self.reads[node][buffer] = value
        self.values[value].readers.add(node)

    def _version(self, buffer: int, node: int) -> None:
        self.values[self._next_value] = Value(buffer, node, set())
        self.versions[buffer].append(self._next_value)
        self._next_value += 1

    def _overwritten(self) -> set[int]:
        """Returns the values that their last reader writes over."""
        overwritten = set()
        for node, op in enumerate(self.op):
            for _, source in self.facts.reuses.get(op, ()):
                value = self.reads[node].get(source)
                if value is not None and not self.facts.flow.pinned[source] and self.death(value) == self.time[node]:
                    overwritten.add(value)
        return overwritten

    def _profile(self, places: int) -> np.ndarray:
        change = np.zeros(2 * places + 1, np.int64)
        for number, value in self.values.items():
            end = 2 * places if self.facts.flow.pinned[value.buffer] else self.death(number) + 1
            size = self.size(number)
            change[self.birth(number)] += size
            change[end - 1 if number in self.overwritten else end] -= size
        usage = np.cumsum(change)[:-1]
        for node, op in enumerate(self.op):
            usage[self.time[node]] += self.facts.workspace[op]
        return usage


def lower_peak(state: State, limit: float, over: Callable[[], bool]) -> State:
    """Adds clones that lower the peak, by bisection of the target.

    Args:
      state: the present state; it is not changed.
      limit: most seconds of all clones together, present ones included.
      over: returns True once the search should stop with the best state so far.

    Returns:
      A state of lower peak, or `state` itself if the search finds no such state.
    """
    separate, shared = _attempt(state, 0, limit, False, over), _attempt(state, 0, limit, True, over)
    share = int(shared.profile.max()) < int(separate.profile.max())
    best = min(state, separate, shared, key=_rank)
    low, high = 0, int(best.profile.max())
    for _ in range(MAX_RUNS):
        if high - low <= PRECISE * high or over():
            break
        target = (low + high) // 2
        candidate = _attempt(state, target, limit, share, over)
        best = min(best, candidate, key=_rank)
        high = min(high, int(candidate.profile.max()))
        if high > target:
            low = target
    return best


@dataclasses.dataclass(eq=False)
class Value:
    """A version of a buffer, written by one node.

    Attributes:
      buffer: number of the buffer.
      writer: the node that writes it.
      readers: the nodes that read it.
    """

    buffer: int
    writer: int
    readers: set[int]


def _attempt(state: State, target: int, limit: float, shared: bool, over: Callable[[], bool]) -> State:
    candidate = state.copy()
    Greedy(candidate, target, shared).run(limit, over)
    return candidate


def _rank(state: State) -> tuple[int, float]:
    return int(state.profile.max()), state.clone_seconds


class _Closure:
    """Ops to compute again and values to keep, so that one op can be computed again at a later time."""

    def __init__(self, room: float) -> None:
        self.room = room  # bytes that may be kept for it
        self.order: dict[int, int] = {}  # op -> order in which it is computed; operands first
        self.reads: dict[int, dict[int, int | None]] = {}  # op -> buffer -> value; None: computed in this closure
        self.kept: dict[int, float] = {}  # values that live longer for it -> bytes charged


class _Gain(NamedTuple):
    score: float  # decrease of bytes x time over the target, per second of computation
    seconds: float
    time: int
    readers: list[int]  # nodes that read the clone
    closure: _Closure


class Greedy:
    """Greedy search that adds clones to a state, in place.

    Args:
      state: the state to change.
      target: peak to reach, in bytes.
      shared: True to divide the charge for a kept operand among several values.
    """

    def __init__(self, state: State, target: int, shared: bool = False) -> None:
        self._state, self._target, self._shared = state, target, shared
        self._queue: list[tuple[float, int, int]] = []  # (-score, value, time of the later use)
        self._charged = self._charges() if shared else {}

    def run(self, limit: float, over: Callable[[], bool]) -> None:
        """Drops values in gaps until the peak is at most the target, no gap fits the limit, or `over` returns True.

        Args:
          limit: most seconds of all clones together.
          over: returns True once the search should stop.
        """
        state = self._state
        for value in list(state.values):
            self._offer(value)
        while self._queue and state.profile.max() > self._target and not over():
            _, value, time = heapq.heappop(self._queue)
            gain = self._gain(value, time)
            if gain is None or state.clone_seconds + gain.seconds > limit:
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
        """Computes the gain of dropping a value before its use at `time`; None if not positive or not feasible."""
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
        """Sums, over time, the decrease of bytes over the target if `size` bytes are dropped from `begin` to `at`."""
        state = self._state
        first = begin + 1
        ends = {value: state.death(value) + (value not in state.overwritten) for value in closure.kept}
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
        """Adds an op and all that it needs to the closure; True if it can be computed at time `at`."""
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
                recompute = state.facts.repeatable[writer] and (op, buffer) not in state.facts.fixed
                if not (recompute and self._shared) and charge <= closure.room:
                    recompute = False
                elif not recompute:
                    return False
                if recompute:
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
        """Returns the bytes charged for keeping each buffer.

        This is its size divided by the number of repeatable values that read it and are alive at the peak, at least 1.
        """
        state, flow = self._state, self._state.facts.flow
        top = int(state.profile.argmax())
        charges = {}
        for buffer in state.facts.writer:
            values = [flow.writes[user][0] for user in flow.users[buffer] if state.facts.repeatable[user]]
            sharing = sum(state.birth(value) <= top < state.death(value) for value in values)
            charges[buffer] = flow.size[buffer] / max(1, sharing)
        return charges

    def _last_before(self, buffer: int, at: int) -> int | None:
        """Returns the latest value of a buffer that is written no later than time `at`, or None."""
        state = self._state
        births = [(state.birth(value), value) for value in state.versions[buffer] if state.birth(value) <= at]
        return max(births)[1] if births else None

    def _take(self, value: int, gain: _Gain) -> None:
        state, closure = self._state, gain.closure
        begin = max(state.time[node] for node in state.values[value].readers if state.time[node] < gain.time)
        end = state.death(value)
        for kept in closure.kept:
            state.profile[state.death(kept) + (kept not in state.overwritten) : gain.time + 1] += state.size(kept)
            state.overwritten.discard(kept)
        new: dict[int, int] = {}
        for op in closure.order:
            reads = {b: new[state.facts.writer[b]] if v is None else v for b, v in closure.reads[op].items()}
            new[op] = state.add(op, gain.time, reads)
            state.profile[gain.time] += state.size(new[op])
        clone = new[state.op[state.values[value].writer]]
        for node in gain.readers:
            state.move(node, clone)
        state.profile[begin + 1 : gain.time + 1] -= state.size(value)
        if value in state.overwritten:
            state.overwritten.discard(value)
            state.overwritten.add(clone)
        assert end == state.death(clone)
        read = {v for reads in closure.reads.values() for v in reads.values() if v is not None}
        for offered in (*new.values(), *sorted(read)):  # these values have new or later uses
            self._offer(offered)
