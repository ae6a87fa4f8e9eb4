"""Problem of memory maps: a graph in an order, on a chip, as arrays by step."""

import dataclasses
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from graphrl.costs.maps.chip import MemoryChip
from graphrl.errors import PlanError, ProblemError
from graphrl.graphs.coarsen import listed_weights
from graphrl.graphs.graph import EXTERNAL, NONE, ComputationGraph, GraphArrays
from graphrl.units import format_bytes


@dataclasses.dataclass(frozen=True, eq=False)
class MapProblem:
    """A graph of n ops on a chip of M memories: t outputs (aliases left out), e pairs of a reader and a source step.

    Raises:
      PlanError: `order` is no topological order of this graph.
      ProblemError: memory 0 cannot hold everything.
    """

    graph: ComputationGraph
    chip: MemoryChip
    order: np.ndarray  # [n] int64, the op of each step: steps are places in this order
    compute: np.ndarray  # [n] float64, seconds of operations, launch left out
    weight_bytes: np.ndarray  # [n] int64
    weight_seconds: np.ndarray  # [n, M] float64, to read the weights from each memory; 0 without weights
    output_bytes: np.ndarray  # [n] int64, of all outputs of each step
    output_seconds: np.ndarray  # [n, M] float64, to write them to each memory
    input_seconds: np.ndarray  # [n] float64, to read external inputs from memory 0
    read_step: np.ndarray  # [e] int64, the reader, ascending
    read_source: np.ndarray  # [e] int64, the step whose outputs it reads
    read_seconds: np.ndarray  # [e, M] float64, from each memory
    writer: np.ndarray  # [t] int64, the step that writes each output, ascending
    last: np.ndarray  # [t] int64, the last step that it is live in
    weight_pages: np.ndarray  # [n] int64
    tensor_pages: np.ndarray  # [t] int64
    capacity: np.ndarray  # [M] int64, pages; at most all pages of the graph

    @property
    def steps(self) -> int:
        """Number n of steps."""
        return len(self.order)

    @property
    def memories(self) -> int:
        """Number M of memories."""
        return len(self.capacity)

    @property
    def total_bytes(self) -> int:
        """Total bytes of all weights and outputs."""
        return int(self.weight_bytes.sum() + self.output_bytes.sum())

    @property
    def has_weights(self) -> np.ndarray:
        """True for steps with weights to place: `[n]` bool."""
        return self.weight_bytes > 0

    @property
    def has_outputs(self) -> np.ndarray:
        """True for steps with outputs to place: `[n]` bool."""
        return np.bincount(self.writer, minlength=self.steps) > 0


