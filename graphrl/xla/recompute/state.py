"""A schedule with instructions computed again, as live ranges of values on a line of places.

The op at place p of the order runs at time 2 p + 1; what is computed again for it runs at time 2 p, right before.
A **node** is an op (its index) or a clone of one (numbers from n on). A **value** is a buffer as one node writes it:
values have the numbers of their buffers, those of clones further numbers.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.flow import Flow


@dataclasses.dataclass(eq=False)
class Value:
    """A buffer as one node writes it.

    Attributes:
      buffer: number.
      writer: node.
      readers: nodes.
    """

    buffer: int
    writer: int
    readers: set[int]


class Facts:
    """What the schedule does not change: n ops, what they read and write, what may be computed again.

    Attributes:
      flow: the graph as lists.
      seconds: by op.
      repeatable: by op.
      fixed: pairs (op, buffer): the op must read the original.
    """

    def __init__(
        self,
        graph: ComputationGraph,
        seconds: Sequence[float],
        repeatable: Sequence[bool],
        may_read_clone: Callable[[str, str], bool],
    ) -> None:
        """Args: `may_read_clone(reader, origin)` of the names of ops."""
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
        self.reuses: dict[int, list[tuple[int, int]]] = {}  # by op: (buffer written, buffer that it may take over)
        for buffer, source in sorted(self.flow.reuses.items()):
            taken = self.reuses.setdefault(self.writer[buffer], [])
            if source not in {other for _, other in taken}:
                taken.append((buffer, source))


class State:
    """An order of ops and clones.

    Attributes:
      facts: of the graph.
      op: by node, the op that it computes.
      time: by node.
      reads: by node, the value that it reads of each buffer.
      values: by number; those that a clone writes are the only ones of their buffers' numbers beyond.
      versions: by buffer, the numbers of its values.
      spent: seconds of all clones.
      profile: `[2 n] int64`, bytes at each time.
    """

    def __init__(self, facts: Facts, order: Sequence[int], clones: Sequence[tuple[int, frozenset[int]]] = ()) -> None:
        """Takes an order over.

        Args:
          order: nodes: all ops and clones.
          clones: of each, the op and the nodes that read it; the k-th is node n + k.
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
        self.spent = sum(facts.seconds[op] for op, _ in clones)
        self.taken = self._taken_over()
        self.profile = self._profile(len(order))

    def copy(self) -> "State":
        """A state of its own."""
        other = object.__new__(State)
        other.facts, other.taken, other.spent, other._next_value = self.facts, self.taken, self.spent, self._next_value
        other.op, other.time, other.profile = list(self.op), list(self.time), self.profile.copy()
        other.reads = [dict(reads) for reads in self.reads]
        other.values = {number: Value(v.buffer, v.writer, set(v.readers)) for number, v in self.values.items()}
        other.versions = {buffer: list(numbers) for buffer, numbers in self.versions.items()}
        return other

    @property
    def clones(self) -> list[tuple[int, frozenset[int]]]:
        """As the constructor takes them."""
        n = self.facts.n
        written = {v.writer: v for v in self.values.values() if v.writer >= n}
        return [(self.op[node], frozenset(written[node].readers)) for node in range(n, len(self.op))]

    def size(self, value: int) -> int:
        """Bytes of a value."""
        return self.facts.flow.size[self.values[value].buffer]

    def birth(self, value: int) -> int:
        """When a value is written."""
        return self.time[self.values[value].writer]

    def death(self, value: int) -> int:
        """When a value is used last."""
        v = self.values[value]
        return max((self.time[node] for node in v.readers), default=self.time[v.writer])

    def add(self, op: int, time: int, reads: Mapping[int, int]) -> int:
        """A clone of an op, without readers so far.

        Args:
          reads: the value of each buffer that it reads.

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
        self.spent += self.facts.seconds[op]
        return self._next_value - 1

    def move(self, node: int, value: int) -> None:
        """Has a node read another value of a buffer."""
        buffer = self.values[value].buffer
        self.values[self.reads[node][buffer]].readers.remove(node)
        self.reads[node][buffer] = value
        self.values[value].readers.add(node)

    def _version(self, buffer: int, node: int) -> None:
        self.values[self._next_value] = Value(buffer, node, set())
        self.versions[buffer].append(self._next_value)
        self._next_value += 1

    def _taken_over(self) -> set[int]:
        """Values whose last reader writes over them."""
        taken = set()
        for node, op in enumerate(self.op):
            for _, source in self.facts.reuses.get(op, ()):
                value = self.reads[node].get(source)
                if value is not None and not self.facts.flow.pinned[source] and self.death(value) == self.time[node]:
                    taken.add(value)
        return taken

    def _profile(self, places: int) -> np.ndarray:
        change = np.zeros(2 * places + 1, np.int64)
        for number, value in self.values.items():
            end = 2 * places if self.facts.flow.pinned[value.buffer] else self.death(number) + 1
            size = self.size(number)
            change[self.birth(number)] += size
            change[end - 1 if number in self.taken else end] -= size
        usage = np.cumsum(change)[:-1]
        for node, op in enumerate(self.op):
            usage[self.time[node]] += self.facts.workspace[op]
        return usage
