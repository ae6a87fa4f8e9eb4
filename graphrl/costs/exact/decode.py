"""The order that keys mean, exactly: the host twin of `device/decode.py`."""

import numpy as np
from numpy.typing import ArrayLike

from graphrl.costs.exact.routes import Routes
from graphrl.costs.problem import Problem
from graphrl.errors import PlanError
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.topology import Waiting, grouped, least_first


def key_bits(num_ops: int, num_tensors: int, devices: int) -> int:
    """Bits that a packed 31-bit word leaves for a key beside the node's index.

    An op's index is v, a transfer's `n + t * (devices - 1) + b - (b > producer's device)`.

    Raises:
      PlanError: the index alone needs more than 31 bits.
    """
    indices = num_ops + num_tensors * (devices - 1)
    bits = 31 - max(1, (indices - 1).bit_length())
    if bits < 0:
        raise PlanError(
            f"{num_ops} ops and {num_tensors} tensors on {devices} devices: cannot number more than 2^31 nodes"
        )
    return bits


def quantise(keys: ArrayLike, bits: int) -> np.ndarray:
    """Keys in [0, 1) as integers of `bits` bits, `int64` of the same shape: what the device compares.

    Raises:
      PlanError: a key is NaN or outside [0, 1).
    """
    keys = np.asarray(keys)
    if keys.dtype.kind not in "fiub":
        raise PlanError(f"keys are of type {keys.dtype}: must be floats in [0, 1)")
    bad = ~((keys >= 0) & (keys < 1))
    if bad.any():
        raise PlanError(f"key {keys[bad].flat[0]!s} at index {tuple(np.argwhere(bad)[0].tolist())}: must be in [0, 1)")
    scaled = keys.astype(np.float32) * np.float32(2**bits)  # exact: a power of two
    return np.minimum(scaled.astype(np.int64), 2**bits - 1)  # a float64 just below 1 rounds up to 1


def decode(
    graph: ComputationGraph, problem: Problem, placement: ArrayLike, op_keys: ArrayLike, transfer_keys: ArrayLike
) -> np.ndarray:
    """The order that keys mean: repeatedly the ready node with the highest quantised key.

    Ties: ops before transfers, then the lower node id.

    Args:
      placement: `[n]` device of each op.
      op_keys: `[n]` floats in [0, 1).
      transfer_keys: `[t, devices]` floats in [0, 1); those of transfers that are not needed do not matter.

    Returns:
      `[m] int64` node ids of all ops and needed transfers, in a topological order.

    Raises:
      PlanError: wrong shapes, a device out of range, or a key outside [0, 1).
    """
    routes = Routes(graph, problem, placement)
    n, t = routes.num_ops, routes.num_tensors
    op_keys, transfer_keys = np.asarray(op_keys), np.asarray(transfer_keys)
    if op_keys.shape != (n,) or transfer_keys.shape != (t, problem.devices):
        raise PlanError(
            f"op keys {op_keys.shape} and transfer keys {transfer_keys.shape} for {graph.name!r}: "
            f"must be {(n,)} and {(t, problem.devices)}"
        )
    bits = key_bits(n, t, problem.devices)
    needed_keys = quantise(transfer_keys, bits).reshape(-1)[routes.transfers - n]
    keys = np.concatenate([quantise(op_keys, bits), needed_keys])
    counts = np.bincount(routes.after, minlength=len(keys)).tolist()
    waiting = Waiting(counts, grouped(routes.before, routes.after, len(keys)))
    return routes.nodes[least_first(-keys, waiting)]  # slots are in the order of node ids
