"""Random maps: what chance finds."""

import numpy as np

from graphrl.plan.memory_map import MemoryMap
from graphrl.solvers.maps.task import MapTask, map_solver

_BATCH = 256


@map_solver("random", "uniformly random maps, made valid by the compiler")
def solve(task: MapTask) -> MemoryMap:
    """Until the budget is spent."""
    rng = np.random.default_rng(task.seed)
    while not task.spent():
        task.evaluate(rng.integers(0, task.problem.memories, (_BATCH, 2 * task.problem.steps)))
    return task.answered()
