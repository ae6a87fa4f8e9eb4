"""The two textbook list schedulers, one pass each, under every transfer model. They look at run times, not at memory.

- HLFET, highest level first with estimated times (Adam, Chandy & Dickson 1974): of the ops whose predecessors are
  placed, the one of highest level, where it can start first;
- ETF, earliest task first (Hwang, Chow, Anger & Lee 1989): of those ops, the one that can start first on any device,
  there; ties to the highest level.

The level of an op is the longest path of run times from its start to the end, without transfers ("static"). A start
counts the transfers that the op still needs, which run right before it. The method "list" is the best of several
deviations (list_scheduling.py).
"""

import numpy as np

from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.topology import least_first
from graphrl.plan import Plan
from graphrl.solvers.base import PlacedOrder, Task
from graphrl.solvers.rules.plan_builder.append import START, Choice
from graphrl.solvers.rules.plan_builder.build import earliest_first, in_order, prepare
from graphrl.solvers.rules.plan_builder.state import builder
from graphrl.solvers.solver import solver

PAIR_SECONDS, USE_SECONDS = 6e-9, 1.5e-7  # of ETF: for two ops that are ready at once, and for an op or a use


def hlfet(graph: ComputationGraph, problem: Problem) -> PlacedOrder:
    """HLFET. O((n + e) (log n + d)) for d devices. Ties of level go to the lower op, of starts to the lower device."""
    b = builder(graph, problem)
    order = least_first(b.ops["rank"][:-1], graph.arrays.waiting())
    return in_order(b, np.array(order), Choice(START))


def etf_seconds(graph: ComputationGraph, problem: Problem) -> float:
    """What ETF takes, or so: it looks at all ops that are ready each time, counted here in the topological order."""
    a, ready = graph.arrays, np.zeros(len(graph.ops), np.int64)
    source, target = a.dependencies()
    np.maximum.at(ready, target, a.rank[source] + 1)
    pairs = float((a.rank - ready).sum())
    return problem.devices * (PAIR_SECONDS * pairs + USE_SECONDS * (a.num_ops + len(a.use_op)))


def etf(graph: ComputationGraph, problem: Problem) -> PlacedOrder:
    """ETF. Looks at every ready op on every device for every op: O(n w d) for d devices and w ready ops."""
    return earliest_first(builder(graph, problem))


@solver("hlfet", "highest level first, where it can start first (Adam et al. 1974)", colocates=True, prepare=prepare)
def solve_hlfet(task: Task) -> Plan:
    """One plan, whatever the budget and the seed."""
    return task.answer(task.plan(*hlfet(task.graph, task.problem), evaluations=1))


@solver("etf", "earliest task first, ties to the highest level (Hwang et al. 1989)", colocates=True, prepare=prepare)
def solve_etf(task: Task) -> Plan:
    """One plan, whatever the budget and the seed."""
    return task.answer(task.plan(*etf(task.graph, task.problem), evaluations=1))
