"""The portfolio for memory maps: annealing, then CP-SAT from its map where the budget is in seconds.

Measured on the default chip with two cores: annealing alone has ResNet-50 at 285 us after a second and stays there, and
CP-SAT proves 283.4 us after some 7; BERT-base has 1,736 us and, after a minute of CP-SAT, 1,731.
"""

import dataclasses

from graphrl.plan.memory_map import MemoryMap
from graphrl.solvers.maps.anneal import cool, prepare
from graphrl.solvers.maps.cp_sat import MAX_STEPS, prove
from graphrl.solvers.maps.task import MapTask, map_solver

FIRST_SHARE = 0.2  # of the seconds, for annealing


@map_solver(
    "auto", "annealing, then CP-SAT where the budget is in seconds: what was best for the time", prepare=prepare
)
def solve(task: MapTask) -> MemoryMap:
    """Ends before the budget where the best map is proved to be."""
    seconds = task.budget.seconds
    if seconds is None or task.problem.steps > MAX_STEPS:
        cool(task, task.budget)
    else:
        cool(task, dataclasses.replace(task.budget, seconds=FIRST_SHARE * seconds))
        prove(task)
    return task.answered()
