"""Which values take bytes in the backward pass: there readers that one kernel computes count as one.

Which these are depends on what is written, so that is decided twice: first as if each reader were alone, which is
`solid.fusion_of`, and then by the kernels that this comes to. Seconds go by the first, as those of traced gradients do:
by the second both are farther from those of XLA's programs.
"""

from collections.abc import Mapping

from graphrl.graphs.readers.jaxpr.flatten import Result
from graphrl.xla.checkpoint.derivative import Derivative
from graphrl.xla.checkpoint.solid import Fusion, fusion_of


def held(derivative: Derivative, fusion: Fusion) -> Mapping[Result, bool]:
    """Whether values lie in memory; those of the forward pass as in `fusion`, whose kernels these are."""
    solid = fusion_of(derivative, kernel=_kernels(derivative, fusion.solid)).solid
    return {value: (solid if derivative.backward[value.node] else fusion.solid)[value] for value in solid}


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
