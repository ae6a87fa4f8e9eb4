"""Single annealing chain of `anneal-schedule` with a chosen mix of moves and a limit in CPU seconds."""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from graphrl.costs.exact import evaluate
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.base import PlacedOrder
from graphrl.solvers.schedules.solver import (
    effective_ops,
    initial_temperature,
    min_temperature,
    prepare_with_lists,
    run_chain,
    start_chain,
    temperature,
)

CHUNK = 0.02  # of the time, between two readings of the clock


class ChainResult(NamedTuple):
    """State of an annealing chain at the end of its time, and its moves per second."""

    chain: Any
    rate: float


def anneal(
    graph: ComputationGraph, problem: Problem, start: PlacedOrder, mix: Mapping[str, float], seconds: float, seed: int
) -> ChainResult:
    """Anneals a schedule from a given plan.

    Args:
      start: placement and order of the plan.
      mix: relative frequency of each kind of move.
      seconds: limit on the thread's CPU time.
    """
    prepare_with_lists(problem)
    chain, makespan = start_chain(graph, problem, start, np.random.SeedSequence(seed)), 0.0
    run_chain(chain, 0, 1.0, 1.0, mix)  # loads compiled code before the clock starts
    makespan = evaluate(graph, problem, *start).makespan
    ops, first, least = effective_ops(graph), initial_temperature(problem), min_temperature(problem, start)
    total, share, moves, started = 0, 0.0, 100, time.thread_time()
    while share < 1:
        each = total / share / len(graph.ops) if total else 0.0
        ends = share, min(1.0, share + (CHUNK if total else 0.0))
        hot, cold = (makespan * temperature(part, each, ops, first, least=least) for part in ends)
        count = run_chain(chain, moves, hot, cold, mix)
        if not count:
            break
        total, share = total + count, (time.thread_time() - started) / seconds
        moves = max(1, int(total / share * CHUNK))
    return ChainResult(chain, total / (share * seconds) if share else 0.0)
