"""Model of a graph for the beam search: tables of the graph, states of the beam, and keys that rank candidates.

- `model` builds the tables. They have fixed sizes, with the same shapes for all graphs of a bucket.
- `initial`, `ready`, `expand`: states and the steps between them.
- `keys_of_word`, `keys_of`: the ranks of candidates.

Letters used in shapes here and in the package: n ops and b buffers, both padded to whole words of 32; w words of ops, x
words of buffers; k states; m candidates; p, q planes of counters. A set of ops (or of buffers) is `[w]` uint32: op i is
bit i % 32 of word i / 32. **Planes** are counters cut into bits: bit i of plane j is bit j of the counter of op i.

Ops are renumbered so that those that can run at about the same time are neighbours. Then the ops that are ready in any
state of a beam fill few words.

**Memory** (rules in `costs/exact/memory.py`): the bytes that an op adds and frees depend only on the set of ops that
ran before it, so that live memory is a function of the set:

- while an op runs, memory is live + `allocated` - the bytes that it takes over by `reuses`; after it, live + `kept` -
  the bytes that it frees;
- an op frees a buffer, or may take it over, if all other users of the buffer have run.

A buffer that is taken over really keeps its old size; the model gives it its new owner's. They are equal in graphs
whose `reuses` are of equal bytes; otherwise the model is below the true memory. Bytes are int32 in whole units: the
greatest common divisor of all bytes, or, where sums would pass 2^31, a larger unit, every size rounded down. So the
model never overestimates the cost of an order, and a bound of the model's optimum is a bound of the true one.

**States and ranks.** A state is a set of ops that have run, stored as counters of the unmet dependencies of the
remaining ops. A candidate is a state and an op that is ready in it. Its rank is a primary and a secondary key, the
smaller first:

- Rank "peak" sorts by the peak so far (Topoformer, appendix C.3), rank "live" by live memory after the op.
- Rule "random" breaks ties at random, by a hash of the set of ops, so that equal sets have equal keys whatever state
  they come from. Rule "live", with rank "peak", prefers less live memory, in 2^20 steps, and then breaks ties at
  random.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from graphrl.costs.device.indexing import filled, take
from graphrl.graphs.topology import reached
from graphrl.solvers.flow import Flow

WORD = 32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tables:
    """A graph in the form that the beam search reads; bytes are in units of `Model.unit`."""

    num_ops: jax.Array  # [] int32, real ops
    live_shift: jax.Array  # [] uint32, live bytes >> live_shift have at most LIVE_BITS bits
    allocated: jax.Array  # [n] int32, outputs and workspace
    kept: jax.Array  # [n] int32, outputs that have readers or are kept
    hashes: jax.Array  # [2, n] uint32, random
    successors: jax.Array  # [w, n] uint32, the set of successors of each op
    reads: jax.Array  # [x, n] uint32, the set of buffers that each op reads and that can be freed
    waits: jax.Array  # [w, p] uint32, planes: predecessors of each op; 1 for padding, which never becomes ready
    users: jax.Array  # [x, q] uint32, planes: ops that read each buffer
    op_words: jax.Array  # [n, w + 1] int32, by step: number of active words of `waits`, see `_active`, and the words
    buffer_words: jax.Array  # [n, x + 1] int32, the same for `users`
    freed_buffer: jax.Array  # [r, n] int32, the buffers of `reads`, one after the other
    freed_bytes: jax.Array  # [r, n] int32, their bytes
    freed_count: jax.Array  # [n] int32, number of such buffers
    taken_buffer: jax.Array  # [s, n] int32, buffers that the op's outputs may take over
    taken_bytes: jax.Array  # [s, n] int32, bytes of the output
    taken_count: jax.Array  # [n] int32, number of such buffers


@dataclasses.dataclass(frozen=True)
class Model:
    """Tables of a graph, and how they relate to the graph.

    Attributes:
      tables: arrays of the graph with renumbered ops.
      ops: `[real n]` int64, the graph's op for each new number.
      unit: bytes per unit of memory.
    """

    tables: Tables
    ops: np.ndarray
    unit: int


LIVE_BITS = 20  # bits of live memory in the secondary key
_PLANES = (5, 8, 12, 16, 20, 24, 28, 32)  # possible numbers of planes: few, so that few programs are compiled
_MAX_UNITS = 2**31 - 2  # 2^31 - 1 is the key of entries without a candidate
LAST = 2**31 - 1  # primary key where there is no candidate
LAST_TIE = 2**32 - 1  # largest secondary key
_TIE_BITS = WORD - LIVE_BITS  # bits of the secondary key that stay random with the rule "live"

Slots = list[tuple[int, int]]  # (buffer, bytes)


def model(flow: Flow, seed: int) -> Model:
    """Builds the beam search's model of a graph on one device; `seed` is for the hashes."""
    n = flow.num_ops
    earliest, latest = _step_range(flow)
    ops = np.argsort(earliest + latest, kind="stable")
    number = np.empty(n, np.int64)
    number[ops] = np.arange(n)
    buffers = [b for b, users in enumerate(flow.users) if users and not flow.pinned[b]]
    buffers.sort(key=lambda b: min(number[flow.users[b]]))
    words, buffer_words = _words(n), _words(len(buffers))
    size = WORD * words
    unit = _unit(flow)
    reads, taken = _slots(flow, buffers, unit)
    reads, taken = [reads[op] for op in ops], [taken[op] for op in ops]
    allocated, kept = _bytes(flow, unit)
    # a counter changes from the first possible step of the ops that it counts on; that of an op, until the op has run
    begins = np.array([min(earliest[[op, *flow.predecessors[op]]]) for op in ops])
    spans = [(min(earliest[flow.users[b]]), max(latest[flow.users[b]])) for b in buffers]
    buffer_begins, buffer_ends = np.array(spans, np.int64).reshape(-1, 2).T
    total = sum(flow.size) // unit + max(_workspace(flow)) // unit
    fields: dict[str, np.ndarray | np.generic] = dict(  # noqa: C408  (reads as the constructor that it fills)
        num_ops=np.int32(n),
        live_shift=np.uint32(max(0, total.bit_length() - LIVE_BITS)),
        allocated=filled([allocated[op] for op in ops], size, np.int32),
        kept=filled([kept[op] for op in ops], size, np.int32),
        hashes=np.random.default_rng([seed, n]).integers(0, 2**32, (2, size), dtype=np.uint32),
        successors=_sets([number[flow.successors[op]].tolist() for op in ops], size, words),
        reads=_sets([[buffer for buffer, _ in row] for row in reads], size, buffer_words),
        waits=_planes([len(flow.predecessors[op]) for op in ops], words, padding=1),
        users=_planes([len(flow.users[b]) for b in buffers], buffer_words, padding=0),
        op_words=_active(begins, latest[ops], words, size),
        buffer_words=_active(buffer_begins, buffer_ends, buffer_words, size),
    )
    for name, rows, always in (("freed", reads, True), ("taken", taken, False)):
        columns = _columns(rows, size, always)
        fields |= zip((f"{name}_buffer", f"{name}_bytes", f"{name}_count"), columns, strict=True)
    tables: Tables = jax.tree.map(jnp.asarray, Tables(**fields))  # type: ignore[arg-type]
    return Model(tables, ops, unit)


