"""Transfers under a placement, and exact decoding of keys into an order: the host twin of `device/decode.py`.

`Routes` has the transfers that a placement needs, and all dependencies.
"""

import numpy as np
from numpy.typing import ArrayLike

from graphrl.costs.problem import Problem
from graphrl.errors import PlanError
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.topology import Waiting, grouped, least_first, numbered


class Routes:
    """Transfers and dependencies of a graph under a placement.

    A *slot* is the number of an op or a needed transfer: op v is v, the k-th needed transfer n + k (in order of node
    ids). An *instance* is a tensor on a device: t where it is produced, T + k the copy that the k-th transfer makes.
    """

    def __init__(self, graph: ComputationGraph, problem: Problem, placement: ArrayLike) -> None:
        a = graph.arrays
        self.placement = _checked_placement(graph, problem, placement)  # [n]
        self.num_ops, self.num_tensors = a.num_ops, a.num_tensors
        self.home = self.placement[a.producer]  # [t] device of the producer
        there = self.placement[a.use_op]  # [e]
        copy = a.use_tensor.astype(np.int64) * problem.devices + there  # the copy that a use reads, if remote
        remote = there != self.home[a.use_tensor]
        copies, _, number = numbered(copy[remote], a.num_tensors * problem.devices)
        self.transfers = self.num_ops + copies  # [k] node ids
        self.transfer_tensor, self.transfer_to = np.divmod(copies, problem.devices)  # [k], [k]
        k = np.zeros(len(copy), np.int64)
        k[remote] = number
        self.use_instance = np.where(remote, self.num_tensors + k, a.use_tensor)  # [e]
        transfer_source = a.producer[self.transfer_tensor].astype(np.int64)
        use_source = np.where(remote, self.num_ops + k, a.producer[a.use_tensor])
        # [x] slots: every (before, after) pair that an order must respect
        self.before = np.concatenate([transfer_source, use_source, a.control_source])
        self.after = np.concatenate([self.num_ops + np.arange(len(self.transfers)), a.use_op, a.control_target])
        self.nodes = np.concatenate([np.arange(self.num_ops, dtype=np.int64), self.transfers])  # [slots] node ids
        # [slots] devices that a slot reads on, and that it writes on
        self.reads_on = np.concatenate([self.placement, self.home[self.transfer_tensor]])
        self.writes_on = np.concatenate([self.placement, self.transfer_to])

    def seconds(self, graph: ComputationGraph, problem: Problem) -> np.ndarray:
        """Returns the duration of every slot: `[slots] float64`."""
        copies = problem.latency + graph.arrays.tensor_bytes[self.transfer_tensor] / problem.bandwidth
        return np.concatenate([graph.arrays.runtime, copies])

    def instances(self, tensors: np.ndarray, on: np.ndarray, devices: int) -> np.ndarray:
        """Returns the instances `[k]` of tensors `[k]` on devices `[k]` that have them; `devices` is d."""
        copies = np.searchsorted(self.transfers, self.num_ops + tensors.astype(np.int64) * devices + on)
        return np.where(self.home[tensors] == on, tensors, self.num_tensors + copies)


def _checked_placement(graph: ComputationGraph, problem: Problem, placement: ArrayLike) -> np.ndarray:
    array = np.asarray(placement)
    n = graph.arrays.num_ops
    if array.shape != (n,):
        raise PlanError(f"placement of shape {array.shape}: {graph.name!r} has {n} ops, so it must be {(n,)}")
    if array.dtype.kind not in "iu":
        raise PlanError(f"placement of type {array.dtype}: must be integers, one device for each op")
    bad = np.flatnonzero((array < 0) | (array >= problem.devices))
    if len(bad):
        op, device = graph.ops[bad[0]].name, array[bad[0]]
        raise PlanError(f"op {op!r} is placed on device {device}: must be from 0 to {problem.devices - 1}")
    if graph.colocation is not None:
        _check_colocation(graph, array)
    return array.astype(np.int64)


def _check_colocation(graph: ComputationGraph, placement: np.ndarray) -> None:
    apart = np.flatnonzero(placement != placement[graph.leaders])
    if len(apart):
        other = graph.leaders[apart[0]]
        where = f"on devices {placement[other]} and {placement[apart[0]]}"
        raise PlanError(f"colocated ops {graph.ops[other].name!r} and {graph.ops[apart[0]].name!r} are {where}")


def key_bits(num_ops: int, num_tensors: int, devices: int) -> int:
    """Returns the number of bits for a key in a packed 31-bit word, next to the node's index.

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
    """Quantises keys in [0, 1) to `bits` bits, as they are compared on the device: `int64` of the same shape.

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
    """Decodes keys into an order: repeatedly the ready node with the highest quantised key.

    Ties: ops before transfers, then the lower node id.

    Args:
      placement: `[n]` device of each op.
      op_keys: `[n]` floats in [0, 1).
      transfer_keys: `[t, devices]` floats in [0, 1); keys of transfers that are not needed are ignored.

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
