"""Where GO's episodes begin: a quick heuristic's plan, as choices of `Compile-v0`.

Devices are alike, so that whatever is good of one is good of all others, and a policy that sees none used yet can only
guess (GO's authors do not say what breaks this symmetry). Beside a plan, devices are told apart by what is on them.
"""

import math

import numpy as np

from graphrl.agents.go.domain import Start, domain
from graphrl.agents.go.settings import GoSettings
from graphrl.costs.problem import Problem
from graphrl.envs.compile.instance import Choices, CompileParams, instance
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes


def hinted(
    graph: ComputationGraph,
    problem: Problem,
    to: Sizes,
    settings: GoSettings,
    begin: Start | None = None,
    devices: int = 1,
) -> CompileParams:
    """The instance, for a policy of these settings, that begins at the hint, with its order; its time is the baseline.
    See `compile.instance`; the hint is that of `Domain.start` if none is given. It has as many devices, or more.
    """
    if begin is None:
        begin = domain(problem).start(graph, problem, math.inf)
    n = len(graph.ops)
    return instance(
        graph,
        problem,
        to,
        devices=max(devices, problem.devices, *settings.devices),
        levels=settings.levels,
        baseline=begin.seconds,
        start=Choices(begin.placement, np.full(n, settings.levels // 2)),
        order=begin.order,
        reach=settings.reach,
    )
