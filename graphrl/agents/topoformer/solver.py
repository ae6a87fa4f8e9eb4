"""A trained policy as a `Solver`: the order of one device that one call of the network, and a decoder, make."""

import dataclasses
import time
from collections.abc import Callable
from typing import NamedTuple, get_args

import numpy as np

from graphrl.agents.topoformer.config import PROBLEM
from graphrl.agents.topoformer.policy import Decoding, Policy
from graphrl.costs.problem import Problem
from graphrl.envs.ordering.instance import instances
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Interrupted, Progress
from graphrl.solvers.orders.anneal.solver import solve as anneal
from graphrl.solvers.rules.one_pass import require_one_device

MOST = 4096  # orders of a graph at once
# Of annealing's eight chains so many start from learned orders, the others from its own. After 1 s, on 44 graphs of
# 500 ops, that is a tie with plain annealing: means within 0.03%, the worst graph 0.4% above. Four tie on the mean too,
# with 3.8% on the worst graph; all eight were 0.2% above on the mean of 20 of the graphs, 3.3% on the worst.
# Nothing learned proposes annealing's moves, which weigh all places of an op anyway. Tried: ops drawn by how far they
# stand from their learned place, and a pull towards it on the place drawn that fades as the chains cool. At the moves
# of 1 s both together were 0.00 ± 0.06% above this on 60 graphs of 500 ops and 0.07 ± 0.11% above on 20 of 1,000; other
# random numbers alone make 0.04 ± 0.09% and -0.03 ± 0.09%.
STARTS = 2


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
      decode: "greedy" (one order, no chance in it), "sample" or "beam".
      samples: orders that are drawn, or kept by the beam at every step.
      checkpoint: of `graphrl train topoformer`, or a file of `Policy.save`; by default the policy that the package
        ships.
      sizes: see `solvers.padded_to`.

    Raises:
      GraphrlError: the checkpoint cannot be read.
      ProblemError: there are several devices, or an option is out of range.
    """
    require_one_device("topoformer", problem)
    started = time.perf_counter()
    made = _made(graph, budget, seed, decode, samples, checkpoint, sizes)
    plan = _plan("topoformer", graph, problem, made, seed, started)
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
    """The `Solver` "topoformer+": annealing from the best orders that the policy samples, for what is left of the
    budget.

    Args and errors: as `solve`.

    Raises:
      Interrupted: on Ctrl-C, with the best plan so far.
    """
    require_one_device("topoformer+", problem)
    started = time.perf_counter()
    made = _made(graph, budget, seed, "sample", samples, checkpoint, sizes)
    learned = _plan("topoformer+", graph, problem, made, seed, started)
    watch = None if progress is None else _watch(progress, learned, started)
    try:
        if progress is not None:
            progress(learned.evaluations, learned.seconds, lambda: learned, learned.value)
        left = budget.less(learned.evaluations, time.perf_counter() - started)
        if left is None:
            return learned
        starts = tuple(made.orders[:STARTS])
        return _best(learned, anneal(graph, problem, left, seed, watch, starts=starts), started)
    except Interrupted as stop:
        raise Interrupted(_best(learned, stop.plan, started)) from None
    except KeyboardInterrupt:
        raise Interrupted(learned) from None


def digest(problem: Problem, *, checkpoint: str = "", **_: object) -> str:
    """Of the policy that the methods above play (`agents.digest`). Takes their options.

    Raises:
      GraphrlError: it cannot be read.
    """
    return _chosen(checkpoint).digest


def _chosen(checkpoint: str) -> Policy:
    return Policy.load(checkpoint) if checkpoint else Policy.default(PROBLEM)


class _Made(NamedTuple):
    orders: np.ndarray  # [k, n] int64, ops; the one of lowest peak first
    evaluations: int


def _made(
    graph: ComputationGraph,
    budget: Budget,
    seed: int,
    decode: str,
    samples: int,
    checkpoint: str,
    sizes: Sizes | None,
) -> _Made:
    if decode not in get_args(Decoding):
        raise ProblemError(f"decode is {decode!r}: must be one of {', '.join(get_args(Decoding))}")
    if not 1 <= samples <= MOST:
        raise ProblemError(f"samples is {samples}: must be from 1 to {MOST:,}")
    count = samples if budget.evaluations is None else min(samples, budget.evaluations)
    found = _chosen(checkpoint).rollout(instances([graph], sizes), decode, count, seed)  # type: ignore[arg-type]
    orders = np.asarray(found.order[0], np.int64)[:, : len(graph.ops)]
    ranked = orders[np.argsort(np.asarray(found.peak[0]), kind="stable")]
    return _Made(ranked, 1 if decode == "greedy" else count)


def _plan(method: str, graph: ComputationGraph, problem: Problem, made: _Made, seed: int, started: float) -> Plan:
    return Plan.from_order(
        graph,
        problem,
        np.zeros(len(graph.ops), np.int64),
        made.orders[0],
        method=method,
        seconds=time.perf_counter() - started,
        evaluations=made.evaluations,
        seed=seed,
    )


def _best(learned: Plan, annealed: Plan, started: float) -> Plan:
    """The better of the two plans, with what both took."""
    return dataclasses.replace(
        min(learned, annealed, key=lambda plan: plan.rank),
        method=learned.method,
        evaluations=learned.evaluations + annealed.evaluations,
        seconds=time.perf_counter() - started,
    )


def _watch(progress: Progress, learned: Plan, started: float) -> Progress:
    """Annealing's progress, as that of the whole method."""

    def watch(evaluations: int, seconds: float, plan: Callable[[], Plan], value: float) -> None:
        value, seconds = min(learned.value, value), time.perf_counter() - started
        progress(learned.evaluations + evaluations, seconds, lambda: _best(learned, plan(), started), value)

    return watch
