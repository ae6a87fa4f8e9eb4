"""Quick plans: list schedules with sends as the rule has them."""

import dataclasses
from collections.abc import Callable, Iterator

from graphrl.costs import exact
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.base import PlacedOrder
from graphrl.solvers.rules.expert import layer_stages
from graphrl.solvers.rules.list_rules import etf, etf_seconds
from graphrl.solvers.rules.list_scheduling import quick_schedule, schedule
from graphrl.solvers.rules.plan_builder.build import placed as built
from graphrl.solvers.rules.plan_builder.state import builder
from graphrl.solvers.sending.plans import placed, put
from graphrl.solvers.sending.rule import with_sends
from graphrl.solvers.sending.search import makespan

ETF_SECONDS = 1.0  # that it may take at most, by `etf_seconds`


def hint(graph: ComputationGraph, problem: Problem) -> PlacedOrder:
    """The best of a few quick list schedules, with sends as `with_sends` has them: placement `[n]` and order of nodes.

    Under `rendezvous` a list schedule that knows of it puts few ops on most devices; one for transfers that hold nobody
    up uses all, and with bundled sends is mostly better. Elsewhere the best of all list schedules is among them, and
    `etf`'s where that is quick: some 6,000 ops on 8 devices. Where ops have their layers' names, stages of layers are.
    """
    plans = list(_plans(graph, problem))
    if len(plans) == 1:
        return _sent(graph, problem, plans[0])
    if problem.memory_limit is not None:
        plans = [_sent(graph, problem, plan) for plan in plans]
        return min(plans, key=lambda plan: exact.evaluate(graph, problem, *plan).rank(problem))
    seconds = _clock(graph, problem)
    return _sent(graph, problem, min(plans, key=seconds))


def _clock(graph: ComputationGraph, problem: Problem) -> Callable[[PlacedOrder], float]:
    """What gives the seconds of a plan with sends as `with_sends` has them, compiled."""
    n = len(graph.ops)
    if problem.transfer == "rendezvous":
        plan = placed(graph, problem)

        def walked(of: PlacedOrder) -> float:
            put(plan, of[0], of[1][of[1] < n])
            return makespan(plan)

        return walked
    b = builder(graph, problem)

    def replayed(of: PlacedOrder) -> float:
        built(b, of[1][of[1] < n], of[0])
        return b.makespan

    return replayed


def _plans(graph: ComputationGraph, problem: Problem) -> Iterator[PlacedOrder]:
    yield quick_schedule(graph, problem)
    if problem.devices == 1:
        return
    by_layer = layer_stages(graph, problem)
    if by_layer is not None:
        yield by_layer
    if problem.transfer == "rendezvous":
        yield quick_schedule(graph, dataclasses.replace(problem, transfer="free"))
        return
    yield schedule(graph, problem)
    if etf_seconds(graph, problem) <= ETF_SECONDS:
        yield etf(graph, problem)


def _sent(graph: ComputationGraph, problem: Problem, plan: PlacedOrder) -> PlacedOrder:
    placement, order = plan
    return placement, with_sends(graph, problem, placement, order[order < len(graph.ops)])
