"""Reduction of a sharding problem to a smaller one with the same optimum, and the way back.

Five rules are applied until none changes anything:

- A strategy goes if it is prohibitive, if an edge leaves it no partner, or if it never fits into memory.
- A strategy goes if another one of its node is at least as good: its bytes are not more at any time, and it does not
  cost more, whatever the neighbours choose (dead-end elimination, Goldstein 1994).
- A node is merged into a neighbour if each strategy of the neighbour leaves it one strategy: because of prohibitive
  costs, or because the node has no other neighbour and one of its strategies has both the least cost and least bytes.
  Bytes stay exact: a group of nodes has the intervals of all its nodes.
- A node with two neighbours becomes an edge between them if each pair of their strategies leaves it one strategy of the
  least cost and bytes, and if these bytes are a function of the strategy of one of them, or constant. The costs of the
  edge are a min-plus product (variable elimination, Bertele and Brioschi 1972).
- Nodes with one strategy become a constant; times at which memory can never bind are left out.

All are the same operation: every node of the old problem follows a node of the new one, by a table of its strategy for
each strategy of the other (`_follow`). A node that becomes an edge has a table for pairs of strategies as well.
"""

import numpy as np

from graphrl.compiled.structures import rows_by
from graphrl.errors import ProblemError
from graphrl.sharding.problem import PROHIBITIVE, ShardingProblem, offsets, owners
from graphrl.sharding.rules import (
    Reduced,
    add_costs,
    add_matrices,
    add_usages,
    compose_tables,
    eliminate_nodes,
    mark_strategies,
    mark_times,
    merge_nodes,
)

MAX_PAIRS = 2**16  # pairs of strategies of a node that are compared; nodes with more are left as they are


def reduce_problem(problem: ShardingProblem, *, merge: bool = True) -> Reduced:
    """Reduces a problem; an optimum of the result, expanded, is one of the problem.

    Args:
      problem: the problem.
      merge: False to leave out the rules that compare and merge: for measurements of what they bring.

    Raises:
      ProblemError: the problem has no feasible plan, which the rules show; or its costs are too large to be added.
    """
    _check_costs(problem)
    return _reduced(_start(problem), merge)


def restrict_problem(reduced: Reduced, keep: np.ndarray) -> Reduced:
    """Reduces further, without the strategies that `[S] bool` leaves out.

    Raises:
      ProblemError: no feasible plan is left, which the rules show.
    """
    return _reduced(reduced._replace(cost=np.where(keep, reduced.cost, PROHIBITIVE)), True)


def _reduced(reduced: Reduced, merge: bool) -> Reduced:
    """Applies the rules until none changes anything."""
    every = (_binding, _merged, _eliminated)
    # strategies of nodes with thousands of neighbours take long to compare: first these are merged
    for max_pairs, rules in ((0, (_merged,)), (0, every), (MAX_PAIRS, every)) if merge else ((0, ()),):
        reduced = _pruned(reduced, max_pairs)
        before = None
        while before != _counts(reduced):
            before = _counts(reduced)
            for rule in rules:
                reduced = rule(reduced)
            if before != _counts(reduced):
                reduced = _pruned(reduced, max_pairs)
    return _binding(reduced)


def _counts(reduced: Reduced) -> tuple[int, int, int]:
    """Returns the numbers of strategies, of pairs of them, and of times."""
    return len(reduced.cost), len(reduced.edge_cost), len(reduced.room)


def _check_costs(problem: ShardingProblem) -> None:
    """Refuses costs of which sums would be taken for prohibitive ones."""
    most = 0.0
    for cost, offset in ((problem.cost, problem.offset), (problem.edge_cost, problem.edge_offset)):
        if len(cost):
            possible = np.where(cost < PROHIBITIVE, cost, 0).astype(float)
            most += np.maximum.reduceat(possible, offset[:-1]).sum()
    if most >= PROHIBITIVE:
        raise ProblemError(f"costs below 10^18 may add up to {most:.2g}, above 10^18: use a larger unit for costs")


