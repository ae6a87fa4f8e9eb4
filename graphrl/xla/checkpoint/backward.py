"""Memory model of the backward pass: its kernels, the forward values that each reads, and the bytes that it needs.

- `Backward`: the kernels.
- `passed_cotangents`: gradients that are written where the backward pass goes from one segment to another.

| topic | rule of the model |
|---|---|
| in place (`Backward`) | a kernel without sums overwrites an operand of equal size that nothing reads any more |
| rows (`Backward`) | a kernel, such as a softmax's gradient, cannot overwrite an operand whose rows it reduces first |
| results (`Backward`) | gradients, and the initial values of their loops and updates, use the memory of the results |
| kept (`Backward.results`) | until a result is written, a kept value may use its memory (`solvers/price.py`) |
| scattered | arrays of one number that scatters update are stored in the memory of the results |
| barrier (`passed_cotangents`) | gradients of the results of a recomputed segment are written before its barrier |

A gradient that no kernel reads and that nothing else needs is computed on the fly by its readers. The backward pass of
a segment that is computed again starts behind a barrier, and the gradients of the segment's results are written before
that barrier. A sum with a gradient before the barrier, or outside of all segments, does not wait.
"""

from collections.abc import Collection, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np

from graphrl.graphs.readers.jaxpr.flatten import Node, Result, Scalar
from graphrl.graphs.readers.jaxpr.work import scan_operands
from graphrl.xla.checkpoint.derivative import Value
from graphrl.xla.checkpoint.equations import is_in_place, is_of_rows, is_reduction, is_update
from graphrl.xla.checkpoint.fusion import share_read
from graphrl.xla.checkpoint.memory import Forward, Nodes, Readers

SUM = "add_any"  # the op that sums the gradients of one value


class Backward:
    """The kernels of a derivative's backward pass: nodes that write to memory or read values of the forward pass.

    A node that does not write is computed by later ones. But jax needs its operands at the node's own equation, so
    operands from earlier segments are kept. A node may write by `fusion_of`, then it takes time, or by
    `materialized_values`, then its results occupy memory. A node with neither is computed by its readers.

    Attributes:
      kernels: indices of these nodes, in order.
      reads: for each kernel, the numbers of the forward values that it reads.
    """

    def __init__(self, nodes: Nodes, forward: Forward) -> None:
        self._nodes, self._derivative, self._values = nodes, nodes.derivative, forward.values
        self.kernels: list[int] = []
        self.reads: list[list[int]] = []
        self._needs: list[set[Result]] = []  # for each kernel, the values of its own pass that it reads
        self._by_rows: list[set[Value]] = []  # for each kernel, the values whose rows it reduces before it writes
        sources = forward.sources()
        self._find(forward.number, sources)
        self._sources = [set[int]().union(*(sources[v] for v in reads)) for reads in self.reads]
        self._last_kernel = {v: q for q, read in enumerate(self._sources) for v in read}
        self._last = {value: q for q, needs in enumerate(self._needs) for value in needs}
        self._reduced = {
            value
            for i in self._derivative.backward_nodes()
            if is_reduction(nodes.derivative.node(i).equation)
            for value in self._derivative.reads(i)
        }

    def place(self) -> np.ndarray:
        """`[kernels]` int64: index of the equation that each kernel is the derivative of."""
        return np.array([self._derivative.place[i] for i in self.kernels], np.int64)

    def copies(self) -> list[list[float]]:
        """Returns `Level.kernel_copies` for each kernel: for each value in `reads`, the bytes of a transposed copy."""
        copies = map(self._nodes.copies, self.kernels)
        pairs = zip(copies, self.reads, strict=True)
        return [[float(bytes_of.get(self._values[v], 0)) for v in reads] for bytes_of, reads in pairs]

    def seconds(self, inner: Collection[int]) -> np.ndarray:
        """`[kernels]` run time of each kernel in seconds; 0 for the loops, `inner`."""
        nodes = self._nodes
        seconds = [(q not in inner and nodes.writes(i)) * nodes.seconds(i) for q, i in enumerate(self.kernels)]
        return np.array(seconds, float)

    def bytes(self, inner: Collection[int]) -> np.ndarray:
        """`[kernels]` bytes in use at each kernel: results of the backward pass that are still needed, and workspace.

        Values in the memory of the results are not counted, nor is the workspace of the loops, `inner`.
        """
        changes = np.zeros(len(self.kernels) + 1)
        in_results = self._in_results()
        for q, i in enumerate(self.kernels):
            for value in self._nodes.results(i):
                if self._nodes.is_materialized(value) and value not in in_results:
                    size = self._derivative.bytes(value) * max(1, len(self._nodes.orders.get(value, ())))
                    initial = self._initial_value(q, value)
                    in_place = self._is_in_place(q, size) or (initial is not None and initial not in in_results)
                    changes[q + in_place] += size
                    changes[max(self._last.get(value, q), q) + 1] -= size
        workspace = [self._nodes.workspace(Result(i, 0)) * (q not in inner) for q, i in enumerate(self.kernels)]
        return np.cumsum(changes)[:-1] + workspace

    def results(self) -> list[tuple[int, int]]:
        """Returns the size in bytes of each gradient, and the first kernel that writes to its memory; by size."""
        results, first = list[tuple[int, int]](), dict[Result, int]()
        for q, i in enumerate(self.kernels):
            for value in self._nodes.results(i):
                initial = self._initial_value(q, value)
                first[value] = q if initial is None else first.get(initial, q)
                if value in self._derivative.gradients:
                    results.append((self._derivative.bytes(value), first[value]))
        return sorted(results)

    def _find(self, number: Mapping[Value, int], sources: Sequence[set[int]]) -> None:
        """Finds the kernels and the values that they read, directly or through nodes that do not write."""
        reads_of: dict[int, tuple[set[int], set[Result], set[Value]]] = {}
        for i in self._derivative.backward_nodes():
            values: set[int] = set()
            before: set[Result] = set()
            by_rows: set[Value] = set()
            read = self._derivative.reads(i)
            for value in read:
                if value in number:
                    values.add(number[value])
                elif isinstance(value, Result) and self._nodes.is_materialized(value):
                    before.add(value)
                elif isinstance(value, Result):
                    values |= reads_of[value.node][0]
                    before |= reads_of[value.node][1]
                    by_rows |= reads_of[value.node][2]
            node = self._derivative.node(i)
            if is_of_rows(node.equation) and self._derivative.bytes(read[0]) > sum(node.output_bytes):
                by_rows |= before | {self._values[v] for s in values for v in sources[s]}
            reads_of[i] = values, before, by_rows
            holds = any(map(self._nodes.is_materialized, self._nodes.results(i)))
            if holds or self._nodes.writes(i) or any(value in number for value in read):
                self.kernels.append(i)
                self.reads.append(sorted(values))
                self._needs.append(before)
                self._by_rows.append(by_rows)

    def _in_results(self) -> set[Result]:
        """Returns values in the memory of the results: gradients, and the initial values of their loops and updates."""
        values = {value for value in self._derivative.gradients if isinstance(value, Result)}
        for q in reversed(range(len(self.kernels))):
            results = values.intersection(self._nodes.results(self.kernels[q]))
            values |= {initial for value in results if (initial := self._initial_value(q, value)) is not None}
        return values

    def _initial_value(self, q: int, value: Result) -> Result | None:
        """Returns the initial carry of a scan's result, or the operand that a result updates; None if it is read later.

        Initial value and result share memory. A value that is the initial value of several carries shares the memory of
        the first, and is copied for the others.
        """
        node = self._derivative.node(self.kernels[q])
        at = _first_operand(node, value.output)
        if at is None:
            return None
        same = self._derivative.same
        operands = [each if isinstance(each, Scalar) else same.get(each, each) for each in node.operands]
        initial = operands[at]
        if not isinstance(initial, Result) or initial not in self._needs[q] or initial in self._derivative.gradients:
            return None
        return initial if self._last[initial] == q and initial not in operands[:at] else None

    def _is_in_place(self, q: int, size: int) -> bool:
        """True if a kernel writes `size` bytes over an operand that nothing reads any more.

        Such a kernel is fused, and has read an element before it writes it, or it updates its operand. XLA computes
        sums of a result in the kernel of that result, whose threads then read more than they write: those do not count.
        Nor do operands whose rows the kernel reduces before it writes.
        """
        kernel = self.kernels[q]
        if not is_in_place(self._derivative.node(kernel).equation) or self._reduced & {*self._nodes.results(kernel)}:
            return False
        values = (self._values[v] for v in self._sources[q] if self._last_kernel[v] == q)
        needs = (value for value in self._needs[q] if self._last[value] == q)
        return any(self._derivative.bytes(value) == size for value in {*values, *needs} - self._by_rows[q])


