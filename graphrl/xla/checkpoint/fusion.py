"""Fusion model: the values of a derivative that XLA writes to memory, and those that readers compute on the fly.

Kernels, loops and reductions of more than rows read operands from memory and write their results there. Readers compute
all other values on the fly. Such a value is written only if one of these rules holds (`fusion_of`):

| rule | a value is written if |
|---|---|
| alone | a kernel or a loop reads it |
| expensive | writing it once moves fewer bytes than computing it in each reader: a slice counts for its part of it |
| wanted | it is a result or a gradient |
| once | computing it in each reader takes far more equations (`equations.is_once`) |
| smaller | it is a gradient that waits for another layer, and smaller than the values that it is computed from |

`fusion_of` decides which values take seconds to write, `materialized_values` which values take bytes. They differ in
two cases:

- In the backward pass, readers that one kernel computes count as one for bytes. Which readers these are depends on
  which values are written. So `materialized_values` decides twice: first as if each reader were alone, then by the
  resulting kernels.
- In the forward pass, a value that is summed up and read by others takes bytes: XLA writes it with the sums or before
  them. An example is a map of channels whose weights depend on their means.

Seconds ignore both cases, as the seconds of traced gradients do: with the first, they are farther from those of XLA's
programs.
"""

from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from graphrl.graphs.readers.jaxpr.flatten import Result, Scalar
from graphrl.xla.checkpoint.derivative import Derivative, Value
from graphrl.xla.checkpoint.equations import (
    SLICES,
    Chain,
    chained,
    is_fused,
    is_once,
    is_reduction,
    key_of,
    part_read,
)

Part = int
Reads = Mapping[Part, float]  # bytes
FAR = 4  # if more kernels run before a gradient is read, its reader belongs to another layer
LONGEST_IN_ONE = 150  # as `equations.LONGEST`, for a value that one kernel reads several times


class Fusion(NamedTuple):
    """Fusion decisions about computed values.

    Attributes:
      written: for each value, whether it is written to memory.
      moved: for each value, bytes read and written if it is computed into memory.
      copies: for each value, how often a loop that keeps it copies it to or from the array of kept values.
    """

    written: Mapping[Result, bool]
    moved: Mapping[Result, float]
    copies: Mapping[Result, int]


def fusion_of(derivative: Derivative, ignored: Container[int] = (), kernel: Mapping[int, int] | None = None) -> Fusion:
    """Decides which values are fused into their readers.

    Args:
      derivative: the derivative of a program.
      ignored: nodes to ignore; no other node may need their results.
      kernel: node -> node in whose kernel it is computed, by default its own: readers in one kernel count as one.
    """
    kept = [i for i, node in enumerate(derivative.nodes) if node is not None and i not in ignored]
    readers = derivative.readers(kept)
    kernel = {i: i for i in kept} | dict(kernel or {})
    written: dict[Result, bool] = {}
    moved: dict[Result, float] = {}
    copies: dict[Result, int] = {}
    parts = Parts(derivative)
    reads: dict[Value, Reads] = {}  # for each value that is not in memory, the parts that are read instead
    chain: dict[Value, Chain] = {}  # for each such value, the nodes that its reader computes for it
    heavy = np.zeros(len(derivative.nodes), np.int64)
    heavy[kept] = [not is_fused(derivative.node(i).equation) for i in kept]
    heavy = np.cumsum(heavy)
    for i in kept:
        node = derivative.node(i)
        read = _read(derivative, parts, i, reads)
        chains = [chain[value] for value in derivative.reads(i) if value in chain]
        ops = chained(i, node.equation, chains, LONGEST_IN_ONE)
        fused = is_fused(node.equation) and not is_reduction(node.equation)
        whole = sum(sum(each.values()) for each in (read if node.type in SLICES else read[:1]))
        for k, size in enumerate(node.output_bytes):
            value, total = Result(i, k), sum(read[k].values())
            # a pass computes its own copy of a value
            users = [j for j in readers[value] if derivative.backward[j] == derivative.backward[i]]
            alone = any(not is_fused(derivative.node(j).equation) for j in readers[value])
            uses = _uses(derivative, value, users, kernel)
            expensive = uses * total > total + (1 + uses) * size
            wanted = value in derivative.results or value in derivative.gradients
            kernels = {kernel[j] for j in readers[value]}
            once = len(readers[value]) > 1 and len(ops) > LONGEST_IN_ONE
            if len(kernels) > 1:
                once = is_once(node.equation, ops)
            waits = derivative.backward[i] and heavy[max(users, default=i)] - heavy[i] > FAR
            smaller = waits and size < sum(derivative.bytes(source) for source in parts.sources(read[k]))
            written[value] = not fused or alone or expensive or wanted or once or smaller
            moved[value] = whole + sum(node.output_bytes)
            copies[value] = _copies(derivative, readers[value], is_fused(node.equation))
            if not written[value]:
                reads[value], chain[value] = read[k], ops
    return Fusion(written, moved, copies)


