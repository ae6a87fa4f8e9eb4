"""Which values of a jaxpr are written, and what it takes to read the others.

Readers that one kernel runs count as one. Which those are depends on what is written, so all is decided twice: first as
if each reader ran by itself, and then by the kernels that this comes to.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from graphrl.xla.checkpoint.inlined import Inlined, Op, Value
from graphrl.xla.checkpoint.kinds import ONCE, SLICES, is_fill, is_fused, is_reduction, is_scatter, part_read

LONGEST = 52  # equations that are run for a value on the way, by each of the kernels that read it
LONGEST_IN_ONE = 100  # likewise, where one kernel reads it several times: both found on associative scans

Reads = Mapping[Hashable, float]  # bytes by value, and by slice of it
Chain = frozenset[tuple[int, ...]]  # equations, each behind the slices that are taken of what it computes


class Fusing:
    """Which values are written, and what it takes to read the others."""

    def __init__(self, flat: Inlined) -> None:
        self._bytes = flat.bytes
        self._flat = flat
        self._readers = defaultdict[Value, list[int]](list)
        for i, op in enumerate(flat.ops):
            for value in op.values:
                self._readers[value].append(i)
        alone = [op for op in flat.ops if op.equation is None or not is_fused(op.equation)]
        filled = {value for op in flat.ops if op.equation and is_fill(op.equation) for value in op.results}
        self._alone = {value for op in alone for value in op.values if value not in filled or not _fills(op, value)}
        self._needed = self._alone | {value for value in flat.results if isinstance(value, Value)}
        self._kernel = list(range(len(flat.ops)))  # of each op that which it is run in
        self._begin()
        self._kernel = self._kernels([not _may_fuse(op) or bool(self.fuse(op)) for op in flat.ops])
        self._begin()

    def _begin(self) -> None:
        self._reads: dict[Value, Reads] = {}  # of what is not written
        self._chains: dict[Value, Chain] = {}  # of that, what a reader computes for it

    def _kernels(self, writes: Sequence[bool]) -> list[int]:
        """Of each op the only one that writes what it is for; itself where it writes, or where several do."""
        kernel = list(range(len(writes)))
        for i in reversed(kernel):
            users = {kernel[j] for value in self._flat.ops[i].results for j in self._readers[value]}
            if not writes[i] and len(users) == 1:
                kernel[i] = users.pop()
        return kernel

    def copied(self, inputs: int, results: int) -> list[Value]:
        """Of a scan's body what XLA copies from a stack and to one: all that no fused op takes or writes for that only.

        Args:
          inputs: how many come first that are not sliced from stacks.
          results: likewise, not stacked.
        """
        fused = {value for op in self._flat.ops if op.equation and is_fused(op.equation) for value in op.results}
        taken = [value for value in self._flat.inputs[inputs:] if value in self._alone]
        stacked = [value for value in self._flat.results[results:] if isinstance(value, Value)]
        return taken + [value for value in stacked if value not in fused or self._readers[value]]

    def write(self, op: Op) -> float:
        """Of an op that writes its results: the bytes that it and what is fused into it move."""
        return sum(self._of(op).values()) + sum(self._bytes[value] for value in op.results)

    def fuse(self, op: Op) -> list[float]:
        """Of a fused op: the bytes that are moved to write those of its results that are written."""
        moved = []
        chains = [self._chains[value] for value in op.values if value in self._chains]
        for i, value in enumerate(op.results):
            reads = self._of(op)
            if op.equation.primitive.name in SLICES:
                reads = self._sliced(op, i, reads)
            size, total, readers = self._bytes[value], sum(reads.values()), self._readers[value]
            chain, kernels = chained(value, op.equation, chains), len({self._kernel[j] for j in readers})
            dear = kernels * total > total + (1 + kernels) * size
            if value in self._needed or dear or is_once(op.equation, chain, len(readers), kernels):
                moved.append(total + size)
            else:
                self._reads[value], self._chains[value] = reads, chain
        return moved

    def _of(self, op: Op) -> Reads:
        return {key: size for value in op.values for key, size in self._of_value(value).items()}

    def _of_value(self, value: Value) -> Reads:
        return self._reads.get(value, {value: float(self._bytes[value])})

    def _sliced(self, op: Op, result: int, reads: Reads) -> Reads:
        """Of all that is read the part that a slice takes."""
        whole = self._bytes[op.values[0]] if op.values else 0
        share = part_read(op.equation, whole, self._bytes[op.results[result]])
        return {(key, op.results[result]): share * size for key, size in reads.items()}


def _fills(op: Op, value: Value) -> bool:
    """Whether an op only fills its result with such a value, which is one number everywhere."""
    if not op.equation or not is_scatter(op.equation):
        return False
    filled, *others = op.operands
    return filled == value and value not in others


def _may_fuse(op: Op) -> bool:
    return op.equation is not None and is_fused(op.equation) and not is_reduction(op.equation)


def is_once(equation: Any, chain: Chain, readers: int, kernels: int) -> bool:
    """Whether XLA computes a value once for readers in so many kernels, though they would move fewer bytes."""
    if kernels > 1:
        return len(chain) > LONGEST or equation.primitive.name in ONCE
    return readers > 1 and len(chain) > LONGEST_IN_ONE


def chained(last: int, equation: Any, chains: Sequence[Chain]) -> Chain:
    """What is run for a value on the way: what was run last and what was for that, or as much as makes it too long.

    Two slices of one value are of different elements, so that what is run for both is run for each.
    """
    longest = max(chains, key=len, default=Chain())
    if len(longest) > LONGEST_IN_ONE:
        return longest
    run = longest.union(*chains)
    if equation.primitive.name in SLICES:
        run = Chain((last, *key) for key in run)
    return run.union([(last,)])
