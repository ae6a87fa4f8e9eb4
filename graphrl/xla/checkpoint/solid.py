"""Which values lie in memory, and what it takes to compute them: the model of fusion that `fusing` has.

Kernels, loops and reductions of more than rows read operands from memory and write their results there. All else is
computed on the way by whoever reads it, unless a kernel does, or writing it once moves fewer bytes than computing it in
each of its readers, or takes fewer ops by far. A gradient that waits for another layer is written, too, where that
takes less memory than what it is computed from: it leaves its segment with the others. Arrays of one number that
scatters update lie in memory here, for their results lie there.

For the bytes of the backward pass readers that one kernel computes count as one. Which these are depends on what is
written, so that is decided twice: first as if each reader were alone, and then by the kernels that this comes to.
Seconds go by the first, as those of traced gradients do: by the second both are farther from those of XLA's programs.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from graphrl.graphs.readers.jaxpr.flatten import Result
from graphrl.xla.checkpoint.copies import Value
from graphrl.xla.checkpoint.derivative import Derivative
from graphrl.xla.checkpoint.fusing import Chain, chained, is_once
from graphrl.xla.checkpoint.kinds import SLICES, is_fused, is_reduction, part_read
from graphrl.xla.checkpoint.parts import Part, Parts, Reads

FAR = 4  # kernels that run before a gradient is read, more of which are another layer's
LONGEST_IN_ONE = 100  # equations that one kernel runs for a value that it reads several times: as `fusing.LONGEST`

Readers = Mapping[Value, Sequence[int]]


class Fusion(NamedTuple):
    """What becomes of computed values.

    Attributes:
      solid: whether they lie in memory.
      moved: of each, bytes that are read and written to compute it into memory.
      copies: of each, how often a loop that keeps it copies it to or from its own array.
    """

    solid: Mapping[Result, bool]
    moved: Mapping[Result, float]
    copies: Mapping[Result, int]


def fusion_of(derivative: Derivative, left_out: Container[int] = ()) -> Fusion:
    """What is fused into what, without some nodes that no other ones need."""
    kept = [i for i in range(len(derivative.nodes)) if i not in left_out and derivative.nodes[i] is not None]
    return _fusion(derivative, kept, derivative.readers(kept), {i: i for i in kept})


def held(derivative: Derivative, fusion: Fusion) -> Mapping[Result, bool]:
    """Whether values lie in memory where readers in one kernel count as one, in the backward pass; else as in `fusion`,
    whose kernels these are.
    """
    kept = [i for i, node in enumerate(derivative.nodes) if node is not None]
    readers = derivative.readers(kept)
    together = _fusion(derivative, kept, readers, _kernels(derivative, kept, readers, fusion.solid)).solid
    return {value: together[value] if derivative.backward[value.node] else fusion.solid[value] for value in together}


def _kernels(
    derivative: Derivative, kept: Sequence[int], readers: Readers, solid: Mapping[Result, bool]
) -> dict[int, int]:
    """Of each node of the backward pass the one that writes what it is for; itself where it writes, or several do."""
    kernel = {i: i for i in kept}
    for i in (i for i in reversed(kept) if derivative.backward[i]):
        results = [*_results(derivative, i)]
        users = {kernel[j] for value in results for j in _users(derivative, readers, value)}
        is_own = len(users) != 1 or any(solid[value] for value in results)
        if not is_own:
            kernel[i] = users.pop()
    return kernel


def _fusion(derivative: Derivative, kept: Sequence[int], readers: Readers, kernel: Mapping[int, int]) -> Fusion:
    """What is fused into what, by the kernels that the readers are in."""
    solid: dict[Result, bool] = {}
    moved: dict[Result, float] = {}
    copies: dict[Result, int] = {}
    parts = Parts(derivative)
    reads: dict[Value, Reads] = {}  # of what lies in no memory, what is read in its place
    chain: dict[Value, Chain] = {}  # of that, the nodes that its reader computes for it
    heavy = np.cumsum(
        [i in kernel and node is not None and not is_fused(node.equation) for i, node in enumerate(derivative.nodes)]
    )
    for i in kept:
        node = derivative.nodes[i]
        assert node is not None
        read = _read(derivative, parts, i, reads)
        ops = chained(
            i, node.equation, [chain[value] for value in derivative.reads(i) if value in chain], LONGEST_IN_ONE
        )
        fused = is_fused(node.equation) and not is_reduction(node.equation)
        whole = sum(sum(each.values()) for each in (read if node.type in SLICES else read[:1]))
        for value, size, own in zip(_results(derivative, i), node.output_bytes, read, strict=True):
            total, users = sum(own.values()), _users(derivative, readers, value)
            alone = any(
                not is_fused(user.equation) for j in readers[value] if (user := derivative.nodes[j]) is not None
            )
            taken = _taken(derivative, value, users, kernel)
            dear = taken * total > total + (1 + taken) * size
            wanted = value in derivative.results or value in derivative.gradients
            kernels = {kernel[j] for j in readers[value]}
            once = _is_once_in(node.equation, ops, len(readers[value]), len(kernels))
            waits = derivative.backward[i] and heavy[max(users, default=i)] - heavy[i] > FAR
            smaller = waits and size < sum(derivative.bytes(source) for source in parts.sources(own))
            solid[value] = not fused or alone or dear or wanted or once or smaller
            moved[value] = whole + sum(node.output_bytes)
            copies[value] = _copies(derivative, readers[value], is_fused(node.equation))
            if not solid[value]:
                reads[value], chain[value] = own, ops
    return Fusion(solid, moved, copies)


def _results(derivative: Derivative, i: int) -> Iterator[Result]:
    node = derivative.nodes[i]
    assert node is not None
    return (Result(i, k) for k in range(len(node.output_bytes)))


def _users(derivative: Derivative, readers: Readers, value: Result) -> list[int]:
    """Readers in a value's own pass: the other pass has its own copy of what it computes."""
    return [j for j in readers[value] if derivative.backward[j] == derivative.backward[value.node]]


