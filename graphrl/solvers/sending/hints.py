"""Quick plans: list schedules with sends as the rule has them."""

import dataclasses
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from graphrl.costs import exact
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.base import PlacedOrder
from graphrl.solvers.rules.expert import layer_stages
from graphrl.solvers.rules.list_rules import etf, etf_seconds
from graphrl.solvers.rules.list_scheduling import quick_schedule, schedule, timely
from graphrl.solvers.sending.plans import placed, put
from graphrl.solvers.sending.rule import with_sends
from graphrl.solvers.sending.search import makespan

LISTS_SHARE = 0.5  # of the time, for all list schedules under `rendezvous`
ETF_SECONDS = 1.0  # that it may take at most, by `etf_seconds`


class Start(NamedTuple):
    """A plan without its sends."""

    placement: np.ndarray  # [n] devices
    ops: np.ndarray  # [n] in an order
    makespan: float  # seconds, with sends as `with_sends` has them


def hint(
    graph: ComputationGraph, problem: Problem, seconds: float = math.inf, others: Sequence[PlacedOrder] = ()
) -> PlacedOrder:
    """The plan of `quick_start`, with its sends: placement `[n]` and order of nodes."""
    start = quick_start(graph, problem, seconds, others)
    return start.placement, with_sends(graph, problem, start.placement, start.ops)


def quick_start(
    graph: ComputationGraph, problem: Problem, seconds: float = math.inf, others: Sequence[PlacedOrder] = ()
) -> Start:
    """The best of a few quick list schedules.

    Under `rendezvous` a list schedule that knows of it puts few ops on most devices; one for transfers that hold nobody
    up uses all, and with bundled sends is mostly better. Where there is time the best of all list schedules is among
    them, elsewhere also `etf`'s where that is quick. Where ops have their layers' names, stages of layers are.

    Args:
      seconds: that it may take: what is slower is left out, but for a first plan.
      others: plans that are there already, whose sends do not count.
    """
    n, plan, end = len(graph.ops), placed(graph, problem), time.perf_counter() + seconds
    starts = []
    for placement, order in itertools.chain(others, _plans(graph, problem, end)):
        put(plan, placement, ops := order[order < n])
        starts.append(Start(placement, ops, makespan(plan)))
    if problem.memory_limit is None or len(starts) == 1:
        return min(starts, key=lambda start: start.makespan)

    def rank(start: Start) -> tuple[int, float]:
        sent = with_sends(graph, problem, start.placement, start.ops)
        return exact.evaluate(graph, problem, start.placement, sent).rank(problem)

    return min(starts, key=rank)


def _plans(graph: ComputationGraph, problem: Problem, end: float) -> Iterator[PlacedOrder]:
    """Those that are likely to be ready by then, by `time.perf_counter`; the first of them in any case."""
    by_layer = layer_stages(graph, problem) if problem.devices > 1 else None
    if by_layer is not None:
        yield by_layer
    if by_layer is None or time.perf_counter() < end:  # under a memory limit it takes seconds on the largest graphs
        yield quick_schedule(graph, problem)
    if problem.devices == 1:
        return
    if problem.transfer == "rendezvous":
        if time.perf_counter() < end:
            yield quick_schedule(graph, dataclasses.replace(problem, transfer="free"))
        if timely(graph, problem, LISTS_SHARE * (end - time.perf_counter())):
            yield schedule(graph, problem)
        return
    if timely(graph, problem, end - time.perf_counter()):
        yield schedule(graph, problem)
    if etf_seconds(graph, problem) <= min(ETF_SECONDS, end - time.perf_counter()):
        yield etf(graph, problem)
