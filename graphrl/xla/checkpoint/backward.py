"""The kernels of the backward pass: which values of the forward pass each reads, and the bytes of its own pass."""

from collections.abc import Collection, Mapping

import numpy as np

from graphrl.graphs.readers.jaxpr.flatten import Node, Result, Scalar
from graphrl.graphs.readers.jaxpr.loops import scan_operands
from graphrl.xla.checkpoint.copies import Value
from graphrl.xla.checkpoint.forward import Forward
from graphrl.xla.checkpoint.kinds import is_in_place, is_reduction, is_update
from graphrl.xla.checkpoint.nodes import Nodes


class Backward:
    """Nodes of a derivative's backward pass that write into memory or read values.

    A node that does not write is run by later ones, but jax has its operands where its own equation stands: those of
    earlier segments are kept. Nodes are here if they write by `solid` or by `held`: by the first they take
    seconds, by the second bytes, and what has none is computed by those who read it.

    Attributes:
      kernels: these nodes, in order.
      reads: of each kernel, the values of the forward pass, by number.
    """

    def __init__(self, nodes: Nodes, forward: Forward) -> None:
        self._nodes, self._own, self._values = nodes, nodes.own, forward.values
        self.kernels: list[int] = []
        self.reads: list[list[int]] = []
        self._needs: list[set[Result]] = []  # of each kernel, what of their own pass it reads
        self._find(forward.number)
        sources = forward.sources()
        self._sources = [set[int]().union(*(sources[v] for v in reads)) for reads in self.reads]
        self._last_kernel = {v: q for q, read in enumerate(self._sources) for v in read}
        self._reduced = {
            value
            for i in self._own.backward_nodes()
            if is_reduction(nodes.own.node(i).equation)
            for value in self._own.reads(i)
        }

    def place(self) -> np.ndarray:
        """Of each kernel, the equation that it is of."""
        return np.array([self._own.place[i] for i in self.kernels], np.int64)

    def copies(self) -> list[list[float]]:
        """Of each kernel, bytes of its copy of each value that it reads, where that is not computed again."""
        copies = map(self._nodes.copies, self.kernels)
        pairs = zip(copies, self.reads, strict=True)
        return [[float(own.get(self._values[v], 0)) for v in reads] for own, reads in pairs]

    def seconds(self, inner: Collection[int]) -> np.ndarray:
        """Of each kernel, but for loops."""
        own = [(q not in inner and self._nodes.writes(i)) * self._nodes.seconds(i) for q, i in enumerate(self.kernels)]
        return np.array(own, float)

    def bytes(self, inner: Collection[int]) -> np.ndarray:
        """At each kernel, bytes of what is computed and still needed in the backward pass, but for what lies in the
        memory of the results; and the workspace of those that are no loops.
        """
        last = {value: q for q, needs in enumerate(self._needs) for value in needs}
        changes = np.zeros(len(self.kernels) + 1)
        elsewhere = self._in_results(last)
        for q, i in enumerate(self.kernels):
            for value in self._nodes.results(i):
                if self._nodes.is_held(value) and value not in elsewhere:
                    size = self._own.bytes(value) * max(1, len(self._nodes.orders.get(value, ())))
                    begun = self._begun(q, value, last)
                    in_place = self._is_in_place(q, size, last) or (begun is not None and begun not in elsewhere)
                    changes[q + in_place] += size
                    changes[max(last.get(value, q), q) + 1] -= size
        workspace = [self._nodes.workspace(Result(i, 0)) * (q not in inner) for q, i in enumerate(self.kernels)]
        return np.cumsum(changes)[:-1] + workspace

    def _find(self, number: Mapping[Value, int]) -> None:
        """Sets the kernels and what they read, through nodes that do not write."""
        of: dict[int, tuple[set[int], set[Result]]] = {}
        for i in self._own.backward_nodes():
            values: set[int] = set()
            before: set[Result] = set()
            read = self._own.reads(i)
            for value in read:
                if value in number:
                    values.add(number[value])
                elif isinstance(value, Result) and self._nodes.is_held(value):
                    before.add(value)
                elif isinstance(value, Result):
                    values |= of[value.node][0]
                    before |= of[value.node][1]
            of[i] = values, before
            holds = any(map(self._nodes.is_held, self._nodes.results(i)))
            if holds or self._nodes.writes(i) or any(value in number for value in read):
                self.kernels.append(i)
                self.reads.append(sorted(values))
                self._needs.append(before)

    def _in_results(self, last: Mapping[Result, int]) -> set[Result]:
        """What lies in the memory of the results: gradients, and what loops and updates begin them with."""
        there = {value for value in self._own.gradients if isinstance(value, Result)}
        for q in reversed(range(len(self.kernels))):
            begun = (self._begun(q, value, last) for value in self._nodes.results(self.kernels[q]) if value in there)
            there |= {value for value in begun if value is not None}
        return there

    def _begun(self, q: int, value: Result, last: Mapping[Result, int]) -> Result | None:
        """What a scan carries first in the place of a result, or what a result is an update of, if nothing reads that
        later: both lie in the same memory. What is carried in several places does so in the first, and is copied.
        """
        node = self._own.node(self.kernels[q])
        at = _first_operand(node, value.output)
        if at is None:
            return None
        operands = [each if isinstance(each, Scalar) else self._own.same.get(each, each) for each in node.operands]
        begun = operands[at]
        if not isinstance(begun, Result) or begun not in self._needs[q] or begun in self._own.gradients:
            return None
        return begun if last[begun] == q and begun not in operands[:at] else None

    def _is_in_place(self, q: int, size: int, last: Mapping[Result, int]) -> bool:
        """Whether a kernel writes so many bytes over an operand that nothing reads any more: a fused one, which has
        read an element before it writes it, or one that updates its operand. XLA computes sums of a result in its
        kernel, whose threads then read more than what they write.
        """
        kernel = self.kernels[q]
        if not is_in_place(self._own.node(kernel).equation) or self._reduced & {*self._nodes.results(kernel)}:
            return False
        values = (self._values[v] for v in self._sources[q] if self._last_kernel[v] == q)
        needs = (value for value in self._needs[q] if last[value] == q)
        return any(self._own.bytes(value) == size for value in (*values, *needs))


def _first_operand(node: Node, output: int) -> int | None:
    """Which operand a result begins with: the carried one of a scan in its place, or the array that is updated."""
    if not node.operands:  # a graph says so of scatters only
        return None
    if is_update(node.equation):
        return 0
    if node.type != "scan":
        return None
    constants, carried = scan_operands(node.equation.params)
    return constants + output if output < carried else None
