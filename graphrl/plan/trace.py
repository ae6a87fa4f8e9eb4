"""A plan as curves of time and memory (`Timeline`), and as trace events for ui.perfetto.dev or chrome://tracing.

The timeline gives the start and end of every op and transfer, and the memory of each device meanwhile. Memory is a
function of the *order*, the pictures have *time* on their axis. On one device ops start in the order, so each change of
memory is drawn at its entry's time. Under `free` or `link` a transfer may start before or end after its neighbours in
the order: it is drawn between them, so every level and every peak appears as counted.

The trace has the Chrome trace event format. Each device is a process: its ops on one track, the transfers that leave it
on tracks below (more than one only where they overlap), a counter of its live memory, and its peak as an instant.
Arrows run from a tensor's producer through the transfer to the consumers. Times are microseconds; without run times,
positions in the order count as microseconds.
"""

import dataclasses
import heapq
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from graphrl.costs.exact import Costs
from graphrl.costs.fusion.exact import KernelGraph
from graphrl.costs.problem import Problem
from graphrl.errors import PlanError
from graphrl.files import write_atomically
from graphrl.graphs.graph import ComputationGraph
from graphrl.units import format_bytes


class Timeline:
    """Run intervals and memory curves of a placement `[n]` and an order `[m]` of node ids with their costs.

    Times are seconds or, with `by_position`, positions in the order (entry i runs from i to i + 1).
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
        self.device = np.where(is_op, placement[np.where(is_op, order, 0)], home)  # [m] int64, where it runs or starts
        self.to = np.where(is_op, self.device, to)  # [m] int64, target of a transfer; the op's own device
        self.start = places if by_position else costs.start  # [m] float64
        self.end = places + 1 if by_position else costs.end  # [m] float64
        self.length = float(self.end.max())  # of the time axis: the latest end of anything
        self.memory = [_curve(each, is_op, self.start, self.end, self.length) for each in costs.memory_changes]

    def routes(self) -> dict[int, tuple[int, list[int]]]:
        """Maps each transfer's entry to the entry of the op that writes its tensor, and entries that read its copy."""
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
        """Returns the label of an order entry: the op's name, or "tensor → device 1"."""
        if entry < 0:
            return "start"
        if self.op[entry] >= 0:
            return self.graph.ops[self.op[entry]].name
        return f"{self.graph.tensor_names[self.tensor[entry]]} → device {self.to[entry]}"


@dataclasses.dataclass(frozen=True, eq=False)
class MemoryCurve:
    """Live bytes of a device over time: `bytes[i]` from `time[i]` on. Equal times are in the sequence of the order."""

    time: np.ndarray  # [k] float64, ascending; the last is the axis' length
    bytes: np.ndarray  # [k] int64
    peak: int  # bytes
    peak_time: float  # when the peak is reached first
    peak_entry: int  # the order entry that reaches it; -1 if it is there from the start


def _curve(changes: np.ndarray, is_op: np.ndarray, start: np.ndarray, end: np.ndarray, length: float) -> MemoryCurve:
    """Builds a device's curve from its changes `[c, 3]`: entry, bytes compared with the peak, bytes after."""
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


_OPS, _TRANSFERS = 1, 2  # track ids; overlapping transfers take 3, 4, ...
Event = dict[str, Any]


