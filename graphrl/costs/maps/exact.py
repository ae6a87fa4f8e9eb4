"""The compiler of maps and exact costs of its maps: int64 pages, float64 seconds, the table of all steps.

Every number of a map that leaves the library is computed here.
"""

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from graphrl.costs.maps.problem import MapProblem
from graphrl.errors import PlanError


@dataclasses.dataclass(frozen=True, eq=False)
class MapCosts:
    """A valid map and its costs."""

    weights: np.ndarray  # [n] int64, the memory that the compiler gives each step's weights
    outputs: np.ndarray  # [n] int64, the memory that it gives each step's outputs
    latency: float  # seconds
    step_seconds: np.ndarray  # [n] float64
    memory_seconds: np.ndarray  # [n, M] float64, T_m
    held_bytes: np.ndarray  # [M, n] int64, whole pages that each memory holds in each step
    moved_bytes: int  # bytes that the compiler moved to another memory than requested
    error: float  # moved bytes over all bytes

    @property
    def valid(self) -> bool:
        """True if the compiler moved nothing."""
        return self.moved_bytes == 0

    def reward(self, compiler_latency: float, *, squared: bool = True) -> float:
        """Returns the reward of EGRL's algorithm 1: minus the error of an invalid map, else its speedup.

        The speedup is over the compiler's own map, and squared by default, as in the published code.
        """
        if not self.valid:
            return -self.error
        speedup = compiler_latency / self.latency if self.latency > 0 else 1.0
        return speedup**2 if squared else speedup


def evaluate(problem: MapProblem, weights: ArrayLike, outputs: ArrayLike) -> MapCosts:
    """Compiles a map into a valid one and computes its costs.

    Args:
      weights, outputs: `[n]` requested memories, by step.

    Raises:
      PlanError: one is not a memory of the chip, or their number is not the number of steps.
    """
    requested = [_checked(problem, name, part) for name, part in (("weights", weights), ("outputs", outputs))]
    (assigned_weights, assigned_outputs), occupied = _placed(problem, *requested)
    seconds = _memory_seconds(problem, assigned_weights, assigned_outputs)
    steps = problem.chip.launch + np.maximum(problem.compute, seconds.max(1))
    moved = int(problem.weight_bytes[assigned_weights != requested[0]].sum())
    moved += int(problem.output_bytes[assigned_outputs != requested[1]].sum())
    return MapCosts(
        weights=assigned_weights,
        outputs=assigned_outputs,
        latency=float(steps.sum()),
        step_seconds=steps,
        memory_seconds=seconds,
        held_bytes=occupied * problem.chip.page,
        moved_bytes=moved,
        error=moved / problem.total_bytes if moved else 0.0,
    )


def all_in(problem: MapProblem, memory: int) -> MapCosts:
    """Compiles the map that requests one memory for everything, and returns its costs."""
    same = np.full(problem.steps, memory)
    return evaluate(problem, same, same)


def compiler(problem: MapProblem) -> MapCosts:
    """Returns the costs of the compiler's own map: the fastest memory for everything, in the order of steps."""
    return all_in(problem, problem.memories - 1)


def _checked(problem: MapProblem, name: str, memories: ArrayLike) -> np.ndarray:
    array = np.asarray(memories)
    if array.shape != (problem.steps,) or array.dtype.kind not in "iu":
        raise PlanError(f"{name} of shape {array.shape} and type {array.dtype}: must be {problem.steps} integers")
    if array.size and not (array.min() >= 0 and array.max() < problem.memories):
        wrong = array[(array < 0) | (array >= problem.memories)][0]
        raise PlanError(f"{name} requests memory {wrong}: chip {problem.chip.name!r} has 0 to {problem.memories - 1}")
    return array.astype(np.int64)


def _placed(problem: MapProblem, weights: np.ndarray, outputs: np.ndarray) -> tuple[tuple, np.ndarray]:
    """Runs the compiler: memories `[n]` that weights and outputs get, and occupied pages `[M, n]` in each step."""
    output_pages = np.zeros((problem.memories, problem.steps), np.int64)  # pages of live outputs
    peak_pages, resident = np.zeros((2, problem.memories), np.int64)  # largest of those so far, and pages of weights
    weights, outputs, capacity = weights.copy(), outputs.copy(), problem.capacity
    first = np.searchsorted(problem.writer, np.arange(problem.steps + 1))
    for step in range(problem.steps):
        memory, need = int(weights[step]), problem.weight_pages[step]
        while memory > 0 and resident[memory] + peak_pages[memory] + need > capacity[memory]:
            memory -= 1
        weights[step] = memory
        resident[memory] += need
        own = slice(first[step], first[step + 1])
        end = problem.last[own].max(initial=step) + 1
        live = np.zeros(end - step, np.int64)
        for pages, last in zip(problem.tensor_pages[own], problem.last[own], strict=True):
            live[: last + 1 - step] += pages
        memory, span = int(outputs[step]), slice(step, end)
        while memory > 0 and resident[memory] + (output_pages[memory, span] + live).max() > capacity[memory]:
            memory -= 1
        outputs[step] = memory
        output_pages[memory, span] += live
        peak_pages[memory] = max(peak_pages[memory], output_pages[memory, span].max())
    return (weights, outputs), output_pages + resident[:, None]


def _memory_seconds(problem: MapProblem, weights: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Computes T_m (see `graphrl.costs.maps`) of every step and memory: `[n, M]` float64."""
    steps = np.arange(problem.steps)
    seconds = np.zeros((problem.steps, problem.memories))
    seconds[:, 0] = problem.input_seconds
    memory = outputs[problem.read_source]
    pair = np.arange(len(memory))
    np.add.at(seconds, (problem.read_step, memory), problem.read_seconds[pair, memory])
    seconds[steps, weights] += problem.weight_seconds[steps, weights]
    seconds[steps, outputs] += problem.output_seconds[steps, outputs]
    return seconds
