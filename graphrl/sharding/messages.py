"""Lower bounds and labels of a reduced problem, by messages on its edges and multipliers of memory.

The dual of the linear relaxation moves costs between groups and edges by messages (TRW-S, Kolmogorov 2006), and prices
bytes at watched times by multipliers. Any messages and multipliers give a bound. All are integers here, in units of
`1 / scale`, so every bound is exact; costs that are divided among edges are rounded down.
"""

from typing import NamedTuple

import numpy as np

from graphrl.compiled import entry, inlined
from graphrl.sharding.moves import MOST, Model
from graphrl.sharding.problem import PROHIBITIVE, offsets, owners

LARGEST = 2**58  # of scaled costs and their sums


class Messages(NamedTuple):
    """State of the dual.

    Attributes:
      scale: units in a cost of 1.
      theta: `[S] int64`, scaled costs of strategies, with the price of their bytes.
      edge_cost: `[C] int64`, scaled.
      offset: `[2 m + 1] int64`, the message along incidence x, into its group, is at `offset[x]` of `message`.
      message: `int64`, scaled.
      opposite: `[2 m] int64`, the incidence of the same edge at its other end.
      belief: `int64`, scratch.
      label: `[g] int64`, labels by the last sweep.
    """

    scale: int
    theta: np.ndarray
    edge_cost: np.ndarray
    offset: np.ndarray
    message: np.ndarray
    opposite: np.ndarray
    belief: np.ndarray
    label: np.ndarray


def messages_of(model: Model, cost: float) -> Messages:
    """Returns messages of zeros; `cost` is the expected cost of a plan, by which costs are scaled."""
    scale = 2 ** int(np.clip(np.log2(LARGEST / 2**8 / max(1.0, cost)), 0, 20))
    cap = _cap(model, scale)
    sizes = np.diff(model.offset)
    group = owners(model.first)[0]
    offset = offsets(sizes[group])
    low, high = np.minimum(group, model.other), np.maximum(group, model.other)
    order = np.lexsort((group, high, low))  # both incidences of an edge are next to each other
    opposite = np.empty(len(order), np.int64)
    opposite[order[::2]], opposite[order[1::2]] = order[1::2], order[::2]
    return Messages(
        scale, np.minimum(model.cost, cap) * scale, np.minimum(model.edge_cost, cap) * scale, offset,
        np.zeros(offset[-1], np.int64), opposite, np.zeros(int(sizes.max(initial=1)), np.int64),
        np.zeros(len(sizes), np.int64),
    )  # fmt: skip