def write_trace(timeline: Timeline, facts: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes a plan's trace atomically, as Chrome trace events in JSON.

    Args:
      timeline: timeline of a plan.
      facts: further facts of the plan, by name.
      path: path of the file.

    Raises:
      GraphrlError: the file cannot be written, or the plan's times are not finite.
    """
    if not np.isfinite(timeline.length):
        raise PlanError(f"the plan takes {timeline.length} seconds: only a finite one can be drawn")
    time = "the position in the order" if timeline.by_position else "microseconds"
    text = json.dumps({"displayTimeUnit": "ns", "otherData": {**facts, "time_is": time}})[:-1] + ', "traceEvents": [\n'
    text += ",\n".join(json.dumps(event) for event in trace_events(timeline)) + "\n]}\n"
    write_atomically(path, lambda file: file.write(text))


def trace_events(timeline: Timeline) -> Iterator[Event]:
    """Yields all trace events: names, slices, arrows, memory counters and peaks."""
    scale = 1.0 if timeline.by_position else 1e6
    start, length = timeline.start * scale, (timeline.end - timeline.start) * scale
    track = _tracks(timeline)
    yield from _names(timeline, track)
    for entry in range(len(start)):
        yield {
            "ph": "X",
            "pid": int(timeline.device[entry]) + 1,  # process 0 is special to Perfetto
            "tid": int(track[entry]),
            "ts": float(start[entry]),
            "dur": float(length[entry]),
            **_description(timeline, entry),
        }
    yield from _arrows(timeline, start, track)
    for device, curve in enumerate(timeline.memory):
        for time, live in zip((curve.time * scale).tolist(), curve.bytes.tolist(), strict=True):
            yield {"ph": "C", "name": "live memory", "pid": device + 1, "ts": time, "args": {"bytes": live}}
        yield {
            "ph": "i",
            "s": "p",
            "name": f"peak {format_bytes(curve.peak)}",
            "pid": device + 1,
            "tid": _OPS,
            "ts": curve.peak_time * scale,
            "args": {"bytes": curve.peak, "at": timeline.name(curve.peak_entry)},
        }


def _description(timeline: Timeline, entry: int) -> Event:
    """Returns name, category and arguments of the trace slice of an order entry."""
    if timeline.op[entry] < 0:
        tensor, to = int(timeline.tensor[entry]), int(timeline.to[entry])
        moved = int(timeline.graph.arrays.tensor_bytes[tensor])
        args = {"tensor": timeline.graph.tensor_names[tensor], "bytes": moved, "to": to, "position": entry}
        return {"name": timeline.name(entry), "cat": "transfer", "args": args}
    op = timeline.graph.ops[timeline.op[entry]]
    arguments: dict[str, Any] = {
        "type": op.type,
        "bytes": sum(int(tensor.bytes) for tensor in op.outputs),
        "workspace_bytes": int(op.workspace_bytes),
        "weight_bytes": int(op.weight_bytes),
        "flops": int(op.flops),
        "runtime_seconds": float(op.runtime),
        "position": entry,
    }
    if isinstance(timeline.graph, KernelGraph):
        arguments["inlined"] = list(timeline.graph.inlined(int(timeline.op[entry])))
    return {"name": op.name, "cat": op.type or "op", "args": arguments}


def _tracks(timeline: Timeline) -> np.ndarray:
    """Assigns entries to tracks of their devices, so that no two slices of a track overlap: `[m] int64`."""
    track = np.full(len(timeline.op), _OPS, np.int64)
    for device in range(timeline.problem.devices):
        moved = np.flatnonzero((timeline.op < 0) & (timeline.device == device))
        busy: list[tuple[float, int]] = []  # (end, track)
        tracks = _TRANSFERS
        for entry in moved[np.argsort(timeline.start[moved], kind="stable")].tolist():
            if busy and busy[0][0] <= timeline.start[entry]:
                track[entry] = heapq.heappop(busy)[1]
            else:
                track[entry] = tracks
                tracks += 1
            heapq.heappush(busy, (float(timeline.end[entry]), int(track[entry])))
    return track


def _names(timeline: Timeline, track: np.ndarray) -> Iterator[Event]:
    for device in range(timeline.problem.devices):
        process = device + 1
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": f"device {device}"}}
        yield {"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": device}}
        for thread in np.unique(track[timeline.device == device]).tolist():
            name = "ops" if thread == _OPS else "transfers out"
            at = {"ph": "M", "pid": process, "tid": thread}
            yield {**at, "name": "thread_name", "args": {"name": name}}
            yield {**at, "name": "thread_sort_index", "args": {"sort_index": thread}}


def _arrows(timeline: Timeline, start: np.ndarray, track: np.ndarray) -> Iterator[Event]:
    """Yields arrows from producer to transfer and from transfer to each consumer, between starts of their slices."""
    arrow = 0
    for entry, (producer, consumers) in timeline.routes().items():
        pairs = [(producer, entry), *((entry, reader) for reader in consumers)]
        for tail, head in pairs:
            arrow += 1
            for phase, at in (("s", tail), ("f", head)):
                yield {
                    "ph": phase,
                    "bp": "e",
                    "cat": "data",
                    "name": timeline.graph.tensor_names[timeline.tensor[entry]],
                    "id": arrow,
                    "pid": int(timeline.device[at]) + 1,
                    "tid": int(track[at]),
                    "ts": float(start[at]),
                }
