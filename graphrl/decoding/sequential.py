"""Decodes orders whose next op is chosen by the state of memory so far (ours; the counterpart of a list scheduler).

The logit of a ready op is its priority plus a perceptron on the op's vector and on `op_features.FEATURES`: the bytes
that it would add and free now, those that its inputs' other readers must run to free, the ops that it would make ready.
A policy of static priorities cannot see these.

Features depend on the set of ops that have run, and on the peak so far. They are estimates: a tensor that reuses a
buffer counts as a buffer of its own. Peaks of complete orders are exact.

On CPUs the loops are compiled code (`host_sequential.py`, `host_beam.py`), which visits the ready ops alone: about ten
in a layered graph. Elsewhere all ops are computed at every step, in matrix products.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from graphrl.compiled.custom_call import is_compiled
from graphrl.decoding.beam import beam_with
from graphrl.decoding.host_beam import host_beam
from graphrl.decoding.host_sequential import host_gradient, host_log_prob, host_rollout
from graphrl.decoding.op_features import Head, Usage, usage
from graphrl.decoding.rollout import Context, Logits, Rollout, Tracker, log_prob_with, peaks, releases, rollout_with
from graphrl.graphs.padding import PaddedGraph


def rollout(graph: PaddedGraph, head: Head, keys: jax.Array | None = None, samples: int = 1) -> Rollout:
    """Decodes orders: takes the op of highest logit or, with keys, samples an op in proportion to exp(logit).

    Args:
      graph: a batch of graphs (leading axis g).
      head: their perceptron.
      keys: `[g]` typed keys: a graph's orders are a function of its own key and the platform. None decodes greedily.
      samples: s, number of orders per graph. Static.

    Returns:
      Arrays of leading shape `[g, s]`, without gradients.
    """
    head = lax.stop_gradient(head)

    def dense() -> Rollout:
        logits, tracker = _policy(graph, head)
        return rollout_with(graph, logits, keys, samples, tracker)

    def host() -> Rollout:
        seeds = None if keys is None else jax.vmap(lambda key: jax.random.bits(key, (2,), jnp.uint32))(keys)
        order, log_probs = host_rollout(graph, usage(graph), head, seeds, samples)
        return Rollout(order, log_probs, peaks(graph, order))

    return lax.platform_dependent(cpu=host, default=dense) if is_compiled() else dense()


def beam(graph: PaddedGraph, head: Head, width: int) -> Rollout:
    """Finds each graph's order of lowest peak by beam search, see `beam.beam_with`: leading shape `[g]`.

    Of candidates with the same ops the search keeps the one of lowest peak. On CPUs these peaks are estimates, as
    in the features, so that results may differ by platform where tensors reuse buffers. The returned peaks are exact.
    """
    head = lax.stop_gradient(head)

    def dense() -> Rollout:
        logits, tracker = _policy(graph, head)
        return beam_with(graph, logits, width, tracker)

    def host() -> Rollout:
        orders, log_probs = host_beam(graph, usage(graph), head, width)
        each = peaks(graph, orders)
        lowest = each.min(1, keepdims=True)
        best = jnp.argmax(jnp.where(each == lowest, log_probs, -jnp.inf), 1).astype(jnp.int32)
        of_graph = jnp.arange(len(best), dtype=jnp.int32)
        return Rollout(orders[of_graph, best], log_probs[of_graph, best], lowest[:, 0])

    return lax.platform_dependent(cpu=host, default=dense) if is_compiled() else dense()


def log_prob(graph: PaddedGraph, head: Head, order: jax.Array) -> jax.Array:
    """Computes the log-probability of complete orders `[g, s, n]`: `[g, s]` float32, differentiable in the head; -inf
    for an order that runs an op before its inputs.
    """
    return _log_prob(head, graph, order) if is_compiled() else _dense_log_prob(head, graph, order)


@jax.custom_vjp
def _log_prob(head: Head, graph: PaddedGraph, order: jax.Array) -> jax.Array:
    def host(head: Head, graph: PaddedGraph, order: jax.Array) -> jax.Array:
        return host_log_prob(graph, usage(graph), head, order)

    return lax.platform_dependent(head, graph, order, cpu=host, default=_dense_log_prob)


def _forward(head: Head, graph: PaddedGraph, order: jax.Array) -> tuple[jax.Array, tuple]:
    return _log_prob(head, graph, order), (head, graph, order)


def _backward(residuals: tuple, cotangent: jax.Array) -> tuple:
    head, graph, order = residuals

    def host(head: Head, graph: PaddedGraph, order: jax.Array, cotangent: jax.Array) -> Head:
        return host_gradient(graph, usage(graph), head, order, cotangent)

    def dense(head: Head, graph: PaddedGraph, order: jax.Array, cotangent: jax.Array) -> Head:
        (gradient,) = jax.vjp(lambda head: _dense_log_prob(head, graph, order), head)[1](cotangent)
        return gradient

    gradient = lax.platform_dependent(head, graph, order, cotangent, cpu=host, default=dense)
    return gradient, *jax.tree.map(_no_gradient, (graph, order))


_log_prob.defvjp(_forward, _backward)


def _no_gradient(x: jax.Array) -> np.ndarray | jax.Array:
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    return jnp.zeros_like(x) if is_float else np.zeros(x.shape, jax.dtypes.float0)


def _dense_log_prob(head: Head, graph: PaddedGraph, order: jax.Array) -> jax.Array:
    logits, tracker = _policy(graph, head)
    return log_prob_with(graph, logits, order, tracker)


class _Track(NamedTuple):
    """What the dense form needs of the steps before."""

    peak: jax.Array  # [g, s] float32, of memory
    since: jax.Array  # [g, s, n] int16, step at which each op became ready; -1 before


def _policy(graph: PaddedGraph, head: Head) -> tuple[Logits, Tracker]:
    """The dense form, for `rollout_with` and the like: computes features of all ops at every step."""
    of, (g, n) = usage(graph), graph.workspace.shape
    num_ops = _number(jnp.maximum(graph.num_ops, 1))[:, None, None]
    waiting, reads = _number(releases(graph)[:, :n] - jnp.eye(n, dtype=jnp.int16)[None]), _reads(graph, of)

    def start(samples: int) -> _Track:
        return _Track(jnp.zeros((g, samples), jnp.float32), jnp.full((g, samples, n), -1, jnp.int16))

    def occupancy(context: Context) -> tuple[jax.Array, jax.Array]:
        """Counts the readers of buffers that have not run, `[g, s, b]`, and bytes in use, `[g, s]`: both float32."""
        left = _number(context.waits >= 0) @ reads
        written = jnp.einsum("gsn,gn->gs", _number(context.waits < 0), of.added - of.dead)
        return left, written - jnp.einsum("gsb,gb->gs", _number(left == 0), of.freed)

    def advance(context: Context, op: jax.Array) -> _Track:
        need = jnp.pad(of.added + of.workspace, ((0, 0), (0, 1)))
        running = occupancy(context)[1] + jnp.take_along_axis(need, op, 1)
        return _Track(jnp.maximum(context.track.peak, jnp.where(op < n, running, 0)), _since(context))

    def logits(context: Context) -> jax.Array:
        left, live = occupancy(context)
        x = jnp.stack(_features(of, waiting, reads, num_ops, context, left, live), -1)
        return head.priority[:, None] + jax.nn.relu(head.hidden[:, None] + x @ head.kernel) @ head.out

    return logits, Tracker(start, advance)


def _features(
    of: Usage,
    waiting: jax.Array,  # [g, n, n] float32, number of inputs and predecessors of the second op that are the first
    reads: jax.Array,  # [g, n, b] float32, 1 where an op reads a buffer
    num_ops: jax.Array,  # [g, 1, 1] float32
    context: Context,
    left: jax.Array,
    live: jax.Array,
) -> list[jax.Array]:
    """Computes `FEATURES` of all ops, each `[g, s, n]` float32; values of ops that are not ready are arbitrary."""
    waits = _number(context.waits)
    pending = jnp.where(waits >= 0, 1 + waits, 0) @ reads
    freed_bytes, added, workspace = of.freed[:, None], of.added[:, None], of.workspace[:, None]

    def over_inputs(amount: jax.Array) -> jax.Array:
        return jnp.einsum("gsb,gnb->gsn", amount, reads)

    def over_waiting(amount: jax.Array) -> jax.Array:
        return jnp.einsum("gsm,gnm->gsn", amount, waiting)

    freed = of.dead[:, None] + over_inputs(freed_bytes * _number(left == 1))
    gain, is_next = freed - added, _number(waits == 1)
    live, peak, step = live[..., None], context.track.peak[..., None], _number(context.step)
    depth = jnp.broadcast_to(of.depth[:, None], waits.shape)
    lowest = jnp.where(context.ready, depth, jnp.inf).min(-1, keepdims=True)
    columns = [
        _log(added),
        _log(workspace),
        _log(freed),
        _log(gain),
        _log(jnp.maximum(live + added + workspace - peak, 0)),
        _log(peak - live),
        jnp.where(peak > 0, live / jnp.where(peak > 0, peak, 1), 0),
        _log(over_inputs(freed_bytes / jnp.maximum(left, 1))),
        _log(over_inputs(freed_bytes * _number(left > 1) / jnp.maximum(pending, 1))),
        _log(over_waiting(is_next)),
        _log(over_waiting(is_next * gain)),
        _log(over_waiting(_number(waits > 0) / jnp.maximum(waits, 1))),
        step / num_ops,
        _log(0.1 * (step - _number(_since(context)))),
        _log(jnp.where(context.ready, depth - lowest, 0)),
    ]
    return [jnp.broadcast_to(column, waits.shape) for column in columns]


def _reads(graph: PaddedGraph, of: Usage) -> jax.Array:
    (g, n), t = graph.workspace.shape, graph.sizes.tensors
    of_graph = jnp.arange(g, dtype=jnp.int32)[:, None]
    return jnp.zeros((g, n + 1, t + 1), jnp.float32).at[of_graph, of.use_op, of.use_buffer].set(1)[:, :n, :t]


def _since(context: Context) -> jax.Array:
    """Returns the step at which each op became ready, for ops that are."""
    is_new = context.ready & (context.track.since < 0)
    return jnp.where(is_new, context.step.astype(jnp.int16), context.track.since)


def _log(x: jax.Array) -> jax.Array:
    return jnp.sign(x) * jnp.log(1 + jnp.abs(x))


def _number(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32)
