"""What the beam reads of a graph: fixed-size arrays, the same shapes for all graphs of a bucket.

Letters used in shapes here and in the package: n ops and b buffers, both padded to whole words of 32; w words of ops, x
words of buffers; k states; m candidates; p, q planes of counters. A set of ops (or of buffers) is `[w]` uint32: op i is
bit i % 32 of word i / 32. **Planes** are counters cut into bits: bit i of plane j is bit j of the counter of op i.

Ops are numbered anew, those that can run at about the same time next to each other, so that the ops that are ready in
any state of a beam fill few words.

Model of memory (rules in costs/exact/memory.py). What an op adds, and what it frees, depends only on the set of ops
that ran before it, so that live memory belongs to the set:

- an op is compared with live + `allocated` - what it takes over by `reuses`, and leaves live + `held` - what it frees;
- an op frees a buffer, or may take it over, if all other users of the buffer have run.

A buffer that is taken over keeps its old size in truth, and here has its new owner's. They are equal in graphs whose
`reuses` are of equal bytes; otherwise the model is below the truth. Bytes are int32 in whole units: the greatest common
divisor of all bytes, or, where sums would pass 2^31, a larger unit, every size rounded down. So the model never costs
an order more than it costs in truth: what is proven of the model's optimum is a bound of the true one.
"""

import dataclasses

import jax
import numpy as np

WORD = 32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tables:
    """A graph for the beam."""

    num_ops: jax.Array  # [] int32, real ops
    live_shift: jax.Array  # [] uint32, live >> live_shift has at most LIVE_BITS bits
    allocated: jax.Array  # [n] int32, outputs and workspace
    held: jax.Array  # [n] int32, outputs that somebody reads or that are kept
    hashes: jax.Array  # [2, n] uint32, random
    successors: jax.Array  # [w, n] uint32, the set of each op
    reads: jax.Array  # [x, n] uint32, the set of buffers that each op reads and that can be freed
    waits: jax.Array  # [w, p] uint32, planes: predecessors of each op; 1 for padding, which never becomes ready
    users: jax.Array  # [x, q] uint32, planes: ops that read each buffer
    op_words: jax.Array  # [n, w + 1] int32, by step: how many words of `waits` differ between states or change, which
    buffer_words: jax.Array  # [n, x + 1] int32, the same of `users`
    freed_buffer: jax.Array  # [r, n] int32, the buffers of `reads`, one after the other
    freed_bytes: jax.Array  # [r, n] int32
    freed_count: jax.Array  # [n] int32, how many there are
    taken_buffer: jax.Array  # [s, n] int32, buffers that the op's outputs may take over
    taken_bytes: jax.Array  # [s, n] int32, of the output
    taken_count: jax.Array  # [n] int32


@dataclasses.dataclass(frozen=True)
class Model:
    """The tables, and what connects them with the graph.

    Attributes:
      tables: arrays.
      ops: `[real n]` int64, the graph's op of each number.
      unit: bytes.
    """

    tables: Tables
    ops: np.ndarray
    unit: int