def materialized_values(derivative: Derivative, fusion: Fusion) -> Mapping[Result, bool]:
    """Decides for each value whether it occupies memory; `fusion` must be `fusion_of(derivative)`."""
    written = fusion_of(derivative, kernel=_kernels(derivative, fusion.written)).written
    forward = [i for i, node in enumerate(derivative.nodes) if node is not None and not derivative.backward[i]]
    readers = derivative.readers(forward)
    return {
        value: written[value]
        if derivative.backward[value.node]
        else fusion.written[value] or _is_summed(derivative, readers[value])
        for value in written
    }


class Parts:
    """Numbers values and slices of them ("parts"), so that the same part is counted once if it is read twice."""

    def __init__(self, derivative: Derivative) -> None:
        self._derivative = derivative
        self._numbers: dict[Hashable, int] = {}
        self._sources: dict[Part, Value] = {}

    def whole(self, value: Value) -> Part:
        """Returns the part that is a whole value."""
        part = self._number((value,))
        self._sources[part] = value
        return part

    def sliced(self, reads: Reads, i: int, output: int, share: float) -> Reads:
        """Returns the parts read for output `output` of the slice `i`: the given share of all `reads`."""
        key = self._number(self._slice(i, output))
        sliced = {}
        for part, size in reads.items():
            sliced_part = self._number((part, key))
            self._sources[sliced_part] = self._sources[part]
            sliced[sliced_part] = share * size
        return sliced

    def sources(self, reads: Reads) -> set[Value]:
        """Returns the values that are read in whole or in part."""
        return {self._sources[part] for part in reads}

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _slice(self, i: int, output: int) -> Hashable:
        """Returns a key that is equal for slices which take the same elements."""
        node, same = self._derivative.node(i), self._derivative.same
        operands = [value if isinstance(value, Scalar) else same.get(value, value) for value in node.operands]
        return key_of(node.equation, operands), output


def _uses(derivative: Derivative, value: Result, users: Iterable[int], kernel: Mapping[int, int]) -> float:
    """Returns how often a value is computed if it is not written: slices count in part, each kernel at most once."""
    uses: dict[int, float] = {}
    for j in users:
        uses[kernel[j]] = min(1.0, uses.get(kernel[j], 0.0) + share_read(derivative, j, value))
    return sum(uses.values())


def _copies(derivative: Derivative, readers: Sequence[int], fused: bool) -> int:
    """Returns how often a loop that keeps a value copies it. Fused ops need no copies: they write a value that nothing
    else reads directly to the array of kept values, and read it directly from there.
    """
    forward = any(not derivative.backward[j] for j in readers)
    backward = (derivative.node(j) for j in readers if derivative.backward[j])
    return (forward or not fused) + any(not is_fused(node.equation) for node in backward)


def _read(derivative: Derivative, parts: Parts, i: int, reads: Mapping[Value, Reads]) -> Sequence[Reads]:
    """Returns for each output of a node the bytes that are read from memory; they differ between outputs of slices."""
    node = derivative.node(i)
    operands, read = derivative.reads(i), dict[Part, float]()
    for value in operands:  # the size of a part does not depend on its reader
        read.update(reads[value] if value in reads else {parts.whole(value): float(derivative.bytes(value))})
    if node.type not in SLICES or not operands:
        return [read] * len(node.output_bytes)
    size = derivative.bytes(operands[0])
    shares = (part_read(node.equation, size, size_read) for size_read in node.output_bytes)
    return [parts.sliced(read, i, k, share) for k, share in enumerate(shares)]


def share_read(derivative: Derivative, i: int, value: Value) -> float:
    """Returns the share of a value that a node reads; below 1 only if the node takes a slice of it."""
    node = derivative.node(i)
    if node.type not in SLICES or derivative.reads(i)[0] != value:
        return 1.0
    return sum(part_read(node.equation, derivative.bytes(value), size_read) for size_read in node.output_bytes)


def _is_summed(derivative: Derivative, readers: Sequence[int]) -> bool:
    """True if one of several readers is a reduction of more than rows."""
    return len(readers) > 1 and any(is_reduction(derivative.node(j).equation) for j in readers)


def _kernels(derivative: Derivative, written: Mapping[Result, bool]) -> dict[int, int]:
    """Maps each backward node to the node whose kernel computes it: to itself if it writes, or if its readers are in
    several kernels.
    """
    nodes = derivative.backward_nodes()
    readers, kernel = derivative.readers(nodes), {i: i for i in nodes}
    for i in reversed(nodes):
        results = [Result(i, k) for k in range(len(derivative.node(i).output_bytes))]
        users = {kernel[j] for value in results for j in readers[value]}
        if len(users) == 1 and not any(written[value] for value in results):
            kernel[i] = users.pop()
    return kernel
