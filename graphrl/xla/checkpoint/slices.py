"""What a loop needs besides what its steps keep, should it run in stretches."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from graphrl.graphs.readers.jaxpr.flatten import Node, Scalar
from graphrl.graphs.readers.jaxpr.flops import array_bytes
from graphrl.graphs.readers.jaxpr.loops import scan_operands
from graphrl.xla.checkpoint.copies import Value
from graphrl.xla.checkpoint.derivative import Derivative, differentiable


class Slices(NamedTuple):
    """Bytes of what a loop reads and writes: see `Loop`."""

    taken_bytes: float
    given_bytes: float
    pulled_bytes: float
    sum_bytes: float


def slices_of(derivative: Derivative, forward: Node, backward: Node, results: int) -> Slices:
    """Of a loop.

    Args:
      derivative: in which it is.
      forward, backward: its two scans.
      results: of the loop; after these the forward scan gives what it keeps.
    """
    length = forward.equation.params["length"]
    _, carried = scan_operands(forward.equation.params)
    taken, pulled = _stacked(derivative, forward), _stacked(derivative, backward)
    kept = sum(forward.output_bytes[results:])
    summed = backward.output_bytes[: scan_operands(backward.equation.params)[1]]
    carries = [array_bytes(v.aval) for v in forward.equation.outvars[:carried] if differentiable(v.aval)]
    between = sum(size for value, size in pulled.items() if value not in taken)
    return Slices(
        sum(taken.values()) / length,
        sum(forward.output_bytes[carried:results]) / length,
        (between - kept + sum(backward.output_bytes[len(summed) :])) / length,
        max(0, sum(summed) - sum(carries)),
    )


def _stacked(derivative: Derivative, scan: Node) -> Mapping[Value, int]:
    """Arrays of which each step of a scan takes a slice, with their bytes."""
    first = sum(scan_operands(scan.equation.params))
    operands = zip(scan.operands[first:], scan.equation.invars[first:], strict=True)
    stacks = ((value, array_bytes(operand.aval)) for value, operand in operands if not isinstance(value, Scalar))
    return {derivative.same.get(value, value): size for value, size in stacks}


def advancing(
    reads: Sequence[Sequence[int]], kernel_reads: Sequence[Sequence[int]], following: Sequence[int | None]
) -> tuple[list[int], np.ndarray]:
    """What a loop needs to go on for the sake of its backward pass.

    Args:
      reads: of each value of its body, values that it is computed from, which come before it; the carried ones first.
      kernel_reads: values that each kernel of the backward pass reads.
      following: of each carried value, that which the next step has in its place; None where it is another's.

    Returns:
      the carried values that are needed; and `[n]` int64, of these what they are in the next step, of others -1.
    """
    needed = np.zeros(len(reads), bool)
    needed[[value for read in kernel_reads for value in read]] = True
    while True:
        for value in range(len(reads) - 1, -1, -1):
            if needed[value]:
                needed[reads[value]] = True
        nexts = {after for carry, after in enumerate(following) if needed[carry] and after is not None}
        if all(needed[after] for after in nexts):
            break
        needed[list(nexts)] = True
    begins = np.flatnonzero(needed[: len(following)]).tolist()
    after = np.full(len(reads), -1, np.int64)
    for carry in begins:
        become = following[carry]
        after[carry] = -1 if become is None else become
    return begins, after
