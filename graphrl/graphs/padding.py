"""Graphs as padded arrays for jitted code; graphs share padded sizes, so that few programs are compiled.

Letters used in shapes, here and in `costs`: n ops, t tensors, e uses (tensor and consumer), f control edges, r rows, u
slots and s shared buffers, all padded; g graphs in a batch; d devices; p chromosomes of a population.

A **row** is a fixed-width piece of the list of ops that an op's end may make ready: at most `ROW_WIDTH` ops that read
one of its tensors, or that are its control successors. Every tensor has at least one row, and an op's rows are
consecutive. Decoding therefore processes one row a step for any largest out-degree: 1.05 to 1.36 rows an op on layered
graphs, where rows as wide as the largest out-degree (290) cost up to 70 times as much.

A **slot** is a position in the ready queue. Op v has slot v; after it has run, the transfers of its first tensor take
that slot over. Only the second and later tensors of an op need additional slots.
"""

import dataclasses
import weakref
from collections.abc import Sequence

import jax
import numpy as np

from graphrl.compiled import late_entry
from graphrl.compiled.structures import rows_by
from graphrl.errors import GraphError
from graphrl.graphs.graph import NONE, ComputationGraph, GraphArrays

ROW_WIDTH = 4  # a power of two keeps index arithmetic to shifts; measured against 2, 3 and 8
READS, WAITS = 1, 2  # kinds of row entries: an op that reads the row's tensor, or a control successor
NEVER = 1 << 20  # in-degree of slots that must never become ready through their predecessors

_STEPS_PER_OCTAVE = 8
_ROOM = {"tensors": 1, "rows": 2, "uses": 4, "controls": 1, "shares": 1}  # per op, if the graph has any

# Largest ratio between the sizes of graphs in one group of `shared_sizes`. BRKGA at these limits takes 4% longer on a
# CPU, annealing 10 to 16%; a program takes two seconds to compile, as long as 30 runs of 5,000 evaluations on 125 ops.
_MAX_GROWTH = {"ops": 1.25, "tensors": 1.25, "slots": 1.25}
_MOST_OF_OTHERS = 2.0
_MIN_SIZE = 8  # smaller sizes count as this


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Number of elements of each kind of array in a padded graph; graphs of equal sizes share one compiled program."""

    ops: int
    tensors: int
    slots: int
    rows: int
    uses: int
    controls: int
    shares: int

    def covers(self, other: "Sizes") -> bool:
        """True if a graph of sizes `other` fits into arrays of these sizes."""
        return all(a >= b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PaddedGraph:
    """One graph as padded arrays or, with a leading axis g on every field, a batch of graphs.

    Bytes and seconds are float32 in the graph's units (`byte_unit`, `second_unit`). Padding ops never become ready.
    """

    num_ops: jax.Array  # [] int32, real ops
    num_tensors: jax.Array  # [] int32, real tensors
    byte_unit: jax.Array  # [] float32, bytes
    second_unit: jax.Array  # [] float32, seconds
    runtime: jax.Array  # [n] float32, second units
    workspace: jax.Array  # [n] float32, byte units
    weight: jax.Array  # [n] float32, byte units
    producer: jax.Array  # [t] int32, op; 0 for padding
    tensor_bytes: jax.Array  # [t] float32, byte units that a copy on another device occupies
    owned_bytes: jax.Array  # [t] float32, byte units that its producer allocates (0 for an alias)
    kept: jax.Array  # [t] bool
    use_tensor: jax.Array  # [e] int32; t for padding
    use_op: jax.Array  # [e] int32; n for padding
    control_source: jax.Array  # [f] int32; n for padding
    control_target: jax.Array  # [f] int32; n for padding
    indegree: jax.Array  # [u] int32, tensors read and control predecessors of an op; NEVER for other slots and padding
    slot_tensor: jax.Array  # [u] int32, the tensor whose transfers use the slot; t without a tensor
    row_entry: jax.Array  # [r, ROW_WIDTH] int32, ops; u for padding
    row_kind: jax.Array  # [r, ROW_WIDTH] int8, READS, WAITS or 0
    row_owner: jax.Array  # [r] int32, op; 0 for padding
    row_tensor: jax.Array  # [r] int32; t without a tensor
    row_slot: jax.Array  # [r] int32, slot of the row's tensor or, without a tensor, of its op; u for padding
    row_ends_op: jax.Array  # [r] bool
    row_ends_tensor: jax.Array  # [r] bool
    op_row: jax.Array  # [n] int32, first row; r for padding
    op_rows: jax.Array  # [n] int32, number of rows; 0 for padding
    tensor_row: jax.Array  # [t] int32, first row; r for padding
    tensor_rows: jax.Array  # [t] int32, number of rows; 0 for padding
    share_tensor: jax.Array  # [s] int32, tensors that share a buffer, producers in topological order; t for padding
    share_of: jax.Array  # [s] int32, the tensor that owns the buffer; t for padding
    share_reuses: jax.Array  # [s] bool, True by `reuses`, False by `alias`

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


def pad(graph: ComputationGraph, to: Sizes | None = None) -> PaddedGraph:
    """Converts the graph to fixed-size NumPy arrays (jax moves them to the device at first use).

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
    """Pads graphs to common sizes and stacks them along a new leading axis g."""
    to = common_sizes(graphs) if to is None else to
    return jax.tree.map(lambda *leaves: np.stack(leaves), *(pad(graph, to) for graph in graphs))


