"""Decodes a policy's outputs to orders: priorities (Topoformer, section 4.2) or logits at every step (appendix B).

A `Rollout` is the result of every decoder: orders, their log-probabilities and their peaks. All functions of `decoding`
take a batch of graphs, and their results have the batch's leading axis g. In an order `[n]` the first `num_ops`
elements are ops and the rest n. Internally, lanes (samples of graphs) are the last axis, as everywhere in `costs`.

- `greedy` and `sample` take priorities: the next op is the most likely ready op, or is drawn in proportion to
  exp(priority) (eq. 8).
- `rollout_with` calls a policy for logits at every step; `log_prob_with` computes complete orders' log-probabilities.
- `sampled_orders` is the loop of `sample`.

The loop of `sampled_orders` is that of `costs/device/decode.py` for one device, with sums instead of maxima in its
queue. Slots have the weight exp(priority) of ready ops and 0 of others, under two levels of sums (over blocks of slots,
and over blocks of blocks). A step draws one uniform number and descends the levels with it. When an op leaves, the sums
of its block and of the block above are recomputed; when an op becomes ready, its weight is added. Only positive numbers
are added, so that rounding errors stay near 1e-7 of a sum for orders of any length and any weights.

The uniform number has 24 bits: a step's probabilities are accurate to 6e-8. Weights represent priorities down to
`RANGE` below the graph's highest; lower ones are raised to that limit, here and in `likelihood.py`.

On CPUs the loop is compiled code (`host.py`), with the same orders; so is the memory of complete orders (`peaks`).

Each state array is updated in place (see `costs/device/decode.py`; tests/decoding/test_ordering_rollout.py checks for
copies).
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from graphrl.compiled.custom_call import is_compiled
from graphrl.costs.device.decisions import Decisions, DeviceProblem
from graphrl.costs.device.evaluate import evaluate
from graphrl.costs.device.indexing import add, put, take
from graphrl.costs.device.lanes import implied
from graphrl.costs.device.memory import peak_memory
from graphrl.costs.problem import Problem
from graphrl.decoding.host import host_orders
from graphrl.decoding.likelihood import log_prob, weights
from graphrl.graphs.padding import ROW_WIDTH, PaddedGraph
from graphrl.random_bits import random_words, unit_interval


class Rollout(NamedTuple):
    """Decoded orders of a batch of graphs."""

    order: jax.Array  # [g, ..., n] int32, ops; n after the last
    log_prob: jax.Array  # [g, ...] float32, log-probability under the policy
    peak: jax.Array  # [g, ...] float32, peak memory in byte units of the graph (`PaddedGraph.byte_unit`)


Form = Literal["auto", "queue", "dense"]


def greedy(graph: PaddedGraph, priorities: jax.Array) -> Rollout:
    """Decodes orders greedily: the next op is the ready op of highest priority, ties to the lower index.

    The decoder of `costs` gets the ranks of the priorities, so that no precision is lost (up to 32,768 ops).

    Args:
      graph: a batch of graphs (leading axis g).
      priorities: `[g, n]` float32; values at padding are ignored.

    Returns:
      One order per graph: arrays of leading shape `[g]`.
    """
    n = graph.sizes.ops
    real = jnp.arange(n, dtype=jnp.int32)[None] < graph.num_ops[:, None]
    ranked = jnp.argsort(jnp.where(real, -priorities, jnp.inf), axis=1, stable=True).astype(jnp.int32)
    rank = jnp.argsort(ranked, axis=1).astype(jnp.float32)  # the inverse of a permutation
    decisions = on_one_device(graph, ((n - rank - 0.5) / n).T[..., None])
    costs = evaluate(graph, decisions, DeviceProblem.of(Problem("peak_memory", 1)), makespan=False)
    order = _without_gaps(costs.events, n)
    return Rollout(order, log_prob(graph, priorities, order), costs.peak_memory[0, :, 0])


def sample(graph: PaddedGraph, priorities: jax.Array, keys: jax.Array, samples: int, *, form: Form = "auto") -> Rollout:
    """Samples orders by eq. 8: a ready op j with probability proportional to exp(priority of j).

    Args:
      graph: a batch of graphs (leading axis g).
      priorities: `[g, n]` float32; values at padding are ignored.
      keys: `[g]` typed keys: a graph's orders are a function of its own key, and of the form.
      samples: s, number of orders per graph. Static.
      form: the decoder: "queue", a queue of sums (`sampled_orders`); "dense", all ops at every step (`rollout_with`);
        or "auto", the queue on CPUs and "dense" on other platforms, chosen when the program is lowered. Static.

    Returns:
      Arrays of leading shape `[g, s]`.
    """

    def dense() -> Rollout:
        every = (*priorities.shape[:1], samples, *priorities.shape[1:])
        return rollout_with(graph, lambda _: jnp.broadcast_to(priorities[:, None], every), keys, samples)

    def queue() -> Rollout:
        order = sampled_orders(graph, priorities, keys, samples)
        return Rollout(order, log_prob(graph, priorities, order), peaks(graph, order))

    if form == "auto":
        return jax.lax.platform_dependent(cpu=queue, default=dense)
    return dense() if form == "dense" else queue()


class Context(NamedTuple):
    """Inputs of a policy at each step, for s orders of each of g graphs."""

    step: jax.Array  # [] int32, number of ops that have run
    first: jax.Array  # [g, s] int32, the first op; n before the first step
    last: jax.Array  # [g, s] int32, the last op; n before the first step
    ready: jax.Array  # [g, s, n] bool, the ops to choose from; all False after the last op
    waits: jax.Array  # [g, s, n] int16, number of inputs that an op waits for, see `releases`
    track: Any  # the policy's own state, see `Tracker`


Logits = Callable[[Context], jax.Array]  # -> [g, s, n] float32; values at ops that are not ready are ignored


class Tracker(NamedTuple):
    """A policy's own state during decoding."""

    start: Callable[[int], Any]  # s -> arrays [g, s, ...] before the first step
    advance: Callable[[Context, jax.Array], Any]  # (context, the chosen ops [g, s] int32) -> the same after a step


