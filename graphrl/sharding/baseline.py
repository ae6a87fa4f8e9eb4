"""A quick plan of a sharding problem, the same on every machine: descents by single nodes, and the best of a few."""

import numpy as np

from graphrl.compiled import late_entry
from graphrl.sharding.layers import least_bytes
from graphrl.sharding.messages import messages_of, sweep
from graphrl.sharding.moves import model_of
from graphrl.sharding.problem import ShardingProblem, owners
from graphrl.sharding.reduce import incidence, reduce_problem
from graphrl.sharding.rules import Reduced

PRICES, SWEEPS, TRIED = 19, 3, 3  # prices of bytes, sweeps of messages at each, labels that fit


def baseline(problem: ShardingProblem) -> np.ndarray:
    """Returns the baseline's plan, `[n] int64`: the best of a few descents by single nodes (`descended`), from the
    least bytes of each node, and from labels by messages at growing prices of bytes, the first `TRIED` that fit.

    Raises:
      ProblemError: the problem has no plan that fits.
    """
    reduced = reduce_problem(problem)
    if not len(reduced.sizes):
        return reduced.expand(np.zeros(0, np.int64))
    model = model_of(reduced)
    expected = float(np.minimum.reduceat(reduced.cost, reduced.offset[:-1]).sum() + np.median(reduced.cost))
    messages = messages_of(model, expected)
    own, weight = messages.theta.copy(), _bytes_over_time(reduced)
    price = messages.scale * max(1.0, expected) / max(1.0, float(weight.sum()))
    plans = [descended(problem, least_bytes(problem))]
    for multiplier in (0.0, *np.geomspace(1e-2, 1e4, PRICES)):
        messages.theta[:] = own + np.minimum(multiplier * price * weight, 2.0**50).astype(np.int64)
        for forward in (True, False) * SWEEPS:
            sweep(model, messages, forward)
        plan = reduced.expand(messages.label)
        if problem.peak(plan) <= problem.limit:
            plans.append(descended(problem, plan))
        if len(plans) == 1 + TRIED:
            break
    return min(plans, key=problem.total_cost)


def _bytes_over_time(reduced: Reduced) -> np.ndarray:
    """Returns the bytes of each strategy, summed over times: `[S] float64`."""
    user, place = owners(reduced.usage_offset)
    strategy = reduced.offset[reduced.user[user]] + place
    times = (reduced.span[:, 1] - reduced.span[:, 0])[user]
    return np.bincount(strategy, reduced.usage * times.astype(float), len(reduced.cost))


def descended(problem: ShardingProblem, plan: np.ndarray, sweeps: int = 4) -> np.ndarray:
    """Returns a plan after sweeps forward and back, in which every node takes its cheapest strategy that fits, given
    those of all others.
    """
    plan = plan.copy()
    first, incident = incidence(len(problem.sizes), problem.edges)
    memory, scratch = problem.memory(plan), np.zeros(int(problem.sizes.max(initial=1)))
    arrays = (
        problem.offset,
        problem.cost,
        problem.usage,
        problem.span,
        problem.edges,
        problem.edge_offset,
        problem.edge_cost,
    )
    _descend(*arrays, incident, first, problem.limit, sweeps, plan, memory, scratch)
    return plan


@late_entry
def _descend(
    offset: np.ndarray,
    cost: np.ndarray,
    usage: np.ndarray,
    span: np.ndarray,
    edges: np.ndarray,
    edge_offset: np.ndarray,
    edge_cost: np.ndarray,
    incident: np.ndarray,
    first: np.ndarray,
    limit: int,
    sweeps: int,
    plan: np.ndarray,
    memory: np.ndarray,
    total: np.ndarray,
) -> None:
    """Improves a plan `[n]` and its `memory` `[k]` in place, see `descended`. Incident edges of node v are at
    `first[v]` to `first[v + 1]`. Sums are float64: integers could overflow.
    """
    n = len(offset) - 1
    for number in range(sweeps):
        moved = False
        for turn in range(n):
            v = turn if number % 2 == 0 else n - 1 - turn
            size, base = offset[v + 1] - offset[v], offset[v]
            for s in range(size):
                total[s] = float(cost[base + s])
            for k in range(first[v], first[v + 1]):
                edge = incident[k]
                if edges[edge, 0] == v:
                    w = edges[edge, 1]
                    width = offset[w + 1] - offset[w]
                    for s in range(size):
                        total[s] += float(edge_cost[edge_offset[edge] + s * width + plan[w]])
                else:
                    at = edge_offset[edge] + plan[edges[edge, 0]] * size
                    for s in range(size):
                        total[s] += float(edge_cost[at + s])
            old = plan[v]
            room = limit
            for t in range(span[v, 0], span[v, 1]):
                room = min(room, limit - memory[t])
            best = old
            for s in range(size):
                fits = span[v, 0] == span[v, 1] or usage[base + s] - usage[base + old] <= max(0, room)
                if fits and total[s] < total[best]:
                    best = s
            if best != old:
                moved = True
                plan[v] = best
                for t in range(span[v, 0], span[v, 1]):
                    memory[t] += usage[base + best] - usage[base + old]
        if not moved:
            break