def _first_operand(node: Node, output: int) -> int | None:
    """Returns the index of the operand that a result starts from: a scan's initial carry, or the array it updates."""
    if not node.operands:  # a graph lists the operands of scatters only
        return None
    if is_update(node.equation):
        return 0
    if node.type != "scan":
        return None
    constants, carried = scan_operands(node.equation.params)
    return constants + output if output < carried else None


class Cotangent(NamedTuple):
    """A gradient that is written to memory only if a segment that is computed again waits for it.

    Attributes:
      place: the equation whose derivative computes it.
      seconds: seconds to write it, less those saved by readers that read it instead of the values it is computed from.
      to: for each reader before that equation, the reader's equation and the equation that computed the value whose
        gradient this is. The segment waits if both are in it; else a sum outside of segments reads the gradient.
    """

    place: int
    seconds: float
    to: list[tuple[int, int]]


def passed_cotangents(nodes: Nodes, copied: Set[int]) -> list[Cotangent]:
    """Finds the `Cotangent`s of a derivative, in order. `copied` equations are in no segment, so none waits there."""
    derivative, cotangents = nodes.derivative, []
    readers = derivative.readers(derivative.backward_nodes())
    for value, reading in readers.items():
        if not isinstance(value, Result) or not derivative.backward[value.node] or nodes.is_written(value):
            continue
        place, pairs = derivative.place[value.node], {(derivative.place[i], _home(nodes, readers, i)) for i in reading}
        to = [(at, home) for at, home in pairs if home is not None and at < place and not copied & {at, home}]
        if to:
            moved = nodes.fusion.moved[value]
            read = moved - sum(nodes.derivative.node(value.node).output_bytes)
            saved = sum(share_read(derivative, i, value) for i in reading) * (read - derivative.bytes(value))
            seconds = nodes.moving(max(0.0, moved - saved))  # below 0 by rounding only
            cotangents.append(Cotangent(place, seconds, sorted(to)))
    return cotangents


def _home(nodes: Nodes, readers: Readers, i: int) -> int | None:
    """Returns the equation that computed the value whose gradient node `i` reads; None for an argument's gradient."""
    while nodes.derivative.node(i).type == SUM:
        others = readers.get(Result(i, 0), ())
        if not others:
            return None
        i = next((j for j in others if nodes.derivative.node(j).type != SUM), others[0])
    return nodes.derivative.place[i]
