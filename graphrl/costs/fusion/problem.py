"""The fusion problem of a graph as arrays: the tensors each op reads, its FLOPs, and whether it may be inlined.

Legality depends on an op's type: one table has the names of JAX's primitives, HLO and ONNX.
"""

import dataclasses
import itertools

import numpy as np

from graphrl.errors import GraphError
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.layers import LIGHT, REDUCTIONS
from graphrl.graphs.roofline import DEFAULT_CHIP, Chip, find_chip

_SEPARATE = frozenset(str.split("get-tuple-element optimization_barrier tuple"))
_HLO_ARITHMETIC = """
    count-leading-zeros exponential-minus-one is-finite log-plus-one popcnt reduce-precision round-nearest-afz
    round-nearest-even shift-left shift-right-arithmetic shift-right-logical stochastic-convert
"""
_MOVES = """
    Gather GatherElements GatherND
    dynamic_slice gather random_unwrap random_wrap
    bitcast-convert dynamic-slice
"""

# Each output element comes from few input elements, or is moved.
ELEMENTWISE = (LIGHT - _SEPARATE) | frozenset(_HLO_ARITHMETIC.split()) | frozenset(_MOVES.split())
# Types of ops whose kernel may compute inlined ops.
GATHERING = ELEMENTWISE | REDUCTIONS
# Types of ops that only give the same bytes another name.
RENAMES = frozenset(
    str.split(
        """
        Flatten Identity Reshape Squeeze Unsqueeze
        bitcast_convert_type expand_dims random_unwrap random_wrap reshape squeeze stop_gradient
        bitcast bitcast-convert
        variable
        """
    )
)  # a variable stores parameters


MAX_OPS, MAX_ARGUMENTS = 64, 40  # limits of a kernel


@dataclasses.dataclass(frozen=True, eq=False)
class FusionProblem:
    """A graph of n ops, t tensors that they write and x external inputs, and the chip that its kernels run on.

    Tensors are numbered as in `GraphArrays`, and external inputs after them.
    """

    graph: ComputationGraph
    chip: Chip
    max_ops: int
    max_arguments: int
    read_start: np.ndarray  # [n + 1] int64, start of each op's entries in `read_tensor`
    read_tensor: np.ndarray  # [e] int64, tensors, distinct for each op, in the op's order
    producer: np.ndarray  # [t + x] int64, op; -1 for external inputs
    tensor_bytes: np.ndarray  # [t + x] int64
    output_bytes: np.ndarray  # [n] int64, of all outputs
    flops: np.ndarray  # [n] float64, operations
    renames: np.ndarray  # [n] bool, True if the op only gives the same bytes another name
    legal: np.ndarray  # [n] bool, True if the op may be inlined

    @property
    def num_ops(self) -> int:
        """Number n of ops."""
        return len(self.flops)

    def read(self, op: int) -> np.ndarray:
        """Returns the tensors that an op reads, each once."""
        return self.read_tensor[self.read_start[op] : self.read_start[op + 1]]

    def names(self, ops: np.ndarray) -> tuple[str, ...]:
        """Returns the names of the ops where `ops` `[n]` is true."""
        return tuple(self.graph.ops[op].name for op in np.flatnonzero(ops).tolist())


def fusion_problem(
    graph: ComputationGraph,
    chip: str | Chip = DEFAULT_CHIP,
    *,
    max_ops: int = MAX_OPS,
    max_arguments: int = MAX_ARGUMENTS,
) -> FusionProblem:
    """Builds the fusion problem of a graph on a chip.

    Args:
      max_ops, max_arguments: largest numbers of ops and of arguments of a kernel, at least 1.

    Raises:
      GraphrlError: the chip is unknown.
      GraphError: the graph states operations for none of its ops, although they take time.
    """
    a = graph.arrays
    if a.runtime.sum() > 0 and a.flops.sum() == 0:
        raise GraphError(
            f"graph {graph.name!r} has run times and no flops: the run time of a kernel is the roofline's of its "
            "members' flops and bytes"
        )
    numbers = {name: number for number, name in enumerate((*graph.tensor_names, *(t.name for t in graph.inputs)))}
    reads = [[numbers[name] for name in dict.fromkeys(op.inputs)] for op in graph.ops]
    read_start = np.cumsum([0, *map(len, reads)])
    read_tensor = np.fromiter(itertools.chain.from_iterable(reads), np.int64, int(read_start[-1]))
    output_bytes = np.zeros(a.num_ops, np.int64)
    np.add.at(output_bytes, a.producer, a.tensor_bytes)
    return FusionProblem(
        graph=graph,
        chip=find_chip(chip),
        max_ops=max_ops,
        max_arguments=max_arguments,
        read_start=read_start,
        read_tensor=read_tensor,
        producer=np.append(a.producer.astype(np.int64), np.full(len(graph.inputs), -1)),
        tensor_bytes=np.append(a.tensor_bytes, np.array([tensor.bytes for tensor in graph.inputs], np.int64)),
        output_bytes=output_bytes,
        flops=a.flops,
        renames=_of_type(graph, RENAMES),
        legal=_legal(graph, np.diff(read_start) <= max_arguments),
    )


def _of_type(graph: ComputationGraph, types: frozenset[str]) -> np.ndarray:
    return np.array([op.type in types for op in graph.ops], bool)


def _legal(graph: ComputationGraph, few: np.ndarray) -> np.ndarray:
    """True for ops that may be inlined: `[n]` bool. `few` `[n]` marks ops that read no more than a kernel may."""
    a, n = graph.arrays, graph.arrays.num_ops
    writer = a.producer[a.use_tensor]
    readers = np.bincount(writer, minlength=n)
    gatherers = np.bincount(writer, (_of_type(graph, GATHERING) & few)[a.use_op], minlength=n)
    legal = _of_type(graph, ELEMENTWISE) & few & (readers > 0) & (gatherers == readers)
    legal &= np.bincount(a.producer, minlength=n) == 1
    legal[a.producer[a.kept]] = False
    legal[a.control_source] = legal[a.control_target] = False
    return legal
