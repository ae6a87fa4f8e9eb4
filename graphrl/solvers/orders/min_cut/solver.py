"""Orders through minimum cuts as a `Solver`: passes of divide and conquer from the orders of quick rules.

It ends when the peak meets the bound that the cuts prove, as on most compiled programs it does within a second.
"""

import numpy as np

from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Interrupted, Progress
from graphrl.solvers.orders.min_cut.passes import Passes
from graphrl.solvers.rules.one_pass import one_device_value, require_one_device
from graphrl.solvers.watch import Watch


def solve(
    graph: ComputationGraph,
    problem: Problem,
    budget: Budget,
    seed: int,
    progress: Progress | None = None,
    *,
    starts: tuple[np.ndarray, ...] = (),
) -> Plan:
    """The `Solver` "min-cut". An evaluation is one order whose memory is computed.

    Args:
      graph, problem, budget, seed, progress: see `Solver`.
      starts: orders `[n]` of ops to start from beside the quick rules'.

    Raises:
      ProblemError: the problem has several devices.
      Interrupted: on Ctrl-C, with the best plan so far.
    """
    require_one_device("min-cut", problem)
    watch = Watch(budget, progress)
    passes = Passes(graph, seed, starts, watch.over)

    def plan() -> Plan:
        return Plan.from_order(
            graph,
            problem,
            np.zeros(len(passes.best), np.int64),
            passes.best,
            method="min-cut",
            seconds=watch.seconds,
            evaluations=passes.evaluations,
            seed=seed,
            bound=one_device_value(graph, problem, passes.bound),
        )

    try:
        while passes.peak > passes.bound and not watch.over(passes.evaluations):
            passes.next(lambda: watch.over(passes.evaluations))
            watch.report(passes.evaluations, plan, one_device_value(graph, problem, passes.peak))
        passes.tighten()
    except KeyboardInterrupt:
        raise Interrupted(plan()) from None
    return plan()
