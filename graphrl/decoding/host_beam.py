"""Beam search over orders of `sequential.py` by compiled code, as a part of a jitted program for CPUs.

The search is that of `beam.py`, but peaks are estimates, as in the features: they differ where tensors reuse buffers.
A state is a lane of `host_steps.py`.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from graphrl.compiled import inlined, integer, part
from graphrl.compiled.custom_call import (
    MANY,
    count_outer,
    custom_call,
    data,
    own_address,
    result,
    row_of,
    run_items,
    size,
)
from graphrl.compiled.pointers import array
from graphrl.decoding.host_steps import (
    F32,
    GREEDY,
    I32,
    LOG_PROB,
    NUM_OPS,
    ORDER,
    Lane,
    lane_of,
    operands_of,
    results_of,
    run,
    score,
    start,
    unused,
)
from graphrl.decoding.op_features import Head, Usage
from graphrl.graphs.padding import PaddedGraph

U64 = np.uint64
_0 = np.float32(0)


class Beam(NamedTuple):
    """A beam of w states of a graph of n ops, and those that come next: two halves of 2 w lanes."""

    lanes: int  # address of the first
    stride: int  # bytes of a lane
    score: Any  # [2 w] float32, log-probability of the order so far
    count: Any  # [2 w] int32, number of ready ops
    hash: Any  # [2 w] uint64, of the ops that have run
    scores: Any  # [w n] float32, of candidates: pairs of a state and a ready op; -inf if another is better
    peaks: Any  # [w n] float32
    hashes: Any  # [w n] uint64, of their ops
    parent: Any  # [w n] int32
    place: Any  # [w n] int32
    parents: Any  # [n w] int32, of the states at every step
    ops: Any  # [n w] int32
    table: Any  # int32, hash table of candidates by their ops; a power of two, at least 2 w n
    end: int


@custom_call("graphrl_sequential_beam", "beam search by the state of memory", 10)
def sequential_beam(pointer: Any) -> Any:
    """The last states of a beam search on each graph: their orders and log-probabilities."""
    return run_items(pointer, own_address(), _plan_beam, _search)


@inlined
def _plan_beam(call: int) -> tuple[int, int, int]:
    like = result(call, ORDER)
    width, n = size(like, -2), size(like, -1)
    own = lane_of(call, integer(0), integer(0), integer(0), like).end
    return count_outer(like, 2), integer(MANY), _beam(integer(0), width, n, own).end


@inlined
def _beam(memory: int, width: int, n: int, stride: int) -> Beam:
    hashes = memory + 2 * width * stride
    each = hashes + 8 * 2 * width
    first_score = each + 8 * width * n
    count = first_score + 4 * 2 * width
    scores = count + 4 * 2 * width
    peaks = scores + 4 * width * n
    parent = peaks + 4 * width * n
    place = parent + 4 * width * n
    parents = place + 4 * width * n
    ops = parents + 4 * width * n
    table, entries = ops + 4 * width * n, integer(2)
    while entries < 2 * width * n:
        entries *= 2
    return Beam(
        memory,
        stride,
        array(first_score, 2 * width, F32),
        array(count, 2 * width, I32),
        array(hashes, 2 * width, U64),
        array(scores, width * n, F32),
        array(peaks, width * n, F32),
        array(each, width * n, U64),
        array(parent, width * n, I32),
        array(place, width * n, I32),
        array(parents, width * n, I32),
        array(ops, width * n, I32),
        array(table, entries, I32),
        table + 4 * entries,
    )


@part
def _search(call: int, item: int, memory: int) -> None:
    """Beam search as in `beam.py`, on one graph. Peaks are estimates, as in the features."""
    like = result(call, ORDER)
    graphs, width, n = size(like, -3), size(like, -2), size(like, -1)
    outer, graph = item // graphs, item % graphs
    beam = _beam(memory, width, n, lane_of(call, integer(0), outer, graph, like).end)
    for k in range(2 * width):
        beam.count[k] = start(call, lane_of(call, memory + k * beam.stride, outer, graph, like), outer, graph, like)
    beam.score[0], beam.hash[0] = _0, np.uint64(0)
    states, half = integer(1), integer(0)
    ops = integer(array(row_of(call, NUM_OPS, integer(1), outer, graph, like), integer(1), I32)[0])
    for step in range(ops):
        candidates = integer(0)
        for k in range(half * width, half * width + states):
            lane = lane_of(call, memory + k * beam.stride, outer, graph, like)
            candidates = _propose(beam, lane, k, step, candidates)
        _collapse(beam, candidates)
        states, other = integer(0), 1 - half
        while states < width:
            best = _likeliest(beam, candidates)
            if best < 0:
                break
            k, parent = other * width + states, beam.parent[best]
            before = lane_of(call, memory + parent * beam.stride, outer, graph, like)
            after = lane_of(call, memory + k * beam.stride, outer, graph, like)
            for i in range(len(before.state)):
                after.state[i] = before.state[i]
            beam.parents[step * width + states] = parent - half * width
            beam.ops[step * width + states] = before.ready[beam.place[best]]
            beam.score[k], beam.hash[k] = beam.scores[best], beam.hashes[best]
            beam.count[k] = run(after, integer(beam.count[parent]), integer(beam.place[best]), step)
            beam.scores[best] = -np.inf
            states += 1
        half = other
    _write(call, item, beam, half, states, ops)


@inlined
def _likeliest(beam: Beam, candidates: int) -> int:
    """The candidate of highest score, the first of equal ones; -1 without candidates."""
    best = integer(-1)
    for i in range(candidates):
        if beam.scores[i] > (beam.scores[best] if best >= 0 else -np.inf):
            best = integer(i)
    return best


@inlined
def _write(call: int, item: int, beam: Beam, half: int, states: int, ops: int) -> None:
    """Writes the orders of the last states, from their ends, and their log-probabilities."""
    like = result(call, ORDER)
    width, n = size(like, -2), size(like, -1)
    log_prob = array(data(result(call, LOG_PROB)), (item + 1) * width, F32)
    for k in range(width):
        order = array(data(like) + 4 * (item * width + k) * n, n, I32)
        is_complete, state = k < states, integer(k if k < states else 0)
        log_prob[item * width + k] = beam.score[half * width + k] if is_complete else -np.inf
        for step in range(ops, n):
            order[step] = n
        for step in range(ops - 1, -1, -1):
            order[step] = beam.ops[step * width + state]
            state = integer(beam.parents[step * width + state])


@inlined
def _propose(beam: Beam, lane: Lane, k: int, step: int, candidates: int) -> int:
    """Appends the candidates of a state; returns their number so far."""
    count = integer(beam.count[k])
    score(lane, count, step)
    for place in range(count):
        op = integer(lane.ready[place])
        beam.scores[candidates] = beam.score[k] + lane.log_prob[place]
        beam.peaks[candidates] = max(lane.memory[1], lane.memory[0] + lane.added[op] + lane.workspace[op])
        beam.hashes[candidates] = beam.hash[k] ^ _hash(op)
        beam.parent[candidates], beam.place[candidates] = k, place
        candidates += 1
    return candidates


@inlined
def _hash(op: int) -> Any:
    """Zobrist hash of an op: the finaliser of splitmix64."""
    word = np.uint64(op + 1) * np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@inlined
def _collapse(beam: Beam, candidates: int) -> None:
    """Of candidates with the same ops keeps the one of lowest peak; if equal, the more probable or earlier one."""
    mask = np.uint64(len(beam.table) - 1)
    for slot in range(len(beam.table)):
        beam.table[slot] = -1
    for i in range(candidates):
        slot = beam.hashes[i] & mask
        while beam.table[slot] >= 0 and beam.hashes[beam.table[slot]] != beam.hashes[i]:
            slot = (slot + np.uint64(1)) & mask
        other = beam.table[slot]
        beam.table[slot] = i
        if other >= 0:
            same = beam.peaks[i] == beam.peaks[other]
            if beam.peaks[i] < beam.peaks[other] or (same and beam.scores[i] > beam.scores[other]):
                beam.scores[other] = -np.inf
            else:
                beam.scores[i] = -np.inf
                beam.table[slot] = other


def host_beam(graph: PaddedGraph, usage: Usage, head: Head, width: int) -> tuple[jax.Array, jax.Array]:
    """Finds the orders `[g, w, n]` int32 of a beam of w states, and their log-probabilities `[g, w]`; -inf for states
    that do not exist, whose orders are those of others.
    """
    operands = operands_of(GREEDY, graph, usage, head, *unused(len(graph.num_ops), width))
    orders, log_probs = sequential_beam(results_of(graph, width), *operands)
    return orders, log_probs
