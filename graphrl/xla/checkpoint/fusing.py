"""Which values of a jaxpr are written, and what it takes to read the others."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from graphrl.xla.checkpoint.inlined import Inlined, Op, Value
from graphrl.xla.checkpoint.kinds import ONCE, SLICES, is_fill, is_fused, is_scatter, part_read

LONGEST = 52  # equations that are run for a value on the way by each of its readers: found on associative scans

Reads = Mapping[Hashable, float]  # bytes by value, and by slice of it
Chain = frozenset[tuple[int, ...]]  # equations, each behind the slices that are taken of what it computes


class Fusing:
    """Which values are written, and what it takes to read the others."""

    def __init__(self, flat: Inlined) -> None:
        self._bytes = flat.bytes
        self._flat = flat
        self._readers = Counter(value for op in flat.ops for value in op.values)
        alone = [op for op in flat.ops if op.equation is None or not is_fused(op.equation)]
        filled = {value for op in flat.ops if op.equation and is_fill(op.equation) for value in op.results}
        self._alone = {value for op in alone for value in op.values if value not in filled or not _fills(op, value)}
        self._needed = self._alone | {value for value in flat.results if isinstance(value, Value)}
        self._reads: dict[Value, Reads] = {}  # of what is not written
        self._chains: dict[Value, Chain] = {}  # of that, what a reader computes for it

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
            chain, dear = chained(value, op.equation, chains), readers * total > total + (1 + readers) * size
            if value in self._needed or dear or (readers > 1 and is_once(op.equation, chain)):
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


def is_once(equation: Any, chain: Chain) -> bool:
    """Whether XLA computes a value once for several readers, though they would move fewer bytes."""
    return len(chain) > LONGEST or equation.primitive.name in ONCE


def chained(last: int, equation: Any, chains: Sequence[Chain], most: int = LONGEST) -> Chain:
    """What is run for a value on the way: what was run last and what was for that, or as much as is more than `most`.

    Two slices of one value are of different elements, so that what is run for both is run for each.
    """
    longest = max(chains, key=len, default=Chain())
    if len(longest) > most:
        return longest
    run = longest.union(*chains)
    if equation.primitive.name in SLICES:
        run = Chain((last, *key) for key in run)
    return run.union([(last,)])
