"""Memory model: ops of a gradient, and values of its forward pass; the backward pass is in `backward.py`.

- `Nodes`: run times of single ops, whether their results are written to memory (`fusion`), and their workspace.
- `Forward`: the values of the forward pass, the values that each is computed from, and the cost of keeping each.

| topic | rule of the model |
|---|---|
| libraries (`Nodes.workspace`) | padded images, transposed copies of operands, and cuBLAS's own buffer take bytes |
| order (`Nodes.rewritten`) | a recomputed value is written in the order of dimensions that all products need |
| free (`Forward.free`) | readers recompute values that need no kernels and no random numbers, only arguments |
| softmax (`Forward.named`) | a value that only a softmax reads cannot be kept |
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from graphrl.graphs.readers.jaxpr.flatten import Node, Outside, Result
from graphrl.graphs.roofline import Chip, runtime
from graphrl.xla.checkpoint.derivative import Derivative, Order, Value
from graphrl.xla.checkpoint.equations import is_fused, is_of_rows, is_reduction
from graphrl.xla.checkpoint.fusion import fusion_of, materialized_values
from graphrl.xla.checkpoint.solvers.level import ARGUMENT

CONVOLUTION = "conv_general_dilated"
RANDOM = ("random", "rng", "threefry")  # start of op types that are expensive to compute, although no kernels
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
