"""Orders from priorities (Topoformer, section 4.2): greedily, and by sampling eq. 8."""

from typing import Literal

import jax
import jax.numpy as jnp

from graphrl.costs.device.evaluate import evaluate
from graphrl.costs.device.indexing import put
from graphrl.costs.device.problem import DeviceProblem
from graphrl.costs.problem import Problem
from graphrl.decoding.likelihood import log_prob
from graphrl.decoding.orders import Rollout, on_one_device, peaks
from graphrl.decoding.sampling import sampled_orders
from graphrl.decoding.stepwise import rollout_with
from graphrl.graphs.padding import PaddedGraph

Form = Literal["auto", "queue", "dense"]


def greedy(graph: PaddedGraph, priorities: jax.Array) -> Rollout:
    """Always the ready op of highest priority, ties to the lower index.

    It is the decoder of `costs` on the ranks of the priorities, so that no bit of them is lost (up to 32,768 ops).

    Args:
      graph: a batch of graphs (leading axis g).
      priorities: `[g, n]` float32; what stands at padding does not matter.

    Returns:
      One order a graph: arrays of leading shape `[g]`.
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
    """Orders drawn by eq. 8: op j of the ready ones with a probability proportional to exp(priority of j).

    Args:
      graph: a batch of graphs (leading axis g).
      priorities: `[g, n]` float32; what stands at padding does not matter.
      keys: `[g]` typed keys: a graph's orders are a function of its own key, and of the form.
      samples: s, orders to draw of each graph. Static.
      form: of the decoder: a queue of sums (`sampling.py`), all ops at every step (`stepwise.py`), or auto, the one
        that suits the platform that the program is lowered for: the queue on CPUs. Static.

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


def _without_gaps(events: jax.Array, n: int) -> jax.Array:
    """The ops of events `[c, g, 1]` in their order: `[g, n]` int32, n after the last."""
    node = events[..., 0]
    g = node.shape[1]
    place = jnp.cumsum((node < n).astype(jnp.int32), axis=0) - 1
    index = jnp.where(node < n, place, n) * g + jnp.arange(g, dtype=jnp.int32)[None]
    order = put(jnp.full((n + 1) * g, n, jnp.int32), index, node)
    return order.reshape(n + 1, g)[:n].T
