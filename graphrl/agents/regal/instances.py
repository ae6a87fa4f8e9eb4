"""Instances of REGAL's networks: those of `Proposal-v0`, and for the sequential network the `Visits` of their ops.

Visits are the order in which the network places the ops, one after another, and what `placement.py` reads of each op.
The order depends on the objective: highest level first for the makespan (HLFET), the order of least peak memory on one
device for the peak memory (solvers/rules/memory_orders.py).

Lists of inputs and of readers have at most `NEIGHBOURS` ops: the inputs that are visited last, which determine when the
op can start, and the readers that are visited first. More would only change features, since BRKGA computes the costs of
plans.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from graphrl.agents.regal.config import RegalConfig
from graphrl.costs.problem import Problem
from graphrl.envs import proposal
from graphrl.envs.graph_environment import stacked
from graphrl.envs.proposal import ProposalInstance
from graphrl.graphs.features import buffer_bytes, total
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes, common_sizes
from graphrl.solvers.flow import Flow
from graphrl.solvers.rules.memory_orders import memory_orders
from graphrl.training.agent import tiny_graph

NEIGHBOURS, TIES = 16, 32
_FOREVER = 1e9  # readers of an output that stays in memory


class Groups(NamedTuple):
    """Groups of ops that are placed together: all where the first of them is, in the order of the visits. Rows of
    `ties`, `seconds` and `runtime` are those of the groups' first ops; the others have none.
    """

    leader: jax.Array | np.ndarray  # [n] int32, the first op of each op's group
    ties: jax.Array | np.ndarray  # [n, TIES] int32, first ops of groups that a group has transfers with; n for none
    seconds: jax.Array | np.ndarray  # [n, TIES] float32, time of all transfers between the two
    runtime: jax.Array | np.ndarray  # [n] float32, of all ops of a group


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Visits:
    """The ops of a padded graph in the order of their placement; a batch has a leading axis g on every array.

    The unit of time is the mean run time of the ops. The unit of bytes is the peak memory of the order on one device,
    divided by the number of devices: the least peak of a device if they share it evenly.
    """

    num_ops: jax.Array | np.ndarray  # [] int32, real ops
    order: jax.Array | np.ndarray  # [n] int32, ops: real ones first
    inputs: jax.Array | np.ndarray  # [n, NEIGHBOURS] int32, producers of what an op reads; n for none
    seconds: jax.Array | np.ndarray  # [n, NEIGHBOURS] float32, transfer time of each input
    readers: jax.Array | np.ndarray  # [n, NEIGHBOURS] int32, ops that read an op's outputs; n for none
    runtime: jax.Array | np.ndarray  # [n] float32
    level: jax.Array | np.ndarray  # [n] float32, longest run time from an op's start to the end, over the graph's
    output: jax.Array | np.ndarray  # [n + 1] float32, bytes of an op's outputs; the last is 0
    workspace: jax.Array | np.ndarray  # [n] float32, bytes
    uses: jax.Array | np.ndarray  # [n + 1] float32, number of ops that read an op's outputs
    groups: Groups | None = None  # None: every op is placed on its own


class RegalInstance(NamedTuple):
    """An instance of `Proposal-v0`, and the visits for the sequential network (None for the independent one)."""

    proposal: ProposalInstance
    visits: Visits | None


def make_instances(config: RegalConfig, graphs: Sequence[ComputationGraph], to: Sizes | None = None) -> RegalInstance:
    """Converts graphs to a batch (leading axis g), padded to `to` (by default the smallest bucket that covers all).

    Raises:
      GraphError: `to` is too small for a graph.
    """
    to = common_sizes(graphs) if to is None else to
    return stacked([make_instance(config, graph, to) for graph in graphs])


def make_instance(
    config: RegalConfig, graph: ComputationGraph, to: Sizes | None = None, problem: Problem | None = None
) -> RegalInstance:
    """Converts one graph to an instance, for `problem` or by default the configuration's. See `make_instances`."""
    to, problem = common_sizes([graph]) if to is None else to, problem or config.problem
    visits = make_visits(graph, to, problem) if config.placement == "sequential" else None
    return RegalInstance(proposal.make_instance(graph, to), visits)


def tiny_instance(config: RegalConfig) -> RegalInstance:
    """Creates a tiny instance for initialising parameters."""
    return make_instance(config, tiny_graph())