def _step_range(flow: Flow) -> tuple[np.ndarray, np.ndarray]:
    """Returns the range of steps at which each op can run: the number of its ancestors, and that of all ops but its
    descendants: two `[n]` int64.
    """
    above, below = reached(flow.topological, flow.predecessors), reached(flow.topological[::-1], flow.successors)
    earliest = np.array([ops.bit_count() for ops in above], np.int64)
    return earliest, flow.num_ops - np.array([ops.bit_count() for ops in below], np.int64)


def _workspace(flow: Flow) -> list[int]:
    return flow.graph.arrays.workspace_bytes.tolist()


def _unit(flow: Flow) -> int:
    """Returns the bytes of a unit, such that all bytes together are at most `_MAX_UNITS`."""
    common = math.gcd(*flow.size, *_workspace(flow)) or 1
    total = sum(flow.size) + max(_workspace(flow))
    return common if total // common <= _MAX_UNITS else -(-total // _MAX_UNITS)


def _bytes(flow: Flow, unit: int) -> tuple[list[int], list[int]]:
    """Returns, for each op, the units above live memory while it runs, and the units that it leaves behind."""
    outputs = [sum(flow.size[buffer] // unit for buffer in writes) for writes in flow.writes]
    kept = [
        sum(flow.size[buffer] // unit for buffer in writes if flow.users[buffer] or flow.pinned[buffer])
        for writes in flow.writes
    ]
    return [a + b // unit for a, b in zip(outputs, _workspace(flow), strict=True)], kept


def _slots(flow: Flow, buffers: list[int], unit: int) -> tuple[list[Slots], list[Slots]]:
    """Returns, by op, (buffer, units) of the buffers that it may free, and of those that its outputs may take over."""
    column = {buffer: i for i, buffer in enumerate(buffers)}
    reads = [[(column[b], flow.size[b] // unit) for b in reads if b in column] for reads in flow.reads]
    taken: list[dict[int, int]] = [{} for _ in flow.reads]
    for tensor, buffer in sorted(flow.reuses.items()):
        if buffer in column:  # the first output of an op has the buffer
            taken[flow.graph.arrays.producer[tensor]].setdefault(column[buffer], flow.size[tensor] // unit)
    return reads, [list(row.items()) for row in taken]


def _active(begins: np.ndarray, ends: np.ndarray, words: int, steps: int) -> np.ndarray:
    """Returns, for each step, the number of words that have a counter with begin <= step < end, and these words:
    `[steps, words + 1]` int32.
    """
    change = np.zeros((steps + 1, words), np.int64)
    word = np.arange(len(begins)) // WORD
    np.add.at(change, (begins, word), 1)
    np.add.at(change, (ends, word), -1)
    active = np.cumsum(change, axis=0)[:-1] > 0
    return np.column_stack([active.sum(1), np.argsort(~active, axis=1, kind="stable")]).astype(np.int32)


def _words(count: int) -> int:
    """Returns the number of words for `count` bits, at least 1, rounded up to one of four sizes per octave."""
    least = max(1, -(-count // WORD))
    step = max(1, (1 << least.bit_length() - 1) // 4)
    return -(-least // step) * step


def _sets(rows: list[list[int]], size: int, words: int) -> np.ndarray:
    """Encodes sets as columns of bits: `[words, size]` uint32."""
    out = np.zeros((words, size), np.uint32)
    for column, row in enumerate(rows):
        for index in row:
            out[index // WORD, column] |= np.uint32(1 << index % WORD)
    return out


def _planes(counts: list[int], words: int, padding: int) -> np.ndarray:
    """Encodes counters as planes: `[words, planes]` uint32."""
    longest = max(counts, default=0).bit_length()
    number = next(number for number in _PLANES if number >= longest)
    padded = np.full(words * WORD, padding, np.int64)
    padded[: len(counts)] = counts
    bits = padded.reshape(words, 1, WORD) >> np.arange(number)[:, None] & 1
    return (bits << np.arange(WORD)).sum(-1).astype(np.uint32)


def _columns(rows: list[list[tuple[int, int]]], size: int, always: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Encodes lists of pairs as columns: first and second parts `[s, size]` int32, and lengths `[size]` int32.

    s is a power of two of at least 32 that fits the longest list (sums over slots stop at the longest); or 0, if all
    are empty and not `always`.
    """
    longest = max(always, *(len(row) for row in rows))
    slots = max(32, 1 << (longest - 1).bit_length()) if longest else 0
    out = np.zeros((2, slots, size), np.int32)
    for column, row in enumerate(rows):
        if row:
            out[:, : len(row), column] = np.array(row).T
    return out[0], out[1], filled([len(row) for row in rows], size, np.int32)


class States(NamedTuple):
    """The k states of a beam; those beyond the first `size` are copies, which are not expanded."""

    waits: jax.Array  # [w, p, k] uint32, planes: predecessors that have not run; 1 in plane 0 for an op that has run
    users: jax.Array  # [x, q, k] uint32, planes: users of each buffer that have not run
    live: jax.Array  # [k] int32, units that are live after the last op
    peak: jax.Array  # [k] int32, units, the least peak of all orders of the set that were kept
    hashes: jax.Array  # [2, k] uint32, hashes of the set
    size: jax.Array  # [] int32, number of real states


class Choice(NamedTuple):
    """The next states: op `op[i]` runs in state `parent[i]`. Those beyond the first `size` repeat the first."""

    parent: jax.Array  # [k] int32
    op: jax.Array  # [k] int32
    peak: jax.Array  # [k] int32, units
    size: jax.Array  # [] int32, number of real states


def initial(tables: Tables, width: int) -> States:
    """Returns the beam that has only the empty set."""

    def spread(planes: jax.Array) -> jax.Array:
        return jnp.broadcast_to(planes[..., None], (*planes.shape, width))

    zero = jnp.zeros(width, jnp.int32)
    waits, users = spread(tables.waits), spread(tables.users)
    return States(waits, users, zero, zero, jnp.zeros((2, width), jnp.uint32), jnp.int32(1))


def ready(states: States) -> jax.Array:
    """Returns the ops that can run next in each state: sets `[w, k]` uint32."""
    real = jnp.arange(len(states.live)) < states.size
    return jnp.where(real[None], ~_nonzero(states.waits), jnp.uint32(0))


def last_uses(states: States) -> jax.Array:
    """Returns the buffers with exactly one user left, which will free them: sets `[x, k]` uint32."""
    return states.users[:, 0] & ~_nonzero(states.users[:, 1:])


def sum_of_last_uses(
    last_uses: jax.Array, state: jax.Array, op: jax.Array, buffer: jax.Array, size: jax.Array, count: jax.Array
) -> jax.Array:
    """Sums, for each candidate, the sizes of its op's listed buffers that have one user left: `[m]` int32.

    Args:
      last_uses: `[x, k]` uint32.
      state, op: `[m]` int32, the candidates.
      buffer, size, count: `[r, n]`, `[r, n]` and `[n]` int32, the lists of all ops, and their lengths.
    """

    def add(slot: jax.Array, total: jax.Array) -> jax.Array:
        index = take(take(buffer, slot), op)
        bits = take(last_uses.reshape(-1), (index // WORD) * last_uses.shape[1] + state)
        return total + _bit(bits, index) * take(take(size, slot), op)

    return lax.fori_loop(0, jnp.max(take(count, op)), add, jnp.zeros_like(state))


def rows_of_last_uses(last_uses: jax.Array, buffer: jax.Array, size: jax.Array, slots: jax.Array) -> jax.Array:
    """Sums as `sum_of_last_uses`, for m ops in all of k states: `[m, k]` int32, from lists `[r, m]`."""

    def add(slot: jax.Array, total: jax.Array) -> jax.Array:
        index = buffer[slot]
        return total + _bit(take(last_uses, index // WORD), index[:, None]) * size[slot][:, None]

    return lax.fori_loop(0, slots, add, jnp.zeros((buffer.shape[1], last_uses.shape[1]), jnp.int32))


def expand(tables: Tables, states: States, last_uses: jax.Array, choice: Choice, step: jax.Array) -> States:
    """Returns the chosen states, in the order of the choice; `step` ops have run in their parents.

    Entries beyond the size of the choice must repeat real ones. `_less_one` leaves rows that are the same in all states
    where they are, so they must be the same here too.
    """
    parent, op = choice.parent, choice.op
    lists = tables.freed_buffer, tables.freed_bytes, tables.freed_count
    waits = _less_one(states.waits, parent, tables.successors, op, take(tables.op_words, step))
    # an op that runs here has a counter of 0, which becomes 1 permanently
    waits = waits.at[op // WORD, 0, jnp.arange(len(op))].add(jnp.uint32(1) << (op % WORD).astype(jnp.uint32))
    return States(
        waits=waits,
        users=_less_one(states.users, parent, tables.reads, op, take(tables.buffer_words, step)),
        live=take(states.live, parent) + take(tables.kept, op) - sum_of_last_uses(last_uses, parent, op, *lists),
        peak=choice.peak,
        hashes=jnp.stack([take(a, parent) ^ take(b, op) for a, b in zip(states.hashes, tables.hashes, strict=True)]),
        size=choice.size,
    )


def _less_one(planes: jax.Array, parent: jax.Array, sets: jax.Array, op: jax.Array, words: jax.Array) -> jax.Array:
    """Takes the counters of the parents and subtracts one for each member of their op's set.

    Works row by row, in place, and only on the rows of some words: all others are the same in all states.

    Args:
      planes: `[w, p, k]` uint32.
      sets: `[w, n]` uint32.
      words: `[w + 1]` int32, the number of words, and the words.
    """
    count, rows = planes.shape[1], planes.reshape(-1, planes.shape[-1])

    def row(i: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        rows, borrow = state
        word = take(words, 1 + i // count)
        borrow = jnp.where(i % count == 0, take(take(sets, word), op), borrow)
        old = take(take(rows, word * count + i % count), parent)
        return lax.dynamic_update_index_in_dim(rows, old ^ borrow, word * count + i % count, 0), borrow & ~old

    return lax.fori_loop(0, words[0] * count, row, (rows, jnp.zeros_like(planes[0, 0])))[0].reshape(planes.shape)


def _nonzero(planes: jax.Array) -> jax.Array:
    """Returns the bits of the counters `[w, p, k]` that are not 0: `[w, k]`."""
    result = planes[:, 0]
    for plane in range(1, planes.shape[1]):
        result = result | planes[:, plane]
    return result


def _bit(words: jax.Array, index: jax.Array) -> jax.Array:
    return ((words >> (index % WORD).astype(jnp.uint32)) & jnp.uint32(1)).astype(jnp.int32)


class Rule(NamedTuple):
    """Names of the primary and the secondary key that rank candidates; static."""

    rank: str  # "peak" or "live"
    tie: str  # "random" or "live"

    @property
    def needs_live(self) -> bool:
        return "live" in (self.rank, self.tie)


class Keys(NamedTuple):
    """Keys of candidates, of any common shape."""

    first: jax.Array  # int32, LAST where there is no candidate
    second: jax.Array  # uint32
    peak: jax.Array  # int32, units


class Step(NamedTuple):
    """Inputs that all candidates of a step share."""

    tables: Tables
    states: States
    ready: jax.Array  # [w, k] uint32
    last_uses: jax.Array  # [x, k] uint32
    cap: jax.Array  # [] int32, units: candidates of a larger peak are dropped
    salt: jax.Array  # [] uint32, for random ties in this step


def at_most(keys: Keys, first: jax.Array, second: jax.Array) -> jax.Array:
    """Returns a mask of the keys at or before (first, second)."""
    return (keys.first < first) | ((keys.first == first) & (keys.second <= second))


def keys_of_word(step: Step, word: jax.Array, rule: Rule) -> Keys:
    """Computes the keys of the 32 ops of a word in all states: `[32, k]`."""
    tables, states = step.tables, step.states

    def part(table: jax.Array) -> jax.Array:
        return lax.dynamic_slice_in_dim(table, word * WORD, WORD, axis=-1)

    def sums(buffer: jax.Array, size: jax.Array, count: jax.Array) -> jax.Array:
        return rows_of_last_uses(step.last_uses, part(buffer), part(size), jnp.max(part(count)))

    bits = take(step.ready, word)[None] >> jnp.arange(WORD, dtype=jnp.uint32)[:, None]
    of_ops = tuple(part(column)[:, None] for column in (tables.allocated, tables.kept, tables.hashes[0]))
    of_states = states.live[None], states.peak[None], states.hashes[:1]
    return _keys(step, rule, (bits & jnp.uint32(1)) > 0, of_states, of_ops, sums)


def keys_of(step: Step, state: jax.Array, op: jax.Array, real: jax.Array, rule: Rule) -> Keys:
    """Computes the keys of listed candidates: `[m]` from `[m]` int32 indices; `real` is True for candidates."""
    tables, states = step.tables, step.states

    def sums(buffer: jax.Array, size: jax.Array, count: jax.Array) -> jax.Array:
        return sum_of_last_uses(step.last_uses, state, op, buffer, size, count)

    of_ops = tuple(take(column, op) for column in (tables.allocated, tables.kept, tables.hashes[0]))
    of_states = tuple(take(values, state) for values in (states.live, states.peak, states.hashes[0]))
    return _keys(step, rule, real, of_states, of_ops, sums)


def _keys(
    step: Step,
    rule: Rule,
    real: jax.Array,
    of_states: tuple[jax.Array, ...],
    of_ops: tuple[jax.Array, ...],
    sums: Callable[[jax.Array, jax.Array, jax.Array], jax.Array],
) -> Keys:
    tables, (live, so_far, of_set), (allocated, kept, of_op) = step.tables, of_states, of_ops
    compared = live + allocated
    if len(tables.taken_buffer):
        compared = compared - sums(tables.taken_buffer, tables.taken_bytes, tables.taken_count)
    peak = jnp.maximum(so_far, compared)
    first = peak
    second = _mixed(of_set ^ of_op, step.salt)
    if rule.needs_live:
        after = live + kept - sums(tables.freed_buffer, tables.freed_bytes, tables.freed_count)
        if rule.rank == "live":
            first = after
        else:
            coarse = after.astype(jnp.uint32) >> tables.live_shift
            second = (coarse << _TIE_BITS) | (second >> (WORD - _TIE_BITS))
    return Keys(jnp.where(real & (peak <= step.cap), first, LAST), second, peak)


def _mixed(value: jax.Array, salt: jax.Array) -> jax.Array:
    """Hashes a hash again; salts of different steps give independent values."""
    value = (value ^ salt) * jnp.uint32(0x9E3779B1)
    return (value ^ (value >> 16)) * jnp.uint32(0x85EBCA6B)