STATELESS = Tracker(lambda samples: None, lambda context, op: None)
_Choice = Callable[[jax.Array, jax.Array], jax.Array]  # step, log-probabilities [g, s, n] -> ops [g, s] int32


class _RolloutState(NamedTuple):
    waits: jax.Array  # [g, s, n] int16
    first: jax.Array  # [g, s] int32
    last: jax.Array  # [g, s] int32
    log_prob: jax.Array  # [g, s] float32
    track: Any


def rollout_with(
    graph: PaddedGraph, logits: Logits, keys: jax.Array | None = None, samples: int = 1, tracker: Tracker = STATELESS
) -> Rollout:
    """Decodes orders by calling a policy at each step: takes the op of highest logit or, with keys, samples an op.

    Args:
      graph: a batch of graphs (leading axis g).
      logits: the policy.
      keys: `[g]` typed keys: a graph's orders are a function of its own key. None decodes greedily, all s orders equal.
      samples: s, number of orders per graph. Static.
      tracker: the policy's own state.

    Returns:
      Arrays of leading shape `[g, s]`.
    """

    def choose(step: jax.Array, log_probs: jax.Array) -> jax.Array:
        if keys is not None:
            here = jax.vmap(jax.random.fold_in, (0, None))(keys, step)
            log_probs = log_probs + jax.vmap(lambda key: jax.random.gumbel(key, log_probs.shape[1:]))(here)
        return jnp.argmax(log_probs, -1).astype(jnp.int32)

    log_prob, order = _run(graph, logits, tracker, choose, samples)
    return Rollout(order, log_prob, peaks(graph, order))


