"""Reduced, and the compiled loops that make it: which strategies and nodes go, and costs, bytes and tables of the rest.

`place`, `offset`, `table_offset` and `table` are how groups follow others, see `graphrl.sharding.reduce._follow`.
`first` and `edge` are the `incidence` of a problem; usages of group v are at `uses[v]` to `uses[v + 1]`.
"""

from typing import NamedTuple

import numpy as np

from graphrl.compiled import entry, inlined, integer
from graphrl.sharding.problem import PROHIBITIVE, owners

GROWTH = 2  # entries that other edges may gain by a merge, per entry of the edge that it removes


class Reduced(NamedTuple):
    """A reduced problem of g groups of nodes with S strategies in all, m edges, c usages and T times.

    Attributes:
      offset: `[g + 1] int64`, as in `ShardingProblem`, for groups.
      cost: `[S] int64`; no strategy is prohibitive.
      edges: `[m, 2] int64`, the first group below the second, no pair twice.
      edge_offset: `[m + 1] int64`, as in `ShardingProblem`.
      edge_cost: `[C] int64`; `PROHIBITIVE` and above for pairs that are not there.
      user: `[c] int64`, group of each usage, ascending; a group has several if its nodes have other intervals.
      span: `[c, 2] int64`, half-open range of times of each usage.
      usage_offset: `[c + 1] int64`; the bytes of usage i, by strategy of its group, are at `usage_offset[i]` of the
        next. Their least is 0.
      usage: `[..] int64` bytes.
      room: `[T] int64`, bytes that usages may take at each time.
      constant: cost of all that is decided.
      root: `[n + 2 k] int64`, group of each node of the full problem; g for nodes with one strategy, and -1 - j for
        those of eliminated group j. Behind the nodes, the groups of both neighbours of each eliminated one.
      table_offset, table: the strategy of node v, by strategy of its group, is at `table_offset[v]` of `table`. For
        neighbours of eliminated groups it is the offset of the row in the group's part of `pair_table`, and the column.
      pair_offset, pair_table: the strategy of eliminated group j, by those of its neighbours, is at `pair_offset[j]`
        of `pair_table`; k groups in the order of their elimination.
    """

    offset: np.ndarray
    cost: np.ndarray
    edges: np.ndarray
    edge_offset: np.ndarray
    edge_cost: np.ndarray
    user: np.ndarray
    span: np.ndarray
    usage_offset: np.ndarray
    usage: np.ndarray
    room: np.ndarray
    constant: int
    root: np.ndarray
    table_offset: np.ndarray
    table: np.ndarray
    pair_offset: np.ndarray
    pair_table: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """Number of strategies of each group, `[g] int64`."""
        return np.diff(self.offset)

    @property
    def nodes(self) -> int:
        """Number of nodes of the full problem."""
        return len(self.root) - 2 * (len(self.pair_offset) - 1)

    def expand(self, strategies: np.ndarray) -> np.ndarray:
        """Returns the `[n]` strategies of the full problem for `[g]` strategies of the groups."""
        label = np.append(strategies, np.zeros(len(self.pair_offset), np.int64))
        restore_groups(self, label)
        return self.table[self.table_offset[: self.nodes] + label[self.root[: self.nodes]]]

    def project(self, strategies: np.ndarray) -> np.ndarray:
        """Returns the `[g]` strategies of the groups that agree with most of `[n]` strategies of the full problem."""
        node, index = owners(self.table_offset[: self.nodes + 1])
        root = self.root[node]
        agrees = (self.table[: len(node)] == strategies[node]) & (root >= 0) & (root < len(self.sizes))
        count = np.bincount(self.offset[root[agrees]] + index[agrees], minlength=len(self.cost))
        group, strategy = owners(self.offset)
        last = np.lexsort((-strategy, count, group))[self.offset[1:] - 1]
        return strategy[last]


@entry
def restore_groups(reduced: Reduced, label: np.ndarray) -> None:
    """Sets the strategies of eliminated groups, that of group j at `label[-1 - j]`, from the last to the first."""
    count = len(reduced.pair_offset) - 1
    nodes = len(reduced.root) - 2 * count
    for j in range(count - 1, -1, -1):
        at = reduced.pair_offset[j]
        for x in range(nodes + 2 * j, nodes + 2 * j + 2):
            at += reduced.table[reduced.table_offset[x] + label[reduced.root[x]]]
        label[-1 - j] = reduced.pair_table[at]


