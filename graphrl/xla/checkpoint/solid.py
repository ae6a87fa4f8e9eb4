"""Which values lie in memory, and what it takes to compute them: the model of fusion that `fusing` has.

Kernels, loops and reductions of more than rows read operands from memory and write their results there. All else is
computed on the way by whoever reads it, unless a kernel does, or writing it once moves fewer bytes than computing it in
each of its readers, or takes fewer ops by far. A gradient that waits for another layer is written, too, where that
takes less memory than what it is computed from: it leaves its segment with the others. Arrays of one number that
scatters update lie in memory here, for their results lie there.
"""

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from graphrl.graphs.readers.jaxpr.flatten import Result
from graphrl.xla.checkpoint.copies import Value
from graphrl.xla.checkpoint.derivative import Derivative
from graphrl.xla.checkpoint.fusing import Chain, chained, is_once
from graphrl.xla.checkpoint.kinds import SLICES, is_fused, is_reduction, part_read

Part = tuple[Value, tuple[Result, ...]]  # of a value, and which slices of it are taken on the way
Reads = Mapping[Part, float]  # bytes

FAR = 4  # kernels that run before a gradient is read, more of which are another layer's


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
    nodes = [None if i in left_out else node for i, node in enumerate(derivative.nodes)]
    readers = derivative.readers(i for i, node in enumerate(nodes) if node is not None)
    solid: dict[Result, bool] = {}
    moved: dict[Result, float] = {}
    copies: dict[Result, int] = {}
    reads: dict[Value, Reads] = {}  # of what lies in no memory, what is read in its place
    chain: dict[Value, Chain] = {}  # of that, the nodes that its reader computes for it
    heavy = np.cumsum([node is not None and not is_fused(node.equation) for node in nodes])
    for i, node in enumerate(nodes):
        if node is None:
            continue
        read = _read(derivative, i, reads)
        ops = chained(i, node.equation, [chain[value] for value in derivative.reads(i) if value in chain])
        fused = is_fused(node.equation) and not is_reduction(node.equation)
        for k, size in enumerate(node.output_bytes):
            value, total = Result(i, k), sum(read.values())
            # a pass has its own copy of what it computes
            users = [j for j in readers[value] if derivative.backward[j] == derivative.backward[i]]
            alone = any(
                not is_fused(user.equation) for j in readers[value] if (user := derivative.nodes[j]) is not None
            )
            taken = sum(share_read(derivative, j, value) for j in users)
            dear = taken * total > total + (1 + taken) * size
            wanted = value in derivative.results or value in derivative.gradients
            once = len(readers[value]) > 1 and is_once(node.equation, ops)
            waits = derivative.backward[i] and heavy[max(users, default=i)] - heavy[i] > FAR
            smaller = size < sum(derivative.bytes(source) for source in {source for source, _ in read})
            solid[value] = not fused or alone or dear or wanted or once or (waits and smaller)
            moved[value] = total + sum(node.output_bytes)
            copies[value] = _copies(derivative, readers[value], is_fused(node.equation))
            if not solid[value]:
                reads[value], chain[value] = _apart(read, value) if node.type in SLICES else read, ops
    return Fusion(solid, moved, copies)


def _copies(derivative: Derivative, readers: Sequence[int], fused: bool) -> int:
    """How often a loop that keeps a value copies it: what a fused op writes for the loop's array alone goes there at
    once, and a fused op reads it from there.
    """
    forward = any(not derivative.backward[j] for j in readers)
    backward = (derivative.nodes[j] for j in readers if derivative.backward[j])
    return (forward or not fused) + any(node is not None and not is_fused(node.equation) for node in backward)


def _read(derivative: Derivative, i: int, reads: Mapping[Value, Reads]) -> Reads:
    """Bytes that a node reads from memory."""
    node = derivative.nodes[i]
    assert node is not None
    operands = derivative.reads(i)
    read: dict[Part, float] = {}
    for value in operands:
        for part, size in reads.get(value, {(value, ()): float(derivative.bytes(value))}).items():
            read[part] = max(read.get(part, 0.0), size)
    if not operands:
        return read
    share = share_read(derivative, i, operands[0])
    return {part: share * size for part, size in read.items()}


def _apart(read: Reads, value: Result) -> Reads:
    """What is read for a slice: another one of the same value has other elements, and is read beside it."""
    return {(source, (*slices, value)): size for (source, slices), size in read.items()}


def share_read(derivative: Derivative, i: int, value: Value) -> float:
    """The part of a value that a node reads, whose first operand it may be."""
    node = derivative.nodes[i]
    assert node is not None
    if node.type not in SLICES or derivative.reads(i)[0] != value:
        return 1.0
    return part_read(node.equation, derivative.bytes(value), max(node.output_bytes))