def log_prob_with(graph: PaddedGraph, logits: Logits, order: jax.Array, tracker: Tracker = STATELESS) -> jax.Array:
    """Computes the log-probability of complete orders `[g, s, n]` under a policy: `[g, s]` float32.

    Differentiable in the values that `logits` depends on. The backward pass recomputes each step, so that the int16
    counters are the only `[n, g, s, n]` array in memory.
    """
    by_step = jnp.moveaxis(order, -1, 0)
    return _run(graph, logits, tracker, lambda step, _: jnp.minimum(by_step[step], order.shape[-1]), order.shape[1])[0]


def peaks(graph: PaddedGraph, order: jax.Array) -> jax.Array:
    """Computes the peak memory of complete orders on one device: `[g, ...]` float32, byte units.

    Args:
      graph: a batch of graphs (leading axis g).
      order: `[g, ..., n]` int32, as `Rollout.order`.
    """
    g, n = order.shape[0], order.shape[-1]
    lanes = order.reshape(g, -1, n)
    events = jnp.moveaxis(lanes, -1, 0).reshape(n, -1)
    implication = implied(graph, on_one_device(graph, jnp.zeros((n, g, lanes.shape[1]), jnp.float32)), 1)
    return peak_memory(graph, implication, events, 1).reshape(order.shape[:-1])


def on_one_device(graph: PaddedGraph, op_keys: jax.Array) -> Decisions:
    """Creates decisions for one device from op keys `[n, g, p]` in [0, 1): the ready op with the largest is next."""
    transfers = jnp.zeros((1, graph.sizes.tensors, *op_keys.shape[1:]), jnp.float32)
    return Decisions(jnp.zeros(op_keys.shape, jnp.int32), op_keys, transfers)


def _run(
    graph: PaddedGraph, logits: Logits, tracker: Tracker, choose: _Choice, samples: int
) -> tuple[jax.Array, jax.Array]:
    """Runs `choose` at every step; returns log-probabilities `[g, s]` and orders `[g, s, n]`."""
    matrix, at_first = releases(graph), waits(graph)
    g, n = at_first.shape
    no_op = jnp.full((g, samples), n, jnp.int32)
    of_graph = jnp.arange(g, dtype=jnp.int32)[:, None]

    def step(state: _RolloutState, index: jax.Array) -> tuple[_RolloutState, jax.Array]:
        ready = state.waits == 0
        context = Context(index, state.first, state.last, ready, state.waits, state.track)
        log_probs = masked_log_softmax(logits(context), ready)
        op = jnp.where(ready.any(-1), choose(index, log_probs), n)
        chosen = jnp.take_along_axis(log_probs, jnp.minimum(op, n - 1)[..., None], -1)[..., 0]
        return _RolloutState(
            waits=state.waits - matrix[of_graph, op],
            first=jnp.where(index == 0, op, state.first),
            last=jnp.where(op < n, op, state.last),
            log_prob=state.log_prob + jnp.where(op < n, chosen, 0),
            track=tracker.advance(context, op),
        ), op

    begin = jnp.broadcast_to(at_first[:, None], (g, samples, n))
    state = _RolloutState(begin, no_op, no_op, jnp.zeros((g, samples), jnp.float32), tracker.start(samples))
    last, order = lax.scan(jax.checkpoint(step), state, jnp.arange(n, dtype=jnp.int32))
    return last.log_prob, jnp.moveaxis(order, 0, -1)


def masked_log_softmax(logits: jax.Array, ready: jax.Array) -> jax.Array:
    """Computes log-probabilities `[..., n]` of ready ops, -inf for others, with finite gradients even without any."""
    shifted = jnp.where(ready, logits, -jnp.inf)
    highest = lax.stop_gradient(jnp.where(ready.any(-1, keepdims=True), shifted.max(-1, keepdims=True), 0))
    weight = jnp.where(ready, jnp.exp(jnp.where(ready, logits - highest, 0)), 0).sum(-1, keepdims=True)
    total = jnp.log(jnp.where(weight > 0, weight, 1)) + highest
    return jnp.where(ready, logits - total, -jnp.inf)


