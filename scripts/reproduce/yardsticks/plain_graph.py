"""The arrays of `plain.py`: lists of successors and inputs, padded to the largest of any op."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from graphrl.bench.yardstick.decode import check_supported
from graphrl.costs.exact import key_bits
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes, common_sizes

NEVER = 1 << 20  # so many inputs never come


class PlainGraph(NamedTuple):
    """One graph or, with a leading axis, a batch: n ops, t tensors, d devices, e uses.

    Nodes: op v is node v, and the transfer of tensor t to its s-th foreign device is node n + t * (d - 1) + s, as in
    `costs.device.lanes`; N = n + t * (d - 1) is no node. n is no op, t is no tensor.
    """

    levels: jax.Array  # [] float32, quantisation levels of keys
    runtime: jax.Array  # [n] float32, seconds
    transfer_seconds: jax.Array  # [t] float32
    workspace: jax.Array  # [n] float32, bytes
    tensor_bytes: jax.Array  # [t + 1] float32
    kept: jax.Array  # [t] bool
    producer: jax.Array  # [t] int32, op
    waits: jax.Array  # [n] int32, tensors read and control predecessors
    inputs: jax.Array  # [n, I] int32, tensors
    outputs: jax.Array  # [n, O] int32, tensors
    before: jax.Array  # [n, C] int32, control predecessors
    successors: jax.Array  # [N + 1, K] int32, nodes: readers on any device, control successors, transfers
    control: jax.Array  # [N + 1, K] bool, whether a successor waits for the node on whatever device it runs
    use_tensor: jax.Array  # [e] int32
    use_op: jax.Array  # [e] int32


def plain_batch(graphs: Sequence[ComputationGraph], problem: Problem) -> PlainGraph:
    """The graphs, padded to common sizes and stacked.

    Raises:
      GraphrlError: an alias, a reuse, resident weights or a memory limit.
    """
    check_supported(graphs, problem)
    sizes = common_sizes(graphs)
    each = [_ragged(graph, sizes, problem) for graph in graphs]
    widths = {name: max(len(row) for lists in each for row in lists[name]) for name in each[0]}
    padded = [_pad(graph, lists, widths, sizes, problem) for graph, lists in zip(graphs, each, strict=True)]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *padded)


def _ragged(graph: ComputationGraph, sizes: Sizes, problem: Problem) -> dict[str, list[list[int]]]:
    """Lists by op or node; control successors as -1 - op."""
    a = graph.arrays
    n, t, foreign = sizes.ops, sizes.tensors, problem.devices - 1
    inputs: list[list[int]] = [[] for _ in range(n)]
    outputs: list[list[int]] = [[] for _ in range(n)]
    before: list[list[int]] = [[] for _ in range(n)]
    successors: list[list[int]] = [[] for _ in range(n + t * foreign + 1)]
    for tensor, op in enumerate(a.producer.tolist()):
        outputs[op].append(tensor)
        successors[op] += range(n + tensor * foreign, n + (tensor + 1) * foreign)
    for tensor, op in zip(a.use_tensor.tolist(), a.use_op.tolist(), strict=True):
        inputs[op].append(tensor)
        for node in (a.producer[tensor], *range(n + tensor * foreign, n + (tensor + 1) * foreign)):
            successors[node].append(op)
    for source, target in zip(a.control_source.tolist(), a.control_target.tolist(), strict=True):
        before[target].append(source)
        successors[source].append(-1 - target)
    return {"inputs": inputs, "outputs": outputs, "before": before, "successors": successors}


def _pad(
    graph: ComputationGraph,
    lists: dict[str, list[list[int]]],
    widths: dict[str, int],
    sizes: Sizes,
    problem: Problem,
) -> PlainGraph:
    a = graph.arrays
    n, t = sizes.ops, sizes.tensors
    seconds = [problem.transfer_seconds(size) for size in a.tensor_bytes.tolist()]
    waits = np.bincount(a.use_op, minlength=a.num_ops) + np.bincount(a.control_target, minlength=a.num_ops)
    bits = key_bits(a.num_ops, a.num_tensors, problem.devices)
    successors = _table(lists["successors"], widths["successors"], len(lists["successors"]) - 1)
    return PlainGraph(
        levels=_scalar(2.0**bits),
        runtime=_column(a.runtime, n, 0, np.float32),
        transfer_seconds=_column(np.array(seconds), t, 0, np.float32),
        workspace=_column(a.workspace_bytes, n, 0, np.float32),
        tensor_bytes=_column(a.tensor_bytes, t + 1, 0, np.float32),
        kept=_column(a.kept, t, 0, np.bool_),
        producer=_column(a.producer, t, 0, np.int32),
        waits=_column(waits, n, NEVER, np.int32),
        inputs=_table(lists["inputs"], widths["inputs"], t),
        outputs=_table(lists["outputs"], widths["outputs"], t),
        before=_table(lists["before"], widths["before"], n),
        successors=np.where(successors < 0, -1 - successors, successors),
        control=successors < 0,
        use_tensor=_column(a.use_tensor, sizes.uses, t, np.int32),
        use_op=_column(a.use_op, sizes.uses, n, np.int32),
    )


def _scalar(value: float) -> Any:
    return np.array(value, np.float32)


def _column(values: np.ndarray, size: int, padding: float, dtype: type) -> Any:
    out: np.ndarray = np.full(size, padding, dtype)
    out[: len(values)] = values
    return out


def _table(lists: list[list[int]], width: int, padding: int) -> Any:
    return np.array([row + [padding] * (width - len(row)) for row in lists], np.int32).reshape(len(lists), width)
