"""What the beam reads of a graph: fixed-size arrays, the same shapes for all graphs of a bucket.

Letters used in shapes here and in the package: n ops and b buffers, both padded to whole words of 32; w words of ops, x
words of buffers; k states; p, q planes of counters. A set of ops (or buffers) is `[w]` uint32: op i is bit i % 32 of
word i / 32. **Planes** are counters cut into bits: bit i of plane j is bit j of the counter of op i.

Ops are numbered anew, those that can run at about the same time next to each other, so that the ops that are ready in
any state of a beam fill few words.

Model of memory (rules in costs/exact_memory.py). What an op adds, and what it frees, depends only on the set of ops
that ran before it, so that live memory belongs to the set:

- an op is compared with live + `allocated` - what it takes over by `reuses`, and leaves live + `held` - what it frees;
- an op frees a buffer, or may take it over, if all other users of the buffer have run.

A buffer that is taken over keeps its old size in truth, and here has its new owner's. They are equal in graphs whose
`reuses` are of equal bytes; otherwise the model is below the truth. Bytes are int32 in whole units: the greatest common
divisor of all bytes, or, where sums would pass 2^31, a larger unit, every size rounded down. So the model never costs an
order more than it costs in truth, and is exact wherever `Model.exact` says so.
"""

import dataclasses
import math

import jax
import numpy as np

from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.memory_orders import Flow

