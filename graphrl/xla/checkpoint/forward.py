"""The values of the forward pass: what each is computed from, and what it takes to keep it or not."""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from graphrl.graphs.readers.jaxpr.flatten import Node, Outside, Result
from graphrl.solvers.budgets.level import ARGUMENT
from graphrl.xla.checkpoint.copies import Value
from graphrl.xla.checkpoint.kinds import is_fused, is_of_rows, is_reduction
from graphrl.xla.checkpoint.nodes import Nodes
from graphrl.xla.checkpoint.solid import fusion_of

RANDOM = ("random", "rng", "threefry")  # dear to compute, though they are no kernels


class Forward:
    """The values of a derivative's forward pass, by their numbers.

    Args:
      nodes: of the derivative.
      carried: arguments that a loop carries, which it must keep for its backward pass: the first values.

    Attributes:
      values: in order.
      number: of each value.
      reads: of each value, those that it is computed from.
      solid: of each value, whether it takes bytes in memory.
      needed: `[values]` bool, whether results need it.
    """

    def __init__(self, nodes: Nodes, carried: Iterable[int]) -> None:
        self._nodes, self._own = nodes, nodes.own
        self.values: list[Value] = [Outside(argument) for argument in carried]
        for i, node in enumerate(self._own.nodes):
            if node is not None and not self._own.backward[i]:
                self.values += nodes.results(i)
        self.number = {value: number for number, value in enumerate(self.values)}
        self.reads = [self._inner(value) for value in self.values]
        self.solid = [nodes.is_held(value) for value in self.values]
        self.needed = self._needed()

    def sources(self) -> list[set[int]]:
        """Of each value the solid ones that it is read from, or computed from on the way."""
        sources: list[set[int]] = []
        for v, reads in enumerate(self.reads):
            sources.append({v} if self.solid[v] else set[int]().union(*(sources[read] for read in reads)))
        return sources

    def place(self) -> np.ndarray:
        """Of each value, the equation that computes it."""
        own = [self._own.place[value.node] if isinstance(value, Result) else ARGUMENT for value in self.values]
        return np.array(own, np.int64)

    def op(self) -> np.ndarray:
        """Of each value, the node that computes it; all arguments have one more."""
        return np.array([v.node if isinstance(v, Result) else len(self._own.nodes) for v in self.values], int)

    def free(self) -> np.ndarray:
        """Of each value, whether it follows from arguments without kernels and random numbers."""
        free: list[bool] = []
        for value, reads in zip(self.values, self.reads, strict=True):
            is_light = isinstance(value, Result) and _is_light(self._own.node(value.node))
            free.append(is_light and all(free[read] for read in reads))
        return np.array(free, bool)

    def named(self) -> np.ndarray:
        """Of each value, whether it can be kept by name. What only a softmax reads cannot: with one more reader XLA's
        kernel for that begins behind the subtraction of the maximum, whose result is written, as large as the value.
        That result can be kept itself; of masked scores, also what they are before the mask.
        """
        own = self._own
        readers = own.readers(i for i, node in enumerate(own.nodes) if node is not None)
        nodes = ([own.node(i) for i in readers.get(value, ())] for value in self.values)
        pairs = zip(self.values, nodes, strict=True)
        return np.array([value in own.names and not _is_softmax(reading) for value, reading in pairs], bool)

    def heavy(self) -> np.ndarray:
        """Of each value, whether a kernel computes it."""
        return np.array([isinstance(v, Result) and not self._nodes.is_fused(v) for v in self.values], bool)

    def last_read(self) -> np.ndarray:
        """Of each value, the last one of the forward pass whose kernel reads it; the last of all for results."""
        last = np.arange(len(self.values))
        for number in range(len(self.values) - 1, -1, -1):
            if self.values[number] in self._own.results:
                last[number] = len(self.values) - 1
            if self.needed[number]:
                for read in self.reads[number]:
                    last[read] = max(last[read], number if self.solid[number] else last[number])
        return last.astype(np.int64)

    def seconds(self) -> np.ndarray:
        """To compute each value from what lies in memory; what only takes bytes there, its readers' seconds have."""
        nodes = self._nodes
        return np.array(
            [nodes.seconds(v.node) if isinstance(v, Result) and nodes.is_solid(v) else 0.0 for v in self.values]
        )

    def spared(self, seconds: np.ndarray) -> np.ndarray:
        """Of each value, what the forward pass saves of its `seconds` if it is not kept: what is written only because
        the backward pass reads it, too, its readers then compute on the way, and need not read.
        """
        nodes, moved = self._nodes, self._nodes.fusion.moved
        own = {value.node for value in itertools.compress(self.values, self.needed) if isinstance(value, Result)}
        alone = fusion_of(self._own, {i for i in range(len(self._own.nodes)) if i not in own})
        spared, saved = np.zeros(len(self.values)), 0.0
        for v, value in enumerate(self.values):
            if isinstance(value, Result) and self.needed[v] and nodes.is_solid(value) and nodes.is_fused(value):
                spared[v] = seconds[v] * (not alone.solid[value])
                saved += nodes.moving(moved[value])
                saved -= nodes.moving(alone.moved[value]) * alone.solid[value]
        return spared * (saved / max(spared.sum(), 1e-30))

    def keeping(self, in_loop: bool) -> np.ndarray:
        """Seconds of keeping each value: see `Level`."""
        return np.array([self._keeping(value, in_loop) for value in self.values])

    def _keeping(self, value: Value, in_loop: bool) -> float:
        nodes, copy = self._nodes, self._nodes.moving(2 * self._own.bytes(value))
        if not isinstance(value, Result):
            return copy
        written = 0.0 if nodes.is_held(value) else nodes.moving(nodes.fusion.moved[value])
        return written + (copy * nodes.fusion.copies[value] if in_loop else 0.0)

    def _inner(self, value: Value) -> list[int]:
        """Numbers of the values that a value is computed from."""
        if not isinstance(value, Result):
            return []
        return sorted({self.number[read] for read in self._own.reads(value.node) if read in self.number})

    def _needed(self) -> np.ndarray:
        needed = np.array([value in self._own.results for value in self.values], bool)
        for number in range(len(self.values) - 1, -1, -1):
            if needed[number]:
                needed[self.reads[number]] = True
        return needed


def _is_softmax(readers: Sequence[Node]) -> bool:
    """Whether the maximum of each row and what subtracts it are all that reads a value."""
    return sorted(node.type for node in readers) == ["reduce_max", "sub"] and any(
        is_of_rows(node.equation) for node in readers
    )


def _is_light(node: Node) -> bool:
    return (
        is_fused(node.equation)
        and not is_reduction(node.equation)
        and not node.type.startswith((*RANDOM, "reduce", "arg"))
    )
