"""Quick plans: list schedules with sends as the rule has them."""

import dataclasses
from collections.abc import Iterator

from graphrl.costs import exact
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.base import PlacedOrder
from graphrl.solvers.rules.list_rules import etf
from graphrl.solvers.rules.list_scheduling import quick_schedule, schedule
from graphrl.solvers.sending.rule import with_sends

ETF_OPS = 3_000  # up to which it is tried, some 0.2 s on 8 devices


def hint(graph: ComputationGraph, problem: Problem) -> PlacedOrder:
    """The best of a few quick list schedules, with sends as `with_sends` has them: placement `[n]` and order of nodes.

    Under `rendezvous` a list schedule that knows of it puts few ops on most devices; one for transfers that hold nobody
    up uses all, and with bundled sends is mostly better. Elsewhere the best of all list schedules is among them, and up
    to 3,000 ops `etf`'s.
    """
    plans = [_sent(graph, problem, plan) for plan in _plans(graph, problem)]
    if len(plans) == 1:
        return plans[0]
    return min(plans, key=lambda plan: exact.evaluate(graph, problem, *plan).rank(problem))


def _plans(graph: ComputationGraph, problem: Problem) -> Iterator[PlacedOrder]:
    yield quick_schedule(graph, problem)
    if problem.devices == 1:
        return
    if problem.transfer == "rendezvous":
        yield quick_schedule(graph, dataclasses.replace(problem, transfer="free"))
        return
    yield schedule(graph, problem)
    if len(graph.ops) <= ETF_OPS:
        yield etf(graph, problem)


def _sent(graph: ComputationGraph, problem: Problem, plan: PlacedOrder) -> PlacedOrder:
    placement, order = plan
    return placement, with_sends(graph, problem, placement, order[order < len(graph.ops)])