def _taken(derivative: Derivative, value: Result, users: Iterable[int], kernel: Mapping[int, int]) -> float:
    """How often a value is computed where it is not written: a slice takes a part, and what a kernel has it has."""
    taken: dict[int, float] = {}
    for j in users:
        taken[kernel[j]] = min(1.0, taken.get(kernel[j], 0.0) + share_read(derivative, j, value))
    return sum(taken.values())


def _is_once_in(equation: Any, ops: Chain, readers: int, kernels: int) -> bool:
    """Whether XLA computes a value once for readers in so many kernels, though they would move fewer bytes."""
    return is_once(equation, ops) if kernels > 1 else readers > 1 and len(ops) > LONGEST_IN_ONE


def _copies(derivative: Derivative, readers: Sequence[int], fused: bool) -> int:
    """How often a loop that keeps a value copies it: what a fused op writes for the loop's array alone goes there at
    once, and a fused op reads it from there.
    """
    forward = any(not derivative.backward[j] for j in readers)
    backward = (derivative.nodes[j] for j in readers if derivative.backward[j])
    return (forward or not fused) + any(node is not None and not is_fused(node.equation) for node in backward)


def _read(derivative: Derivative, parts: Parts, i: int, reads: Mapping[Value, Reads]) -> Sequence[Reads]:
    """Bytes that a node reads from memory for each of its outputs: slices their own parts, all others the same."""
    node = derivative.nodes[i]
    assert node is not None
    operands, read = derivative.reads(i), dict[Part, float]()
    for value in operands:  # a part is as large wherever it is read
        read.update(reads[value] if value in reads else {parts.whole(value): float(derivative.bytes(value))})
    if node.type not in SLICES or not operands:
        return [read] * len(node.output_bytes)
    size = derivative.bytes(operands[0])
    shares = (part_read(node.equation, size, taken) for taken in node.output_bytes)
    return [parts.sliced(read, i, k, share) for k, share in enumerate(shares)]


def share_read(derivative: Derivative, i: int, value: Value) -> float:
    """The part of a value that a node reads, whose first operand it may be."""
    node = derivative.nodes[i]
    assert node is not None
    if node.type not in SLICES or derivative.reads(i)[0] != value:
        return 1.0
    return sum(part_read(node.equation, derivative.bytes(value), taken) for taken in node.output_bytes)
