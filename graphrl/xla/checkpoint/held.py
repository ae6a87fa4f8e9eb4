"""Which values take bytes; which ones take seconds, `solid.fusion_of` says.

In the backward pass readers that one kernel computes count as one. Which these are depends on what is written, so that
is decided twice: first as if each reader were alone, and then by the kernels that this comes to. In the forward pass
what is summed up and read by others takes bytes, too: XLA writes it with the sums or before them, such as the channels
that are weighted by what follows from their means.

Seconds go without both, as those of traced gradients do: with the first they are farther from those of XLA's programs.
"""

from collections.abc import Mapping, Sequence

from graphrl.graphs.readers.jaxpr.flatten import Result
from graphrl.xla.checkpoint.derivative import Derivative
from graphrl.xla.checkpoint.kinds import is_reduction
from graphrl.xla.checkpoint.solid import Fusion, fusion_of


def held(derivative: Derivative, fusion: Fusion) -> Mapping[Result, bool]:
    """Whether values lie in memory; `fusion` says what each pass writes if each reader is alone."""
    solid = fusion_of(derivative, kernel=_kernels(derivative, fusion.solid)).solid
    forward = [i for i, node in enumerate(derivative.nodes) if node is not None and not derivative.backward[i]]
    readers = derivative.readers(forward)
    return {
        value: solid[value]
        if derivative.backward[value.node]
        else fusion.solid[value] or _is_summed(derivative, readers[value])
        for value in solid
    }


def _is_summed(derivative: Derivative, readers: Sequence[int]) -> bool:
    """Whether one of several readers is a reduction of more than rows."""
    return len(readers) > 1 and any(is_reduction(derivative.node(j).equation) for j in readers)


def _kernels(derivative: Derivative, solid: Mapping[Result, bool]) -> dict[int, int]:
    """Of each node of the backward pass the one that writes what it is for; itself where it writes, or several do."""
    nodes = derivative.backward_nodes()
    readers, kernel = derivative.readers(nodes), {i: i for i in nodes}
    for i in reversed(nodes):
        results = [Result(i, k) for k in range(len(derivative.node(i).output_bytes))]
        users = {kernel[j] for value in results for j in readers[value]}
        if len(users) == 1 and not any(solid[value] for value in results):
            kernel[i] = users.pop()
    return kernel
