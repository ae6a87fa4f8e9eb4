"""What `auto` does for `max_load`.

Equal stages; then, as long as no plan reaches the bound and the budget lasts:

  1. `stage-dp` for a quarter of the budget, with no more than 60,000 ideals
  2. `anneal-load` from the best so far; where the budget is in seconds
     - for 3 tenths of the rest: many short rounds, hotter than by itself, for where the few largest groups are is
       settled early in each
     - on up to 1,000 groups of colocated ops: `cp-sat` for half of the rest, also for the bound, and the same annealing
       for half of what is left then
     - one round that is less hot
"""

from collections.abc import Iterator

import numpy as np

from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.exact import solver as cp_sat
from graphrl.solvers.loads import anneal
from graphrl.solvers.loads.groups import Blocks, placed_order
from graphrl.solvers.loads.stages import equal_placement, stage_dp
from graphrl.solvers.portfolio import Portfolio, Stage, best_as_hint

DP_SHARE, ANNEAL_SHARE, EXACT_SHARE = 0.25, 0.3, 0.5
EXACT_GROUPS = 1_000  # up to which CP-SAT is worth its time
HOT = {"rounds": 20, "hot": 0.06}  # of annealing
COOL = {"rounds": 1, "hot": 0.003}  # of the last one
AGAIN_SHARE = 0.5  # of annealing after CP-SAT, before the last


def begun(task: Task) -> Portfolio:
    """The portfolio with equal stages.

    Raises:
      ProblemError: an op can run nowhere.
    """
    placement = equal_placement(Blocks.of_graph(task.graph, task.problem))
    portfolio = Portfolio(task, lower_bound(task.graph, task.problem))
    portfolio.add([placed_order(task.graph, task.problem, placement)])
    return portfolio


def stages(graph: ComputationGraph, problem: Problem, budget: Budget) -> Iterator[Stage]:
    """What the module says, from the first search on."""
    yield Stage(stage_dp, DP_SHARE, options=best_as_hint)
    if budget.seconds is not None:
        yield Stage(anneal.solve.given(HOT), ANNEAL_SHARE, options=best_as_hint)
        if len(np.unique(graph.leaders)) <= EXACT_GROUPS:
            yield Stage(cp_sat.solve, EXACT_SHARE, options=best_as_hint)
            yield Stage(anneal.solve.given(HOT), AGAIN_SHARE, options=best_as_hint)
        yield Stage(anneal.solve.given(COOL), options=best_as_hint)
    else:
        yield Stage(anneal.solve, options=best_as_hint)
