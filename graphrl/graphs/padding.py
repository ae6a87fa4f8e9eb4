"""Graphs as fixed-size arrays: what jitted code reads.

Letters used in shapes, here and in `costs`: n ops, t tensors, e uses, f control edges, r rows, u slots and s shared
buffers, all padded; g graphs in a batch; d devices; p chromosomes of a population.

Rows and slots are what `rows.py` says.
"""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from graphrl.errors import GraphError
from graphrl.graphs.arrays import NONE, GraphArrays
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.rows import NEVER, Rows, rows_of

_STEPS_PER_OCTAVE = 8
_ROOM = {"tensors": 1, "rows": 2, "uses": 4, "controls": 1, "shares": 1}  # an op, where there are any at all


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Array sizes of a padded graph: graphs of equal sizes share one compiled program."""

    ops: int
    tensors: int
    slots: int
    rows: int
    uses: int
    controls: int
    shares: int

    def covers(self, other: "Sizes") -> bool:
        """Whether a graph of sizes `other` fits."""
        return all(a >= b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PaddedGraph:
    """One graph or, with a leading axis g on every field, a batch of graphs, as arrays.

    Bytes and seconds are float32 in units of the graph (`byte_unit`, `second_unit`). Padding ops never become ready.
    """

    num_ops: jax.Array  # [] int32, real ops
    num_tensors: jax.Array  # [] int32, real tensors
    byte_unit: jax.Array  # [] float32, bytes
    second_unit: jax.Array  # [] float32, seconds
    runtime: jax.Array  # [n] float32, second units
    workspace: jax.Array  # [n] float32, byte units
    weight: jax.Array  # [n] float32, byte units
    producer: jax.Array  # [t] int32, op; 0 for padding
    tensor_bytes: jax.Array  # [t] float32, byte units that a copy on another device holds
    owned_bytes: jax.Array  # [t] float32, byte units that its producer allocates (0 for an alias)
    kept: jax.Array  # [t] bool
    use_tensor: jax.Array  # [e] int32; t for padding
    use_op: jax.Array  # [e] int32; n for padding
    control_source: jax.Array  # [f] int32; n for padding
    control_target: jax.Array  # [f] int32; n for padding
    indegree: jax.Array  # [u] int32, tensors read and control predecessors of an op; NEVER for other slots and padding
    slot_tensor: jax.Array  # [u] int32, the tensor whose transfers use the slot; t where there is none
    row_entry: jax.Array  # [r, ROW_WIDTH] int32, ops; u for padding
    row_kind: jax.Array  # [r, ROW_WIDTH] int8, READS, WAITS or 0
    row_owner: jax.Array  # [r] int32, op; 0 for padding
    row_tensor: jax.Array  # [r] int32; t where there is none
    row_slot: jax.Array  # [r] int32, slot of the row's tensor or, where there is none, of its op; u for padding
    row_ends_op: jax.Array  # [r] bool
    row_ends_tensor: jax.Array  # [r] bool
    op_row: jax.Array  # [n] int32, first row; r for padding
    op_rows: jax.Array  # [n] int32, number of rows; 0 for padding
    tensor_row: jax.Array  # [t] int32, first row; r for padding
    tensor_rows: jax.Array  # [t] int32, number of rows; 0 for padding
    share_tensor: jax.Array  # [s] int32, tensors that share a buffer, producers in topological order; t for padding
    share_of: jax.Array  # [s] int32, the tensor whose buffer it is; t for padding
    share_reuses: jax.Array  # [s] bool, by `reuses` (else by `alias`)

    @property
    def sizes(self) -> Sizes:
        """The padded sizes, the same for every graph of a batch."""
        arrays = (
            self.runtime,
            self.producer,
            self.indegree,
            self.row_owner,
            self.use_tensor,
            self.control_source,
            self.share_tensor,
        )
        return Sizes(*(array.shape[-1] for array in arrays))


def bucket(count: int) -> int:
    """The padded size for `count` elements: 0, or the next of eight an octave (at most 12.5% more); at least 8."""
    if count == 0:
        return 0
    if count <= 8:
        return 8
    step = max(1, (1 << (count - 1).bit_length() - 1) // _STEPS_PER_OCTAVE)
    return -(-count // step) * step


def sizes(graph: ComputationGraph) -> Sizes:
    """The real sizes of a graph."""
    return _sizes(graph.arrays, rows_of(graph.arrays))


def _sizes(a: GraphArrays, rows: Rows) -> Sizes:
    return Sizes(
        ops=a.num_ops,
        tensors=a.num_tensors,
        slots=a.num_ops + rows.extra_slots,
        rows=len(rows.owner),
        uses=len(a.use_tensor),
        controls=len(a.control_source),
        shares=int(((a.alias >= 0) | (a.reuses >= 0)).sum()),
    )


def common_sizes(graphs: Sequence[ComputationGraph]) -> Sizes:
    """The bucketed sizes that hold every one of `graphs`."""
    return bucketed([sizes(graph) for graph in graphs])


def bucketed(real: Sequence[Sizes]) -> Sizes:
    """The bucketed sizes that hold graphs of all these real sizes."""
    each = [dataclasses.astuple(one) for one in real]
    ops, tensors, _, rows, uses, controls, shares = (bucket(max(column)) for column in zip(*each, strict=True))
    extra_slots = bucket(max(row[2] - row[0] for row in each))
    return Sizes(ops, max(8, tensors), ops + extra_slots, rows, max(8, uses), controls, shares)


def roomy_sizes(graph: ComputationGraph) -> Sizes:
    """Sizes that most graphs of one bucket of ops share: with room for the rows, uses and so on that such graphs have.

    For programs that more rows and uses do not slow down.
    """
    return _with_room(common_sizes([graph]))


def octave_sizes(graph: ComputationGraph) -> Sizes:
    """`roomy_sizes` for the next power of two of ops: fewer programs still, which take up to twice as long."""
    own = common_sizes([graph])
    ops = 1 << (own.ops - 1).bit_length()
    return _with_room(dataclasses.replace(own, ops=ops, slots=own.slots - own.ops + ops))


def _with_room(own: Sizes) -> Sizes:
    rest = {name: _roomy(getattr(own, name), own.ops, share) for name, share in _ROOM.items()}
    return dataclasses.replace(own, slots=own.ops + _roomy(own.slots - own.ops, own.ops, 1), **rest)


def _roomy(count: int, ops: int, least: int) -> int:
    """0, or `least` times the ops or the next power of two times that."""
    if count == 0:
        return 0
    return least * ops * (1 << (-(-count // (least * ops)) - 1).bit_length())


def pad(graph: ComputationGraph, to: Sizes | None = None) -> PaddedGraph:
    """The graph as fixed-size NumPy arrays (jax moves them to the device at first use).

    Args:
      graph: any graph.
      to: sizes to pad to; by default the graph's own bucket.

    Raises:
      GraphError: `to` is too small for the graph.
    """
    a = graph.arrays
    rows = rows_of(a)
    real = _sizes(a, rows)
    to = bucketed([real]) if to is None else to
    needed = dataclasses.replace(real, slots=to.ops + real.slots - real.ops)
    if not to.covers(needed):
        raise GraphError(f"graph {graph.name!r} has sizes {real}, more than the {to} it is padded to")
    byte_unit, second_unit = _unit(a.tensor_bytes, a.workspace_bytes, a.weight_bytes), _unit(a.runtime)
    owned = np.where(a.alias == NONE, a.tensor_bytes, 0) / byte_unit
    indegree = np.full(to.slots, NEVER)
    indegree[: a.num_ops] = np.bincount(a.use_op, minlength=a.num_ops) + np.bincount(
        a.control_target, minlength=a.num_ops
    )
    slot_tensor = np.full(to.slots, to.tensors, np.int32)
    has_tensor = rows.tensor != NONE
    slot_tensor[_padded_slot(rows.slot[has_tensor], a, to)] = rows.tensor[has_tensor]
    share_tensor, share_of, share_reuses = _shares(a)

    def fill(values: np.ndarray, size: int, padding: float, dtype: type) -> np.ndarray:
        out = np.full((size, *np.shape(values)[1:]), padding, dtype)
        out[: len(values)] = values
        return out

    fields: dict[str, np.ndarray | np.generic] = dict(  # noqa: C408  (reads as the constructor that it fills)
        num_ops=np.int32(a.num_ops),
        num_tensors=np.int32(a.num_tensors),
        byte_unit=np.float32(byte_unit),
        second_unit=np.float32(second_unit),
        runtime=fill(a.runtime / second_unit, to.ops, 0, np.float32),
        workspace=fill(a.workspace_bytes / byte_unit, to.ops, 0, np.float32),
        weight=fill(a.weight_bytes / byte_unit, to.ops, 0, np.float32),
        producer=fill(a.producer, to.tensors, 0, np.int32),
        tensor_bytes=fill(a.tensor_bytes / byte_unit, to.tensors, 0, np.float32),
        owned_bytes=fill(owned, to.tensors, 0, np.float32),
        kept=fill(a.kept, to.tensors, False, np.bool_),
        use_tensor=fill(a.use_tensor, to.uses, to.tensors, np.int32),
        use_op=fill(a.use_op, to.uses, to.ops, np.int32),
        control_source=fill(a.control_source, to.controls, to.ops, np.int32),
        control_target=fill(a.control_target, to.controls, to.ops, np.int32),
        indegree=indegree.astype(np.int32),
        slot_tensor=slot_tensor,
        row_entry=fill(np.where(rows.kind > 0, rows.entry, to.slots), to.rows, to.slots, np.int32),
        row_kind=fill(rows.kind, to.rows, 0, np.int8),
        row_owner=fill(rows.owner, to.rows, 0, np.int32),
        row_tensor=fill(np.where(rows.tensor == NONE, to.tensors, rows.tensor), to.rows, to.tensors, np.int32),
        row_slot=fill(_padded_slot(rows.slot, a, to), to.rows, to.slots, np.int32),
        row_ends_op=fill(rows.ends_op, to.rows, True, np.bool_),
        row_ends_tensor=fill(rows.ends_tensor, to.rows, True, np.bool_),
        op_row=fill(rows.op_row, to.ops, to.rows, np.int32),
        op_rows=fill(rows.op_rows, to.ops, 0, np.int32),
        tensor_row=fill(rows.tensor_row, to.tensors, to.rows, np.int32),
        tensor_rows=fill(rows.tensor_rows, to.tensors, 0, np.int32),
        share_tensor=fill(share_tensor, to.shares, to.tensors, np.int32),
        share_of=fill(share_of, to.shares, to.tensors, np.int32),
        share_reuses=fill(share_reuses, to.shares, False, np.bool_),
    )
    return PaddedGraph(**fields)  # type: ignore[arg-type]  # jax takes NumPy arrays wherever it takes its own


def pad_batch(graphs: Sequence[ComputationGraph], to: Sizes | None = None) -> PaddedGraph:
    """A batch of graphs, padded to common sizes and stacked along a new leading axis g."""
    to = common_sizes(graphs) if to is None else to
    return jax.tree.map(lambda *leaves: np.stack(leaves), *(pad(graph, to) for graph in graphs))


def _padded_slot(slot: np.ndarray, a: GraphArrays, to: Sizes) -> np.ndarray:
    """Slots of a graph where padding ops stand before the slots that no op has."""
    return np.where(slot < a.num_ops, slot, slot - a.num_ops + to.ops)


def _unit(*values: np.ndarray) -> float:
    """A power of two, so that dividing by it is exact: whole byte counts below 2^24 units keep all their digits."""
    largest = max((float(v.max()) for v in values if v.size), default=0.0)
    return 1.0 if largest == 0 else float(2.0 ** max(-60, np.floor(np.log2(largest)) - 10))


def _shares(a: GraphArrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The outputs that share a buffer of an op's, ordered so that a buffer's owner comes before who takes it over."""
    # a buffer of an external input (index below 0) costs nothing, whoever shares it
    tensors = np.flatnonzero((a.alias >= 0) | (a.reuses >= 0))
    tensors = tensors[np.argsort(a.rank[a.producer[tensors]], kind="stable")]
    return tensors, np.maximum(a.alias, a.reuses)[tensors], a.reuses[tensors] >= 0
