"""The default method: the portfolio that was best for the time (README, "Opponents", has the figures).

First plans without search: list scheduling, the given order, list scheduling on fewer devices. Then, as long as no plan
reaches the bound and the budget lasts:

peak memory of one device
  1. `series-parallel`, which is exact, where the graph is of that kind
  2. `dfs-dp` for a fifth of the budget, on up to 300 ops: often a proof within a second
  3. `anneal` from the best orders so far (`brkga` where the evaluations are too few for it)

everything else
  1. `cp-sat` from the best plan, for half of the budget, on up to 300 ops, if the budget is in seconds
  2. `anneal-keys` from the best plan
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Progress
from graphrl.solvers.list_scheduling import schedule
from graphrl.solvers.plain import given_order
from graphrl.solvers.portfolio import Decisions, Portfolio, Stage

DP_OPS, DP_SHARE = 300, 0.2
CP_SAT_OPS, CP_SAT_SHARE = 300, 0.5
ANNEAL_EVALUATIONS = 8 * 256  # a window of all chains: fewer are not worth a program


def solve(
    graph: ComputationGraph, problem: Problem, budget: Budget, seed: int, progress: Progress | None = None
) -> Plan:
    """The `Solver` "auto" (see the module). Its bound is the best that any of its methods proved.

    Raises:
      Interrupted: on Ctrl-C, once there is a plan; it has the best of all so far.
    """
    portfolio = Portfolio("auto", graph, problem, budget, seed, progress, lower_bound(graph, problem))
    portfolio.add(_candidates(graph, problem))
    return portfolio.run(_stages(graph, problem, budget))


def _candidates(graph: ComputationGraph, problem: Problem) -> Iterator[Decisions]:
    """List scheduling, the given order, and list scheduling on fewer devices, which is sometimes better."""
    yield schedule(graph, problem)
    yield given_order(graph, problem)
    devices = problem.devices // 2
    while devices > 1:
        placement, order = schedule(graph, dataclasses.replace(problem, devices=devices))
        tensor, to = np.divmod(order - len(graph.ops), devices)
        moved = len(graph.ops) + tensor * problem.devices + to  # a transfer's id depends on the number of devices
        yield placement, np.where(order < len(graph.ops), order, moved)
        devices //= 2


def _stages(graph: ComputationGraph, problem: Problem, budget: Budget) -> Iterator[Stage]:
    ops, few = len(graph.ops), budget.evaluations is not None and budget.evaluations < ANNEAL_EVALUATIONS
    if problem.devices == 1 and problem.objective == "peak_memory":
        yield Stage("series-parallel")
        if ops <= DP_OPS:
            yield Stage("dfs-dp", DP_SHARE)
        yield Stage("brkga+") if few else Stage("anneal", options=_orders)
    else:
        if ops <= CP_SAT_OPS and budget.seconds is not None:
            yield Stage("cp-sat", CP_SAT_SHARE, _hint)
        yield Stage("anneal-keys", options=_hint)


def _orders(found: list[Decisions]) -> dict[str, Any]:
    return {"starts": tuple(order for _, order in found)}


def _hint(found: list[Decisions]) -> dict[str, Any]:
    return {"hint": found[0]}
