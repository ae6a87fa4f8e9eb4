"""Which values of a jaxpr are written, and what it takes to read the others."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

from graphrl.xla.checkpoint.inlined import Inlined, Op, Value
from graphrl.xla.checkpoint.kinds import SLICES, is_fused

LONGEST = 24  # equations that several readers run again rather than read what one of them wrote

Reads = Mapping[Hashable, float]  # bytes by value, and by slice of it


class Fusing:
    """Which values are written, and what it takes to read the others."""

    def __init__(self, flat: Inlined) -> None:
        self._bytes = flat.bytes
        self._flat = flat
        self._readers = Counter(value for op in flat.ops for value in op.values)
        alone = [op for op in flat.ops if op.equation is None or not is_fused(op.equation)]
        self._alone = {value for op in alone for value in op.values}
        self._needed = self._alone | {value for value in flat.results if isinstance(value, Value)}
        self._reads: dict[Value, Reads] = {}  # of what is not written
        self._chains: dict[Value, frozenset[Value]] = {}  # of that, what a reader computes for it

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
            chain, dear = chained(value, chains), readers * total > total + (1 + readers) * size
            if value in self._needed or dear or (readers > 1 and len(chain) > LONGEST):
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
        share = min(1.0, self._bytes[op.results[result]] / whole) if whole else 1.0
        return {(key, op.results[result]): share * size for key, size in reads.items()}


def chained(last: int, chains: Sequence[frozenset[int]]) -> frozenset[int]:
    """What is run for a value on the way: what was run last and what was for that, or as much as makes it too long."""
    longest = max(chains, key=len, default=frozenset[int]())
    return longest if len(longest) > LONGEST else longest.union([last], *chains)
