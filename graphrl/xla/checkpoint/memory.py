"""Memory model: values of the forward pass, kernels of the backward pass, and the bytes and seconds of both.

- `Nodes`: run times of single ops, whether their results are written to memory (`fusion`), and their workspace.
- `Forward`: the values of the forward pass, the values that each is computed from, and the cost of keeping each.
- `Backward`: the kernels of the backward pass, the forward values that each reads, and the bytes that the backward pass
  itself needs.
- `passed_cotangents`: gradients that are written where the backward pass goes from one segment to another.

| topic | rule of the model |
|---|---|
| libraries (`Nodes.workspace`) | padded images, transposed copies of operands, and cuBLAS's own buffer take bytes |
| order (`Nodes.rewritten`) | a recomputed value is written in the order of dimensions that all products need |
| in place (`Backward`) | a kernel without sums overwrites an operand of equal size that nothing reads any more |
| results (`Backward`) | gradients, and the initial values of their loops and updates, use the memory of the results |
| scattered | arrays of one number that scatters update are stored in the memory of the results |
| free (`Forward.free`) | readers recompute values that need no kernels and no random numbers, only arguments |
| softmax (`Forward.named`) | a value that only a softmax reads cannot be kept |
| barrier (`passed_cotangents`) | gradients of the results of a recomputed segment are written before its barrier |

A gradient that no kernel reads and that nothing else needs is computed on the fly by its readers. The backward pass of
a segment that is computed again starts behind a barrier, and the gradients of the segment's results are written before
that barrier. A sum with a gradient before the barrier, or outside of all segments, does not wait.
"""

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np

from graphrl.graphs.readers.jaxpr.flatten import Node, Outside, Result, Scalar
from graphrl.graphs.readers.jaxpr.work import scan_operands
from graphrl.graphs.roofline import Chip, runtime
from graphrl.xla.checkpoint.derivative import Derivative, Order, Value
from graphrl.xla.checkpoint.equations import (
    is_fused,
    is_in_place,
    is_of_rows,
    is_reduction,
    is_update,
)
from graphrl.xla.checkpoint.fusion import fusion_of, materialized_values, share_read
from graphrl.xla.checkpoint.solvers.level import ARGUMENT

CONVOLUTION = "conv_general_dilated"
RANDOM = ("random", "rng", "threefry")  # start of op types that are expensive to compute, although no kernels
SUM = "add_any"  # the op that sums the gradients of one value
Readers = Mapping[Value, Sequence[int]]  # value -> nodes of the backward pass that read it


