"""What a plan did when it ran, on the host: the twin of `played`, without a program to compile for each size."""

from typing import Any

import numpy as np

from graphrl.compiled import late_entry
from graphrl.envs.compile.played import MARGINS, SHARP, SHORTEST, Played
from graphrl.graphs.graph import ComputationGraph


def played_on_host(
    graph: ComputationGraph, placement: np.ndarray, place: np.ndarray, end: np.ndarray, devices: int, to: int
) -> Played:
    """See `Played`.

    Args:
      placement: `[n]` int64, devices.
      place: `[n]` int64, of each op in the order.
      end: `[n]` float64, seconds.
      devices: d.
      to: rows, with those of padding.
    """
    n, whole = len(end), max(float(end.max()), 1e-30)
    end, runtime = end / whole, graph.arrays.runtime / whole
    start = np.maximum(end - runtime, 0)
    order = np.argsort(place)
    last, following = _neighbours(placement, order)
    idle_from, idle_until = np.append(end, 0.0)[last], np.append(start, 1.0)[following]
    source, target = (each.astype(np.int64) for each in graph.arrays.dependencies())
    inputs, readers = np.zeros((n, devices)), np.ones((n, devices))
    latest, tail = np.ones(n), np.zeros(n)
    begins = np.searchsorted(source, np.arange(n + 1))
    _look(start, end, placement, source, target, inputs, readers)
    _look_back(runtime, order, begins, target, following, latest, tail)
    ready, awaited = inputs.max(1), readers.min(1)
    slack, free = latest - end, 1 - end - tail
    times = [start, end, runtime, start - idle_from, idle_until - end, start - ready]
    times += [np.minimum(awaited, idle_until) - end, slack, free]
    times += [np.exp(-SHARP * np.maximum(each, 0)) for each in (slack, free)]
    spans = [(start - margin, end + margin) for margin in MARGINS]
    spans += [(ready, latest), (np.zeros(n), np.ones(n))]
    pairs = [inputs - start[:, None], readers - end[:, None]]
    pairs += _busy(start, end, runtime, placement, order, spans, devices)
    return Played(_padded(times, to), _padded(pairs, to))


def _padded(features: list[np.ndarray], to: int) -> Any:
    """Features `[n, ...]` each as `[to, ..., k]` float32."""
    rows = np.zeros((to, *features[0].shape[1:], len(features)), np.float32)
    rows[: len(features[0])] = np.stack(features, -1)
    return rows


def _neighbours(placement: np.ndarray, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The op before and the op after each on its device, n for none: `[n]` int64 each."""
    n = len(order)
    by_device = order[np.argsort(placement[order], kind="stable")]
    same = placement[by_device[1:]] == placement[by_device[:-1]]
    last, following = np.full((2, n), n)
    last[by_device[1:][same]] = by_device[:-1][same]
    following[by_device[:-1][same]] = by_device[1:][same]
    return last, following


def _busy(
    start: np.ndarray,
    end: np.ndarray,
    runtime: np.ndarray,
    placement: np.ndarray,
    order: np.ndarray,
    spans: list[tuple[np.ndarray, np.ndarray]],
    devices: int,
) -> list[np.ndarray]:
    """Of each span of time, `[n]` begins and ends, the shares `[n, d]` in which devices run ops."""
    spans = [(np.clip(begins, 0, 1), np.clip(ends, 0, 1)) for begins, ends in spans]
    shares = [np.zeros((len(start), devices)) for _ in spans]
    for device in range(devices):
        ops = order[placement[order] == device]
        starts = start[ops]
        spent, until = np.append(0.0, np.cumsum(runtime[ops])), np.append(0.0, end[ops])
        for share, (begins, ends) in zip(shares, spans, strict=True):
            done = []
            for moments in (begins, ends):
                count = np.searchsorted(starts, moments, side="right")
                done.append(spent[count] - np.maximum(until[count] - moments, 0))
            width = ends - begins
            part = np.clip((done[1] - done[0]) / np.maximum(width, SHORTEST), 0, 1)
            share[:, device] = np.where(width > SHORTEST, part, 0)
    return shares


@late_entry
def _look(
    start: np.ndarray,
    end: np.ndarray,
    placement: np.ndarray,
    source: np.ndarray,
    target: np.ndarray,
    inputs: np.ndarray,
    readers: np.ndarray,
) -> None:
    """Writes when the last of each op's inputs on each device ends, and when the first of its readers there starts,
    `[n, d]` each, of edges `[m]`.
    """
    for edge in range(len(source)):
        one, other = source[edge], target[edge]
        inputs[other, placement[one]] = max(inputs[other, placement[one]], end[one])
        readers[one, placement[other]] = min(readers[one, placement[other]], start[other])


@late_entry
def _look_back(
    runtime: np.ndarray,
    order: np.ndarray,
    begins: np.ndarray,
    target: np.ndarray,
    following: np.ndarray,
    latest: np.ndarray,
    tail: np.ndarray,
) -> None:
    """Writes when each op must end at the latest, `latest` (1 before), and the longest path after, `tail` (0 before).

    Args:
      order: `[n]` ops.
      begins: `[n + 1]`, where in `target` an op's readers begin.
      following: `[n]` the next op on the device, n for none.
    """
    for place in range(len(order) - 1, -1, -1):
        op = order[place]
        for row in range(begins[op], begins[op + 1]):
            other = target[row]
            latest[op] = min(latest[op], latest[other] - runtime[other])
            tail[op] = max(tail[op], tail[other] + runtime[other])
        if following[op] < len(order):
            latest[op] = min(latest[op], latest[following[op]] - runtime[following[op]])
