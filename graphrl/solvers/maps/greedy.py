"""Greedy-DP, EGRL's baseline (section 4): node by node, the pair of memories of the highest reward, in passes."""

import itertools

import numpy as np

from graphrl.plan.memory_map import MemoryMap
from graphrl.solvers.maps.task import MapTask, map_solver


@map_solver("greedy-dp", "EGRL's Greedy-DP: node by node, the best pair of memories with all others as they are")
def solve(task: MapTask) -> MemoryMap:
    """From everything in the slowest memory. As in the paper, a map that the compiler changes earns a negative reward
    and is never chosen. Passes over all steps end with the budget, or where one changes nothing.
    """
    n, m = task.problem.steps, task.problem.memories
    pairs = np.array(list(itertools.product(range(m), repeat=2)))
    row = np.zeros(2 * n, np.int64)
    task.evaluate(row[None])
    changed = True
    while changed and not task.spent():
        changed = False
        for step in range(n):
            maps = np.repeat(row[None], len(pairs), axis=0)
            maps[:, [step, n + step]] = pairs
            _, seconds, moved = task.evaluate(maps)
            if not len(seconds) or task.spent():
                break
            latency = np.where(moved == 0, seconds, np.inf)
            best = int(latency.argmin())
            kept = (pairs == row[[step, n + step]]).all(1).argmax()
            if latency[best] < latency[kept]:
                row, changed = maps[best], True
    return task.answered()
