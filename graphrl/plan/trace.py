"""A plan as trace events (the Chrome trace event format), for ui.perfetto.dev or chrome://tracing.

One process a device: its ops on one track, the transfers that leave it on tracks below (more than one only where they
overlap), a counter of its live memory, and its peak as an instant. Arrows run from a tensor's producer through the
transfer to the consumers. Times are microseconds; without run times, places in the order count as microseconds.
"""

import heapq
import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from graphrl.costs.fusion.fused_graph import KernelGraph
from graphrl.errors import PlanError
from graphrl.files import write_atomically
from graphrl.plan.timeline import Timeline
from graphrl.units import format_bytes

if TYPE_CHECKING:
    from graphrl.plan.plan import Plan

_OPS, _TRANSFERS = 1, 2  # track ids; overlapping transfers take 3, 4, ...
Event = dict[str, Any]


def write_trace(plan: "Plan", timeline: Timeline, path: str | os.PathLike[str]) -> None:
    """Writes the trace whole or not at all.

    Raises:
      GraphrlError: it cannot be written, or its times are not finite.
    """
    if not np.isfinite(timeline.length):
        raise PlanError(f"the plan takes {timeline.length} seconds: only a finite one can be drawn")
    head = {
        "displayTimeUnit": "ns",
        "otherData": {
            "graph": plan.graph,
            "method": plan.method,
            "objective": plan.problem.objective,
            "value": plan.value,
            "makespan_seconds": plan.makespan,
            "transfer_model": plan.problem.transfer,
            "time_is": "the position in the order" if timeline.by_position else "microseconds",
        },
    }
    text = json.dumps(head)[:-1] + ', "traceEvents": [\n'
    text += ",\n".join(json.dumps(event) for event in trace_events(timeline)) + "\n]}\n"
    write_atomically(path, lambda file: file.write(text))


def trace_events(timeline: Timeline) -> Iterator[Event]:
    """All events: names, slices, arrows, memory counters and peaks."""
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
    """Name, category and arguments of an entry's slice."""
    if timeline.op[entry] < 0:
        tensor, to = int(timeline.tensor[entry]), int(timeline.to[entry])
        moved = int(timeline.graph.arrays.tensor_bytes[tensor])
        sent = {"tensor": timeline.graph.tensor_names[tensor], "bytes": moved, "to": to, "position": entry}
        return {"name": timeline.name(entry), "cat": "transfer", "args": sent}
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
    """The track of every entry on its device, so that no two slices of a track overlap: `[m] int64`."""
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
    """Producer to transfer and transfer to each consumer; both ends stand at the start of their slices."""
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