@entry
def add_costs(
    old: Reduced,
    place: np.ndarray,
    offset: np.ndarray,
    table_offset: np.ndarray,
    table: np.ndarray,
    cost: np.ndarray,
    unary: np.ndarray,
) -> None:
    """Adds costs of groups to those that they follow; and of edges between followers of one group, or a constant."""
    for v in range(len(place)):
        p = place[v]
        for i in range(offset[p + 1] - offset[p]):
            c = cost[offset[p] + i] + old.cost[old.offset[v] + table[table_offset[v] + i]]
            cost[offset[p] + i] = min(c, PROHIBITIVE)
    for e in range(len(old.edges)):
        a, b = old.edges[e, 0], old.edges[e, 1]
        p, q = place[a], place[b]
        k, m, width = offset[p + 1] - offset[p], offset[q + 1] - offset[q], old.offset[b + 1] - old.offset[b]
        if p == q or k == 1 or m == 1:
            unary[e] = 1
            target = q if k == 1 else p
            for i in range(max(k, m)):
                s = table[table_offset[a] + (0 if k == 1 else i)]
                t = table[table_offset[b] + (0 if m == 1 else i)]
                c = cost[offset[target] + i] + old.edge_cost[old.edge_offset[e] + s * width + t]
                cost[offset[target] + i] = min(c, PROHIBITIVE)


@entry
def add_matrices(
    old: Reduced,
    place: np.ndarray,
    offset: np.ndarray,
    table_offset: np.ndarray,
    table: np.ndarray,
    left: np.ndarray,
    number: np.ndarray,
    edge_offset: np.ndarray,
    edge_cost: np.ndarray,
) -> None:
    """Adds matrices of edges to those of the new edges."""
    for x in range(len(left)):
        e = left[x]
        a, b = old.edges[e, 0], old.edges[e, 1]
        width, base = old.offset[b + 1] - old.offset[b], edge_offset[number[x]]
        p, q = place[a], place[b]
        k, m = offset[p + 1] - offset[p], offset[q + 1] - offset[q]
        row, column = (m, 1) if p < q else (1, k)
        for i in range(k):
            s = old.edge_offset[e] + table[table_offset[a] + i] * width
            for j in range(m):
                at = base + i * row + j * column
                edge_cost[at] = min(edge_cost[at] + old.edge_cost[s + table[table_offset[b] + j]], PROHIBITIVE)


@entry
def add_usages(
    old: Reduced,
    table_offset: np.ndarray,
    table: np.ndarray,
    number: np.ndarray,
    usage_offset: np.ndarray,
    usage: np.ndarray,
) -> None:
    for u in range(len(old.user)):
        v, base = old.user[u], usage_offset[number[u]]
        for i in range(usage_offset[number[u] + 1] - base):
            usage[base + i] += old.usage[old.usage_offset[u] + table[table_offset[v] + i]]


@entry
def compose_tables(
    old: Reduced,
    place: np.ndarray,
    table_offset: np.ndarray,
    table: np.ndarray,
    full_offset: np.ndarray,
    full: np.ndarray,
) -> None:
    groups = len(place)
    for v in range(len(old.root)):
        for i in range(full_offset[v + 1] - full_offset[v]):
            s = i if old.root[v] < 0 else 0 if old.root[v] == groups else table[table_offset[old.root[v]] + i]
            full[full_offset[v] + i] = old.table[old.table_offset[v] + s]


@inlined
def _entry_of(reduced: Reduced, e: int, v: int, s: int, t: int) -> int:
    """Index of the cost of edge e if its end v has strategy s and its other end t."""
    b = reduced.edges[e, 1]
    width = reduced.offset[b + 1] - reduced.offset[b]
    return reduced.edge_offset[e] + (t * width + s if b == v else s * width + t)


@inlined
def _takes_less(reduced: Reduced, uses: np.ndarray, v: int, s: int, t: int) -> bool:
    """True if strategy s of group v takes no more bytes than t at any time."""
    usage, offset = reduced.usage, reduced.usage_offset
    for u in range(uses[v], uses[v + 1]):  # noqa: SIM110 (compiled)
        if usage[offset[u] + s] > usage[offset[u] + t]:
            return False
    return True