def releases(graph: PaddedGraph) -> jax.Array:
    """Computes by how much each op, when it runs, decrements all ops' counters (`waits`): `[g, n + 1, n]` int16.

    The last row, for no op, is 0. A counter starts from the in-degree; an op is ready at 0, and has run below 0.

    Args:
      graph: a batch of graphs (leading axis g).
    """
    n = graph.sizes.ops
    entry = jnp.minimum(graph.row_entry, n)
    of_graph = jnp.arange(len(entry), dtype=jnp.int32)[:, None, None]
    matrix = jnp.broadcast_to(jnp.eye(n + 1, dtype=jnp.int16), (len(entry), n + 1, n + 1))
    return matrix.at[of_graph, graph.row_owner[..., None], entry].add(jnp.int16(1))[..., :n]


def waits(graph: PaddedGraph) -> jax.Array:
    """Returns the number of inputs for which each op waits at the start: `[g, n]` int16; the maximum for padding."""
    most = jnp.iinfo(jnp.int16).max
    return jnp.minimum(graph.indegree[:, : graph.sizes.ops], most).astype(jnp.int16)


_TOPS = 32  # maximum number of sums at the highest level, unless blocks have 32 slots


class _Tables(NamedTuple):
    """Read-only arrays of the loop; L = g * s lanes. A row lists up to W = `ROW_WIDTH` ops that wait for an op."""

    weight: jax.Array  # [slots * g] float32, exp(priority) of each op
    start: jax.Array  # [g * (n + 1)] int32, an op's first row
    entries: jax.Array  # [g * (r + 1), W] int32, ops; n for padding
    last: jax.Array  # [g * (r + 1)] bool, True for the last row of an op
    graph: jax.Array  # [L] int32, the graph of each lane
    row_offset: jax.Array  # [L] int32, offset of the graph in tables by row
    op_offset: jax.Array  # [L] int32, offset of the graph in tables by op
    seeds: jax.Array  # [g, 2] uint32


class _State(NamedTuple):
    slots: jax.Array  # [slots * L] float32: weight of a ready op; minus the number of missing inputs; 0 once it has run
    blocks: jax.Array  # [blocks * L] float32, sums of the weights
    tops: jax.Array  # [tops * L] float32, sums of the blocks
    op: jax.Array  # [L] int32, the op whose rows are being processed
    row: jax.Array  # [L] int32, the last processed row of the graph
    last: jax.Array  # [L] bool, True if it was the op's last row
    done: jax.Array  # [L] int32, number of ops that have run
    order: jax.Array  # [(n + 1) * L] int32


def sampled_orders(graph: PaddedGraph, priorities: jax.Array, keys: jax.Array, samples: int) -> jax.Array:
    """Samples orders by eq. 8: `[g, s, n]` int32, n after the last op. Arguments as for `sample`."""
    weight, block = weights(graph, priorities), _block_width(graph.sizes.ops)
    seeds = jax.vmap(lambda key: jax.random.bits(key, (2,), jnp.uint32))(keys)

    def loop() -> jax.Array:
        return _looped_orders(graph, weight, seeds, samples, block)

    def on_host() -> jax.Array:
        return host_orders(graph, weight, seeds, samples, block)

    return lax.platform_dependent(cpu=on_host if is_compiled() else loop, default=loop)


def _looped_orders(graph: PaddedGraph, weight: jax.Array, seeds: jax.Array, samples: int, block: int) -> jax.Array:
    g, n = weight.shape
    tables = _make_tables(graph, weight, seeds, samples, block)
    state = _start(graph, tables, g * samples, block)

    def step(index: jax.Array, state: _State) -> _State:
        return _step(index, state, tables, n, samples, block)

    order = lax.fori_loop(0, graph.op_rows.sum(-1).max(), step, state).order
    return jnp.transpose(order.reshape(n + 1, g, samples)[:n], (1, 2, 0))


def _block_width(ops: int) -> int:
    """Chooses the number of slots per block sum, and of block sums per top sum."""
    width = 4
    while width < 32 and width**2 * _TOPS < ops + 1:
        width *= 2
    return width


