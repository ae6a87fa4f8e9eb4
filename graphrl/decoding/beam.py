"""Beam search over orders with state collapsing (Topoformer, section 4.2, decoding method 3).

A state is the set of ops that have run; its score is the log-probability of its order so far. A step considers every
ready op of every state. Of candidates with the same set, only the one of lowest peak is kept (ties: the more probable
one). Of the candidates that are kept, the `width` most probable become the next states. The result is the complete
order of lowest peak, independent of its probability.

Two states with equally large sets share at most one candidate. Their sets must differ by a swap: one has b where the
other has a, and the common candidate is (first state, a) and (second, b). The sums of the ops' indices, and of their
squares, determine a and b. 64-bit Zobrist hashes of the sets detect any other difference. Comparing pairs of states
thus finds all equal candidates.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from graphrl.decoding import memory
from graphrl.decoding.memory import GraphBuffers, Memory
from graphrl.decoding.rollout import STATELESS, Context, Logits, Rollout, Tracker, masked_log_softmax, releases, waits
from graphrl.graphs.padding import PaddedGraph

WIDTH = 16  # the paper's width


class _Tables(NamedTuple):
    """Read-only arrays of the loop over steps."""

    graph: PaddedGraph  # a batch
    buffers: GraphBuffers  # [g, ...]
    releases: jax.Array  # [g, n + 1, n] int16, see `rollout.releases`
    reads: jax.Array  # [g, n + 1, t] int16, number of tensors of each buffer that an op reads
    need: jax.Array  # [g, n] float32, byte units: an op's outputs and workspace
    hashes: jax.Array  # [n + 1, 2] uint32, Zobrist hash of each op; 0 for no op


class _States(NamedTuple):
    """The beam: w states of each of g graphs; states with score -inf are unused."""

    waits: jax.Array  # [g, w, n] int16, see `rollout.waits`
    memory: Memory  # [g, w, ...]
    score: jax.Array  # [g, w] float32, log-probability of the order so far
    first: jax.Array  # [g, w] int32, first op of the order
    last: jax.Array  # [g, w] int32, last op so far
    total: jax.Array  # [g, w] int32, sum of the indices of the ops that have run
    squares: jax.Array  # [g, w] int32, sum of their squares, modulo 2^32
    hash: jax.Array  # [g, w, 2] uint32, Zobrist hash of the ops that have run
    track: Any  # [g, w, ...], the policy's own state


def beam(graph: PaddedGraph, priorities: jax.Array, width: int = WIDTH) -> Rollout:
    """Finds each graph's order of lowest peak by beam search with the probabilities of eq. 8.

    Args:
      graph: a batch of graphs (leading axis g).
      priorities: `[g, n]` float32; values at padding are ignored.
      width: w, number of states kept at each step. Static.

    Returns:
      One order per graph: arrays of leading shape `[g]`.
    """
    return beam_with(graph, lambda _: priorities[:, None], width)


def beam_with(graph: PaddedGraph, logits: Logits, width: int = WIDTH, tracker: Tracker = STATELESS) -> Rollout:
    """Does the same as `beam` with a policy that is called at every step, for w orders of each graph."""
    tables = _make_tables(graph)
    g, n = tables.need.shape

    def step(states: _States, index: jax.Array) -> tuple[_States, tuple[jax.Array, jax.Array]]:
        ready = states.waits == 0
        context = Context(index, states.first, states.last, ready, states.waits, states.track)
        log_probs = masked_log_softmax(logits(context), ready)
        scores = _collapse(tables, states, states.score[..., None] + log_probs)
        score, best = lax.top_k(scores.reshape(g, -1), width)
        parent, op = best // n, best % n
        # after a graph's last op, its states no longer change
        done = (index >= graph.num_ops)[:, None]
        parent = jnp.where(done, jnp.arange(width, dtype=jnp.int32)[None], parent)
        score = jnp.where(done, states.score, score)
        op = jnp.where(done | (score == -jnp.inf), n, op)
        return _expand(tables, states, tracker, parent, op, score, index), (parent, op)

    states, (parents, ops) = lax.scan(step, _start(tables, tracker, width), jnp.arange(n, dtype=jnp.int32))
    return _best(states, parents, ops)


def _make_tables(graph: PaddedGraph) -> _Tables:
    n, t = graph.sizes.ops, graph.sizes.tensors
    buffers = jax.vmap(memory.buffers)(graph)
    of_graph = jnp.arange(graph.num_ops.shape[0], dtype=jnp.int32)[:, None]
    # padding uses refer to the extra row and column, n and t
    read = jnp.pad(buffers.root, ((0, 0), (0, 1)), constant_values=t)[of_graph, graph.use_tensor]
    matrix = jnp.zeros((len(of_graph), n + 1, t + 1), jnp.int16).at[of_graph, graph.use_op, read].add(jnp.int16(1))
    need = graph.workspace.at[of_graph, graph.producer].add(graph.owned_bytes)
    hashes = np.random.default_rng(0).integers(1 << 32, size=(n + 1, 2), dtype=np.uint32)
    hashes[n] = 0
    return _Tables(graph, buffers, releases(graph), matrix[..., :t], need, jnp.asarray(hashes))


def _start(tables: _Tables, tracker: Tracker, width: int) -> _States:
    at_first = waits(tables.graph)
    g, n = at_first.shape

    def spread(array: jax.Array) -> jax.Array:
        return jnp.broadcast_to(array[:, None], (g, width, *array.shape[1:]))

    empty = jnp.where(jnp.arange(width) == 0, jnp.float32(0), -jnp.inf)
    no_op, zero = jnp.full((g, width), n, jnp.int32), jnp.zeros((g, width), jnp.int32)
    return _States(
        waits=spread(at_first),
        memory=jax.tree.map(spread, jax.vmap(memory.start)(tables.graph, tables.buffers)),
        score=jnp.broadcast_to(empty[None], (g, width)),
        first=no_op,
        last=no_op,
        total=zero,
        squares=zero,
        hash=jnp.zeros((g, width, 2), jnp.uint32),
        track=tracker.start(width),
    )


def _collapse(tables: _Tables, states: _States, scores: jax.Array) -> jax.Array:
    """Sets the scores `[g, w, n]` of candidates to -inf if a better candidate has the same set of ops."""
    g, w, n = scores.shape
    # for all pairs: the op only in the other state's set, and the op only in this one's
    more, more_squares = (x[:, None, :] - x[:, :, None] for x in (states.total, states.squares))
    both = lax.div(more_squares, jnp.where(more == 0, 1, more))
    theirs, mine = lax.div(both + more, jnp.int32(2)), lax.div(both - more, jnp.int32(2))
    inside = (more != 0) & (jnp.minimum(theirs, mine) >= 0) & (jnp.maximum(theirs, mine) < n)
    theirs, mine = jnp.where(inside, theirs, 0), jnp.where(inside, mine, 0)
    swapped = states.hash[:, :, None] ^ states.hash[:, None] ^ tables.hashes[theirs] ^ tables.hashes[mine]
    here, there = _of_candidates(tables, states, scores, theirs, mine)
    same = inside & (swapped == 0).all(-1) & (here.score > -jnp.inf) & (there.score > -jnp.inf)
    index = jnp.arange(w, dtype=jnp.int32)
    earlier = (index[None] < index[:, None])[None]
    less_probable = (there.score > here.score) | ((there.score == here.score) & earlier)
    worse = same & ((there.peak < here.peak) | ((there.peak == here.peak) & less_probable))
    of_graph, of_state = jnp.arange(g, dtype=jnp.int32)[:, None, None], index[None, :, None]
    return scores.at[of_graph, of_state, theirs].min(jnp.where(worse, -jnp.inf, jnp.inf))


class _Candidates(NamedTuple):
    score: jax.Array  # [g, w, w] float32
    peak: jax.Array  # [g, w, w] float32, byte units


def _of_candidates(
    tables: _Tables, states: _States, scores: jax.Array, theirs: jax.Array, mine: jax.Array
) -> tuple[_Candidates, _Candidates]:
    """Returns for pairs of states `[g, w, w]` the first one's candidate with op `theirs`, the second's with `mine`."""
    g, w, _ = scores.shape
    need = jnp.broadcast_to(tables.need[:, None], scores.shape) - _saved_bytes(tables, states)
    after = jnp.maximum(states.memory.peak[..., None], states.memory.live[..., None] + need)
    of_graph, state = jnp.arange(g, dtype=jnp.int32)[:, None, None], jnp.arange(w, dtype=jnp.int32)
    this, other = (of_graph, state[None, :, None], theirs), (of_graph, state[None, None, :], mine)
    return _Candidates(scores[this], after[this]), _Candidates(scores[other], after[other])


def _saved_bytes(tables: _Tables, states: _States) -> jax.Array:
    """Computes the memory that every op saves in each state by reusing buffers: `[g, w, n]` float32, byte units; a 0
    `[1, 1, 1]` if the graph has no shares.
    """
    graph, buffers = tables.graph, tables.buffers
    if not graph.sizes.shares:
        return jnp.zeros((1, 1, 1), jnp.float32)
    read = jax.vmap(lambda matrix, op, source: matrix[op, source].astype(jnp.int32))(
        tables.reads, buffers.op, buffers.source
    )
    of_state = jax.vmap(memory.saved_bytes, (None, None, 0, None))
    amount = jnp.maximum(jax.vmap(of_state)(graph, buffers, states.memory, read), 0)
    n = tables.need.shape[1]
    return jax.vmap(lambda op, x: jnp.zeros((len(x), n + 1), jnp.float32).at[:, op].add(x)[:, :n])(buffers.op, amount)


def _expand(
    tables: _Tables,
    states: _States,
    tracker: Tracker,
    parent: jax.Array,
    op: jax.Array,
    score: jax.Array,
    step: jax.Array,
) -> _States:
    """Runs `op` in the states `parent`, both `[g, w]`, and returns the new states; op n leaves a state unchanged."""
    of_graph = jnp.arange(len(parent), dtype=jnp.int32)[:, None]
    before: _States = jax.tree.map(lambda x: x[of_graph, parent], states)
    n = tables.need.shape[1]
    read = tables.reads[of_graph, op].astype(jnp.int32)
    run = jax.vmap(memory.run, (None, None, 0, 0, 0))
    number = jnp.where(op < n, op, 0)
    context = Context(step, before.first, before.last, before.waits == 0, before.waits, before.track)
    return _States(
        waits=before.waits - tables.releases[of_graph, op],
        memory=jax.vmap(run)(tables.graph, tables.buffers, before.memory, op, read),
        score=score,
        first=jnp.where(step == 0, op, before.first),
        last=jnp.where(op < n, op, before.last),
        total=before.total + number,
        squares=before.squares + number * number,
        hash=before.hash ^ tables.hashes[op],
        track=tracker.advance(context, op),
    )


def _best(states: _States, parents: jax.Array, ops: jax.Array) -> Rollout:
    """Selects each graph's order of lowest peak, ties to the more probable one, from parents and ops `[n, g, w]`."""
    complete = states.score > -jnp.inf
    peak = jnp.where(complete, states.memory.peak, jnp.inf)
    lowest = peak.min(1, keepdims=True)
    best = jnp.argmax(jnp.where(complete & (peak == lowest), states.score, -jnp.inf), 1).astype(jnp.int32)
    of_graph = jnp.arange(len(best), dtype=jnp.int32)

    def back(state: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        parent, op = step
        return parent[of_graph, state], op[of_graph, state]

    _, order = lax.scan(back, best, (parents, ops), reverse=True)
    return Rollout(order.T, states.score[of_graph, best], lowest[:, 0])
