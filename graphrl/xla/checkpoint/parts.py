"""What is read from memory for what is computed on the way: values, and slices of them, by numbers.

Two slices of one value have different elements, and are read beside one another; equal ones are read once.
"""

from collections.abc import Hashable, Mapping

from graphrl.graphs.readers.jaxpr.flatten import Scalar
from graphrl.xla.checkpoint.copies import Value
from graphrl.xla.checkpoint.derivative import Derivative
from graphrl.xla.checkpoint.inlined import key_of

Part = int
Reads = Mapping[Part, float]  # bytes


class Parts:
    """The parts of a derivative's values, each with a number of its own."""

    def __init__(self, derivative: Derivative) -> None:
        self._own = derivative
        self._numbers: dict[Hashable, int] = {}
        self._sources: dict[Part, Value] = {}

    def whole(self, value: Value) -> Part:
        """Of a value, all of it."""
        part = self._number((value,))
        self._sources[part] = value
        return part

    def sliced(self, reads: Reads, i: int, output: int, share: float) -> Reads:
        """Of what is read that share which an output of a slice takes."""
        key = self._number(self._slice(i, output))
        sliced = {}
        for part, size in reads.items():
            own = self._number((part, key))
            self._sources[own] = self._sources[part]
            sliced[own] = share * size
        return sliced

    def sources(self, reads: Reads) -> set[Value]:
        """The values that are read, or parts of them."""
        return {self._sources[part] for part in reads}

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _slice(self, i: int, output: int) -> Hashable:
        """Equal for slices that take the same."""
        node, same = self._own.node(i), self._own.same
        operands = [value if isinstance(value, Scalar) else same.get(value, value) for value in node.operands]
        return key_of(node.equation, operands), output