def _make_tables(graph: PaddedGraph, weight: jax.Array, seeds: jax.Array, samples: int, block: int) -> _Tables:
    sizes = graph.sizes
    g, n = weight.shape
    slots = -(-(n + 1) // block**2) * block**2

    def with_idle(values: jax.Array, idle: int | bool) -> jax.Array:
        return jnp.concatenate([values, jnp.full((g, 1, *values.shape[2:]), idle, values.dtype)], 1)

    by_slot = jnp.pad(weight.T, ((0, slots - n), (0, 0)))
    of_lane = jnp.arange(g * samples, dtype=jnp.int32) // samples
    return _Tables(
        weight=by_slot.reshape(-1),
        start=with_idle(graph.op_row, sizes.rows).reshape(-1),
        entries=with_idle(jnp.minimum(graph.row_entry, n), n).reshape(-1, ROW_WIDTH),
        last=with_idle(graph.row_ends_op, True).reshape(-1),
        graph=of_lane,
        row_offset=of_lane * (sizes.rows + 1),
        op_offset=of_lane * (n + 1),
        seeds=seeds,
    )


def _start(graph: PaddedGraph, tables: _Tables, count: int, block: int) -> _State:
    n, g = graph.sizes.ops, graph.num_ops.shape[0]
    slots = tables.weight.shape[0] // g
    waits = jnp.pad(graph.indegree[:, :n].T, ((0, slots - n), (0, 0))).astype(jnp.float32)
    state = jnp.where(waits == 0, tables.weight.reshape(slots, g), -waits)
    state = jnp.broadcast_to(state[..., None], (slots, g, count // g)).reshape(slots, count)
    blocks = jnp.maximum(state, 0).reshape(-1, block, count).sum(1)
    return _State(
        slots=state.reshape(-1),
        blocks=blocks.reshape(-1),
        tops=blocks.reshape(-1, block, count).sum(1).reshape(-1),
        op=jnp.full(count, n, jnp.int32),
        row=jnp.full(count, graph.sizes.rows, jnp.int32),
        last=jnp.ones(count, jnp.bool_),
        done=jnp.zeros(count, jnp.int32),
        order=jnp.full((n + 1) * count, n, jnp.int32),
    )


def _step(index: jax.Array, state: _State, tables: _Tables, n: int, samples: int, block: int) -> _State:
    count = state.op.shape[0]
    lane = jnp.arange(count, dtype=jnp.int32)
    words = random_words(tables.seeds, jnp.full((1, len(tables.seeds)), index.astype(jnp.uint32)), samples)
    path = _walk_down(state, unit_interval(words).reshape(count), block)
    running = state.last & (path.total > 0)
    op = jnp.where(state.last & ~running, n, path.block * block + path.place)
    row = jnp.where(state.last, take(tables.start, tables.op_offset + op), state.row + 1)

    # the op leaves the queue (again, if it has further rows)
    within = jnp.arange(block, dtype=jnp.int32)[:, None]
    rest = jnp.where(within == path.place[None], 0, path.in_block).sum(0)
    rest_above = jnp.where(within == path.inner[None], rest[None], path.in_top).sum(0)
    # min(rest, 0) is always 0: it makes the write depend on the reads of the block
    slots = put(state.slots, op * count + lane, jnp.minimum(rest, 0))
    blocks = put(state.blocks, path.block * count + lane, rest)
    tops = put(state.tops, path.top * count + lane, rest_above)

    # the row's entries wait for one input less; those without missing inputs enter the queue
    listed = take(tables.entries, tables.row_offset + row)
    entries = listed * count + lane[:, None]
    waiting = take(slots, entries)
    ready = waiting == -1
    weight = take(tables.weight, listed * len(tables.seeds) + tables.graph[:, None])
    gained = jnp.where(ready, weight, 0)
    slots = put(slots, entries, jnp.where(ready, gained, jnp.where(waiting < 0, waiting + 1, waiting)))
    blocks = add(blocks, lax.div(listed, jnp.int32(block)) * count + lane[:, None], gained)
    tops = add(tops, lax.div(listed, jnp.int32(block * block)) * count + lane[:, None], gained)

    order = put(state.order, jnp.where(running, state.done, n) * count + lane, jnp.where(running, op, n))
    last = take(tables.last, tables.row_offset + row)
    return _State(slots, blocks, tops, op, row, last, state.done + running.astype(jnp.int32), order)


class _Path(NamedTuple):
    """Path from the highest sums down to the slot of the op whose rows are processed: a newly drawn op, or the last
    step's.
    """

    total: jax.Array  # [L] float32, weight of all ready ops
    top: jax.Array  # [L] int32
    inner: jax.Array  # [L] int32, the block's index within the top
    in_top: jax.Array  # [block, L] float32, sums of the top's blocks
    block: jax.Array  # [L] int32
    place: jax.Array  # [L] int32, the slot's index within the block
    in_block: jax.Array  # [block, L] float32, the block's weights


def _walk_down(state: _State, uniform: jax.Array, block: int) -> _Path:
    count = uniform.shape[0]
    width, lane = jnp.int32(block), jnp.arange(count, dtype=jnp.int32)
    children = jnp.arange(block, dtype=jnp.int32)[:, None] * count + lane[None]
    any_new_op = state.last.any()

    def down(sums: jax.Array, target: jax.Array, stays: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Descends one level. The conditional keeps XLA from recomputing a level for every element of the next one."""

        def draw() -> tuple[jax.Array, jax.Array]:
            index, left = _pick(sums, target)
            return jnp.where(state.last, index, stays), left

        return lax.cond(any_new_op, draw, lambda: (stays, target))

    tops = state.tops.reshape(-1, count)
    total = _total(tops)
    top, left = down(tops, uniform * total, lax.div(state.op, width * width))
    in_top = take(state.blocks, top[None] * block * count + children)
    inner, left = down(in_top, left, lax.rem(lax.div(state.op, width), width))
    at = top * block + inner
    in_block = jnp.maximum(take(state.slots, at[None] * block * count + children), 0)
    place, _ = down(in_block, left, lax.rem(state.op, width))
    return _Path(total, top, inner, in_top, at, place, in_block)


def _total(sums: jax.Array) -> jax.Array:
    """Sums over the first axis, `[k, L]` to `[L]`, in the same order as `_pick`, so that both round equally."""
    total = sums[0]
    for i in range(1, sums.shape[0]):
        total = total + sums[i]
    return total


def _pick(sums: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Finds the first index at which the cumulative sum of numbers `[k, L]` exceeds the target `[L]`.

    Returns:
      The index `[L]` int32, never that of a 0 unless all are 0; and the target minus the sum of the numbers before it,
      `[L]`.
    """
    # the sum of the lower level may have been rounded differently
    target = jnp.minimum(target, _total(sums) * jnp.float32(1 - 2**-24))
    index, before = jnp.zeros(target.shape, jnp.int32), jnp.zeros_like(target)
    cumulative = before
    for i in range(sums.shape[0] - 1):
        cumulative = cumulative + sums[i]
        is_below = cumulative <= target
        index = index + is_below.astype(jnp.int32)
        before = jnp.where(is_below, cumulative, before)
    return index, target - before


def _without_gaps(events: jax.Array, n: int) -> jax.Array:
    """Lists the ops among the events `[c, g, 1]`, in their order and without gaps: `[g, n]` int32, n after the last."""
    node = events[..., 0]
    g = node.shape[1]
    place = jnp.cumsum((node < n).astype(jnp.int32), axis=0) - 1
    index = jnp.where(node < n, place, n) * g + jnp.arange(g, dtype=jnp.int32)[None]
    order = put(jnp.full((n + 1) * g, n, jnp.int32), index, node)
    return order.reshape(n + 1, g)[:n].T