def make_visits(graph: ComputationGraph, to: Sizes, problem: Problem, group: np.ndarray | None = None) -> Visits:
    """Computes the visits of a graph, padded to the sizes. Ops with equal numbers in `group` `[ops]` form a group."""
    a, n = graph.arrays, len(graph.ops)
    order = _order(graph, problem)
    position = np.empty(n, np.int64)
    position[order] = np.arange(n)
    pairs, inverse = np.unique(a.use_op.astype(np.int64) * n + a.producer[a.use_tensor], return_inverse=True)
    reader, producer = np.divmod(pairs, n)
    time_unit = a.runtime.mean() or 1.0
    seconds = total(inverse, problem.latency + a.tensor_bytes[a.use_tensor] / problem.bandwidth, len(pairs))
    inputs, kept = _lists(reader, producer, -position[producer], to.ops)
    transfer = np.zeros(inputs.shape, np.float32)
    transfer[kept.rows, kept.columns] = seconds[kept.pairs] / time_unit
    readers, _ = _lists(producer, reader, position[reader], to.ops)
    output = total(a.producer, buffer_bytes(a), n)
    uses = np.bincount(producer, minlength=n).astype(np.float64)
    uses[a.producer[a.kept]] = _FOREVER
    byte_unit = _peak(order, position, reader, producer, output, uses, a.workspace_bytes) / problem.devices or 1.0
    level = a.tail + a.runtime
    rest = to.ops - n

    def padded(values: np.ndarray, more: int = rest) -> np.ndarray:
        return np.pad(values, (0, more)).astype(np.float32)

    return Visits(
        num_ops=np.int32(n),  # type: ignore[arg-type]  # jax takes NumPy's numbers as arrays
        order=np.concatenate([order, np.arange(n, to.ops)]).astype(np.int32),
        inputs=inputs,
        seconds=transfer,
        readers=readers,
        runtime=padded(a.runtime / time_unit),
        level=padded(level / (level.max() or 1.0)),
        output=padded(output / byte_unit, rest + 1),
        workspace=padded(a.workspace_bytes / byte_unit),
        uses=padded(uses, rest + 1),
        groups=None if group is None else _groups(graph, to, group, order, time_unit, problem),
    )


def _groups(
    graph: ComputationGraph, to: Sizes, group: np.ndarray, order: np.ndarray, unit: float, problem: Problem
) -> Groups:
    """Returns the groups in the order of the visits `[ops]`, with the ties that take longest; `unit` is in seconds."""
    a, n = graph.arrays, len(graph.ops)
    _, first, number = np.unique(group[order], return_index=True, return_inverse=True)
    leader = np.empty(n, np.int64)
    leader[order] = order[first][number]
    writer = leader[a.producer]
    sent = np.unique(a.use_tensor.astype(np.int64) * n + leader[a.use_op])  # once to each group that reads a tensor
    tensor, other = np.divmod(sent[writer[sent // n] != sent % n], n)
    seconds = (problem.latency + a.tensor_bytes[tensor] / problem.bandwidth) / unit
    both = np.concatenate([writer[tensor] * n + other, other * n + writer[tensor]])
    pairs, pair = np.unique(both, return_inverse=True)
    time = total(pair, np.concatenate([seconds, seconds]), len(pairs))
    ties, kept = _lists(*np.divmod(pairs, n), -time, to.ops, TIES)
    table = np.zeros(ties.shape, np.float32)
    table[kept.rows, kept.columns] = time[kept.pairs]
    return Groups(
        leader=np.concatenate([leader, np.arange(n, to.ops)]).astype(np.int32),
        ties=ties,
        seconds=table,
        runtime=np.bincount(leader, a.runtime / unit, to.ops).astype(np.float32),
    )


def _order(graph: ComputationGraph, problem: Problem) -> np.ndarray:
    """Returns a topological order of the ops: `[n]` int64."""
    if problem.objective == "peak_memory":
        return np.asarray(memory_orders(Flow(graph))[0], np.int64)
    a = graph.arrays
    return np.lexsort((a.rank, -(a.tail + a.runtime)))  # no op has a higher level than its predecessors


class _Kept(NamedTuple):
    """The pairs that `_lists` keeps, and their places in its table."""

    pairs: np.ndarray
    rows: np.ndarray
    columns: np.ndarray


def _lists(
    op: np.ndarray, other: np.ndarray, rank: np.ndarray, size: int, most: int = NEIGHBOURS
) -> tuple[np.ndarray, _Kept]:
    """Lists for each op its others of least rank: `[size, most]` int32, `size` for none."""
    pairs = np.lexsort((rank, op))
    rows = op[pairs]
    columns = np.arange(len(pairs)) - np.searchsorted(rows, rows)
    near = columns < most
    kept = _Kept(pairs[near], rows[near], columns[near])
    table = np.full((size, most), size, np.int32)
    table[kept.rows, kept.columns] = other[kept.pairs]
    return table, kept


def _peak(
    order: np.ndarray,
    position: np.ndarray,
    reader: np.ndarray,
    producer: np.ndarray,
    output: np.ndarray,
    uses: np.ndarray,
    workspace: np.ndarray,
) -> float:
    """Computes the peak memory of an order on one device, without shared buffers, in bytes."""
    last = position.copy()
    np.maximum.at(last, producer, position[reader])
    freed = np.zeros(len(order) + 1)
    ends = uses < _FOREVER
    np.add.at(freed, last[ends] + 1, output[ends])
    return float((np.cumsum(output[order] - freed[:-1]) + workspace[order]).max())