@entry
def mark_strategies(
    reduced: Reduced, first: np.ndarray, edge: np.ndarray, uses: np.ndarray, keep: np.ndarray, max_pairs: int
) -> None:
    """Sets `keep` to 0 for strategies without a partner on an edge, and for dominated ones."""
    off, cost, edges, ecost = reduced.offset, reduced.cost, reduced.edges, reduced.edge_cost
    for e in range(len(edges)):
        for side in range(2):
            v, w = edges[e, side], edges[e, 1 - side]
            for s in range(off[v + 1] - off[v]):
                partner = False
                for t in range(off[w + 1] - off[w]):
                    if keep[off[w] + t] and ecost[_entry_of(reduced, e, v, s, t)] < PROHIBITIVE:
                        partner = True
                        break
                if not partner:
                    keep[off[v] + s] = 0
    for v in range(len(off) - 1):
        k = off[v + 1] - off[v]
        if k * k > max_pairs:
            continue
        for s in range(k):
            for t in range(k):  # is t at least as good as s?
                if not keep[off[v] + s]:
                    break
                if s == t or not keep[off[v] + t] or not _takes_less(reduced, uses, v, t, s):
                    continue
                gain, fails = cost[off[v] + s] - cost[off[v] + t], False
                for x in range(first[v], first[v + 1]):
                    e = edge[x]
                    w = edges[e, 1] if edges[e, 0] == v else edges[e, 0]
                    least = PROHIBITIVE
                    for j in range(off[w + 1] - off[w]):
                        if keep[off[w] + j]:
                            c = ecost[_entry_of(reduced, e, v, s, j)]
                            d = ecost[_entry_of(reduced, e, v, t, j)]
                            if c < PROHIBITIVE and d >= PROHIBITIVE:
                                fails = True
                                break
                            if c < PROHIBITIVE:
                                least = min(least, c - d)
                    gain += least
                    if fails:
                        break
                    if gain > 2 * PROHIBITIVE:
                        gain = 2 * PROHIBITIVE
                if not fails and gain >= 0:
                    keep[off[v] + s] = 0


@inlined
def _decides(
    reduced: Reduced, uses: np.ndarray, e: int, a: int, b: int, leaf: bool, tables: np.ndarray, at: int
) -> bool:
    """Whether each strategy of group a decides that of group b, which is written to `tables[at:]`."""
    off, cost, ecost = reduced.offset, reduced.cost, reduced.edge_cost
    for i in range(off[a + 1] - off[a]):
        best, least = integer(-1), PROHIBITIVE
        options = 0
        for j in range(off[b + 1] - off[b]):
            c = ecost[_entry_of(reduced, e, a, i, j)]
            if c < PROHIBITIVE:
                options += 1
                c += cost[off[b] + j]
                if best < 0 or c < least or (c == least and _takes_less(reduced, uses, b, j, best)):
                    best, least = j, c
        if best < 0 or (options > 1 and not leaf):
            return False
        if options > 1:
            for j in range(off[b + 1] - off[b]):
                c = ecost[_entry_of(reduced, e, a, i, j)]
                if c < PROHIBITIVE and not _takes_less(reduced, uses, b, best, j):
                    return False
        tables[at + i] = best
    return True


@entry
def merge_nodes(
    reduced: Reduced,
    first: np.ndarray,
    edge: np.ndarray,
    uses: np.ndarray,
    parent: np.ndarray,
    status: np.ndarray,
    tables: np.ndarray,
    start: np.ndarray,
) -> None:
    """Chooses parents of groups that merge (status 2) into others (status 1), with their tables."""
    off, edges, eoff = reduced.offset, reduced.edges, reduced.edge_offset
    at = integer(0)
    for e in range(len(edges)):
        for side in range(2):
            a, b = edges[e, side], edges[e, 1 - side]
            if status[b] != 0 or status[a] == 2:
                continue
            leaf = first[b + 1] - first[b] == 1
            k, m = off[a + 1] - off[a], off[b + 1] - off[b]
            if not leaf and k > m:
                grown = 0
                for x in range(first[b], first[b + 1]):
                    f = edge[x]
                    if f != e:
                        grown += (eoff[f + 1] - eoff[f]) // m * (k - m)
                if grown > GROWTH * k * m:
                    continue
            if _decides(reduced, uses, e, a, b, leaf, tables, at):
                parent[b], status[b], status[a], start[b] = a, 2, 1, at
                at += k
                break


@inlined
def _join(
    reduced: Reduced, uses: np.ndarray, v: int, e: int, f: int, a: int, b: int, at: int, cost: np.ndarray,
    table: np.ndarray,
) -> bool:  # fmt: skip
    """Whether strategies of groups a and b decide that of v, to which edges e and f lead.

    Its costs with both edges are written to `cost[at:]`, row by row, and its strategies to `table[at:]`; -1 for pairs
    that are not there.
    """
    off, ecost = reduced.offset, reduced.edge_cost
    for i in range(off[a + 1] - off[a]):
        for j in range(off[b + 1] - off[b]):
            best, least = integer(-1), PROHIBITIVE
            for s in range(off[v + 1] - off[v]):
                c = ecost[_entry_of(reduced, e, v, s, i)] + ecost[_entry_of(reduced, f, v, s, j)]
                c += reduced.cost[off[v] + s]
                if c < least or (c < PROHIBITIVE and c == least and _takes_less(reduced, uses, v, s, best)):
                    best, least = integer(s), c
            for s in range(off[v + 1] - off[v]):
                c = max(ecost[_entry_of(reduced, e, v, s, i)], ecost[_entry_of(reduced, f, v, s, j)])
                if max(c, reduced.cost[off[v] + s]) < PROHIBITIVE and not _takes_less(reduced, uses, v, best, s):
                    return False
            cost[at], table[at] = least, best
            at += 1
    return True