def incidence(groups: int, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the edges of each group: group v's are at `first[v]` to `first[v + 1]` of the second array."""
    ends = np.concatenate([edges[:, 0], edges[:, 1]])
    number = np.concatenate([np.arange(len(edges), dtype=np.int64)] * 2)
    return rows_by(ends, number, groups)


def _start(problem: ShardingProblem) -> Reduced:
    """The problem as groups of one node each, its times those at which no other time has all of its nodes."""
    n = len(problem.offset) - 1
    starts = np.unique(problem.interval[problem.lives, 0])
    ends = np.unique(problem.interval[problem.lives, 1])
    # of the starts between two ends, only the last has all nodes of the others
    passed = np.searchsorted(ends, starts, "right")
    times = starts[np.append(passed[1:] > passed[:-1], True)[: len(starts)]]
    span = np.searchsorted(times, problem.interval)
    user = np.flatnonzero(problem.lives & (span[:, 0] < span[:, 1]))
    sizes = problem.sizes
    usage = problem.usage[np.repeat(np.isin(np.arange(n), user), sizes)]
    blank = Reduced(
        problem.offset, np.minimum(problem.cost, PROHIBITIVE), problem.edges, problem.edge_offset,
        np.minimum(problem.edge_cost, PROHIBITIVE), user, span[user], offsets(sizes[user]), usage,
        np.full(len(times), problem.limit, np.int64), 0, np.arange(n), problem.offset,
        owners(problem.offset)[1], np.zeros(1, np.int64), np.zeros(0, np.int64),
    )  # fmt: skip
    return _follow(blank, np.arange(n), np.append(sizes, 1), blank.table_offset, blank.table)


def _pruned(reduced: Reduced, max_pairs: int) -> Reduced:
    """Without strategies that are not there or not needed; nodes with one strategy are a constant.

    Nodes with more than `max_pairs` pairs of strategies keep those that others dominate.
    """
    while True:
        keep = (reduced.cost < PROHIBITIVE).astype(np.uint8)
        keep[_too_large(reduced)] = 0
        first, edge = incidence(len(reduced.sizes), reduced.edges)
        uses = np.searchsorted(reduced.user, np.arange(len(reduced.sizes) + 1))
        mark_strategies(reduced, first, edge, uses, keep, max_pairs)
        sizes = np.add.reduceat(keep, reduced.offset[:-1], dtype=np.int64) if len(keep) else reduced.sizes
        if (sizes == 0).any() or reduced.constant >= PROHIBITIVE:  # nodes that got one strategy in the same pass
            raise ProblemError("no plan is feasible: prohibitive costs or the memory limit leave a node no strategy")
        if keep.all() and (sizes > 1).all():
            return reduced
        single = sizes == 1
        place = np.where(single, (~single).sum(), np.cumsum(~single) - 1)
        new_sizes = np.append(sizes[~single], 1)
        reduced = _follow(reduced, place, new_sizes, offsets(sizes), owners(reduced.offset)[1][keep.astype(bool)])


def _too_large(reduced: Reduced) -> np.ndarray:
    """Indices of strategies whose bytes do not fit even if all others take their least."""
    if (reduced.room < 0).any():
        raise ProblemError("no plan is feasible: the least bytes of all nodes exceed the memory limit")
    least = _range_minimum(reduced.room, reduced.span)
    item, strategy = owners(reduced.usage_offset)
    wrong = reduced.usage > least[item]
    return reduced.offset[reduced.user[item[wrong]]] + strategy[wrong]


def _range_minimum(values: np.ndarray, span: np.ndarray) -> np.ndarray:
    """Least of `values` in each half-open, non-empty range."""
    levels = [values]
    while 2 ** len(levels) <= len(values):
        half = 2 ** (len(levels) - 1)
        levels.append(np.minimum(levels[-1][:-half], levels[-1][half:]))
    length = span[:, 1] - span[:, 0]
    level = np.frexp(length.astype(float))[1] - 1
    result = np.empty(len(span), np.int64)
    for k, table in enumerate(levels):
        at = level == k
        result[at] = np.minimum(table[span[at, 0]], table[span[at, 1] - 2**k])
    return result


def _merged(reduced: Reduced) -> Reduced:
    """With nodes merged into neighbours that decide them."""
    groups, sizes = len(reduced.sizes), reduced.sizes
    first, edge = incidence(groups, reduced.edges)
    uses = np.searchsorted(reduced.user, np.arange(groups + 1))
    parent, status = np.arange(groups), np.zeros(groups, np.int64)
    # a table of a merged node has an item for each strategy of its parent
    room = int(np.sum(sizes[reduced.edges].max(1))) + len(reduced.cost)
    tables, start = np.empty(room, np.int64), np.zeros(groups, np.int64)
    merge_nodes(reduced, first, edge, uses, parent, status, tables, start)
    return _grouped(reduced, parent, tables, start)


def _grouped(reduced: Reduced, parent: np.ndarray, tables: np.ndarray, start: np.ndarray) -> Reduced:
    """The problem in which groups follow their parents, by tables from `start` on."""
    sizes, is_root = reduced.sizes, parent == np.arange(len(parent))
    place = (np.cumsum(is_root) - 1)[parent]
    table_offset = offsets(sizes[parent])
    group, strategy = owners(table_offset)
    table = np.where(is_root[group], strategy, tables[np.where(is_root[group], 0, start[group] + strategy)])
    return _follow(reduced, place, np.append(sizes[is_root], 1), table_offset, table)


def _eliminated(reduced: Reduced) -> Reduced:
    """With edges in place of nodes whose two neighbours decide them."""
    groups, sizes = len(reduced.sizes), reduced.sizes
    middle, by, ends = _middles(reduced)
    uses = np.searchsorted(reduced.user, np.arange(groups + 1))
    area = sizes[ends].prod(1)
    cost, table = np.empty(area.sum(), np.int64), np.empty(area.sum(), np.int64)
    parent, status, start = np.arange(groups), np.zeros(groups, np.int64), np.zeros(groups, np.int64)
    tables = np.zeros(1 + int(sizes[ends].max(1, initial=0).sum()), np.int64)
    eliminate_nodes(reduced, uses, middle, by, ends, offsets(area), cost, table, parent, status, tables, start)
    goes = parent[middle] != middle
    if not goes.any():
        return reduced
    of_pair = np.repeat(goes, area)
    bridged = _bridged(reduced, middle[goes], by[goes], ends[goes], cost[of_pair], table[of_pair])
    return _grouped(bridged, parent, tables, start)


def _middles(reduced: Reduced) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Groups with two neighbours, `[x]`, their edges, `[x, 2]`, and neighbours, ascending, `[x, 2]`; without those
    that would leave more entries of edges.
    """
    sizes, to_key = reduced.sizes, [len(reduced.sizes), 1]
    first, edge = incidence(len(sizes), reduced.edges)
    middle = np.flatnonzero(np.diff(first) == 2)
    by = edge[first[middle][:, None] + np.arange(2)]
    ends = reduced.edges[by].sum(2) - middle[:, None]
    order = np.argsort(ends, axis=1)
    by, ends = np.take_along_axis(by, order, 1), np.take_along_axis(ends, order, 1)
    small = sizes[ends].prod(1) <= sizes[middle] * sizes[ends].sum(1)
    small |= np.isin(ends @ to_key, reduced.edges @ to_key)
    return middle[small], by[small], ends[small]


def _bridged(
    reduced: Reduced, middle: np.ndarray, by: np.ndarray, ends: np.ndarray, cost: np.ndarray, table: np.ndarray
) -> Reduced:
    """With edges of `cost` between `ends`, in place of edges `by` and the costs of groups `middle`.

    `table` has the strategies of these groups, by those of their ends.
    """
    groups, sizes = len(reduced.sizes), reduced.sizes
    stays = np.ones(len(reduced.edges), bool)
    stays[by] = False
    matrix, area = np.diff(reduced.edge_offset), sizes[ends].prod(1)
    number = np.arange(groups + 1)
    number[middle] = -len(reduced.pair_offset) - np.arange(len(middle))
    end_offset = offsets(sizes[ends].ravel())
    end, strategy = owners(end_offset)
    stride = np.where([True, False], sizes[ends[:, 1:]], 1).ravel()
    return reduced._replace(
        cost=np.where(number[owners(reduced.offset)[0]] < 0, 0, reduced.cost),
        edges=np.concatenate([reduced.edges[stays], ends]),
        edge_offset=offsets(np.append(matrix[stays], area)),
        edge_cost=np.append(reduced.edge_cost[np.repeat(stays, matrix)], cost),
        root=np.append(np.where(reduced.root < 0, reduced.root, number[np.maximum(reduced.root, 0)]), ends),
        table_offset=np.append(reduced.table_offset, reduced.table_offset[-1] + end_offset[1:]),
        table=np.append(reduced.table, strategy * stride[end]),
        pair_offset=np.append(reduced.pair_offset, reduced.pair_offset[-1] + offsets(area)[1:]),
        pair_table=np.append(reduced.pair_table, table),
    )


def _follow(old: Reduced, place: np.ndarray, sizes: np.ndarray, table_offset: np.ndarray, table: np.ndarray) -> Reduced:
    """The problem in which group v of the old one follows group `place[v]`, which has `sizes[place[v]]` strategies.

    The last group of `sizes` has one strategy and becomes the constant.
    """
    groups = len(sizes) - 1
    offset = offsets(sizes)
    cost = np.zeros(offset[-1], np.int64)
    unary = np.zeros(len(old.edges), np.uint8)
    add_costs(old, place, offset, table_offset, table, cost, unary)
    left = np.flatnonzero(unary == 0)
    ends = np.sort(place[old.edges[left]], axis=1)
    keys, number = np.unique(ends[:, 0] * (groups + 1) + ends[:, 1], return_inverse=True)
    edges = np.stack([keys // (groups + 1), keys % (groups + 1)], 1)
    edge_offset = offsets(sizes[edges].prod(1))
    edge_cost = np.zeros(edge_offset[-1], np.int64)
    add_matrices(old, place, offset, table_offset, table, left, number, edge_offset, edge_cost)
    user, span, usage_offset, usage, room = _usages(old, place, offset, table_offset, table)
    root = np.where(old.root < 0, old.root, np.append(place, groups)[np.maximum(old.root, 0)])
    full_offset = offsets(np.where(old.root < 0, np.diff(old.table_offset), sizes[np.maximum(root, 0)]))
    full = np.empty(full_offset[-1], np.int64)
    compose_tables(old, place, table_offset, table, full_offset, full)
    return Reduced(
        offset[:-1], np.minimum(cost[:-1], PROHIBITIVE), edges, edge_offset, np.minimum(edge_cost, PROHIBITIVE), user,
        span, usage_offset, usage, room, old.constant + int(cost[-1]), root, full_offset, full,
        old.pair_offset, old.pair_table,
    )  # fmt: skip


def _usages(
    old: Reduced, place: np.ndarray, offset: np.ndarray, table_offset: np.ndarray, table: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Usages after groups follow others: those of equal intervals are one, and their least goes to the room."""
    times, groups = len(old.room), len(offset) - 2
    key = (place[old.user] * (times + 1) + old.span[:, 0]) * (times + 1) + old.span[:, 1]
    keys, number = np.unique(key, return_inverse=True)
    user = keys // (times + 1) ** 2
    span = np.stack([keys // (times + 1) % (times + 1), keys % (times + 1)], 1)
    usage_offset = offsets(np.diff(offset)[user])
    usage = np.zeros(usage_offset[-1], np.int64)
    add_usages(old, table_offset, table, number, usage_offset, usage)
    least = np.minimum.reduceat(usage, usage_offset[:-1]) if len(user) else np.zeros(0, np.int64)
    change = np.zeros(times + 1, np.int64)
    np.add.at(change, span[:, 0], least)
    np.subtract.at(change, span[:, 1], least)
    sizes = np.diff(usage_offset)
    usage -= np.repeat(least, sizes)
    varies = np.maximum.reduceat(usage, usage_offset[:-1]) > 0 if len(user) else np.zeros(0, bool)
    varies &= user < groups
    return (
        user[varies], span[varies], offsets(sizes[varies]), usage[np.repeat(varies, sizes)],
        old.room - np.cumsum(change)[:-1],
    )  # fmt: skip


def _binding(reduced: Reduced) -> Reduced:
    """Without the times at which all usages fit together, and those at which they fit if they do at another time."""
    sizes = np.diff(reduced.usage_offset)
    most = np.maximum.reduceat(reduced.usage, reduced.usage_offset[:-1]) if len(sizes) else sizes
    change = np.zeros(len(reduced.room) + 1, np.int64)
    np.add.at(change, reduced.span[:, 0], most)
    np.subtract.at(change, reduced.span[:, 1], most)
    reduced = _at_times(reduced, np.cumsum(change)[:-1] > reduced.room)
    while True:
        by_start, by_end = (np.argsort(reduced.span[:, side], kind="stable") for side in (0, 1))
        keep = np.ones(len(reduced.room), np.uint8)
        difference = np.zeros(len(reduced.cost), np.int64)
        mark_times(
            reduced, by_start, by_end, difference, np.zeros(len(reduced.sizes), np.int64),
            np.zeros(len(reduced.sizes), np.uint8), keep,
        )  # fmt: skip
        if keep.all():
            return reduced
        reduced = _at_times(reduced, keep.astype(bool))


def _at_times(reduced: Reduced, keep: np.ndarray) -> Reduced:
    """Without the times that `[T] bool` leaves out; usages that become equal in their intervals are one."""
    span = np.append(0, np.cumsum(keep))[reduced.span]
    left = span[:, 0] < span[:, 1]
    sizes = np.diff(reduced.usage_offset)
    thinned = reduced._replace(
        user=reduced.user[left], span=span[left], usage_offset=offsets(sizes[left]),
        usage=reduced.usage[np.repeat(left, sizes)], room=reduced.room[keep],
    )  # fmt: skip
    groups = len(reduced.sizes)
    offset, table = np.append(reduced.offset, reduced.offset[-1] + 1), owners(reduced.offset)[1]
    user, span, usage_offset, usage, room = _usages(thinned, np.arange(groups), offset, reduced.offset, table)
    return thinned._replace(user=user, span=span, usage_offset=usage_offset, usage=usage, room=room)
