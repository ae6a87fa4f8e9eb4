"""Orders through minimum cuts as a `Solver`: passes of divide and conquer from the orders of quick rules.

It ends when the peak meets the bound that the cuts prove, as on most compiled programs it does within a second.
"""

from collections.abc import Sequence

import numpy as np

from graphrl.plan import Plan
from graphrl.solvers.base import Task
from graphrl.solvers.orders.min_cut.passes import Passes
from graphrl.solvers.solver import solver


@solver("min-cut", "orders through minimum cuts at the peak, with a bound by the same cuts", one_device=True)
def solve(task: Task, *, starts: Sequence[np.ndarray] = ()) -> Plan:
    """An evaluation is one order whose memory is computed.

    Args:
      starts: orders `[n]` of ops to start from beside the quick rules'.
    """
    passes = Passes(task.graph, task.seed, starts, task.over)

    def plan() -> Plan:
        bound = task.order_value(passes.bound)
        return task.plan(None, passes.best, evaluations=passes.evaluations, bound=bound)

    task.best = plan
    while passes.peak > passes.bound and not task.over(passes.evaluations):
        passes.next(lambda: task.over(passes.evaluations))
        task.report(passes.evaluations, task.order_value(passes.peak))
    passes.tighten()
    return plan()
