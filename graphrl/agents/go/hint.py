"""Where GO's episodes begin: a quick heuristic's plan, as choices of `Compile-v0`.

Devices are alike, so that whatever is good of one is good of all others, and a policy that sees none used yet can only
guess (GO's authors do not say what breaks this symmetry). Beside a plan, devices are told apart by what is on them.
"""

import numpy as np

from graphrl.costs import exact
from graphrl.costs.problem import Problem
from graphrl.envs.compile.instance import Choices, CompileParams, instance
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes
from graphrl.solvers.sending.hints import hint


def hinted(
    graph: ComputationGraph,
    problem: Problem,
    to: Sizes,
    *,
    devices: int,
    levels: int,
    reach: float,
) -> CompileParams:
    """The instance that begins at the hint, with its order; its time is the baseline. See `compile.instance`."""
    placement, order = hint(graph, problem)
    n = len(graph.ops)
    return instance(
        graph,
        problem,
        to,
        devices=devices,
        levels=levels,
        baseline=exact.evaluate(graph, problem, placement, order).makespan,
        start=Choices(placement, np.full(n, levels // 2)),
        order=order[order < n],
        reach=reach,
    )