class Nodes:
    """Run times, workspace and layouts of the nodes (ops) of a derivative.

    Attributes:
      derivative: the derivative.
      fusion: which values are written to memory, and the bytes moved to compute each.
      orders: for each value that products read and no kernel computes, the orders of dimensions in which products of
        its own pass need it.
      rewritten: values of the forward pass that no kernel computes, and that all products of the backward pass need in
        the same other order. Recomputed copies of them are written in that order. Softmaxes, and other values that are
        computed from row reductions without a kernel, are excluded: XLA's kernel for these works row by row.
    """

    def __init__(self, derivative: Derivative, chip: Chip) -> None:
        self.derivative, self._chip = derivative, chip
        self.fusion = fusion_of(derivative)
        self._materialized = materialized_values(derivative, self.fusion)
        self.orders = self._orders(in_own_pass=True)
        wanted = self._orders(in_own_pass=False)
        self.rewritten = {v for v, orders in wanted.items() if len(orders) == 1 and () not in orders} - self._of_rows()

    def is_fused(self, value: Result) -> bool:
        """True if a value is computed on the fly by its readers, or in one kernel with others."""
        return is_fused(self.derivative.node(value.node).equation)

    def is_written(self, value: Value) -> bool:
        """True if writing a value to memory takes seconds, or if no node computes it."""
        return not isinstance(value, Result) or self.fusion.written[value]

    def is_materialized(self, value: Value) -> bool:
        """True if a value occupies memory (see `materialized_values`), or if no node computes it."""
        return not isinstance(value, Result) or self._materialized[value]

    def writes(self, i: int) -> bool:
        """True if a node writes to memory."""
        return any(self.is_written(value) for value in self.results(i))

    def results(self, i: int) -> list[Result]:
        """Returns the results of a node."""
        return [Result(i, k) for k in range(len(self.derivative.node(i).output_bytes))]

    def seconds(self, i: int) -> float:
        """Returns the run time of a node, with operands read from memory and results written to it, in seconds."""
        value = Result(i, 0)
        return self.moving(self.fusion.moved[value]) if self.is_fused(value) else self.derivative.node(i).runtime

    def moving(self, moved: float) -> float:
        """Returns the seconds to read and write `moved` bytes in total."""
        return runtime(0, moved, self._chip)

    def workspace(self, value: Value) -> int:
        """Returns the bytes that the node of a value needs in addition to operands and results; see also `copies`."""
        if not isinstance(value, Result) or self.is_fused(value):
            return 0
        node = self.derivative.node(value.node)
        padded = self.derivative.padded.get(self.derivative.place[value.node], 0) if node.type == CONVOLUTION else 0
        library = self._chip.product_workspace if node.type == "dot_general" else 0
        copies = self._copied(value.node) - self.rewritten
        return node.workspace_bytes + library + padded + sum(map(self.derivative.bytes, copies))

    def copies(self, i: int) -> Mapping[Value, int]:
        """Maps a node's operands in `rewritten` to the bytes of the transposed copy that it needs if not recomputed."""
        return {value: self.derivative.bytes(value) for value in self._copied(i) & self.rewritten}

    def _copied(self, i: int) -> set[Value]:
        """Returns the operands that a product needs in another order than the one they are written in."""
        return {read for read, order in self.derivative.orders.get(i, ()) if order and not self._writes_in(i, read)}

    def _orders(self, in_own_pass: bool) -> Mapping[Value, set[Order]]:
        """Maps values that no kernel computes to the orders needed by products of the value's own or the other pass."""
        orders = defaultdict[Value, set[Order]](set)
        for i, reads in self.derivative.orders.items():
            for value, order in reads:
                if isinstance(value, Result) and self.is_fused(value) and self._is_of_one_pass(i, value) == in_own_pass:
                    orders[value].add(order)
        return orders

    def _of_rows(self) -> set[Value]:
        """Returns the results of row reductions, and all values that are computed from them without a kernel."""
        values: set[Value] = set()
        for i, node in enumerate(self.derivative.nodes):
            if node is None or not is_fused(node.equation):
                continue
            if is_of_rows(node.equation) or not values.isdisjoint(self.derivative.reads(i)):
                values.update(self.results(i))
        return values

    def _writes_in(self, i: int, value: Value) -> bool:
        """True if a value is written in the order that a node of the same pass needs."""
        return isinstance(value, Result) and self.is_fused(value) and self._is_of_one_pass(i, value)

    def _is_of_one_pass(self, i: int, value: Result) -> bool:
        return self.derivative.backward[value.node] == self.derivative.backward[i]