@inlined
def _representatives(
    reduced: Reduced, uses: np.ndarray, v: int, k: int, m: int, own: int, across: int, table: np.ndarray,
    at: int, result: np.ndarray, start: int,
) -> bool:  # fmt: skip
    """Whether the bytes of v depend on the first of two neighbours alone: a strategy of v for each of its k ones."""
    for i in range(k):
        result[start + i] = -1
        for j in range(m):
            s = table[at + i * own + j * across]
            if s >= 0 and result[start + i] < 0:
                result[start + i] = s
            t = result[start + i]
            if s >= 0 and not (_takes_less(reduced, uses, v, s, t) and _takes_less(reduced, uses, v, t, s)):
                return False
        result[start + i] = max(result[start + i], 0)
    for i in range(k):
        for j in range(m):
            if table[at + i * own + j * across] < 0:
                table[at + i * own + j * across] = result[start + i]
    return True


@entry
def eliminate_nodes(
    reduced: Reduced,
    uses: np.ndarray,
    middle: np.ndarray,
    by: np.ndarray,
    ends: np.ndarray,
    pair_offset: np.ndarray,
    pair_cost: np.ndarray,
    pair_table: np.ndarray,
    parent: np.ndarray,
    status: np.ndarray,
    tables: np.ndarray,
    start: np.ndarray,
) -> None:
    """Chooses groups of `[x]` `middle` that edges between their `ends` replace, and costs and tables of these edges.

    They are as in `merge_nodes` for their bytes, which the strategies of one neighbour decide, the parent.
    """
    at = integer(0)
    for x in range(len(middle)):
        v, a, b, base = middle[x], ends[x, 0], ends[x, 1], pair_offset[x]
        k, m = reduced.offset[a + 1] - reduced.offset[a], reduced.offset[b + 1] - reduced.offset[b]
        if status[v] != 0 or status[a] == 2 or status[b] == 2:
            continue
        if not _join(reduced, uses, v, by[x, 0], by[x, 1], a, b, base, pair_cost, pair_table):
            continue
        if _representatives(reduced, uses, v, k, m, m, integer(1), pair_table, base, tables, at):
            parent[v] = a
        elif _representatives(reduced, uses, v, m, k, integer(1), m, pair_table, base, tables, at):
            parent[v] = b
        else:
            continue
        status[v], status[a], status[b], start[v] = 2, 1, 1, at
        at += max(k, m)


@entry
def mark_times(
    reduced: Reduced,
    by_start: np.ndarray,
    by_end: np.ndarray,
    difference: np.ndarray,
    touched: np.ndarray,
    is_touched: np.ndarray,
    keep: np.ndarray,
) -> None:
    """Sets `keep` to 0 for times at which memory fits if it does at the last time that is kept, or at the next."""
    off, span, room = reduced.offset, reduced.span, reduced.room
    starts = ends = count = reference = integer(0)
    for time in range(len(room)):
        while ends < len(by_end) and span[by_end[ends], 1] <= time:
            count = _change(reduced, by_end[ends], integer(-1), difference, touched, is_touched, count)
            ends += 1
        while starts < len(by_start) and span[by_start[starts], 0] <= time:
            count = _change(reduced, by_start[starts], integer(1), difference, touched, is_touched, count)
            starts += 1
        more = less = 0  # bytes that this time may have above, and below, the reference
        for x in range(count):
            v = touched[x]
            high = low = difference[off[v]]
            for i in range(off[v] + 1, off[v + 1]):
                high, low = max(high, difference[i]), min(low, difference[i])
            more, less = more + high, less - low
        if time > 0 and more <= room[time] - room[reference]:
            keep[time] = 0
            continue
        if time > 0 and less <= room[reference] - room[time]:
            keep[reference] = 0
        reference = time
        for x in range(count):
            v = touched[x]
            is_touched[v] = 0
            difference[off[v] : off[v + 1]] = 0
        count = 0


@inlined
def _change(
    reduced: Reduced, u: int, sign: int, difference: np.ndarray, touched: np.ndarray, is_touched: np.ndarray, count: int
) -> int:
    """Adds a usage to the differences of its group, which becomes one of the touched ones; returns their number."""
    off, base = reduced.offset, reduced.usage_offset[u]
    v = reduced.user[u]
    if not is_touched[v]:
        is_touched[v] = 1
        touched[count] = v
        count += 1
    for i in range(off[v + 1] - off[v]):
        difference[off[v] + i] += sign * reduced.usage[base + i]
    return count
