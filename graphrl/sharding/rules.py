"""The compiled loops of the reduction: which strategies and nodes go, and the costs, bytes and tables of what is left.

Arrays are those of `graphrl.sharding.reduce.Reduced`: `off` is `offset`, `eoff` and `ecost` are `edge_offset` and
`edge_cost`, `uoff` is `usage_offset`, `toff` is `table_offset`.
"""

import numpy as np

from graphrl.compiled import entry, inlined


@entry
def add_costs(
    off: np.ndarray,
    cost: np.ndarray,
    edges: np.ndarray,
    eoff: np.ndarray,
    ecost: np.ndarray,
    place: np.ndarray,
    new_off: np.ndarray,
    toff: np.ndarray,
    table: np.ndarray,
    new_cost: np.ndarray,
    unary: np.ndarray,
) -> None:
    """Adds costs of groups to those that they follow; and of edges between followers of one group, or a constant."""
    for v in range(len(place)):
        p = place[v]
        for i in range(new_off[p + 1] - new_off[p]):
            c = new_cost[new_off[p] + i] + cost[off[v] + table[toff[v] + i]]
            new_cost[new_off[p] + i] = min(c, 10**18)
    for e in range(len(edges)):
        a, b = edges[e, 0], edges[e, 1]
        p, q = place[a], place[b]
        k, m, width = new_off[p + 1] - new_off[p], new_off[q + 1] - new_off[q], off[b + 1] - off[b]
        if p == q or k == 1 or m == 1:
            unary[e] = 1
            target = q if k == 1 else p
            for i in range(max(k, m)):
                s = table[toff[a] + (0 if k == 1 else i)]
                t = table[toff[b] + (0 if m == 1 else i)]
                c = new_cost[new_off[target] + i] + ecost[eoff[e] + s * width + t]
                new_cost[new_off[target] + i] = min(c, 10**18)


@entry
def add_matrices(
    off: np.ndarray,
    edges: np.ndarray,
    eoff: np.ndarray,
    ecost: np.ndarray,
    place: np.ndarray,
    new_off: np.ndarray,
    toff: np.ndarray,
    table: np.ndarray,
    left: np.ndarray,
    number: np.ndarray,
    new_eoff: np.ndarray,
    new_ecost: np.ndarray,
) -> None:
    """Adds matrices of edges to those of the new edges."""
    for x in range(len(left)):
        e = left[x]
        a, b = edges[e, 0], edges[e, 1]
        width, base = off[b + 1] - off[b], new_eoff[number[x]]
        p, q = place[a], place[b]
        k, m = new_off[p + 1] - new_off[p], new_off[q + 1] - new_off[q]
        row, column = (m, 1) if p < q else (1, k)
        for i in range(k):
            s = eoff[e] + table[toff[a] + i] * width
            for j in range(m):
                at = base + i * row + j * column
                new_ecost[at] = min(new_ecost[at] + ecost[s + table[toff[b] + j]], 10**18)


@entry
def add_usages(
    user: np.ndarray,
    uoff: np.ndarray,
    usage: np.ndarray,
    toff: np.ndarray,
    table: np.ndarray,
    number: np.ndarray,
    new_uoff: np.ndarray,
    new_usage: np.ndarray,
) -> None:
    for u in range(len(user)):
        v, base = user[u], new_uoff[number[u]]
        for i in range(new_uoff[number[u] + 1] - base):
            new_usage[base + i] += usage[uoff[u] + table[toff[v] + i]]


@entry
def compose_tables(
    root: np.ndarray,
    full_off: np.ndarray,
    full: np.ndarray,
    place: np.ndarray,
    toff: np.ndarray,
    table: np.ndarray,
    new_off: np.ndarray,
    new_full: np.ndarray,
) -> None:
    groups = len(place)
    for v in range(len(root)):
        for i in range(new_off[v + 1] - new_off[v]):
            s = 0 if root[v] == groups else table[toff[root[v]] + i]
            new_full[new_off[v] + i] = full[full_off[v] + s]


@inlined
def _entry_of(edges: np.ndarray, off: np.ndarray, eoff: np.ndarray, e: int, v: int, s: int, t: int) -> int:
    """Index of the cost of edge e if its end v has strategy s and its other end t."""
    b = edges[e, 1]
    width = off[b + 1] - off[b]
    return eoff[e] + (t * width + s if b == v else s * width + t)


@inlined
def _takes_less(uoff: np.ndarray, usage: np.ndarray, uses: np.ndarray, v: int, s: int, t: int) -> bool:
    """True if strategy s of group v takes no more bytes than t at any time."""
    for u in range(uses[v], uses[v + 1]):  # noqa: SIM110 (compiled)
        if usage[uoff[u] + s] > usage[uoff[u] + t]:
            return False
    return True