class Forward:
    """The values of a derivative's forward pass, numbered from 0 in execution order.

    Args:
      nodes: the nodes of the derivative.
      carried: arguments that a loop carries, which it must keep for its backward pass: they are the first values.

    Attributes:
      values: the values, in order.
      number: value -> its number.
      reads: for each value, the numbers of the values that it is computed from.
      materialized: for each value, whether it occupies memory.
      needed: `[values]` bool, whether the results depend on the value.
    """

    def __init__(self, nodes: Nodes, carried: Iterable[int]) -> None:
        self._nodes, self._derivative = nodes, nodes.derivative
        self.values: list[Value] = [Outside(argument) for argument in carried]
        for i, node in enumerate(self._derivative.nodes):
            if node is not None and not self._derivative.backward[i]:
                self.values += nodes.results(i)
        self.number = {value: number for number, value in enumerate(self.values)}
        self.reads = [self._inner(value) for value in self.values]
        self.materialized = [nodes.is_materialized(value) for value in self.values]
        self.needed = self._needed()

    def sources(self) -> list[set[int]]:
        """Returns for each value itself if it is materialized, else the materialized values it is computed from."""
        sources: list[set[int]] = []
        for v, reads in enumerate(self.reads):
            sources.append({v} if self.materialized[v] else set[int]().union(*(sources[read] for read in reads)))
        return sources

    def place(self) -> np.ndarray:
        """`[values]` int64: the equation that computes each value, or ARGUMENT."""
        place = self._derivative.place
        return np.array([place[v.node] if isinstance(v, Result) else ARGUMENT for v in self.values], np.int64)

    def op(self) -> np.ndarray:
        """`[values]` int64: the node that computes each value; all arguments share the number after the last node."""
        return np.array([v.node if isinstance(v, Result) else len(self._derivative.nodes) for v in self.values], int)

    def free(self) -> np.ndarray:
        """`[values]` bool: whether each value is computed from arguments without kernels and random numbers."""
        free: list[bool] = []
        for value, reads in zip(self.values, self.reads, strict=True):
            is_light = isinstance(value, Result) and _is_light(self._derivative.node(value.node))
            free.append(is_light and all(free[read] for read in reads))
        return np.array(free, bool)

    def named(self) -> np.ndarray:
        """`[values]` bool: whether each value can be kept by name. A value that only a softmax reads cannot.

        With one more reader, XLA's softmax kernel starts after the subtraction of the maximum. The result of the
        subtraction, as large as the value, is then written to memory. That result itself can be kept. For masked
        scores, so can the scores before the mask.
        """
        derivative = self._derivative
        readers = derivative.readers(i for i, node in enumerate(derivative.nodes) if node is not None)
        nodes = ([derivative.node(i) for i in readers.get(value, ())] for value in self.values)
        pairs = zip(self.values, nodes, strict=True)
        return np.array([value in derivative.names and not _is_softmax(reading) for value, reading in pairs], bool)

    def heavy(self) -> np.ndarray:
        """`[values]` bool: whether a kernel computes each value."""
        return np.array([isinstance(v, Result) and not self._nodes.is_fused(v) for v in self.values], bool)

    def last_read(self) -> np.ndarray:
        """`[values]` int64: the last forward value whose kernel reads each value; for results, the last of all."""
        last = np.arange(len(self.values))
        for number in range(len(self.values) - 1, -1, -1):
            if self.values[number] in self._derivative.results:
                last[number] = len(self.values) - 1
            if self.needed[number]:
                for read in self.reads[number]:
                    last[read] = max(last[read], number if self.materialized[number] else last[number])
        return last.astype(np.int64)

    def seconds(self) -> np.ndarray:
        """`[values]` seconds to compute each value from memory; 0 for arguments and for values computed on the fly."""
        nodes = self._nodes
        return np.array(
            [nodes.seconds(v.node) if isinstance(v, Result) and nodes.is_written(v) else 0.0 for v in self.values]
        )

    def saved_seconds(self, seconds: np.ndarray) -> np.ndarray:
        """`[values]` seconds, out of `seconds`, that the forward pass saves if a value is not kept.

        Some values are written only because the backward pass reads them too. If they are not kept, their readers
        compute them on the fly and need not read them.
        """
        nodes, moved = self._nodes, self._nodes.fusion.moved
        forward = {value.node for value in itertools.compress(self.values, self.needed) if isinstance(value, Result)}
        alone = fusion_of(self._derivative, {i for i in range(len(self._derivative.nodes)) if i not in forward})
        savings, total = np.zeros(len(self.values)), 0.0
        for v, value in enumerate(self.values):
            if isinstance(value, Result) and self.needed[v] and nodes.is_written(value) and nodes.is_fused(value):
                savings[v] = seconds[v] * (not alone.written[value])
                total += nodes.moving(moved[value])
                total -= nodes.moving(alone.moved[value]) * alone.written[value]
        return savings * (total / max(savings.sum(), 1e-30))

    def keep_seconds(self, in_loop: bool) -> np.ndarray:
        """`[values]` seconds to keep each value: `Level.keep_seconds`, or `Level.write_seconds` if not `in_loop`."""
        return np.array([self._keep_seconds(value, in_loop) for value in self.values])

    def _keep_seconds(self, value: Value, in_loop: bool) -> float:
        nodes, copy = self._nodes, self._nodes.moving(2 * self._derivative.bytes(value))
        if not isinstance(value, Result):
            return copy
        written = 0.0 if nodes.is_materialized(value) else nodes.moving(nodes.fusion.moved[value])
        return written + (copy * nodes.fusion.copies[value] if in_loop else 0.0)

    def _inner(self, value: Value) -> list[int]:
        """Returns the numbers of the forward values that a value is computed from."""
        if not isinstance(value, Result):
            return []
        return sorted({self.number[read] for read in self._derivative.reads(value.node) if read in self.number})

    def _needed(self) -> np.ndarray:
        needed = np.array([value in self._derivative.results for value in self.values], bool)
        for number in range(len(self.values) - 1, -1, -1):
            if needed[number]:
                needed[self.reads[number]] = True
        return needed


