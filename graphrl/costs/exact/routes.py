"""How tensors reach their consumers under a placement: the transfers, and who waits for whom."""

import numpy as np
from numpy.typing import ArrayLike

from graphrl.costs.problem import Problem
from graphrl.errors import PlanError
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.topology import numbered


class Routes:
    """How tensors reach their consumers under a placement.

    A *slot* numbers what there is to run: op v is v, the k-th needed transfer n + k (slots ascend as node ids do).
    An *instance* is a tensor on a device: t where it is produced, T + k the copy that the k-th transfer makes.
    """

    def __init__(self, graph: ComputationGraph, problem: Problem, placement: ArrayLike) -> None:
        a = graph.arrays
        self.placement = _checked_placement(graph, problem, placement)  # [n]
        self.num_ops, self.num_tensors = a.num_ops, a.num_tensors
        self.home = self.placement[a.producer]  # [t] device of the producer
        there = self.placement[a.use_op]  # [e]
        copy = a.use_tensor.astype(np.int64) * problem.devices + there  # that a use reads, where it is remote
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
        """How long every slot takes: `[slots] float64`."""
        copies = problem.latency + graph.arrays.tensor_bytes[self.transfer_tensor] / problem.bandwidth
        return np.concatenate([graph.arrays.runtime, copies])

    def instances(self, tensors: np.ndarray, on: np.ndarray, devices: int) -> np.ndarray:
        """The instances `[k]` of tensors `[k]` on devices `[k]` that have one, of d devices."""
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
        raise PlanError(f"ops {graph.ops[other].name!r} and {graph.ops[apart[0]].name!r} are {where}: they go together")
