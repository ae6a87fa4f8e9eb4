"""Which values lie in memory: a model of what compilers fuse.

Products, convolutions, loops, sorts and the like are kernels of their own, which read operands from memory and write
their results there; a reduction writes its results and computes its operand on the way. All else is computed on the way
by whoever reads it, unless a kernel reads it, or several do and each would read several arrays in its place.
"""

from collections import defaultdict

from graphrl.graphs.readers.jaxpr.flatten import Node, Result
from graphrl.xla.checkpoint.derivative import Derivative, Value

REDUCTIONS = frozenset(str.split("argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum"))
KERNELS = frozenset(
    str.split(
        """
        all_gather all_to_all approx_top_k cholesky cond conv_general_dilated custom_call custom_linear_solve
        dot_general eigh fft gather geqrf householder_product lu pallas_call ppermute psum qr ragged_dot_general
        reduce_scatter scan select_and_gather_add select_and_scatter_add sort svd top_k triangular_solve
        tridiagonal_solve while
        """
    )
)
FAMILIES = ("cum", "ffi", "reduce_window", "scatter")  # kernels too


def is_kernel(node: Node) -> bool:
    """Whether a node reads its operands from memory."""
    return node.type in KERNELS or node.type.startswith(FAMILIES)


def solid_values(derivative: Derivative) -> dict[Result, bool]:
    """Whether they lie in memory, of all values that are computed."""
    readers = defaultdict(list)
    for i, node in enumerate(derivative.nodes):
        if node is not None:
            for value in derivative.reads(i):
                readers[value].append(i)
    solid: dict[Result, bool] = {}
    sources: dict[Value, frozenset[Value]] = {}  # of what is no argument, the large values in memory that it stands for
    for i, node in enumerate(derivative.nodes):
        if node is None:
            continue
        read = [sources.get(value, frozenset((value,))) for value in derivative.reads(i)]
        from_memory = frozenset(value for values in read for value in values)
        for k, size in enumerate(node.output_bytes):
            value = Result(i, k)
            users = [derivative.nodes[j] for j in readers[value]]
            beside = [j for j in readers[value] if derivative.backward[j] == derivative.backward[i]]
            large = [source for source in from_memory if 2 * derivative.bytes(source) >= size]
            solid[value] = (
                is_kernel(node)
                or node.type in REDUCTIONS
                or any(user is not None and is_kernel(user) for user in users)
                or value in derivative.results | derivative.gradients
                or (len(beside) > 1 and len(large) > 1)
            )
            sources[value] = frozenset((value,)) if solid[value] else from_memory
    return solid