def _cap(model: Model, scale: int) -> int:
    """Largest cost of a strategy or pair; larger ones are cut to it, so that no sum over a group's edges overflows."""
    return min(LARGEST // 2**4, 8 * LARGEST // int(np.diff(model.first).max(initial=1))) // scale


def price(model: Model, messages: Messages, multipliers: np.ndarray) -> int:
    """Sets the prices of bytes: `[T]` multipliers, cost per byte; returns what the room is worth, scaled.

    The bound of a sweep, less this, is one of the scaled cost. Multipliers with which sums would overflow are reduced.
    """
    scaled = np.minimum(multipliers * messages.scale, 2.0**40)
    scaled = np.rint(scaled * min(1.0, LARGEST / 2 / max(1.0, float(scaled @ model.room)))).astype(np.int64)
    cap = _cap(model, messages.scale)
    messages.theta[:] = np.minimum(model.cost, cap) * messages.scale
    total = np.append(0, np.cumsum(scaled))[model.span]
    _add_prices(model, total[:, 1] - total[:, 0], messages.theta)
    return sum(int(price) * int(room) for price, room in zip(scaled, model.room, strict=True) if price)


@entry
def _add_prices(model: Model, prices: np.ndarray, theta: np.ndarray) -> None:
    """Adds the prices of all usages, `[c]` for each byte, to the costs of strategies."""
    for u in range(len(model.user)):
        if prices[u] > 0:
            first, base = model.offset[model.user[u]], model.usage_offset[u]
            for i in range(model.usage_offset[u + 1] - base):
                theta[first + i] += prices[u] * model.usage[base + i]


@entry
def sweep(model: Model, messages: Messages, forward: bool) -> int:
    """Passes messages from each group to those after it (before it, if not `forward`); returns the scaled bound."""
    groups, bound = len(messages.label), 0
    for q in range(groups):
        v = q if forward else groups - 1 - q
        k = model.offset[v + 1] - model.offset[v]
        belief, labelled = messages.belief, 0
        before = after = 0
        for i in range(k):
            belief[i] = messages.theta[model.offset[v] + i]
        for x in range(model.first[v], model.first[v + 1]):
            if (model.other[x] < v) == forward:
                before += 1
                at, stride = model.base[x] + messages.label[model.other[x]] * model.across[x], model.own[x]
                for i in range(k):
                    belief[i] += messages.edge_cost[at + i * stride]
            else:
                after += 1
                at = messages.offset[x]
                for i in range(k):
                    belief[i] += messages.message[at + i]
        for i in range(1, k):
            if belief[i] < belief[labelled]:
                labelled = i
        messages.label[v] = labelled
        for x in range(model.first[v], model.first[v + 1]):
            if (model.other[x] < v) == forward:
                at, stride = model.base[x] + messages.label[model.other[x]] * model.across[x], model.own[x]
                for i in range(k):
                    belief[i] += messages.message[messages.offset[x] + i] - messages.edge_cost[at + i * stride]
        least = belief[0]
        for i in range(1, k):
            least = min(least, belief[i])
        bound += least
        parts = max(before, after)
        for i in range(k):
            belief[i] = (belief[i] - least) // max(1, parts)
        for x in range(model.first[v], model.first[v + 1]):
            w = model.other[x]
            if (w < v) != forward:
                bound += _send(model, messages, x, k, model.offset[w + 1] - model.offset[w])
    return bound


@inlined
def _send(model: Model, messages: Messages, x: int, k: int, width: int) -> int:
    """Sets the message against incidence x by the belief of its group; returns its least, which is taken off."""
    own, across, base, belief = model.own[x], model.across[x], model.base[x], messages.belief
    to, back = messages.offset[messages.opposite[x]], messages.offset[x]
    message, edge_cost = messages.message, messages.edge_cost
    for t in range(width):
        message[to + t] = belief[0] - message[back] + edge_cost[base + t * across]
    if across == 1:
        for i in range(1, k):
            c, at = belief[i] - message[back + i], base + i * own
            for t in range(width):
                message[to + t] = min(message[to + t], c + edge_cost[at + t])
    else:
        for t in range(width):
            at, best = base + t * across, message[to + t]
            for i in range(1, k):
                best = min(best, belief[i] - message[back + i] + edge_cost[at + i * own])
            message[to + t] = best
    least = message[to]
    for t in range(1, width):
        least = min(least, message[to + t])
    for t in range(width):
        message[to + t] -= least
    return least


@entry
def tighten(model: Model, messages: Messages, forward: bool, lower: np.ndarray) -> int:
    """Raises `[S]` lower bounds of the scaled cost of plans with each strategy; returns a bound of all plans.

    The bound of any messages is the sum of the least of each group and of each edge under them. Group by group, all
    that edges have left moves to the group, whose strategies then differ by what they add to the bound, and on to the
    edges to later groups (SRMP, Kolmogorov 2015).
    """
    groups, bound, belief = len(messages.label), 0, messages.belief
    for v in range(groups):
        bound += _gather(model, messages, v)
        for x in range(model.first[v], model.first[v + 1]):
            if model.other[x] > v:
                bound += _pull(model, messages, v, x, False)
    for q in range(groups):
        v = q if forward else groups - 1 - q
        k, first, after = model.offset[v + 1] - model.offset[v], model.offset[v], 0
        bound -= _gather(model, messages, v)
        for x in range(model.first[v], model.first[v + 1]):
            bound -= _pull(model, messages, v, x, True)
            if (model.other[x] < v) != forward:
                after += 1
        least = _gather(model, messages, v)
        bound += least
        for i in range(k):
            belief[i] -= least
            lower[first + i] = max(lower[first + i], bound + belief[i])
            belief[i] //= after + 1
        for x in range(model.first[v], model.first[v + 1]):
            if (model.other[x] < v) != forward:
                for i in range(k):
                    messages.message[messages.offset[x] + i] -= belief[i]
    return bound


@inlined
def _gather(model: Model, messages: Messages, v: int) -> int:
    """Computes the beliefs of group v, the costs of its strategies with all messages; returns the least."""
    k, belief = model.offset[v + 1] - model.offset[v], messages.belief
    for i in range(k):
        belief[i] = messages.theta[model.offset[v] + i]
    for x in range(model.first[v], model.first[v + 1]):
        for i in range(k):
            belief[i] += messages.message[messages.offset[x] + i]
    least = belief[0]
    for i in range(1, k):
        least = min(least, belief[i])
    return least


@inlined
def _pull(model: Model, messages: Messages, v: int, x: int, moves: bool) -> int:
    """Returns the least that incidence x of group v has left; if `moves`, moves what each strategy has left to v."""
    w = model.other[x]
    own, across, message = model.own[x], model.across[x], messages.message
    back, to = messages.offset[x], messages.offset[messages.opposite[x]]
    least = MOST
    for i in range(model.offset[v + 1] - model.offset[v]):
        at, row = model.base[x] + i * own, MOST
        for t in range(model.offset[w + 1] - model.offset[w]):
            row = min(row, messages.edge_cost[at + t * across] - message[to + t])
        row -= message[back + i]
        least = min(least, row)
        if moves:
            message[back + i] += row
    return least


@entry
def mark_pairs(model: Model, messages: Messages, bound: int, most: int, edge_cost: np.ndarray) -> None:
    """Sets `[C]` costs to `PROHIBITIVE` for pairs of strategies without a plan of at most the scaled cost `most`.

    `bound` is that of the messages, from `tighten`.
    """
    for v in range(len(messages.label)):
        k = model.offset[v + 1] - model.offset[v]
        least = _gather(model, messages, v)
        for x in range(model.first[v], model.first[v + 1]):
            w = model.other[x]
            back, to = messages.offset[x], messages.offset[messages.opposite[x]]
            slack = most - bound + _pull(model, messages, v, x, False) + least
            for i in range(k):
                for t in range(model.offset[w + 1] - model.offset[w]):
                    at = model.base[x] + i * model.own[x] + t * model.across[x]
                    left = messages.edge_cost[at] - messages.message[back + i] - messages.message[to + t]
                    if left + messages.belief[i] > slack:
                        edge_cost[at] = PROHIBITIVE
