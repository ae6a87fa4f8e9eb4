"""Orders by a policy that is asked at every step (auto-regressive decoders; Topoformer, appendix B); `Rollout`.

A `Rollout` is the result of every decoder: orders, their log-probabilities and their costs. All of `decoding` takes a
batch of graphs, and its results have the batch's leading axis g. In an order `[n]` the first `num_ops` places are ops
and the rest n. Lanes (samples of graphs) come last inside, as everywhere in `costs`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from graphrl.costs.device.decisions import Decisions
from graphrl.costs.device.lanes import implied
from graphrl.costs.device.memory import peak_memory
from graphrl.graphs.padding import PaddedGraph


class Rollout(NamedTuple):
    """Orders of a batch of graphs."""

    order: jax.Array  # [g, ..., n] int32, ops; n after the last
    log_prob: jax.Array  # [g, ...] float32
    peak: jax.Array  # [g, ...] float32, byte units of the graph (`PaddedGraph.byte_unit`)


def peaks(graph: PaddedGraph, order: jax.Array) -> jax.Array:
    """Peak memory of complete orders on one device: `[g, ...]` float32, byte units.

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
    """Decisions of op keys `[n, g, p]` in [0, 1)."""
    transfers = jnp.zeros((1, graph.sizes.tensors, *op_keys.shape[1:]), jnp.float32)
    return Decisions(jnp.zeros(op_keys.shape, jnp.int32), op_keys, transfers)


class Context(NamedTuple):
    """What a policy is told before each step, of s orders of each of g graphs."""

    step: jax.Array  # [] int32, ops that have run
    first: jax.Array  # [g, s] int32, the first op; n where there is none yet
    last: jax.Array  # [g, s] int32, the last op; n where there is none yet
    ready: jax.Array  # [g, s, n] bool, the ops to choose from; none once all have run


Logits = Callable[[Context], jax.Array]  # -> [g, s, n] float32; what stands at ops that are not ready does not matter
_Choice = Callable[[jax.Array, jax.Array], jax.Array]  # step, log-probabilities [g, s, n] -> ops [g, s] int32


class _State(NamedTuple):
    waits: jax.Array  # [g, s, n] int16
    first: jax.Array  # [g, s] int32
    last: jax.Array  # [g, s] int32
    log_prob: jax.Array  # [g, s] float32


def rollout_with(graph: PaddedGraph, logits: Logits, keys: jax.Array | None = None, samples: int = 1) -> Rollout:
    """Orders by a policy: the op of highest logit at each step or, with keys, one drawn from their softmax.

    Args:
      graph: a batch of graphs (leading axis g).
      logits: of the policy.
      keys: `[g]` typed keys: a graph's orders are a function of its own key. None: greedily, all s orders alike.
      samples: s. Static.

    Returns:
      Arrays of leading shape `[g, s]`.
    """

    def choose(step: jax.Array, log_probs: jax.Array) -> jax.Array:
        if keys is not None:
            here = jax.vmap(jax.random.fold_in, (0, None))(keys, step)
            log_probs = log_probs + jax.vmap(lambda key: jax.random.gumbel(key, log_probs.shape[1:]))(here)
        return jnp.argmax(log_probs, -1).astype(jnp.int32)

    log_prob, order = _run(graph, logits, choose, samples)
    return Rollout(order, log_prob, peaks(graph, order))


def log_prob_with(graph: PaddedGraph, logits: Logits, order: jax.Array) -> jax.Array:
    """The log-probability of complete orders `[g, s, n]` under a policy: `[g, s]` float32.

    Differentiable in whatever `logits` depends on. A step's values are computed again on the way back, so that no
    `[n, g, s, n]` array is kept but the int16 counters.
    """
    by_step = jnp.moveaxis(order, -1, 0)
    return _run(graph, logits, lambda step, _: jnp.minimum(by_step[step], order.shape[-1]), order.shape[1])[0]


def _run(graph: PaddedGraph, logits: Logits, choose: _Choice, samples: int) -> tuple[jax.Array, jax.Array]:
    """Log-probabilities `[g, s]` and orders `[g, s, n]`."""
    matrix, at_first = releases(graph), waits(graph)
    g, n = at_first.shape
    nobody = jnp.full((g, samples), n, jnp.int32)
    of_graph = jnp.arange(g, dtype=jnp.int32)[:, None]

    def step(state: _State, index: jax.Array) -> tuple[_State, jax.Array]:
        ready = state.waits == 0
        log_probs = masked_log_softmax(logits(Context(index, state.first, state.last, ready)), ready)
        op = jnp.where(ready.any(-1), choose(index, log_probs), n)
        chosen = jnp.take_along_axis(log_probs, jnp.minimum(op, n - 1)[..., None], -1)[..., 0]
        return _State(
            waits=state.waits - matrix[of_graph, op],
            first=jnp.where(index == 0, op, state.first),
            last=jnp.where(op < n, op, state.last),
            log_prob=state.log_prob + jnp.where(op < n, chosen, 0),
        ), op

    begin = jnp.broadcast_to(at_first[:, None], (g, samples, n))
    state = _State(begin, nobody, nobody, jnp.zeros((g, samples), jnp.float32))
    last, order = lax.scan(jax.checkpoint(step), state, jnp.arange(n, dtype=jnp.int32))
    return last.log_prob, jnp.moveaxis(order, 0, -1)


def masked_log_softmax(logits: jax.Array, ready: jax.Array) -> jax.Array:
    """Log-probabilities `[..., n]` of the ready ops, -inf for others; their gradients are finite, also with none."""
    shifted = jnp.where(ready, logits, -jnp.inf)
    highest = lax.stop_gradient(jnp.where(ready.any(-1, keepdims=True), shifted.max(-1, keepdims=True), 0))
    weight = jnp.where(ready, jnp.exp(jnp.where(ready, logits - highest, 0)), 0).sum(-1, keepdims=True)
    total = jnp.log(jnp.where(weight > 0, weight, 1)) + highest
    return jnp.where(ready, logits - total, -jnp.inf)


def releases(graph: PaddedGraph) -> jax.Array:
    """What every op takes from what all ops wait for when it runs, itself included: `[g, n + 1, n]` int16.

    The last row, of none, is 0. An op waits for its in-degree (`waits`), is ready at 0, and has run below that.

    Args:
      graph: a batch of graphs (leading axis g).
    """
    n = graph.sizes.ops
    entry = jnp.minimum(graph.row_entry, n)
    of_graph = jnp.arange(len(entry), dtype=jnp.int32)[:, None, None]
    matrix = jnp.broadcast_to(jnp.eye(n + 1, dtype=jnp.int16), (len(entry), n + 1, n + 1))
    return matrix.at[of_graph, graph.row_owner[..., None], entry].add(jnp.int16(1))[..., :n]


def waits(graph: PaddedGraph) -> jax.Array:
    """What every op waits for at the start: `[g, n]` int16; padding waits for ever."""
    most = jnp.iinfo(jnp.int16).max
    return jnp.minimum(graph.indegree[:, : graph.sizes.ops], most).astype(jnp.int16)
