"""How every op of a graph stands to every other: the seven graphs of Topoformer (its section 4.1).

The dependencies are all of `GraphArrays.dependencies`: data and control. Two ops with several tensors between them have
one dependency. NumPy, on the host; 2,000 ops take 11 to 21 ms.
"""

import numpy as np

from graphrl.errors import GraphError
from graphrl.graphs.arrays import GraphArrays
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.topology import bit_matrix

RELATIONS = (
    "self",
    "from_reduction",  # sender -> receiver is an edge of the transitive reduction (TR)
    "from_dependency",  # sender -> receiver is a dependency outside TR: the graph without its TR
    "from_closure",  # the sender is before the receiver and no dependency of it: the closure without the graph
    "to_reduction",  # the same three with receiver and sender exchanged: the backward graphs
    "to_dependency",
    "to_closure",
    "incomparable",  # neither is before the other
)
SELF, FROM_REDUCTION, FROM_DEPENDENCY, FROM_CLOSURE = range(4)
TO_REDUCTION, TO_DEPENDENCY, TO_CLOSURE, INCOMPARABLE = range(4, 8)
PADDING = 8  # where receiver or sender is a padding op

_BACKWARD = 4  # a pair's two codes in one number: forward + 4 * backward, of which one at least is 0
_CODE_OF = np.array([INCOMPARABLE, 1, 2, 3, 4, 0, 0, 0, 5, 0, 0, 0, 6], np.uint8)


def relations(graph: ComputationGraph) -> np.ndarray:
    """`[n, n]` uint8: at `[i, j]` how sender j stands to receiver i, an index of `RELATIONS`.

    The codes partition all pairs: each has one, and `[j, i]` has the reverse of `[i, j]`.
    """
    after, edges, reduced = _after(graph.arrays)
    before = 3 * after - edges - reduced  # [j, i]: 1 to 3 as in FROM_*, 0 where j is not before i
    codes = _CODE_OF[np.ascontiguousarray(before.T) + _BACKWARD * before]
    np.fill_diagonal(codes, SELF)
    return codes


def padded_relations(graph: ComputationGraph, ops: int) -> np.ndarray:
    """`[ops, ops]` uint8: `relations` with `PADDING` in the rows and columns of padding ops.

    Raises:
      GraphError: the graph has more than `ops` ops.
    """
    n = graph.arrays.num_ops
    if n > ops:
        raise GraphError(f"graph {graph.name!r} has {n} ops: must be at most the {ops} that it is padded to")
    padded = np.full((ops, ops), PADDING, np.uint8)
    padded[:n, :n] = relations(graph)
    return padded


def _after(a: GraphArrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`[j, i]` whether i is after j, whether it is a successor, and one by the reduction: three `[n, n]` uint8.

    A successor is in the reduction unless another successor is before it.
    """
    n = a.num_ops
    after, direct, through = [0] * n, [0] * n, [0] * n
    for op in reversed(a.topological.tolist()):
        own = indirect = 0
        for successor in a.successors[op]:
            own |= 1 << successor
            indirect |= after[successor]
        direct[op], through[op], after[op] = own, indirect, own | indirect
    closure, edges, indirectly = (bit_matrix(sets) for sets in (after, direct, through))
    return closure, edges, edges & (1 - indirectly)