WORD = 32
_MAX_UNITS = 2**31 - 2  # 2^31 - 1 is the key of what is no candidate
_LIVE_BITS = 20  # of live memory in a tie key (see keys.py)
_PLANES = (5, 8, 12, 16, 20, 24, 28, 32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tables:
    """A graph for the beam."""

    num_ops: np.ndarray  # [] int32, real ops
    live_shift: np.ndarray  # [] uint32, live >> live_shift has at most 20 bits
    allocated: np.ndarray  # [n] int32, outputs and workspace
    held: np.ndarray  # [n] int32, outputs that somebody reads or that are kept
    hashes: np.ndarray  # [2, n] uint32, random
    successors: np.ndarray  # [w, n] uint32, the set of each op
    reads: np.ndarray  # [x, n] uint32, the set of buffers that each op reads and that can be freed
    waits: np.ndarray  # [w, p] uint32, planes: predecessors of each op; 1 for padding, which never becomes ready
    users: np.ndarray  # [x, q] uint32, planes: ops that read each buffer
    op_words: np.ndarray  # [n, w + 1] int32, by step: how many words of `waits` differ between states or change, which
    buffer_words: np.ndarray  # [n, x + 1] int32, the same of `users`
    freed_buffer: np.ndarray  # [r, n] int32, the buffers of `reads`, one after the other
    freed_bytes: np.ndarray  # [r, n] int32
    freed_count: np.ndarray  # [n] int32, how many there are
    taken_buffer: np.ndarray  # [s, n] int32, buffers that the op's outputs may take over
    taken_bytes: np.ndarray  # [s, n] int32, of the output
    taken_count: np.ndarray  # [n] int32

    @property
    def words(self) -> int:
        """Words of a set of ops."""
        return self.successors.shape[0]


@dataclasses.dataclass(frozen=True)
class Model:
    """The tables, and what connects them with the graph.

    Attributes:
      tables: arrays.
      ops: `[real n]` int64, the graph's op of each number.
      unit: bytes.
      exact: whether the model's peak of every order, times `unit`, is the true one.
    """

    tables: Tables
    ops: np.ndarray
    unit: int
    exact: bool


def model(graph: ComputationGraph, flow: Flow, seed: int) -> Model:
    """The beam's model of a graph on one device; `seed` draws the hashes."""
    a = graph.arrays
    n = a.num_ops
    number = np.empty(n, np.int64)
    earliest, latest = _reach(flow)
    ops = np.argsort(earliest + latest, kind="stable")
    number[ops] = np.arange(n)
    unit, whole = _unit(flow, a.workspace_bytes)
    size = [bytes_ // unit for bytes_ in flow.size]
    workspace = (a.workspace_bytes // unit).tolist()
    outputs = [sum(size[buffer] for buffer in flow.writes[op]) for op in range(n)]
    held = [sum(size[b] for b in flow.writes[op] if flow.users[b] or flow.pinned[b]) for op in range(n)]
    buffers = [b for b, users in enumerate(flow.users) if users and not flow.pinned[b]]
    buffers.sort(key=lambda b: min(number[flow.users[b]]))
    column = {buffer: i for i, buffer in enumerate(buffers)}
    freed = [[(column[b], size[b]) for b in flow.reads[op] if b in column] for op in ops.tolist()]
    taken, equal = _taken(flow, size, column)
    words, buffer_words = _words(n), _words(len(buffers))
    successors = [number[flow.successors[op]].tolist() for op in ops.tolist()]
    # a counter changes from when the first of those that it counts can run; that of an op, until the op has run
    op_begins = np.array([min(earliest[[op, *flow.predecessors[op]]]) for op in range(n)])
    spans = [(min(earliest[flow.users[b]]), max(latest[flow.users[b]])) for b in buffers]
    buffer_spans = np.array(spans, np.int64).reshape(-1, 2).T
    rng = np.random.default_rng([seed, 0xBEA])
    total = sum(size) + max(workspace)
    freed_buffer, freed_bytes, freed_count = _slots(freed, WORD * words, least=8)
    taken_buffer, taken_bytes, taken_count = _slots([taken[op] for op in ops.tolist()], WORD * words, least=0)
    tables = Tables(
        num_ops=np.int32(n),
        live_shift=np.uint32(max(0, total.bit_length() - _LIVE_BITS)),
        allocated=_filled([outputs[op] + workspace[op] for op in ops.tolist()], WORD * words),
        held=_filled([held[op] for op in ops.tolist()], WORD * words),
        hashes=rng.integers(0, 2**32, (2, WORD * words), dtype=np.uint32),
        successors=_sets(successors, WORD * words, words),
        reads=_sets([[buffer for buffer, _ in row] for row in freed], WORD * words, buffer_words),
        waits=_planes([len(flow.predecessors[op]) for op in ops.tolist()], words, padding=1),
        users=_planes([len(flow.users[b]) for b in buffers], buffer_words, padding=0),
        op_words=_active(op_begins[ops], latest[ops], words, WORD * words),
        buffer_words=_active(*buffer_spans, buffer_words, WORD * words),
        freed_buffer=freed_buffer,
        freed_bytes=freed_bytes,
        freed_count=freed_count,
        taken_buffer=taken_buffer,
        taken_bytes=taken_bytes,
        taken_count=taken_count,
    )
    return Model(tables, ops, unit, whole and equal)


def _unit(flow: Flow, workspace: np.ndarray) -> tuple[int, bool]:
    """Bytes of a unit, and whether all bytes are whole units."""
    values = [*flow.size, *workspace.tolist()]
    common = math.gcd(*values) or 1
    total = sum(flow.size) + max(workspace.tolist())
    return (common, True) if total // common <= _MAX_UNITS else (-(-total // _MAX_UNITS), False)


def _taken(flow: Flow, size: list[int], column: dict[int, int]) -> tuple[list[list[tuple[int, int]]], bool]:
    """By op, (buffer, bytes) of the outputs that may take a buffer over, and whether all have the buffer's size."""
    taken: list[dict[int, int]] = [{} for _ in range(flow.num_ops)]
    equal = True
    for tensor, buffer in sorted(flow.reuses.items()):
        if buffer in column:
            equal &= flow.size[tensor] == flow.size[buffer]
            # the first output of an op has the buffer
            taken[flow.graph.arrays.producer[tensor]].setdefault(column[buffer], size[tensor])
    return [list(row.items()) for row in taken], equal


def _words(count: int) -> int:
    """Words for `count` bits, at least 1, rounded up to one of four sizes an octave."""
    words = max(1, -(-count // WORD))
    step = max(1, (1 << words.bit_length() - 1) // 4)
    return -(-words // step) * step


def _filled(values: list[int], size: int) -> np.ndarray:
    out = np.zeros(size, np.int32)
    out[: len(values)] = values
    return out


def _slots(rows: list[list[tuple[int, int]]], size: int, least: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lists of (buffer, bytes) as columns: `[s, size]` twice, and their lengths `[size]`; s a power of two or 0."""
    longest = max(len(row) for row in rows)
    slots = 0 if longest == 0 and least == 0 else max(least, 1 << (longest - 1).bit_length() if longest else 0)
    buffer, bytes_ = np.zeros((slots, size), np.int32), np.zeros((slots, size), np.int32)
    for column, row in enumerate(rows):
        for slot, (index, value) in enumerate(row):
            buffer[slot, column], bytes_[slot, column] = index, value
    return buffer, bytes_, _filled([len(row) for row in rows], size)


def _sets(rows: list[list[int]], size: int, words: int) -> np.ndarray:
    """Sets as columns: `[words, size]` uint32."""
    sets = np.zeros((words, size), np.uint32)
    for column, row in enumerate(rows):
        for index in row:
            sets[index // WORD, column] |= np.uint32(1 << index % WORD)
    return sets


def _planes(counts: list[int], words: int, padding: int) -> np.ndarray:
    """Counters as planes: `[words, planes]` uint32."""
    longest = max(counts, default=0).bit_length()
    planes = next(planes for planes in _PLANES if planes >= longest)
    padded = np.full(words * WORD, padding, np.int64)
    padded[: len(counts)] = counts
    bits = padded.reshape(words, 1, WORD) >> np.arange(planes)[:, None] & 1
    return (bits << np.arange(WORD)).sum(-1).astype(np.uint32)


def _reach(flow: Flow) -> tuple[np.ndarray, np.ndarray]:
    """When an op can run: the number of its ancestors, and that of all ops but its descendants: two `[n]` int64."""
    above, below = [0] * flow.num_ops, [0] * flow.num_ops  # sets
    for op in flow.topological:
        for before in flow.predecessors[op]:
            above[op] |= above[before] | 1 << before
    for op in reversed(flow.topological):
        for after in flow.successors[op]:
            below[op] |= below[after] | 1 << after
    earliest = np.array([ops.bit_count() for ops in above], np.int64)
    return earliest, flow.num_ops - np.array([ops.bit_count() for ops in below], np.int64)


def _active(begins: np.ndarray, ends: np.ndarray, words: int, steps: int) -> np.ndarray:
    """By step, how many words have a counter with begin <= step < end, and which: `[steps, words + 1]` int32."""
    active = np.zeros((steps + 1, words), np.int64)
    word = np.arange(len(begins)) // WORD
    np.add.at(active, (begins, word), 1)
    np.add.at(active, (ends, word), -1)
    active = np.cumsum(active, axis=0)[:-1] > 0
    return np.column_stack([active.sum(1), np.argsort(~active, axis=1, kind="stable")]).astype(np.int32)
