"""Maps by rules: everything in the slowest memory, the compiler's own map, and benefit per byte."""

import numpy as np

from graphrl.costs.maps.problem import MapProblem
from graphrl.plan.memory_map import MemoryMap
from graphrl.solvers.maps.task import MapTask, map_solver


@map_solver("all-slowest", "everything in the largest, slowest memory")
def solve_slowest(task: MapTask) -> MemoryMap:
    """One evaluation, whatever the budget."""
    task.evaluate(np.zeros_like(task.fastest)[None])
    return task.answer(task.answered())


@map_solver("compiler", "first come, first served: the fastest memory that has room, in program order")
def solve_compiler(task: MapTask) -> MemoryMap:
    """One evaluation, whatever the budget."""
    task.evaluate(task.fastest[None])
    return task.answer(task.answered())


@map_solver("benefit", "benefit per byte: whatever saves most seconds a byte goes first, where it fits")
def solve_benefit(task: MapTask) -> MemoryMap:
    """From everything in the slowest memory, an evaluation for each tensor and faster memory, unless it is there.

    What it saves is what reading and writing it takes less, as if nothing overlapped.
    """
    row = np.zeros_like(task.fastest)
    task.evaluate(row[None])
    for place, memory in _by_benefit(task.problem):
        if task.spent():
            break
        if memory > row[place]:
            row[place], slower = memory, row[place]
            _, _, moved = task.evaluate(row[None])
            if moved[0]:
                row[place] = slower
    return task.answer(task.answered())


def _by_benefit(problem: MapProblem) -> list[tuple[int, int]]:
    """Places in a map and memories, by the seconds saved for each byte, the most first; not those that save none."""
    seconds = problem.output_seconds.copy()
    np.add.at(seconds, problem.read_source, problem.read_seconds)
    seconds = np.concatenate([problem.weight_seconds, seconds])
    size = np.maximum(1, np.concatenate([problem.weight_bytes, problem.output_bytes]))
    density = (seconds[:, :1] - seconds) / size[:, None]
    ranked = np.argsort(-density, axis=None, kind="stable")
    places, memories = np.divmod(ranked[density.ravel()[ranked] > 0], problem.memories)
    return list(zip(places.tolist(), memories.tolist(), strict=True))
