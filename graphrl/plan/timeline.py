"""A plan as curves: when every op and transfer runs, and what each device's memory holds meanwhile.

Memory is a function of the *order*, the pictures have *time* on their axis. On one device ops start in
the order, so they carry their entries' memory with them; a transfer that, under `free` or `link`, starts before or
ends after the ops beside it in the order is drawn between them, so that every level and every peak stands as counted.
"""

import dataclasses

import numpy as np

from graphrl.costs.exact import Costs
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph


class Timeline:
    """What runs when, and the memory beside it, for a placement `[n]` and an order `[m]` of node ids with their costs.

    Times are seconds or, with `by_position`, places in the order (entry i runs from i to i + 1).
    """

    def __init__(
        self,
        graph: ComputationGraph,
        problem: Problem,
        placement: np.ndarray,
        order: np.ndarray,
        costs: Costs,
        *,
        by_position: bool,
    ) -> None:
        n, places = graph.arrays.num_ops, np.arange(len(order), dtype=np.float64)
        is_op = order < n
        tensor, to = np.divmod(np.where(is_op, 0, order - n), problem.devices)
        home = placement[graph.arrays.producer][tensor] if graph.arrays.num_tensors else np.zeros_like(tensor)
        self.graph, self.problem, self.by_position = graph, problem, by_position
        self.op = np.where(is_op, order, -1)  # [m] int64, op of the entry; -1 for a transfer
        self.tensor = np.where(is_op, -1, tensor)  # [m] int64, tensor of a transfer; -1 for an op
        self.device = np.where(is_op, placement[np.where(is_op, order, 0)], home)  # [m] int64, where it runs or begins
        self.to = np.where(is_op, self.device, to)  # [m] int64, where the transfer goes; the op's own device
        self.start = places if by_position else costs.start  # [m] float64
        self.end = places + 1 if by_position else costs.end  # [m] float64
        self.length = float(self.end.max())  # of the time axis: the latest end of anything
        self.memory = [_curve(each, is_op, self.start, self.end, self.length) for each in costs.memory_changes]

    def routes(self) -> dict[int, tuple[int, list[int]]]:
        """By the entry of a transfer: the entry of the op that writes what it moves, and those that read its copy."""
        a = self.graph.arrays
        entry_of_op = np.empty(a.num_ops, np.int64)
        entry_of_op[self.op[self.op >= 0]] = np.flatnonzero(self.op >= 0)
        moved = np.flatnonzero(self.tensor >= 0).tolist()
        readers: dict[tuple[int, int], list[int]] = {(int(self.tensor[i]), int(self.to[i])): [] for i in moved}
        for tensor, op in zip(a.use_tensor.tolist(), a.use_op.tolist(), strict=True) if moved else ():
            reader = int(entry_of_op[op])
            readers.get((tensor, int(self.device[reader])), []).append(reader)
        pairs = zip(moved, entry_of_op[a.producer[self.tensor[moved]]].tolist(), readers.values(), strict=True)
        return {entry: (source, targets) for entry, source, targets in pairs}

    def name(self, entry: int) -> str:
        """What an order entry is called: the op's name, or "tensor → device 1"."""
        if entry < 0:
            return "start"
        if self.op[entry] >= 0:
            return self.graph.ops[self.op[entry]].name
        return f"{self.graph.tensor_names[self.tensor[entry]]} → device {self.to[entry]}"


@dataclasses.dataclass(frozen=True, eq=False)
class MemoryCurve:
    """Live bytes of one device: from `time[i]` on they are `bytes[i]`. Equal times stand in the order's sequence."""

    time: np.ndarray  # [k] float64, ascending; the last is the axis' length
    bytes: np.ndarray  # [k] int64
    peak: int  # bytes
    peak_time: float  # when the peak is reached first
    peak_entry: int  # the order entry that reaches it; -1 if it is there from the start


def _curve(changes: np.ndarray, is_op: np.ndarray, start: np.ndarray, end: np.ndarray, length: float) -> MemoryCurve:
    """The curve of a device from its changes `[c, 3]`: entry, bytes compared with the peak, bytes after."""
    entry = changes[1:, 0]
    times = np.stack([start[entry], end[entry]], axis=1).reshape(-1)  # compared at the start, released at the end
    # A transfer's times are clamped between those of the ops around it in the order (see the module's docstring).
    fixed = np.where(np.repeat(is_op[entry], 2), times, np.inf)
    not_after = np.minimum.accumulate(fixed[::-1])[::-1]
    times = np.maximum.accumulate(np.concatenate([[0.0], np.minimum(times, not_after), [length]]))
    levels = np.concatenate([changes[:1, 2], changes[1:, 1:].reshape(-1), changes[-1:, 2]])
    highest = int(np.argmax(changes[:, 1]))
    return MemoryCurve(
        time=times,
        bytes=levels,
        peak=int(changes[highest, 1]),
        peak_time=float(times[max(0, 2 * highest - 1)]),
        peak_entry=int(changes[highest, 0]),
    )
