"""A graph as algorithms read it: indices in place of names, and what follows from them."""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from graphrl.errors import GraphError
from graphrl.graphs.topology import Waiting, bit_matrix, distinct, grouped, longest_paths, reached, topological_order

if TYPE_CHECKING:
    from graphrl.graphs.graph import ComputationGraph, Op, Tensor

NONE, EXTERNAL = -1, -2  # in place of a tensor index


@dataclasses.dataclass(frozen=True, eq=False)
class GraphArrays:
    """A graph as indices: n ops in the graph's order, t tensors that some op produces (in the order of their
    producers and outputs), e uses, f control edges. External inputs cost nothing and do not appear.
    """

    runtime: np.ndarray  # [n] float64, seconds
    workspace_bytes: np.ndarray  # [n] int64
    weight_bytes: np.ndarray  # [n] int64
    flops: np.ndarray  # [n] float64
    producer: np.ndarray  # [t] int32, op
    tensor_bytes: np.ndarray  # [t] int64
    kept: np.ndarray  # [t] bool, named in the graph's outputs
    alias: np.ndarray  # [t] int32, tensor whose buffer this one is; NONE, or EXTERNAL for an external input's
    reuses: np.ndarray  # [t] int32, tensor whose buffer this one may take over; NONE, or EXTERNAL: no effect
    use_tensor: np.ndarray  # [e] int32, distinct (tensor, op) pairs, sorted
    use_op: np.ndarray  # [e] int32
    control_source: np.ndarray  # [f] int32, distinct pairs, sorted
    control_target: np.ndarray  # [f] int32
    topological: np.ndarray  # [n] int32, ops in a topological order (the lowest ready index first)

    @property
    def num_ops(self) -> int:
        return len(self.runtime)

    @property
    def num_tensors(self) -> int:
        return len(self.producer)

    def dependencies(self) -> tuple[np.ndarray, np.ndarray]:
        """All distinct (source op, target op) pairs, data and control, sorted: two `[m] int32` arrays."""
        return self._dependencies

    @functools.cached_property
    def predecessors(self) -> list[list[int]]:
        """The ops that each op depends on, by data or control, ascending: `[n]` lists."""
        source, target = self._dependencies
        return grouped(target, source, self.num_ops)

    @functools.cached_property
    def successors(self) -> list[list[int]]:
        """The ops that depend on each op, by data or control, ascending: `[n]` lists."""
        return grouped(*self._dependencies, self.num_ops)

    def waiting(self) -> Waiting:
        """For an order of the ops, from its first one."""
        return Waiting(map(len, self.predecessors), self.successors)

    @functools.cached_property
    def rank(self) -> np.ndarray:
        """The place of each op in `topological`: `[n] int64`."""
        rank = np.empty(self.num_ops, np.int64)
        rank[self.topological] = np.arange(self.num_ops)
        return rank

    @property
    def depth(self) -> np.ndarray:
        """Edges of the longest path to each op: `[n] int64`."""
        return self._from_start[0]

    @property
    def height(self) -> np.ndarray:
        """Edges of the longest path from each op: `[n] int64`."""
        return self._to_end[0]

    @property
    def head(self) -> np.ndarray:
        """The longest path of run times before the start of each op, seconds: `[n] float64`."""
        return self._from_start[1]

    @property
    def tail(self) -> np.ndarray:
        """The longest path of run times after the end of each op, seconds: `[n] float64`."""
        return self._to_end[1]

    def ancestors(self) -> np.ndarray:
        """Whether the column op comes before the row op in every order: `[n, n]` bool, computed anew."""
        return bit_matrix(reached(self.topological.tolist(), self.predecessors)).astype(bool)

    @functools.cached_property
    def _dependencies(self) -> tuple[np.ndarray, np.ndarray]:
        source = np.concatenate([self.producer[self.use_tensor], self.control_source]).astype(np.int64)
        target = np.concatenate([self.use_op, self.control_target]).astype(np.int64)
        pairs = distinct(source * max(1, self.num_ops) + target)
        return (pairs // max(1, self.num_ops)).astype(np.int32), (pairs % max(1, self.num_ops)).astype(np.int32)

    @functools.cached_property
    def _from_start(self) -> tuple[np.ndarray, np.ndarray]:
        return longest_paths(self.topological, *self._dependencies, self.runtime)

    @functools.cached_property
    def _to_end(self) -> tuple[np.ndarray, np.ndarray]:
        return longest_paths(self.topological[::-1], *self._dependencies[::-1], self.runtime)


def indexed(graph: "ComputationGraph") -> GraphArrays:
    """Resolves names to indices; raises on duplicates, dangling names and cycles."""
    ops = graph.ops
    op_index = _unique({}, ((op.name, i) for i, op in enumerate(ops)), "op")
    external = _unique({}, ((tensor.name, EXTERNAL) for tensor in graph.inputs), "input tensor")
    tensors = [(i, tensor) for i, op in enumerate(ops) for tensor in op.outputs]
    tensor_index: dict[str, int] = dict(external)
    for index, (op, tensor) in enumerate(tensors):
        if tensor.name in tensor_index:
            first = tensor_index[tensor.name]
            owner = "an external input" if first < 0 else f"an output of op {ops[tensors[first][0]].name!r}"
            raise GraphError(f"op {ops[op].name!r}: output {tensor.name!r} is already {owner}")
        tensor_index[tensor.name] = index
    uses, control = _edges(ops, op_index, tensor_index)
    producer = np.array([i for i, _ in tensors], np.int32)
    sources = np.concatenate([producer[uses[:, 0]], control[:, 0]])
    targets = np.concatenate([uses[:, 1], control[:, 1]])
    kept = np.zeros(len(tensors), bool)
    for name in graph.outputs:
        if name not in tensor_index:
            raise GraphError(f"graph output {name!r} is no tensor of the graph")
        if tensor_index[name] >= 0:
            kept[tensor_index[name]] = True
    return GraphArrays(
        runtime=np.array([op.runtime for op in ops], np.float64),
        workspace_bytes=np.array([op.workspace_bytes for op in ops], np.int64),
        weight_bytes=np.array([op.weight_bytes for op in ops], np.int64),
        flops=np.array([op.flops for op in ops], np.float64),
        producer=producer,
        tensor_bytes=np.array([tensor.bytes for _, tensor in tensors], np.int64),
        kept=kept,
        alias=_shared(ops, tensors, tensor_index, "alias"),
        reuses=_shared(ops, tensors, tensor_index, "reuses"),
        use_tensor=uses[:, 0],
        use_op=uses[:, 1],
        control_source=control[:, 0],
        control_target=control[:, 1],
        topological=topological_order([op.name for op in ops], sources, targets),
    )


def _unique(index: dict[str, int], items: Iterable[tuple[str, int]], what: str) -> dict[str, int]:
    for name, i in items:
        if name in index:
            raise GraphError(f"{what} {name!r} appears twice: names must be unique")
        index[name] = i
    return index


def _edges(ops: Sequence["Op"], op_index: dict[str, int], tensor_index: dict[str, int]) -> list[np.ndarray]:
    """Uses `[e, 2]` and control edges `[f, 2]`, int32."""
    uses, control = set(), set()
    for i, op in enumerate(ops):
        for name in op.inputs:
            if name not in tensor_index:
                raise GraphError(f"op {op.name!r}: input {name!r} is no tensor: no op writes it and it is no input")
            if tensor_index[name] >= 0:
                uses.add((tensor_index[name], i))
        for name in op.after:
            if name not in op_index:
                raise GraphError(f"op {op.name!r}: control predecessor {name!r} is no op of the graph")
            control.add((op_index[name], i))
    return [np.array(sorted(pairs), np.int32).reshape(-1, 2) for pairs in (uses, control)]


def _shared(
    ops: Sequence["Op"], tensors: Sequence[tuple[int, "Tensor"]], tensor_index: dict[str, int], field: str
) -> np.ndarray:
    """The tensor whose buffer each tensor shares through `field` ("alias" or "reuses"): `[t] int32`."""
    shared = np.full(len(tensors), NONE, np.int32)
    taken: set[tuple[int, str]] = set()
    for index, (producer, tensor) in enumerate(tensors):
        name = getattr(tensor, field)
        if name is None:
            continue
        where = f"op {ops[producer].name!r}, output {tensor.name!r}"
        if tensor.alias is not None and tensor.reuses is not None:
            raise GraphError(f"{where}: has both alias and reuses: at most one can hold")
        if name not in ops[producer].inputs:
            raise GraphError(f"{where}: {field} names {name!r}, which is no input of this op")
        source = tensor_index[name]
        if field == "reuses":
            if (producer, name) in taken:
                raise GraphError(f"{where}: reuses names {name!r}, whose buffer another output of this op takes")
            taken.add((producer, name))
            if source >= 0 and tensors[source][1].bytes < tensor.bytes:
                have = tensors[source][1].bytes
                raise GraphError(f"{where}: {tensor.bytes} bytes cannot reuse {name!r} of {have} bytes: must fit")
        shared[index] = source
    return shared
