"""Instances of `Sharding-v0`: padded sharding problems with their features, made on the host in NumPy.

Letters used in shapes: N nodes with at most S strategies, E edges with C costs in all, and T times, all padded; g
problems in a batch. A **pair** is a pair of strategies of an edge's two nodes, with one cost. Costs of edges stay a
flat list, as in `ShardingProblem`: matrices of S by S for each edge would take 5 to 150 times the memory on the
contest's problems.

Costs are in units of the cost of a baseline's plan, bytes in units of the limit.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from graphrl.costs.device.indexing import filled
from graphrl.envs.graph_environment import stacked
from graphrl.errors import ProblemError
from graphrl.graphs.padding import bucket
from graphrl.sharding.baseline import baseline
from graphrl.sharding.layers import least_bytes
from graphrl.sharding.problem import PROHIBITIVE, ShardingProblem, offsets, owners

NODE_FEATURES = (
    "strategies",  # log of their number
    "in_degree",  # log(1 + number) of edges whose last node it is
    "out_degree",
    "least_cost",  # logs of 1 + costs, in shares of the baseline's cost for each node
    "mean_cost",
    "least_bytes",  # in shares of the limit
    "mean_bytes",
    "start",  # place of its times among all times, from 0 to 1
    "end",
    "least_memory",  # mean memory while it lives if all nodes take the least bytes, in shares of the limit
    "start_memory",  # the same of the baseline's plan
)
STRATEGY_FEATURES = (
    "cost",  # log, as above
    "cost_above_least",
    "bytes",  # in shares of the limit
    "bytes_above_least",  # over the largest of its node
    "edge_least",  # log of the sum over the node's edges of the least cost of the strategy's pairs
    "edge_mean",  # the same of the mean cost of those that are not prohibitive
    "edge_prohibitive",  # mean share of the strategy's pairs that are prohibitive
    "edge_start",  # log of the sum over edges of the cost if the other nodes take the baseline's plan
    "is_start",  # 1 for the baseline's plan
)
EDGE_FEATURES = ("least", "mean", "largest", "prohibitive")  # of its costs: three logs, and a share
MOST_LOG = 16.0  # logs of prohibitive costs are cut here


@dataclasses.dataclass(frozen=True)
class ShardingSizes:
    """Array sizes of a padded problem: problems of equal sizes share one compiled program."""

    ops: int  # nodes
    strategies: int  # of the node with the most
    edges: int
    pairs: int
    times: int

    def covers(self, other: "ShardingSizes") -> bool:
        """True if a problem of sizes `other` fits."""
        return all(a >= b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ShardingInstance:
    """One sharding problem with its features; a batch has a leading axis g on every array."""

    num_ops: jax.Array  # [] int32, real nodes
    cost_unit: jax.Array  # [] float32, cost of the baseline's plan
    byte_unit: jax.Array  # [] float32, the limit in bytes, at least 1
    limit: jax.Array  # [] float32, byte units: 1, or 0 for a limit of 0
    strategies: jax.Array  # [N] int32, number of strategies; 1 for padding
    allowed: jax.Array  # [N, S] bool, strategies that are there and not prohibitive, or the first
    cost: jax.Array  # [N, S] float32, cost units; 0 for padding
    usage: jax.Array  # [N, S] float32, byte units; 0 for padding, and for nodes that live at no time
    span: jax.Array  # [N, 2] int32, half-open range of times; 0 for padding
    event: jax.Array  # [2 N] int32 by time, ends first: v is the start of node v, N + v its end; padding is last
    time_event: jax.Array  # [T] int32, the last event of each time; the last one for padding
    edges: jax.Array  # [E, 2] int32, nodes, the lower one first; N for padding
    edge_pair: jax.Array  # [E] int32, the first pair of each edge; 0 for padding
    pair_cost: jax.Array  # [C] float32, cost units; 0 for padding
    pair_first: jax.Array  # [C] int32, e S + i for strategy i of edge e's first node; E S for padding
    pair_last: jax.Array  # [C] int32, e S + j for strategy j of its last node; E S for padding
    prohibitive: jax.Array  # [] float32, cost units from which a cost is prohibitive
    start: jax.Array  # [N] int32, the baseline's plan
    node_features: jax.Array  # [N, len(NODE_FEATURES)] float32; 0 for padding
    strategy_features: jax.Array  # [N, S, len(STRATEGY_FEATURES)] float32; 0 for padding
    edge_features: jax.Array  # [E, len(EDGE_FEATURES)] float32; 0 for padding

    @property
    def sizes(self) -> ShardingSizes:
        """The padded sizes, the same for every problem of a batch."""
        ops, strategies = self.cost.shape[-2:]
        return ShardingSizes(ops, strategies, self.edges.shape[-2], self.pair_cost.shape[-1], self.time_event.shape[-1])


def common_sizes(problems: Sequence[ShardingProblem]) -> ShardingSizes:
    """Returns the bucketed sizes that fit all problems."""
    each = [dataclasses.astuple(_sizes(problem)) for problem in problems]
    ops, strategies, *rest = (max(column) for column in zip(*each, strict=True))
    return ShardingSizes(bucket(ops), _even(strategies), *(max(8, bucket(count)) for count in rest))


def _even(count: int) -> int:
    """Rounds a number of strategies up: to 8 sizes for each power of two, but not to 8."""
    return count if count <= 8 else bucket(count)


def make_instances(problems: Sequence[ShardingProblem], to: ShardingSizes | None = None) -> ShardingInstance:
    """Converts problems to a batch of instances (leading axis g), padded to `to` or else to common sizes.

    Raises:
      ProblemError: `to` is too small for a problem, or a problem has more pairs or slots than int32 counts.
    """
    to = common_sizes(problems) if to is None else to
    return stacked([make_instance(problem, to) for problem in problems])


def make_instance(problem: ShardingProblem, to: ShardingSizes | None = None) -> ShardingInstance:
    """Converts a problem to an instance, padded to `to` (by default its size bucket).

    Raises:
      ProblemError: `to` is too small for the problem, or it has more pairs or slots than int32 counts.
    """
    to, own = common_sizes([problem]) if to is None else to, _sizes(problem)
    if not to.covers(own):
        raise ProblemError(f"problem {problem.name!r} has sizes {own}, more than the {to} it is padded to")
    if max(to.edges * to.strategies, to.pairs) >= 2**31:
        raise ProblemError(f"problem {problem.name!r} has too many edges and strategies: int32 does not count them")
    start, problem = baseline(problem), oriented(problem)
    unit = float(max(1, sum(int(costs[costs < PROHIBITIVE].sum()) for costs in problem.costs(start))))
    byte_unit, n = float(max(1, problem.limit)), own.ops
    node, strategy = owners(problem.offset)
    of_nodes, of_strategies, of_edges = _features(problem, start, unit, byte_unit)

    def by_strategy(values: np.ndarray, dtype: type = np.float32) -> np.ndarray:
        dense = np.zeros((to.ops, to.strategies, *values.shape[1:]), dtype)
        dense[node, strategy] = values
        return dense

    allowed = by_strategy(problem.cost < PROHIBITIVE, bool)
    allowed[:, 0] |= ~allowed.any(1)
    fields: dict[str, Any] = dict(
        num_ops=np.int32(n),
        cost_unit=np.float32(unit),
        byte_unit=np.float32(byte_unit),
        limit=np.float32(problem.limit / byte_unit),
        strategies=filled(problem.sizes, to.ops, np.int32, 1),
        allowed=allowed,
        cost=by_strategy(problem.cost / unit),
        usage=by_strategy(np.where(problem.lives[node], problem.usage / byte_unit, 0)),
        span=filled(problem.span, to.ops, np.int32),
        **_events(problem, to),
        edges=filled(problem.edges, to.edges, np.int32, to.ops),
        edge_pair=filled(problem.edge_offset[:-1], to.edges, np.int32),
        **_pairs(problem, unit, to),
        prohibitive=np.float32(PROHIBITIVE / unit),
        start=filled(start, to.ops, np.int32),
        node_features=filled(of_nodes, to.ops, np.float32),
        strategy_features=by_strategy(of_strategies),
        edge_features=filled(of_edges, to.edges, np.float32),
    )
    return ShardingInstance(**fields)


def oriented(problem: ShardingProblem) -> ShardingProblem:
    """Returns the problem with edges that lead from lower to higher nodes; matrices of others are transposed."""
    first, last = problem.edges.T
    edge, place = owners(problem.edge_offset)
    rows, columns = problem.sizes[problem.edges].T
    transposed = place % rows[edge] * columns[edge] + place // rows[edge]
    place = np.where((first > last)[edge], transposed, place)
    cost = problem.edge_cost[problem.edge_offset[:-1][edge] + place]
    return dataclasses.replace(problem, edges=np.sort(problem.edges, 1), edge_cost=cost)


def _sizes(problem: ShardingProblem) -> ShardingSizes:
    most = int(problem.sizes.max(initial=1))
    return ShardingSizes(len(problem.sizes), most, len(problem.edges), len(problem.edge_cost), len(problem.times))


def _events(problem: ShardingProblem, to: ShardingSizes) -> dict[str, np.ndarray]:
    """Sorts starts and ends of nodes by time: after the ends of a time memory is least, after its starts largest."""
    nodes = np.flatnonzero(problem.lives)
    time = problem.span[nodes].T.ravel()
    code = np.concatenate([nodes, to.ops + nodes])
    order = np.lexsort((code < to.ops, time))
    others = np.setdiff1d(np.arange(2 * to.ops), code)
    last = np.searchsorted(time[order], np.arange(to.times), side="right") - 1
    return {
        "event": np.concatenate([code[order], others]).astype(np.int32),
        "time_event": np.maximum(last, 0).astype(np.int32),
    }


def _pairs(problem: ShardingProblem, unit: float, to: ShardingSizes) -> dict[str, np.ndarray]:
    edge, place = owners(problem.edge_offset)
    width = problem.sizes[problem.edges[:, 1]][edge]
    none = to.edges * to.strategies
    return {
        "pair_cost": filled(problem.edge_cost / unit, to.pairs, np.float32),
        "pair_first": filled(edge * to.strategies + place // width, to.pairs, np.int32, none),
        "pair_last": filled(edge * to.strategies + place % width, to.pairs, np.int32, none),
    }


class _Features(NamedTuple):
    nodes: np.ndarray  # [n, len(NODE_FEATURES)]
    strategies: np.ndarray  # [S in all, len(STRATEGY_FEATURES)]
    edges: np.ndarray  # [m, len(EDGE_FEATURES)]


def _features(problem: ShardingProblem, start: np.ndarray, unit: float, byte_unit: float) -> _Features:
    n = len(problem.sizes)
    node, strategy = owners(problem.offset)

    def log(cost: np.ndarray) -> np.ndarray:
        return np.minimum(np.log1p(cost * (n / unit)), MOST_LOG)

    def by_node(reduce: np.ufunc, values: np.ndarray) -> np.ndarray:
        return reduce.reduceat(values, problem.offset[:-1]) if n else np.zeros(0)

    least_cost, least = by_node(np.minimum, problem.cost), by_node(np.minimum, problem.usage)
    bytes_above = problem.usage - least[node]
    of_edges, of_pairs = _edge_features(problem, start, log)
    is_start = strategy == start[node]
    memory = [problem.memory(plan) / byte_unit for plan in (least_bytes(problem), start)]
    place = np.searchsorted(problem.times, problem.interval)
    nodes = [
        np.log(problem.sizes),
        *(np.log1p(np.bincount(problem.edges[:, end], minlength=n)) for end in (1, 0)),
        log(least_cost),
        log(by_node(np.add, np.minimum(problem.cost, PROHIBITIVE).astype(float)) / problem.sizes),
        least / byte_unit,
        by_node(np.add, problem.usage / byte_unit) / problem.sizes,
        *(place.T / max(1, len(problem.times))),
        *(_mean_over(profile, problem.span) for profile in memory),
    ]
    strategies = [
        log(problem.cost),
        log(problem.cost - least_cost[node]),
        problem.usage / byte_unit,
        bytes_above / np.maximum(1, by_node(np.maximum, bytes_above))[node],
        *of_pairs,
        is_start,
    ]
    return _Features(np.stack(nodes, -1), np.stack(strategies, -1), of_edges)


def _mean_over(profile: np.ndarray, span: np.ndarray) -> np.ndarray:
    """Returns the mean of a profile over each half-open span of times `[n, 2]`; 0 for empty ones."""
    upto = np.concatenate([[0.0], np.cumsum(profile)])
    first, last = span.T
    return (upto[last] - upto[first]) / np.maximum(1, last - first)


def _edge_features(
    problem: ShardingProblem, start: np.ndarray, log: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns the features of edges, and those of strategies that come from edges."""
    cost = problem.edge_cost.astype(float)
    edge, place = owners(problem.edge_offset)
    first, last = problem.edges.T
    width = problem.sizes[last][edge]
    is_dear = problem.edge_cost >= PROHIBITIVE
    usual = np.where(is_dear, 0, cost)
    strategies = np.zeros((4, len(problem.cost)))
    for ends, row, other in (
        ((first, last), place // width, place % width),
        ((last, first), place % width, place // width),
    ):
        slot_offset = offsets(problem.sizes[ends[0]])
        slot = slot_offset[edge] + row  # a strategy of this end of the edge
        count = np.maximum(1, np.bincount(slot, minlength=slot_offset[-1]))
        dear = np.bincount(slot, is_dear, slot_offset[-1])
        least = np.full(slot_offset[-1], np.inf)
        np.minimum.at(least, slot, cost)
        mean = np.bincount(slot, usual, slot_offset[-1]) / np.maximum(1, count - dear)
        given = np.bincount(slot, np.where(other == start[ends[1]][edge], cost, 0), slot_offset[-1])
        slot_edge, slot_place = owners(slot_offset)
        target = problem.offset[ends[0]][slot_edge] + slot_place
        for row_of, values in zip(strategies, (least, mean, dear / count, given), strict=True):
            np.add.at(row_of, target, values)
    degree = np.bincount(problem.edges.ravel(), minlength=len(problem.sizes))
    strategies[2] /= np.maximum(1, degree)[owners(problem.offset)[0]]
    many = np.maximum(1, np.diff(problem.edge_offset))
    dear = np.bincount(edge, is_dear, len(many))
    rows = problem.edge_offset[:-1]
    least, most = (reduce.reduceat(cost, rows) if len(rows) else np.zeros(0) for reduce in (np.minimum, np.maximum))
    mean = np.bincount(edge, usual, len(many)) / np.maximum(1, many - dear)
    edges = np.stack([log(least), log(mean), log(most), dear / many], -1)
    return edges, [log(strategies[0]), log(strategies[1]), strategies[2], log(strategies[3])]
