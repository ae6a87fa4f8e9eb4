"""When nodes run, as the order is walked: one clock per device and, under `link`, one per outgoing link."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from graphrl.costs.device.lanes import by_device
from graphrl.costs.problem import Transfer


class Clocks(NamedTuple):
    """Clocks of L lanes, in second units."""

    device: jax.Array  # [d, L] float32, end of the last node that held the device
    link: jax.Array  # [d, L] float32, end of the last transfer on the device's outgoing link


class Node(NamedTuple):
    """The node that each of L lanes runs now."""

    is_op: jax.Array  # [L] bool
    is_transfer: jax.Array  # [L] bool; neither: the lane is idle
    source: jax.Array  # [L] int32, the device of an op, or of a transfer's producer
    target: jax.Array  # [L] int32, the device of an op, or that a transfer goes to
    ready: jax.Array  # [L] float32, latest arrival of an op's inputs and control predecessors, or a producer's end
    seconds: jax.Array  # [L] float32, duration


def start_clocks(devices: int, lanes: int) -> Clocks:
    """All clocks at 0."""
    zero = jnp.zeros((devices, lanes), jnp.float32)
    return Clocks(zero, zero)


def advance(transfer: Transfer, clocks: Clocks, node: Node) -> tuple[Clocks, jax.Array]:
    """Runs one node in every lane.

    Returns:
      The clocks after it, and its end `[L]`.
    """
    device = jnp.arange(clocks.device.shape[0], dtype=jnp.int32)[:, None]
    at_source, is_op, is_transfer = device == node.source[None], node.is_op[None], node.is_transfer[None]
    free = by_device(clocks.device, node.source)
    if transfer == "free":
        begin = jnp.where(node.is_op, jnp.maximum(node.ready, free), node.ready)
        holds, sends = is_op & at_source, None
    elif transfer == "rendezvous":
        # an op's source is its target, so one rule serves both
        begin = jnp.maximum(jnp.maximum(node.ready, free), by_device(clocks.device, node.target))
        holds = (is_op | is_transfer) & (at_source | (device == node.target[None]))
        sends = None
    else:
        begin = jnp.maximum(node.ready, jnp.where(node.is_op, free, by_device(clocks.link, node.source)))
        holds, sends = is_op & at_source, is_transfer & at_source
    end = begin + node.seconds
    link = clocks.link if sends is None else jnp.where(sends, end[None], clocks.link)
    return Clocks(jnp.where(holds, end[None], clocks.device), link), end