def _is_softmax(readers: Sequence[Node]) -> bool:
    """True if exactly the maximum of each row and the subtraction of that maximum read a value."""
    return sorted(node.type for node in readers) == ["reduce_max", "sub"] and any(
        is_of_rows(node.equation) for node in readers
    )


def _is_light(node: Node) -> bool:
    return (
        is_fused(node.equation)
        and not is_reduction(node.equation)
        and not node.type.startswith((*RANDOM, "reduce", "arg"))
    )


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
        self._find(forward.number)
        sources = forward.sources()
        self._sources = [set[int]().union(*(sources[v] for v in reads)) for reads in self.reads]
        self._last_kernel = {v: q for q, read in enumerate(self._sources) for v in read}
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
        last = {value: q for q, needs in enumerate(self._needs) for value in needs}
        changes = np.zeros(len(self.kernels) + 1)
        in_results = self._in_results(last)
        for q, i in enumerate(self.kernels):
            for value in self._nodes.results(i):
                if self._nodes.is_materialized(value) and value not in in_results:
                    size = self._derivative.bytes(value) * max(1, len(self._nodes.orders.get(value, ())))
                    initial = self._initial_value(q, value, last)
                    in_place = self._is_in_place(q, size, last) or (initial is not None and initial not in in_results)
                    changes[q + in_place] += size
                    changes[max(last.get(value, q), q) + 1] -= size
        workspace = [self._nodes.workspace(Result(i, 0)) * (q not in inner) for q, i in enumerate(self.kernels)]
        return np.cumsum(changes)[:-1] + workspace

    def _find(self, number: Mapping[Value, int]) -> None:
        """Finds the kernels and the values that they read, directly or through nodes that do not write."""
        reads_of: dict[int, tuple[set[int], set[Result]]] = {}
        for i in self._derivative.backward_nodes():
            values: set[int] = set()
            before: set[Result] = set()
            read = self._derivative.reads(i)
            for value in read:
                if value in number:
                    values.add(number[value])
                elif isinstance(value, Result) and self._nodes.is_materialized(value):
                    before.add(value)
                elif isinstance(value, Result):
                    values |= reads_of[value.node][0]
                    before |= reads_of[value.node][1]
            reads_of[i] = values, before
            holds = any(map(self._nodes.is_materialized, self._nodes.results(i)))
            if holds or self._nodes.writes(i) or any(value in number for value in read):
                self.kernels.append(i)
                self.reads.append(sorted(values))
                self._needs.append(before)

    def _in_results(self, last: Mapping[Result, int]) -> set[Result]:
        """Returns values in the memory of the results: gradients, and the initial values of their loops and updates."""
        values = {value for value in self._derivative.gradients if isinstance(value, Result)}
        for q in reversed(range(len(self.kernels))):
            results = values.intersection(self._nodes.results(self.kernels[q]))
            values |= {initial for value in results if (initial := self._initial_value(q, value, last)) is not None}
        return values

    def _initial_value(self, q: int, value: Result, last: Mapping[Result, int]) -> Result | None:
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
        return initial if last[initial] == q and initial not in operands[:at] else None

    def _is_in_place(self, q: int, size: int, last: Mapping[Result, int]) -> bool:
        """True if a kernel writes `size` bytes over an operand that nothing reads any more.

        Such a kernel is fused, and has read an element before it writes it, or it updates its operand. XLA computes
        sums of a result in the kernel of that result, whose threads then read more than they write: those do not count.
        """
        kernel = self.kernels[q]
        if not is_in_place(self._derivative.node(kernel).equation) or self._reduced & {*self._nodes.results(kernel)}:
            return False
        values = (self._values[v] for v in self._sources[q] if self._last_kernel[v] == q)
        needs = (value for value in self._needs[q] if last[value] == q)
        return any(self._derivative.bytes(value) == size for value in (*values, *needs))


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
