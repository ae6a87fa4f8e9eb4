"""The arrays of one level: values of the forward pass and kernels of the backward pass."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from graphrl.graphs.interconnects import INTERCONNECTS
from graphrl.graphs.readers.jaxpr.flatten import Node, Outside, Result
from graphrl.graphs.roofline import Chip, runtime
from graphrl.solvers.budgets.level import ARGUMENT, Level, Loop
from graphrl.xla.checkpoint.copies import Order, Value, resident_bytes
from graphrl.xla.checkpoint.derivative import Derivative
from graphrl.xla.checkpoint.host import HOST_LINK
from graphrl.xla.checkpoint.kinds import is_fused, is_in_place, is_reduction
from graphrl.xla.checkpoint.slices import advancing, slices_of
from graphrl.xla.checkpoint.solid import fusion_of

CONVOLUTION = "conv_general_dilated"
PART = 0.75  # of the link to the host: a copy that is late holds all up, and clocks differ
RANDOM = ("random", "rng", "threefry")  # dear to compute, though they are no kernels


class LevelBuilder:
    """What a derivative computes, on the way to the arrays of its level.

    Args:
      derivative: of a program.
      chip: for seconds.
      carried: arguments that a loop carries, which it must keep for its backward pass.
      scans: of the program, by place, how many results each has.

    Attributes:
      values: of the forward pass, in order.
      loops: that the gradient goes through, by place.
      begin_bytes: of the carried arguments without which no stretch of the loop can be computed again.
    """

    def __init__(self, derivative: Derivative, chip: Chip, carried: Iterable[int], scans: Mapping[int, int]) -> None:
        self._own, self._chip = derivative, chip
        self._fusion = fusion_of(derivative)
        self._solid = self._fusion.solid
        self.values: list[Value] = [Outside(argument) for argument in carried]
        for i, node in enumerate(derivative.nodes):
            if node is not None and not derivative.backward[i]:
                self.values += [Result(i, k) for k in range(len(node.output_bytes))]
        self._index = {value: number for number, value in enumerate(self.values)}
        self._reads = [self._inner(value) for value in self.values]
        self._is_solid = [isinstance(value, Outside) or self._solid[value] for value in self.values]
        self._kernels, self._kernel_reads, self._needs = self._backward()
        sources = self._sources()
        self._kernel_sources = [set[int]().union(*(sources[v] for v in reads)) for reads in self._kernel_reads]
        self._last_kernel = {v: q for q, read in enumerate(self._kernel_sources) for v in read}
        self._orders = self._written_orders()
        begins, self._followers = advancing(self._reads, self._kernel_reads, self._following(carried))
        self.begin_bytes = sum(derivative.bytes(self.values[v]) for v in begins)
        loops = {place: self._loop(place, results) for place, results in scans.items()}
        self.loops = {place: loop for place, loop in loops.items() if loop is not None}

    def level(self, trips: int, apart: np.ndarray) -> Level:
        """The arrays; loops take no time and keep nothing yet. `apart` is that of the level."""
        place = [self._place(value) for value in self.values]
        free, needed = self._free(), self._needed()
        reads_from, reads = _rows(self._reads)
        kernel_from, kernel_reads = _rows(self._kernel_reads)
        kernel_place = [self._own.place[i] for i in self._kernels]
        seconds = np.array([self._seconds(number) for number in range(len(self.values))])
        spared = self._spared(seconds, needed)
        sizes = np.array([self._own.bytes(value) for value in self.values], float)
        workspace = np.array([self._workspace(value) for value in self.values], float)
        for loop in self.loops.values():
            sizes[list(loop.kept)] = 0.0
            workspace[[*loop.outputs, *loop.kept]] = seconds[[*loop.outputs, *loop.kept]] = 0.0
        inner = {loop.kernel for loop in self.loops.values()}
        kernel_seconds = np.array(
            [(q not in inner and self._writes(i)) * self._kernel_seconds(i) for q, i in enumerate(self._kernels)], float
        )
        ops = np.array(
            [value.node if isinstance(value, Result) else len(self._own.nodes) for value in self.values], int
        )
        _, once = np.unique(ops, return_index=True)
        return Level(
            bytes=sizes,
            place=np.array(place, np.int64),
            solid=np.array(self._is_solid, bool),
            free=np.array(free, bool),
            needed=np.array(needed, bool),
            named=np.array([value in self._own.names for value in self.values], bool),
            heavy=np.array([isinstance(v, Result) and not is_fused(self._node(v).equation) for v in self.values], bool),
            seconds=seconds,
            keeping=spared + [self._keeping(value, trips > 0) for value in self.values],
            writing=spared + [self._keeping(value, False) for value in self.values],
            op=ops,
            following=self._followers,
            workspace=workspace,
            last_read=self._last_reads(needed),
            reads_from=reads_from,
            reads=reads,
            kernel_place=np.array(kernel_place, np.int64),
            kernel_bytes=self._kernel_bytes(),
            kernel_seconds=kernel_seconds,
            kernel_from=kernel_from,
            kernel_reads=kernel_reads,
            first=np.searchsorted(place, np.arange(len(apart) + 1)).astype(np.int64),
            free_values=np.flatnonzero(free).astype(np.int64),
            apart=apart,
            resident=float(resident_bytes(self._own.nodes)),
            link=PART * INTERCONNECTS[HOST_LINK].bandwidth,
            trips=trips,
            forward_seconds=float((seconds * needed)[once].sum() - spared.sum()),
            backward_seconds=float(kernel_seconds.sum()),
        )

    def _loop(self, place: int, results: int) -> Loop | None:
        """A scan of so many results; None where no gradient goes through it."""
        own = [
            v for v in self.values if isinstance(v, Result) and self._own.place[v.node] == place and self._is_scan(v)
        ]
        outputs = tuple(self._index[value] for value in own if value.output < results)
        kept = tuple(self._index[value] for value in own if value.output >= results)
        kernels = [q for q, reads in enumerate(self._kernel_reads) if set(reads) & set(kept)]
        if not outputs or not kernels:
            return None
        forward, backward = (self._own.nodes[i] for i in (own[0].node, self._kernels[kernels[0]]))
        assert forward is not None
        assert backward is not None
        return Loop(place, outputs, kept, kernels[0], *slices_of(self._own, forward, backward, results))

    def _following(self, carried: Iterable[int]) -> list[int | None]:
        """Of each carried argument, the value that the next step has in its place."""
        results = (value for value, _ in zip(self._own.returned, carried, strict=False))
        return [None if value is None else self._index.get(value) for value in results]

    def _is_scan(self, value: Result) -> bool:
        node = self._own.nodes[value.node]
        return node is not None and node.type == "scan"

    def _inner(self, value: Value) -> list[int]:
        """Numbers of the values that a value is computed from."""
        if isinstance(value, Outside):
            return []
        return sorted({self._index[read] for read in self._own.reads(value.node) if read in self._index})

    def _sources(self) -> list[set[int]]:
        """Of each value the solid ones that it is read from, or computed from on the way."""
        sources: list[set[int]] = []
        for v, reads in enumerate(self._reads):
            sources.append({v} if self._is_solid[v] else set[int]().union(*(sources[read] for read in reads)))
        return sources

    def _place(self, value: Value) -> int:
        return ARGUMENT if isinstance(value, Outside) else self._own.place[value.node]

    def _node(self, value: Result) -> Node:
        node = self._own.nodes[value.node]
        assert node is not None
        return node

    def _workspace(self, value: Value) -> int:
        """Bytes that an op holds beside operands and results; see also `copies`."""
        if not isinstance(value, Result) or is_fused(self._node(value).equation):
            return 0
        node = self._node(value)
        padded = self._own.padded.get(self._own.place[value.node], 0) if node.type == CONVOLUTION else 0
        library = self._chip.product_workspace if node.type == "dot_general" else 0
        orders = self._own.orders.get(value.node, ())
        transposed = {read: order for read, order in orders if order and not self._writes_in(value.node, read)}
        return node.workspace_bytes + library + padded + sum(map(self._own.bytes, transposed))

    def _written_orders(self) -> dict[Value, set[Order]]:
        """Of what products read and no kernel computes, the orders of dimensions in which its own pass needs it."""
        orders = defaultdict(set)
        for i, reads in self._own.orders.items():
            for value, order in reads:
                if self._writes_in(i, value):
                    orders[value].add(order)
        return orders

    def _writes_in(self, i: int, value: Value) -> bool:
        """Whether a value is written just as a node of the same pass needs it."""
        if not isinstance(value, Result) or self._own.backward[value.node] != self._own.backward[i]:
            return False
        return is_fused(self._node(value).equation)

    def _free(self) -> list[bool]:
        """Of each value, whether it follows from arguments without kernels and random numbers."""
        free: list[bool] = []
        for value, reads in zip(self.values, self._reads, strict=True):
            free.append(isinstance(value, Result) and _is_light(self._node(value)) and all(free[r] for r in reads))
        return free

    def _needed(self) -> np.ndarray:
        """Of each value, whether results need it."""
        needed = np.array([value in self._own.results for value in self.values], bool)
        for number in range(len(self.values) - 1, -1, -1):
            if needed[number]:
                needed[self._reads[number]] = True
        return needed

    def _last_reads(self, needed: np.ndarray) -> np.ndarray:
        """Of each value, the last one of the forward pass whose kernel reads it; the last of all for results."""
        last = np.arange(len(self.values))
        for number in range(len(self.values) - 1, -1, -1):
            if self.values[number] in self._own.results:
                last[number] = len(self.values) - 1
            if needed[number]:
                for read in self._reads[number]:
                    last[read] = max(last[read], number if self._is_solid[number] else last[number])
        return last.astype(np.int64)

    def _seconds(self, number: int) -> float:
        """To compute a value from what lies in memory."""
        value = self.values[number]
        return self._kernel_seconds(value.node) if isinstance(value, Result) and self._is_solid[number] else 0.0

    def _spared(self, seconds: np.ndarray, needed: np.ndarray) -> np.ndarray:
        """Of each value, what the forward pass saves of its `seconds` if it is not kept: what is written only because
        the backward pass reads it, too, its readers then compute on the way, and need not read.
        """
        own = {value.node for value in itertools.compress(self.values, needed) if isinstance(value, Result)}
        alone = fusion_of(self._own, {i for i in range(len(self._own.nodes)) if i not in own})
        spared, saved = np.zeros(len(self.values)), 0.0
        for v, value in enumerate(self.values):
            if isinstance(value, Result) and needed[v] and self._solid[value] and is_fused(self._node(value).equation):
                spared[v] = seconds[v] * (not alone.solid[value])
                saved += runtime(0, self._fusion.moved[value], self._chip)
                saved -= runtime(0, alone.moved[value], self._chip) * alone.solid[value]
        return spared * (saved / max(spared.sum(), 1e-30))

    def _keeping(self, value: Value, in_loop: bool) -> float:
        """Seconds of keeping a value: see `Level`."""
        copy = runtime(0, 2 * self._own.bytes(value), self._chip)
        if isinstance(value, Outside):
            return copy
        written = 0.0 if self._solid[value] else runtime(0, self._fusion.moved[value], self._chip)
        return written + (copy * self._fusion.copies[value] if in_loop else 0.0)

    def _kernel_seconds(self, i: int) -> float:
        node = self._node(Result(i, 0))
        if not is_fused(node.equation):
            return node.runtime
        return runtime(0, self._fusion.moved[Result(i, 0)], self._chip)

    def _writes(self, i: int) -> bool:
        """Whether a node writes into memory."""
        return any(self._solid[Result(i, k)] for k in range(len(self._node(Result(i, 0)).output_bytes)))

    def _backward(self) -> tuple[list[int], list[list[int]], list[set[Result]]]:
        """Nodes of the backward pass that write into memory or read values; which values, and what of their own pass.

        A node that does not write is run by later ones, but jax has its operands where its own equation stands: those
        of earlier segments are kept.
        """
        kernels, reads, needs = [], [], []
        of: dict[int, tuple[set[int], set[Result]]] = {}
        for i, node in enumerate(self._own.nodes):
            if node is None or not self._own.backward[i]:
                continue
            values: set[int] = set()
            before: set[Result] = set()
            for read in self._own.reads(i):
                if read in self._index:
                    values.add(self._index[read])
                elif isinstance(read, Result) and self._solid[read]:
                    before.add(read)
                elif isinstance(read, Result):
                    values |= of[read.node][0]
                    before |= of[read.node][1]
            of[i] = values, before
            own = any(read in self._index for read in self._own.reads(i))
            if own or self._writes(i):
                kernels.append(i)
                reads.append(sorted(values))
                needs.append(before)
        return kernels, reads, needs

    def _kernel_bytes(self) -> np.ndarray:
        """At each kernel, bytes of what is computed and still needed in the backward pass, but for gradients."""
        last = {value: q for q, needs in enumerate(self._needs) for value in needs}
        changes = np.zeros(len(self._kernels) + 1)
        for q, i in enumerate(self._kernels):
            for k in range(len(self._node(Result(i, 0)).output_bytes)):
                value = Result(i, k)
                if self._solid[value] and value not in self._own.gradients:
                    size = self._own.bytes(value) * max(1, len(self._orders.get(value, ())))
                    changes[q + self._is_in_place(q, size, last)] += size
                    changes[max(last.get(value, q), q) + 1] -= size
        inner = {loop.kernel for loop in self.loops.values()}
        workspace = [self._workspace(Result(i, 0)) * (q not in inner) for q, i in enumerate(self._kernels)]
        return np.cumsum(changes)[:-1] + workspace

    def _is_in_place(self, q: int, size: int, last: Mapping[Result, int]) -> bool:
        """Whether a kernel writes so many bytes over an operand that nothing reads any more: a fused one, which has
        read an element before it writes it, or one that updates its operand.
        """
        if not is_in_place(self._node(Result(self._kernels[q], 0)).equation):
            return False
        values = (self.values[v] for v in self._kernel_sources[q] if self._last_kernel[v] == q)
        needs = (value for value in self._needs[q] if last[value] == q)
        return any(self._own.bytes(value) == size for value in (*values, *needs))


def _is_light(node: Node) -> bool:
    return (
        is_fused(node.equation)
        and not is_reduction(node.equation)
        and not node.type.startswith((*RANDOM, "reduce", "arg"))
    )


def _rows(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Where each row begins in all of them, and all of them."""
    begins = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    return begins.astype(np.int64), np.array([number for row in rows for number in row], np.int64)
