"""Lower bounds and labels of a reduced problem, by messages on its edges and multipliers of memory.

The dual of the linear relaxation moves costs between groups and edges by messages (TRW-S, Kolmogorov 2006), and prices
bytes at watched times by multipliers. Any messages and multipliers give a bound. All are integers here, in units of
`1 / scale`, so every bound is exact; costs that are divided among edges are rounded down.
"""

from typing import NamedTuple

import numpy as np

from graphrl.compiled import entry, inlined
from graphrl.sharding.moves import WATCHED, Model, State
from graphrl.sharding.problem import offsets, owners

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
    cap = LARGEST // 2**4 // scale
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


def price(model: Model, state: State, messages: Messages, multipliers: np.ndarray) -> int:
    """Sets the prices of bytes: `[watched]` multipliers, cost per byte; returns what the room is worth, scaled.

    The bound of a sweep, less this, is one of the scaled cost.
    """
    watched = int(state.numbers[WATCHED])
    scaled = np.rint(np.minimum(multipliers[:watched] * messages.scale, 2.0**40)).astype(np.int64)
    cap = LARGEST // 2**4 // messages.scale
    messages.theta[:] = np.minimum(model.cost, cap) * messages.scale + state.bytes[:, :watched] @ scaled
    return sum(int(price) * int(model.room[time]) for price, time in zip(scaled, state.watched, strict=False))


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