@entry
def mark_strategies(
    off: np.ndarray,
    cost: np.ndarray,
    edges: np.ndarray,
    eoff: np.ndarray,
    ecost: np.ndarray,
    first: np.ndarray,
    inc: np.ndarray,
    uses: np.ndarray,
    uoff: np.ndarray,
    usage: np.ndarray,
    keep: np.ndarray,
    limits: np.ndarray,
) -> None:
    """Sets `keep` to 0 for strategies without a partner on an edge, and for dominated ones."""
    for e in range(len(edges)):
        for side in range(2):
            v, w = edges[e, side], edges[e, 1 - side]
            for s in range(off[v + 1] - off[v]):
                partner = False
                for t in range(off[w + 1] - off[w]):
                    if keep[off[w] + t] and ecost[_entry_of(edges, off, eoff, e, v, s, t)] < limits[1]:
                        partner = True
                        break
                if not partner:
                    keep[off[v] + s] = 0
    for v in range(len(off) - 1):
        k = off[v + 1] - off[v]
        if k * k > limits[0]:
            continue
        for s in range(k):
            for t in range(k):  # is t at least as good as s?
                if not keep[off[v] + s]:
                    break
                if s == t or not keep[off[v] + t] or not _takes_less(uoff, usage, uses, v, t, s):
                    continue
                gain, fails = cost[off[v] + s] - cost[off[v] + t], False
                for x in range(first[v], first[v + 1]):
                    e = inc[x]
                    w = edges[e, 1] if edges[e, 0] == v else edges[e, 0]
                    least = limits[1]
                    for j in range(off[w + 1] - off[w]):
                        if keep[off[w] + j]:
                            c = ecost[_entry_of(edges, off, eoff, e, v, s, j)]
                            d = ecost[_entry_of(edges, off, eoff, e, v, t, j)]
                            if c < limits[1] and d >= limits[1]:
                                fails = True
                                break
                            if c < limits[1]:
                                least = min(least, c - d)
                    gain += least
                    if fails:
                        break
                    if gain > 2 * limits[1]:
                        gain = 2 * limits[1]
                if not fails and gain >= 0:
                    keep[off[v] + s] = 0


@inlined
def _decides(
    off: np.ndarray,
    cost: np.ndarray,
    edges: np.ndarray,
    eoff: np.ndarray,
    ecost: np.ndarray,
    uses: np.ndarray,
    uoff: np.ndarray,
    usage: np.ndarray,
    e: int,
    a: int,
    b: int,
    leaf: bool,
    tables: np.ndarray,
    at: int,
    prohibitive: int,
) -> bool:
    """Whether each strategy of group a decides that of group b, which is written to `tables[at:]`."""
    for i in range(off[a + 1] - off[a]):
        best, least = -1, prohibitive
        options = 0
        for j in range(off[b + 1] - off[b]):
            c = ecost[_entry_of(edges, off, eoff, e, a, i, j)]
            if c < prohibitive:
                options += 1
                c += cost[off[b] + j]
                if best < 0 or c < least or (c == least and _takes_less(uoff, usage, uses, b, j, best)):
                    best, least = j, c
        if best < 0 or (options > 1 and not leaf):
            return False
        if options > 1:
            for j in range(off[b + 1] - off[b]):
                c = ecost[_entry_of(edges, off, eoff, e, a, i, j)]
                if c < prohibitive and not _takes_less(uoff, usage, uses, b, best, j):
                    return False
        tables[at + i] = best
    return True


@entry
def merge_nodes(
    off: np.ndarray,
    cost: np.ndarray,
    edges: np.ndarray,
    eoff: np.ndarray,
    ecost: np.ndarray,
    first: np.ndarray,
    inc: np.ndarray,
    uses: np.ndarray,
    uoff: np.ndarray,
    usage: np.ndarray,
    parent: np.ndarray,
    status: np.ndarray,
    tables: np.ndarray,
    start: np.ndarray,
    limits: np.ndarray,
) -> None:
    """Chooses parents of groups that merge (status 2) into others (status 1), with their tables."""
    at = 0
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
                    f = inc[x]
                    if f != e:
                        grown += (eoff[f + 1] - eoff[f]) // m * (k - m)
                if grown > limits[0] * k * m:
                    continue
            if _decides(off, cost, edges, eoff, ecost, uses, uoff, usage, e, a, b, leaf, tables, at, limits[1]):
                parent[b], status[b], status[a], start[b] = a, 2, 1, at
                at += k
                break


@entry
def mark_times(
    off: np.ndarray,
    user: np.ndarray,
    span: np.ndarray,
    uoff: np.ndarray,
    usage: np.ndarray,
    room: np.ndarray,
    by_start: np.ndarray,
    by_end: np.ndarray,
    difference: np.ndarray,
    touched: np.ndarray,
    is_touched: np.ndarray,
    keep: np.ndarray,
) -> None:
    """Sets `keep` to 0 for times at which memory fits if it does at the last time that is kept, or at the next."""
    starts = ends = count = reference = 0
    for time in range(len(room)):
        while ends < len(by_end) and span[by_end[ends], 1] <= time:
            count = _change(off, user, uoff, usage, by_end[ends], -1, difference, touched, is_touched, count)
            ends += 1
        while starts < len(by_start) and span[by_start[starts], 0] <= time:
            count = _change(off, user, uoff, usage, by_start[starts], 1, difference, touched, is_touched, count)
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
    off: np.ndarray,
    user: np.ndarray,
    uoff: np.ndarray,
    usage: np.ndarray,
    u: int,
    sign: int,
    difference: np.ndarray,
    touched: np.ndarray,
    is_touched: np.ndarray,
    count: int,
) -> int:
    """Adds a usage to the differences of its group, which becomes one of the touched ones; returns their number."""
    v = user[u]
    if not is_touched[v]:
        is_touched[v] = 1
        touched[count] = v
        count += 1
    for i in range(off[v + 1] - off[v]):
        difference[off[v] + i] += sign * usage[uoff[u] + i]
    return count