def map_problem(graph: ComputationGraph, chip: MemoryChip, order: ArrayLike | None = None) -> MapProblem:
    """Builds the problem of a graph on a chip.

    Args:
      order: `[n]` ops as they run; by default the graph's topological order.

    Raises:
      PlanError: `order` is no topological order of this graph.
      ProblemError: memory 0 cannot hold everything.
    """
    a = graph.arrays
    order = _checked_order(graph, a.topological if order is None else order)
    step = np.empty(a.num_ops, np.int64)
    step[order] = np.arange(a.num_ops)
    root = _roots(a)
    own = np.flatnonzero(root == np.arange(a.num_tensors))
    own = own[np.argsort(step[a.producer[own]], kind="stable")]
    reads = _reads(graph, root, step)
    read, write, setup = (np.array([getattr(m, key) for m in chip.memories]) for key in ("read", "write", "setup"))
    written = np.bincount(step[a.producer[own]], minlength=a.num_ops)
    output_bytes = _sums(step[a.producer[own]], a.tensor_bytes[own], a.num_ops)
    weight_bytes = a.weight_bytes[order]
    weight_pages, tensor_pages = -(-weight_bytes // chip.page), -(-a.tensor_bytes[own] // chip.page)
    total = int(weight_pages.sum() + tensor_pages.sum())
    limits = [total if m.capacity is None else min(total, m.capacity // chip.page) for m in chip.memories]
    problem = MapProblem(
        graph=graph,
        chip=chip,
        order=order,
        compute=a.flops[order] / chip.peak,
        weight_bytes=weight_bytes,
        weight_seconds=_seconds((weight_bytes > 0).astype(np.int64), weight_bytes, setup, read),
        output_bytes=output_bytes,
        output_seconds=_seconds(written, output_bytes, setup, write),
        input_seconds=_seconds(reads.outside_count, reads.outside_bytes, setup, read)[:, 0],
        read_step=reads.reader,
        read_source=reads.source,
        read_seconds=_seconds(reads.tensors, reads.bytes, setup, read),
        writer=step[a.producer[own]],
        last=_last_steps(a, root, step)[own],
        weight_pages=weight_pages,
        tensor_pages=tensor_pages,
        capacity=np.array(limits, np.int64),
    )
    _check_largest(problem)
    return problem


def live_pages(problem: MapProblem, of: np.ndarray) -> np.ndarray:
    """Returns the pages of the outputs selected by `of` `[t]` bool that are live in each step: `[n]` int64."""
    change = np.zeros(problem.steps + 1, np.int64)
    np.add.at(change, problem.writer[of], problem.tensor_pages[of])
    np.add.at(change, problem.last[of] + 1, -problem.tensor_pages[of])
    return change.cumsum()[:-1]


def _checked_order(graph: ComputationGraph, order: ArrayLike) -> np.ndarray:
    a, ops = graph.arrays, np.asarray(order)
    if ops.shape != (a.num_ops,) or ops.dtype.kind not in "iu":
        raise PlanError(f"order of shape {ops.shape} and type {ops.dtype}: must be the {a.num_ops} ops as integers")
    if not np.array_equal(np.sort(ops), np.arange(a.num_ops)):
        raise PlanError("order repeats an op: must have each once")
    step = np.empty(a.num_ops, np.int64)
    step[ops] = np.arange(a.num_ops)
    source, target = a.dependencies()
    broken = np.flatnonzero(step[source] > step[target])
    if len(broken):
        first, second = graph.ops[source[broken[0]]].name, graph.ops[target[broken[0]]].name
        raise PlanError(f"order has op {second!r} before op {first!r}, which it depends on: it must come after")
    return ops.astype(np.int64)


def _roots(a: GraphArrays) -> np.ndarray:
    """Returns the tensor that owns each tensor's buffer, EXTERNAL for an external input's: `[t]` int64."""
    root = np.where(a.alias == NONE, np.arange(a.num_tensors), a.alias)
    for tensor in np.argsort(a.rank[a.producer], kind="stable"):  # aliased tensors come first
        if root[tensor] >= 0:
            root[tensor] = root[root[tensor]]
    return root


class _Reads(NamedTuple):
    """Tensors that steps read: e pairs of a reader and a source step, sorted, and external tensors of n steps."""

    reader: np.ndarray  # [e] int64
    source: np.ndarray  # [e] int64
    tensors: np.ndarray  # [e] int64, number of tensors read
    bytes: np.ndarray  # [e] int64, bytes read
    outside_count: np.ndarray  # [n] int64, number of external tensors read
    outside_bytes: np.ndarray  # [n] int64, their bytes


def _reads(graph: ComputationGraph, root: np.ndarray, step: np.ndarray) -> _Reads:
    a, n = graph.arrays, len(step)
    external_bytes = {tensor.name: tensor.bytes for tensor in graph.inputs}
    count, size = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for op, own, place in zip(graph.ops, listed_weights(graph), step.tolist(), strict=True):
        outside = [external_bytes[name] for name in set(op.inputs) - own if name in external_bytes]
        count[place], size[place] = len(outside), sum(outside)
    reader, buffer, size_read = step[a.use_op], root[a.use_tensor], a.tensor_bytes[a.use_tensor]
    inside = buffer != EXTERNAL
    np.add.at(count, reader[~inside], 1)
    np.add.at(size, reader[~inside], size_read[~inside])
    pair = reader[inside] * n + step[a.producer[buffer[inside]]]
    pairs, of_pair = np.unique(pair, return_inverse=True)
    bytes_read = _sums(of_pair, size_read[inside], len(pairs))
    return _Reads(pairs // n, pairs % n, np.bincount(of_pair, minlength=len(pairs)), bytes_read, count, size)


def _last_steps(a: GraphArrays, root: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Returns the last step in which each tensor is live, for tensors that own their buffer: `[t]` int64."""
    last = step[a.producer].astype(np.int64)
    buffer = root[a.use_tensor]
    np.maximum.at(last, buffer[buffer >= 0], step[a.use_op][buffer >= 0])
    kept = root[a.kept]
    last[kept[kept >= 0]] = len(step) - 1
    return last


def _sums(index: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
    """Sums integer values by index: `[size]` int64 (`np.bincount` would round them)."""
    sums = np.zeros(size, np.int64)
    np.add.at(sums, index, values)
    return sums


def _seconds(count: np.ndarray, size: np.ndarray, setup: np.ndarray, bandwidth: np.ndarray) -> np.ndarray:
    """Returns the seconds to read tensors from, or write them to, each memory: `[..., M]` float64."""
    return count[:, None] * setup + size[:, None] / bandwidth


def _check_largest(problem: MapProblem) -> None:
    everything = live_pages(problem, np.ones(len(problem.writer), bool)).max() + problem.weight_pages.sum()
    if everything > problem.capacity[0]:
        chip, largest = problem.chip, problem.chip.memories[0]
        need, have = format_bytes(int(everything) * chip.page), format_bytes(largest.capacity or 0)
        raise ProblemError(
            f"chip {chip.name!r}: memory {largest.name!r} has {have}, and graph {problem.graph.name!r} needs {need} at "
            "its peak: the largest memory must hold everything"
        )
