"""The compiler and the latency of maps, compiled for the host: what `costs/maps/exact.py` says, a step at a time.

One map is a row of 2n memories, those of the weights and then those of the outputs. Room takes two numbers a memory,
as in `costs/maps/device.py`.
"""

from typing import NamedTuple

import numpy as np

from graphrl.compiled import entry, integer, part
from graphrl.costs.maps.problem import MapProblem

STEP = np.dtype(
    [
        ("compute", np.float64),  # seconds, launch left out
        ("inputs", np.float64),  # seconds, external inputs from memory 0
        ("weight_pages", np.int64),
        ("output_pages", np.int64),
        ("weight_bytes", np.int64),
        ("output_bytes", np.int64),
        ("reads", np.int64),  # row of `read_source`, to that of the next step
        ("dates", np.int64),  # row of `frees`, to that of the next step
    ],
    align=True,
)


class Maps(NamedTuple):
    """A map problem as flat arrays: n steps, M memories, e reads and t outputs; and room for one evaluation."""

    steps: np.ndarray  # [n + 1] STEP
    weight_seconds: np.ndarray  # [n * M] float64
    output_seconds: np.ndarray  # [n * M] float64
    read_source: np.ndarray  # [e] int64, step
    read_seconds: np.ndarray  # [e * M] float64
    frees: np.ndarray  # [t] int64, the step before which an output's pages are free again
    tensor_pages: np.ndarray  # [t] int64
    capacity: np.ndarray  # [M] int64, pages
    launch: np.ndarray  # [1] float64, seconds
    room: np.ndarray  # [3 * M] int64: pages of weights, of live outputs, and the most of these so far
    freed: np.ndarray  # [(n + 1) * M] int64, 0 between evaluations
    busy: np.ndarray  # [M] float64, seconds


def maps_of(problem: MapProblem) -> Maps:
    """The arrays of a problem. An evaluation writes into them: each thread needs its own."""
    n, m = problem.steps, problem.memories
    steps = np.zeros(n + 1, STEP)
    steps["compute"][:n], steps["inputs"][:n] = problem.compute, problem.input_seconds
    steps["weight_pages"][:n], steps["weight_bytes"][:n] = problem.weight_pages, problem.weight_bytes
    np.add.at(steps["output_pages"], problem.writer, problem.tensor_pages)
    steps["output_bytes"][:n] = problem.output_bytes
    steps["reads"] = np.searchsorted(problem.read_step, np.arange(n + 1))
    steps["dates"] = np.searchsorted(problem.writer, np.arange(n + 1))
    return Maps(
        steps=steps,
        weight_seconds=problem.weight_seconds.ravel().copy(),
        output_seconds=problem.output_seconds.ravel().copy(),
        read_source=problem.read_source.astype(np.int64),
        read_seconds=problem.read_seconds.ravel().copy(),
        frees=problem.last + 1,
        tensor_pages=problem.tensor_pages.astype(np.int64),
        capacity=problem.capacity.copy(),
        launch=np.array([problem.chip.launch]),
        room=np.zeros(3 * m, np.int64),
        freed=np.zeros((n + 1) * m, np.int64),
        busy=np.zeros(m),
    )


@part
def cost(maps: Maps, asked: np.ndarray, given: np.ndarray, moved: np.ndarray) -> float:
    """The latency of what the compiler makes of a map, seconds.

    Args:
      asked: `[2n]` int64.
      given: `[2n]` int64, is set to the compiler's map.
      moved: `[1]` int64, is set to the bytes that moved.
    """
    steps, capacity, room, freed, busy = maps.steps, maps.capacity, maps.room, maps.freed, maps.busy
    n, m = len(steps) - 1, len(capacity)
    seconds = 0.0
    moved[0] = 0
    room[:] = 0
    for i in range(n):
        step = steps[i]
        for k in range(m):
            room[m + k] -= freed[i * m + k]
            freed[i * m + k] = 0
            busy[k] = 0.0
        busy[0] = step.inputs
        memory = asked[i]
        while memory > 0 and room[memory] + room[2 * m + memory] + step.weight_pages > capacity[memory]:
            memory -= 1
        if memory != asked[i]:
            moved[0] += step.weight_bytes
        given[i] = memory
        room[memory] += step.weight_pages
        busy[memory] += maps.weight_seconds[i * m + memory]
        memory = asked[n + i]
        while memory > 0 and room[memory] + room[m + memory] + step.output_pages > capacity[memory]:
            memory -= 1
        if memory != asked[n + i]:
            moved[0] += step.output_bytes
        given[n + i] = memory
        room[m + memory] += step.output_pages
        room[2 * m + memory] = max(room[2 * m + memory], room[m + memory])
        for t in range(step.dates, steps[i + 1].dates):
            freed[maps.frees[t] * m + memory] += maps.tensor_pages[t]
        busy[memory] += maps.output_seconds[i * m + memory]
        for e in range(step.reads, steps[i + 1].reads):
            memory = given[n + maps.read_source[e]]
            busy[memory] += maps.read_seconds[e * m + memory]
        longest = step.compute
        for k in range(m):
            longest = max(longest, busy[k])
        seconds += maps.launch[0] + longest
    freed[n * m :] = 0
    return seconds


@entry
def evaluate_all(maps: Maps, asked: np.ndarray, given: np.ndarray, seconds: np.ndarray, moved: np.ndarray) -> None:
    """Evaluates p maps.

    Args:
      asked: `[p, 2n]` int64.
      given: `[p, 2n]` int64, is set to the compiler's maps.
      seconds: `[p]` float64, is set to their latencies.
      moved: `[p]` int64, is set to the bytes that moved.
    """
    for i in range(integer(len(asked))):
        seconds[i] = cost(maps, asked[i], given[i], moved[i : i + 1])
