"""The default method: the portfolio that was best for the time (docs/systems/opponents.md has the figures).

First plans without search: list scheduling, the given order, list scheduling on fewer devices; for makespan `hlfet`
and, where there is time for it, `etf`. Then, as long as no plan reaches the bound and the budget lasts:

peak memory of one device
  1. `series-parallel`, which is exact, where the graph is of that kind
  2. `dfs-dp` for a fifth of the budget, at most 2 s, on up to 300 ops: often a proof within a second
  3. `min-cut` for 3 tenths of what is left, or 1 ms an op if that is more, which its first pass may take: on compiled
     programs mostly a proof within a second
  4. `anneal` for 7 tenths of the rest, from the best orders so far (`brkga+` where the evaluations are too few for it)
  5. `min-cut` again, from those

makespan, and peak memory of several devices (`cp-sat` only if the budget is in seconds), each from the best plan so far
  free and link: `brkga+` for 3 tenths, then `anneal-keys`; up to 300 ops for 3 tenths too, at most 5 s each, and then
    `cp-sat`, which makes more of a long time
  rendezvous, up to 120 ops: `anneal-keys` for 3 tenths, `cp-sat` for half, `anneal-keys` for the rest
  peak memory, up to 60 ops: `cp-sat` for half, `anneal-keys` for the rest
  otherwise `anneal-keys`
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Decisions, Progress
from graphrl.solvers.portfolio import Portfolio, Stage
from graphrl.solvers.rules.list_rules import etf, hlfet
from graphrl.solvers.rules.list_scheduling import schedule
from graphrl.solvers.rules.plain import given_order

DP_OPS, DP_SHARE, DP_SECONDS = 300, 0.2, 2.0
ETF_OPS, ETF_SECONDS = 6_000, 10.0  # up to which it is tried, fewer where there are fewer seconds
CUT_SHARE, CUT_SECONDS = 0.3, 1e-3  # the seconds for each op
PEAK_OPS, RENDEZVOUS_OPS, PROOF_OPS = 60, 120, 300  # up to which CP-SAT is worth its time
PROOF_SECONDS = 5.0  # of each method before CP-SAT
ANNEAL_EVALUATIONS = 8 * 256  # a window of all chains: fewer are not worth a program


def solve(
    graph: ComputationGraph,
    problem: Problem,
    budget: Budget,
    seed: int,
    progress: Progress | None = None,
    *,
    sizes: Sizes | None = None,
) -> Plan:
    """The `Solver` "auto" (see the module). Its bound is the best that any of its methods proved.

    Args:
      graph, problem, budget, seed, progress: see `Solver`.
      sizes: see `solvers.padded_to`.

    Raises:
      Interrupted: on Ctrl-C, once there is a plan; it has the best of all so far.
    """
    plain = candidates(graph, problem, budget)
    first = next(plain)
    # on one device `min-cut` improves it soon, by the best order so far
    bound = lower_bound(graph, problem, first[1] if problem.devices > 1 else None)
    portfolio = Portfolio("auto", graph, problem, budget, seed, progress, bound, sizes)
    portfolio.add(itertools.chain([first], plain))
    return portfolio.run(stages(graph, problem, budget))


def candidates(graph: ComputationGraph, problem: Problem, budget: Budget) -> Iterator[Decisions]:
    """List scheduling, the given order, list scheduling on fewer devices, which is sometimes better, and the textbook
    rules, which on real graphs often are.
    """
    yield schedule(graph, problem)
    yield given_order(graph, problem)
    devices = problem.devices // 2
    while devices > 1:
        placement, order = schedule(graph, dataclasses.replace(problem, devices=devices))
        tensor, to = np.divmod(order - len(graph.ops), devices)
        moved = len(graph.ops) + tensor * problem.devices + to  # a transfer's id depends on the number of devices
        yield placement, np.where(order < len(graph.ops), order, moved)
        devices //= 2
    if problem.devices > 1 and problem.objective == "makespan":
        placement, order, _ = hlfet(graph, problem)
        yield placement, order
        if len(graph.ops) <= ETF_OPS * min(1.0, math.inf if budget.seconds is None else budget.seconds / ETF_SECONDS):
            placement, order, _ = etf(graph, problem)
            yield placement, order


def stages(graph: ComputationGraph, problem: Problem, budget: Budget) -> Iterator[Stage]:
    """What the module says, from the first search on."""
    ops, timed = len(graph.ops), budget.seconds is not None
    few = budget.evaluations is not None and budget.evaluations < ANNEAL_EVALUATIONS
    if problem.devices == 1 and problem.objective == "peak_memory":
        yield Stage("series-parallel")
        if ops <= DP_OPS:
            yield Stage("dfs-dp", DP_SHARE, DP_SECONDS)
        least = 0.0 if budget.seconds is None else CUT_SECONDS * ops / budget.seconds
        yield Stage("min-cut", min(1.0, max(CUT_SHARE, least)))
        yield Stage("brkga+") if few else Stage("anneal", 1 - CUT_SHARE, options=_orders)
        yield Stage("min-cut", options=_orders)
        return
    if problem.objective == "peak_memory":
        if timed and ops <= PEAK_OPS:
            yield Stage("cp-sat", 0.5, options=_hint)
        yield Stage("anneal-keys", options=_hint)
    elif problem.transfer == "rendezvous":
        if timed and ops <= RENDEZVOUS_OPS:
            yield Stage("anneal-keys", 0.3, options=_hint)
            yield Stage("cp-sat", 0.7, options=_hint)
        yield Stage("anneal-keys", options=_hint)
    else:
        if timed and ops <= PROOF_OPS:
            yield Stage("brkga+", 0.3, PROOF_SECONDS)
            yield Stage("anneal-keys", 0.45, PROOF_SECONDS, options=_hint)
            yield Stage("cp-sat", options=_hint)
        else:
            yield Stage("brkga+", 0.3)
            yield Stage("anneal-keys", options=_hint)


def _orders(found: list[Decisions]) -> dict[str, Any]:
    return {"starts": tuple(order for _, order in found)}


def _hint(found: list[Decisions]) -> dict[str, Any]:
    return {"hint": found[0]}
