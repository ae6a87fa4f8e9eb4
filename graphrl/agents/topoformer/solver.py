"""A trained policy as a `Solver`: the order of one device that one call of the network, and a decoder, make."""

import dataclasses
import time
from typing import get_args

import numpy as np

from graphrl.agents.topoformer.policy import Decoder, Policy
from graphrl.costs.problem import Problem
from graphrl.envs.ordering.instance import instances
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes
from graphrl.plan import Plan
from graphrl.solvers.anneal.solver import solve as anneal
from graphrl.solvers.base import Budget, Progress
from graphrl.solvers.one_pass import require_one_device

MOST = 4096  # orders of a graph at once


def solve(
    graph: ComputationGraph,
    problem: Problem,
    budget: Budget,
    seed: int,
    progress: Progress | None = None,
    *,
    decode: str = "greedy",
    samples: int = 16,
    checkpoint: str = "",
    sizes: Sizes | None = None,
) -> Plan:
    """The `Solver` "topoformer": the best of the decoder's orders. What it takes does not depend on the budget, but for
    no more orders than evaluations.

    Args:
      graph, problem, budget, seed, progress: see `Solver`.
      decode: "greedy" (one order, no chance in it) or "sample".
      samples: orders that are drawn.
      checkpoint: of `graphrl train topoformer`, or a file of `Policy.save`; by default the policy that the package
        ships.
      sizes: see `solvers.padded_to`.

    Raises:
      GraphrlError: the checkpoint cannot be read.
      ProblemError: there are several devices, or an option is out of range.
    """
    require_one_device("topoformer", problem)
    started = time.perf_counter()
    orders, peaks = _orders(graph, budget, seed, decode, samples, checkpoint, sizes)
    plan = _plan(graph, problem, orders[peaks.argmin()], len(orders), seed, started)
    if progress is not None:
        progress(plan.evaluations, plan.seconds, lambda: plan, plan.value)
    return plan


def solve_warm(
    graph: ComputationGraph,
    problem: Problem,
    budget: Budget,
    seed: int,
    progress: Progress | None = None,
    *,
    samples: int = 16,
    checkpoint: str = "",
    sizes: Sizes | None = None,
) -> Plan:
    """The `Solver` "topoformer+": annealing from the orders that the policy samples, for what is left of the budget.

    Args and errors: as `solve`.

    Raises:
      Interrupted: on Ctrl-C, with the best plan so far.
    """
    require_one_device("topoformer+", problem)
    started = time.perf_counter()
    orders, peaks = _orders(graph, budget, seed, "sample", samples, checkpoint, sizes)
    best = _plan(graph, problem, orders[peaks.argmin()], len(orders), seed, started)
    best = dataclasses.replace(best, method="topoformer+")
    left = budget.less(best.evaluations, time.perf_counter() - started)
    if left is None:
        return best
    plan = anneal(graph, problem, left, seed, progress, starts=tuple(orders))
    return dataclasses.replace(
        plan,
        method="topoformer+",
        evaluations=best.evaluations + plan.evaluations,
        seconds=time.perf_counter() - started,
    )


def digest(problem: Problem, *, checkpoint: str = "", **_: object) -> str:
    """Of the policy that the methods above play (`agents.digest`). Takes their options.

    Raises:
      GraphrlError: it cannot be read.
    """
    return _chosen(checkpoint).digest


def _chosen(checkpoint: str) -> Policy:
    return Policy.load(checkpoint) if checkpoint else Policy.default("peak_memory")


def _orders(
    graph: ComputationGraph,
    budget: Budget,
    seed: int,
    decode: str,
    samples: int,
    checkpoint: str,
    sizes: Sizes | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Orders `[k, n]` int64 of the ops, and their peaks `[k]`."""
    if decode not in get_args(Decoder):
        raise ProblemError(f"decode is {decode!r}: must be one of {', '.join(get_args(Decoder))}")
    if not 1 <= samples <= MOST:
        raise ProblemError(f"samples is {samples}: must be from 1 to {MOST:,}")
    count = samples if budget.evaluations is None else min(samples, budget.evaluations)
    found = _chosen(checkpoint).rollout(instances([graph], sizes), decode, count, seed)  # type: ignore[arg-type]
    return np.asarray(found.order[0], np.int64)[:, : len(graph.ops)], np.asarray(found.peak[0])


def _plan(
    graph: ComputationGraph, problem: Problem, order: np.ndarray, evaluations: int, seed: int, started: float
) -> Plan:
    placement = np.zeros(len(order), np.int64)
    seconds = time.perf_counter() - started
    return Plan.from_order(
        graph, problem, placement, order, method="topoformer", seconds=seconds, evaluations=evaluations, seed=seed
    )