def sizes(graph: ComputationGraph) -> Sizes:
    """Returns a graph's array sizes without padding."""
    return _sizes(graph.arrays, rows_of(graph.arrays))


def common_sizes(graphs: Sequence[ComputationGraph]) -> Sizes:
    """Returns the smallest bucketed sizes (see `bucket`) that fit every one of `graphs`."""
    return bucketed([sizes(graph) for graph in graphs])


def bucketed(real: Sequence[Sizes]) -> Sizes:
    """Returns the smallest bucketed sizes that fit graphs of all these real sizes."""
    each = [dataclasses.astuple(one) for one in real]
    ops, tensors, _, rows, uses, controls, shares = (bucket(max(column)) for column in zip(*each, strict=True))
    extra_slots = bucket(max(row[2] - row[0] for row in each))
    return Sizes(ops, max(8, tensors), ops + extra_slots, rows, max(8, uses), controls, shares)


def bucket(count: int) -> int:
    """Rounds a count up to a padded size: 0, 8, or eight sizes per power of two (at most 12.5% more)."""
    if count == 0:
        return 0
    if count <= 8:
        return 8
    step = max(1, (1 << (count - 1).bit_length() - 1) // _STEPS_PER_OCTAVE)
    return -(-count // step) * step


def roomy_sizes(graph: ComputationGraph) -> Sizes:
    """Returns sizes shared by most graphs in the same bucket of ops, with room for rows, uses and the other counts.

    For programs whose run time does not depend on the padded rows and uses.
    """
    return _with_room(common_sizes([graph]))


def octave_sizes(graph: ComputationGraph) -> Sizes:
    """Returns `roomy_sizes` with ops rounded up to a power of two: fewer programs, which run up to twice as long."""
    own = common_sizes([graph])
    ops = 1 << (own.ops - 1).bit_length()
    return _with_room(dataclasses.replace(own, ops=ops, slots=own.slots - own.ops + ops))


def shared_sizes(graphs: Sequence[ComputationGraph]) -> list[Sizes]:
    """Chooses sizes for each graph, few of them distinct: graphs of similar sizes share them.

    From the largest graph down, each joins the first group of similar sizes. A graph that is alone in its group gets
    its own bucket.
    """
    each = [sizes(graph) for graph in graphs]
    groups: list[list[int]] = []
    for index in sorted(range(len(each)), key=lambda index: dataclasses.astuple(each[index]), reverse=True):
        fitting = (group for group in groups if _similar([each[index], *(each[member] for member in group)]))
        group = next(fitting, None)
        if group is None:
            groups.append(group := [])
        group.append(index)
    shared = list(each)
    for group in groups:
        common = bucketed([each[index] for index in group])
        for index in group:
            shared[index] = common
    return shared


def batch_sizes(graphs: Sequence[ComputationGraph]) -> list[Sizes]:
    """Chooses sizes for each of many graphs, in linear time: shared by those in the same bucket of ops whose numbers of
    edges round up to the same power of two. Fewer groups than `shared_sizes`, with more padding.
    """
    each = [sizes(graph) for graph in graphs]
    keys = [(bucket(real.ops), (real.uses + real.controls).bit_length()) for real in each]
    groups: dict[tuple[int, int], list[Sizes]] = {}
    for key, real in zip(keys, each, strict=True):
        groups.setdefault(key, []).append(real)
    common = {key: bucketed(group) for key, group in groups.items()}
    return [common[key] for key in keys]


def rows_of(a: GraphArrays) -> "Rows":
    """Returns a graph's rows (see the module), cached with the graph: its sizes and every padding need them."""
    rows = _rows.get(a)
    if rows is None:
        rows = _rows[a] = Rows(a)
    return rows


class Rows:
    """The rows of a graph (see the module) as NumPy arrays, named as in `PaddedGraph`; NONE pads entry and tensor."""

    def __init__(self, a: GraphArrays):
        n, t = a.num_ops, a.num_tensors
        reading = _Reading(a)
        rest, waiter = _fill_with_waiting(a, reading)
        own = -(-rest // ROW_WIDTH)  # [n] rows of control successors only
        own[(own == 0) & (np.bincount(reading.owner, minlength=n) == 0)] = 1  # an op has at least one row
        begins = np.append(0, np.cumsum(np.bincount(reading.owner, minlength=n) + own))
        place = np.arange(len(reading.owner)) + (np.cumsum(own) - own)[reading.owner]  # among all rows
        rows = int(begins[-1])
        is_second = np.append(False, a.producer[1:] == a.producer[:-1])[:t]  # or later, of its op's tensors
        slot = np.where(is_second, n - 1 + np.cumsum(is_second), a.producer)
        self.extra_slots = int(is_second.sum())
        self.owner = np.repeat(np.arange(n, dtype=np.int32), np.diff(begins))
        last = np.full(n, NONE)  # tensor of each op
        last[a.producer] = np.arange(t)
        self.tensor = last[self.owner].astype(np.int32)
        self.tensor[place] = reading.tensor
        self.slot = np.where(self.tensor == NONE, self.owner, slot[self.tensor] if t else 0).astype(np.int32)
        self.entry, self.kind = np.full((rows, ROW_WIDTH), NONE, np.int32), np.zeros((rows, ROW_WIDTH), np.int8)
        self.entry[place], self.kind[place] = reading.entry, reading.kind
        # control successors without a free entry go, one after the other, into the op's last rows
        at = np.repeat((begins[1:] - own) * ROW_WIDTH - np.cumsum(rest) + rest, rest) + np.arange(len(waiter))
        self.entry.reshape(-1)[at], self.kind.reshape(-1)[at] = waiter, WAITS
        self.ends_tensor = np.ones(rows, bool)
        self.ends_tensor[place] = np.append(reading.tensor[1:] != reading.tensor[:-1], True)[: len(place)]
        self.ends_op = np.append(self.owner[1:] != self.owner[:-1], True)[:rows]
        self.op_row = begins[:-1].astype(np.int32)
        self.op_rows = np.diff(begins)
        self.tensor_row = place[reading.first].astype(np.int32)
        self.tensor_rows = reading.count


class _Reading:
    """Rows that list the readers of tensors, at least one row per tensor."""

    def __init__(self, a: GraphArrays) -> None:
        readers = np.bincount(a.use_tensor, minlength=a.num_tensors)
        self.count = np.maximum(1, -(-readers // ROW_WIDTH))  # [t]
        self.first = np.cumsum(self.count) - self.count  # [t]
        self.tensor = np.repeat(np.arange(a.num_tensors), self.count)  # [r]
        self.owner = a.producer[self.tensor]  # [r]
        place = np.arange(len(a.use_op)) - (np.cumsum(readers) - readers)[a.use_tensor]
        at = self.first[a.use_tensor] + place // ROW_WIDTH, place % ROW_WIDTH
        self.entry = np.full((len(self.tensor), ROW_WIDTH), NONE, np.int32)
        self.kind = np.zeros_like(self.entry, np.int8)
        self.entry[at], self.kind[at] = a.use_op, READS


def _fill_with_waiting(a: GraphArrays, reading: _Reading) -> tuple[np.ndarray, np.ndarray]:
    """Puts control successors into the free entries of their predecessor's rows.

    Returns:
      `[n]` the number of successors of each op without a free entry, and these successors.
    """
    begins = np.searchsorted(reading.owner, np.arange(a.num_ops + 1))
    waits, targets = rows_by(a.control_source, a.control_target, a.num_ops)
    rest = np.zeros(a.num_ops, np.int64)
    _fill(reading.entry, reading.kind, begins, targets, waits, rest)
    place = np.arange(len(targets)) - np.repeat(waits[:-1], np.diff(waits))
    return rest, targets[place < np.repeat(rest, np.diff(waits))]


@late_entry
def _fill(
    entries: np.ndarray, kinds: np.ndarray, begins: np.ndarray, targets: np.ndarray, waits: np.ndarray, rest: np.ndarray
) -> None:
    """Fills rows with control successors; those that do not fit move to the front of their op's part of `targets`.

    Args:
      entries, kinds: `[r, ROW_WIDTH]` ops of the rows, and their kinds; written in place.
      begins, waits: `[n + 1]` offsets of each op's rows, and of its targets.
      targets: `[f]` control successors, grouped by op; reordered in place.
      rest: `[n]` number of an op's targets that do not fit; written in place.
    """
    for op in range(len(rest)):
        first, count = waits[op], waits[op + 1] - waits[op]
        for row in range(begins[op], begins[op + 1]):
            used = 0
            while used < ROW_WIDTH and kinds[row, used] != 0:
                used += 1
            reads, left = used, 0
            for target in range(first, first + count):
                # an op appears once in a row: a step writes its entries in no particular order
                fits = used < ROW_WIDTH
                for column in range(reads):
                    fits = fits and entries[row, column] != targets[target]
                if fits:
                    entries[row, used], kinds[row, used] = targets[target], WAITS
                    used += 1
                else:
                    targets[first + left] = targets[target]
                    left += 1
            count = left
        rest[op] = count


_rows: weakref.WeakKeyDictionary[GraphArrays, Rows] = weakref.WeakKeyDictionary()


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


def _with_room(own: Sizes) -> Sizes:
    rest = {name: _roomy(getattr(own, name), own.ops, share) for name, share in _ROOM.items()}
    return dataclasses.replace(own, slots=own.ops + _roomy(own.slots - own.ops, own.ops, 1), **rest)


def _roomy(count: int, ops: int, least: int) -> int:
    """Rounds `count` up to a power of two times `least * ops`; 0 stays 0."""
    if count == 0:
        return 0
    return least * ops * (1 << (-(-count // (least * ops)) - 1).bit_length())


def _padded_slot(slot: np.ndarray, a: GraphArrays, to: Sizes) -> np.ndarray:
    """Renumbers slots for padding: padding ops come before the slots of second and later tensors."""
    return np.where(slot < a.num_ops, slot, slot - a.num_ops + to.ops)


def _unit(*values: np.ndarray) -> float:
    """Chooses a power of two as the unit of values: dividing by it is exact for whole byte counts below 2^24 units."""
    largest = max((float(v.max()) for v in values if v.size), default=0.0)
    return 1.0 if largest == 0 else float(2.0 ** max(-60, np.floor(np.log2(largest)) - 10))


def _shares(a: GraphArrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lists the tensors that share another one's buffer, each after the tensor that owns it.

    Returns:
      Three `[s]` arrays: tensors, the tensors whose buffers they share, and True for sharing by `reuses`.
    """
    # a buffer of an external input (index below 0) costs nothing, whichever tensors share it
    tensors = np.flatnonzero((a.alias >= 0) | (a.reuses >= 0))
    tensors = tensors[np.argsort(a.rank[a.producer[tensors]], kind="stable")]
    return tensors, np.maximum(a.alias, a.reuses)[tensors], a.reuses[tensors] >= 0


def _similar(group: Sequence[Sizes]) -> bool:
    for field in dataclasses.fields(Sizes):
        values = [max(_MIN_SIZE, getattr(one, field.name)) for one in group]
        if max(values) > _MAX_GROWTH.get(field.name, _MOST_OF_OTHERS) * min(values):
            return False
    return True
