"""Annealing of a reduced problem: one group changes its strategy at a time, and memory is a penalty.

The energy is the cost and, for every watched time, its weight times the bytes above the room. Weights rise while the
bytes exceed the room and fall while they do not, so that the search keeps crossing the limit. A plan that is the best
so far is checked at all times; the time at which it fails the most is watched from then on.

Costs of every strategy under the neighbours' present ones are kept up to date: a proposal looks at two of them.
"""

import itertools
from typing import NamedTuple

import numpy as np

from graphrl.compiled import entry, inlined
from graphrl.errors import ProblemError
from graphrl.sharding.problem import owners
from graphrl.sharding.reduce import incidence
from graphrl.sharding.rules import Reduced

MAX_WATCHED = 128  # times that are watched; more replace those that bind least
WATCHED, COST, BEST, RANDOM = range(4)  # of `State.numbers`
MOST = 2**62  # of the sum of all costs of a plan, with its prohibitive ones


class Model(NamedTuple):
    """Arrays of a reduced problem as the compiled functions take them; see `Reduced`.

    Incidence x, of group v: its edge leads to group `other[x]`; the cost of strategies s of v and t of the other is at
    `base[x] + s * own[x] + t * across[x]` of `edge_cost`. Those of v are at `first[v]` to `first[v + 1]`.
    """

    offset: np.ndarray
    cost: np.ndarray
    edge_cost: np.ndarray
    first: np.ndarray
    other: np.ndarray
    base: np.ndarray
    own: np.ndarray
    across: np.ndarray
    user: np.ndarray
    span: np.ndarray
    usage_offset: np.ndarray
    usage: np.ndarray
    room: np.ndarray
    cap: int  # costs from here on are cut to it: plans that cost as much may have a prohibitive cost, and are not kept


class State(NamedTuple):
    """State of an annealing.

    Attributes:
      label: `[g] int64` strategies.
      seen: `[S] int64`, cost of each strategy under the neighbours' labels.
      best: `[g] int64`, the best feasible labels.
      watched: `[MAX_WATCHED] int64` times.
      bytes: `[S, MAX_WATCHED] int64`, of each strategy at each watched time.
      held: `[MAX_WATCHED] int64`, bytes above the room, negative below.
      weight: `[MAX_WATCHED] float64`, cost per byte.
      profile: `[T + 1] int64`, scratch.
      numbers: `[4] int64`: number of watched times, cost, best cost (-1 without one), random state.
    """

    label: np.ndarray
    seen: np.ndarray
    best: np.ndarray
    watched: np.ndarray
    bytes: np.ndarray
    held: np.ndarray
    weight: np.ndarray
    profile: np.ndarray
    numbers: np.ndarray


def model_of(reduced: Reduced) -> Model:
    """Returns the arrays of a reduced problem; prohibitive costs become ones of which no sum overflows."""
    first, edge = incidence(len(reduced.sizes), reduced.edges)
    group = owners(first)[0]
    is_first = reduced.edges[edge, 0] == group
    width = reduced.sizes[reduced.edges[edge, 1]]
    other = np.where(is_first, reduced.edges[edge, 1], reduced.edges[edge, 0])
    cap = MOST // max(1, len(reduced.sizes) + len(reduced.edges))
    return Model(
        reduced.offset, np.minimum(reduced.cost, cap), np.minimum(reduced.edge_cost, cap), first, other,
        reduced.edge_offset[edge], np.where(is_first, width, 1), np.where(is_first, 1, width), reduced.user,
        np.ascontiguousarray(reduced.span), reduced.usage_offset, reduced.usage, reduced.room, cap,
    )  # fmt: skip


def check_costs(model: Model) -> None:
    """Checks that annealing can keep a plan.

    Raises:
      ProblemError: every plan costs as much as prohibitive costs after they are cut.
    """
    least = sum(np.minimum.reduceat(model.cost, model.offset[:-1]).tolist()) if len(model.cost) else 0
    if least >= model.cap:
        raise ProblemError(
            f"every plan costs {least:,} or more, of at most {model.cap:,} here: use a larger unit for costs"
        )


def least_labels(model: Model) -> np.ndarray:
    """Returns the labels of least cost without edges, `[g] int64`."""
    return np.array([model.cost[a:b].argmin() for a, b in itertools.pairwise(model.offset)], np.int64)


def start(model: Model, label: np.ndarray, weight: float, seed: int) -> State:
    """Returns the state of an annealing from `[g]` labels; `weight` is the initial cost per byte."""
    strategies = len(model.cost)
    numbers = np.array([0, 0, -1, np.random.default_rng(seed).integers(1, 2**62)], np.int64)
    state = State(
        label.copy(), np.zeros(strategies, np.int64), label.copy(), np.zeros(MAX_WATCHED, np.int64),
        np.zeros((strategies, MAX_WATCHED), np.int64), np.zeros(MAX_WATCHED, np.int64),
        np.full(MAX_WATCHED, float(weight)), np.zeros(len(model.room) + 1, np.int64), numbers,
    )  # fmt: skip
    place(model, state)
    return state


@inlined
def _random(numbers: np.ndarray) -> float:
    """Next of xorshift64*, as a float in [0, 1)."""
    x = np.uint64(numbers[RANDOM])
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    numbers[RANDOM] = np.int64(x)
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@entry
def place(model: Model, state: State) -> None:
    """Computes costs and bytes of the labels; keeps them if they are the best so far, else watches the worst time."""
    state.numbers[COST] = 0
    for v in range(len(state.label)):
        for s in range(model.offset[v + 1] - model.offset[v]):
            c = model.cost[model.offset[v] + s]
            for x in range(model.first[v], model.first[v + 1]):
                c += model.edge_cost[model.base[x] + s * model.own[x] + state.label[model.other[x]] * model.across[x]]
            state.seen[model.offset[v] + s] = c
        own = model.offset[v] + state.label[v]
        state.numbers[COST] += model.cost[own]
        for x in range(model.first[v], model.first[v + 1]):
            if model.other[x] > v:
                t = state.label[model.other[x]]
                state.numbers[COST] += model.edge_cost[
                    model.base[x] + state.label[v] * model.own[x] + t * model.across[x]
                ]
    for a in range(state.numbers[WATCHED]):
        state.held[a] = -model.room[state.watched[a]]
    for v in range(len(state.label)):
        for a in range(state.numbers[WATCHED]):
            state.held[a] += state.bytes[model.offset[v] + state.label[v], a]
    if _worst(model, state):
        _record(model, state)


@inlined
def _worst(model: Model, state: State) -> bool:
    """True if the labels fit at all times; else the time at which they fail the most is watched."""
    profile, times = state.profile, len(model.room)
    profile[:] = 0
    for u in range(len(model.user)):
        taken = model.usage[model.usage_offset[u] + state.label[model.user[u]]]
        profile[model.span[u, 0]] += taken
        profile[model.span[u, 1]] -= taken
    worst, most, total = -1, 0, 0
    for time in range(times):
        total += profile[time]
        if total - model.room[time] > most:
            worst, most = time, total - model.room[time]
    if worst < 0:
        return True
    for b in range(state.numbers[WATCHED]):
        if state.watched[b] == worst:
            return False
    a = state.numbers[WATCHED]
    if a < len(state.held):
        state.numbers[WATCHED] += 1
    else:  # the time that is farthest from binding makes room
        a = 0
        for b in range(1, len(state.held)):
            if state.weight[b] < state.weight[a]:
                a = b
    heaviest = 0.0
    for b in range(state.numbers[WATCHED]):
        if b != a:
            heaviest = max(heaviest, state.weight[b])
    if heaviest > 0.0:
        state.weight[a] = heaviest
    state.watched[a], state.held[a] = worst, most
    state.bytes[:, a] = 0
    for u in range(len(model.user)):
        if model.span[u, 0] <= worst < model.span[u, 1]:
            v = model.user[u]
            for s in range(model.offset[v + 1] - model.offset[v]):
                state.bytes[model.offset[v] + s, a] += model.usage[model.usage_offset[u] + s]
    return False


@entry
def anneal(
    model: Model, state: State, proposals: int, hot: float, cold: float, rise: float, fall: float, floor: float
) -> None:
    """Runs proposals, while the temperature falls from `hot` to `cold` geometrically.

    Args:
      rise, fall: factors of the weight of a time that fails, and of one that does not, once for each g proposals.
      floor: least weight.
    """
    groups, numbers = len(state.label), state.numbers
    cooling = (cold / hot) ** (groups / max(1, proposals))
    temperature, since, checked, penalty = hot, groups, 0, 0.0
    for step in range(proposals):
        since += 1
        if since >= groups:
            since = 0
            temperature *= cooling
            penalty = 0.0
            for a in range(numbers[WATCHED]):
                state.weight[a] = max(floor, state.weight[a] * (rise if state.held[a] > 0 else fall))
                penalty += state.weight[a] * max(state.held[a], 0)
        v = min(groups - 1, int(_random(numbers) * groups))
        k = model.offset[v + 1] - model.offset[v]
        s = min(k - 2, int(_random(numbers) * (k - 1)))
        if s >= state.label[v]:
            s += 1
        old, new = model.offset[v] + state.label[v], model.offset[v] + s
        change = state.seen[new] - state.seen[old]
        threshold = -temperature * np.log(1.0 - _random(numbers))
        if change - penalty > threshold:
            continue
        gain = 0.0
        over = False
        for a in range(numbers[WATCHED]):
            before = state.held[a]
            after = before + state.bytes[new, a] - state.bytes[old, a]
            over |= after > 0
            gain += state.weight[a] * (max(after, 0) - max(before, 0))
        if change + gain > threshold:
            continue
        _move(model, state, v, s)
        penalty += gain
        if not over and (numbers[BEST] < 0 or numbers[COST] < numbers[BEST]) and step >= checked:
            _record(model, state)
            checked = step + 50


@inlined
def _move(model: Model, state: State, v: int, s: int) -> None:
    """Gives group v strategy s."""
    old, new = model.offset[v] + state.label[v], model.offset[v] + s
    t = state.label[v]
    state.numbers[COST] += state.seen[new] - state.seen[old]
    state.label[v] = s
    for a in range(state.numbers[WATCHED]):
        state.held[a] += state.bytes[new, a] - state.bytes[old, a]
    for x in range(model.first[v], model.first[v + 1]):
        w = model.other[x]
        at, was, stride = model.base[x] + s * model.own[x], model.base[x] + t * model.own[x], model.across[x]
        for j in range(model.offset[w + 1] - model.offset[w]):
            state.seen[model.offset[w] + j] += model.edge_cost[at + j * stride] - model.edge_cost[was + j * stride]


class Scratch(NamedTuple):
    """Working arrays of `blocks`: `[g] int64` each but theta, `[S] float64`, and the groups from which trees grow."""

    block: np.ndarray
    parent: np.ndarray
    inside: np.ndarray
    neighbours: np.ndarray
    chosen: np.ndarray
    theta: np.ndarray
    roots: np.ndarray


def scratch_of(model: Model, roots: np.ndarray | None = None) -> Scratch:
    """Returns working arrays for `blocks`; trees grow from the groups `roots`, by default and if it is empty all."""
    groups = len(model.offset) - 1
    arrays = {name: np.zeros(groups, np.int64) for name in Scratch._fields[:-2]}
    roots = np.arange(groups) if roots is None or not len(roots) else roots
    return Scratch(**arrays, theta=np.zeros(len(model.cost)), roots=roots)


@entry
def blocks(
    model: Model, state: State, scratch: Scratch, rounds: int, largest: int, temperature: float, noise: float
) -> None:
    """Moves whole trees of groups: each gets its best labels, by dynamic programming, under perturbed costs.

    Memory is linear in it: its bytes at watched times, by their weights times a random factor. The tree keeps its new
    labels if the energy accepts them.

    Args:
      largest: most groups of a tree; sizes are log-uniform.
      temperature, noise: of the acceptance, and of the perturbation of costs.
    """
    numbers = state.numbers
    for _ in range(rounds):
        size = int(np.exp(_random(numbers) * np.log(largest + 1.0)))
        count = _grow(model, state, scratch, size + 1)
        factor = np.exp(2.5 * _random(numbers) - 1.5)
        _price(model, state, scratch, count, factor, noise * _random(numbers))
        _choose(model, scratch, count)
        before = _energy(state)
        for y in range(count):
            v = scratch.block[y]
            old = state.label[v]
            if scratch.chosen[v] != old:
                _move(model, state, v, scratch.chosen[v])
            scratch.chosen[v] = old
        after = _energy(state)
        if after - before > -temperature * np.log(1.0 - _random(numbers)):
            for y in range(count):
                v = scratch.block[y]
                if state.label[v] != scratch.chosen[v]:
                    _move(model, state, v, scratch.chosen[v])
        elif after != before:
            _record(model, state)


@inlined
def _energy(state: State) -> float:
    energy = float(state.numbers[COST])
    for a in range(state.numbers[WATCHED]):
        energy += state.weight[a] * max(state.held[a], 0)
    return energy


@inlined
def _record(model: Model, state: State) -> None:
    """Keeps the labels if they are feasible and the best so far."""
    if state.numbers[COST] >= model.cap:
        return
    if state.numbers[BEST] >= 0 and state.numbers[COST] >= state.numbers[BEST]:
        return
    for a in range(state.numbers[WATCHED]):
        if state.held[a] > 0:
            return
    if _worst(model, state):
        state.numbers[BEST] = state.numbers[COST]
        for v in range(len(state.label)):
            state.best[v] = state.label[v]


@inlined
def _grow(model: Model, state: State, scratch: Scratch, size: int) -> int:
    """Grows a random tree without other edges between its groups; `parent` has each one's incidence to its parent."""
    groups = len(state.label)
    block, inside, neighbours = scratch.block, scratch.inside, scratch.neighbours
    block[0] = scratch.roots[min(len(scratch.roots) - 1, int(_random(state.numbers) * len(scratch.roots)))]
    scratch.parent[block[0]] = -1
    count, end = 0, 1  # of the tree, and of the candidates behind it
    while count < end and count < size:
        pick = count + int(_random(state.numbers) * (end - count))
        v = block[pick]
        block[pick] = block[count]
        if neighbours[v] > 1:  # would close a circle
            end -= 1
            block[count] = block[end]
            continue
        block[count] = v
        count += 1
        inside[v] = 1
        for x in range(model.first[v], model.first[v + 1]):
            w = model.other[x]
            neighbours[w] += 1
            if not inside[w] and neighbours[w] == 1:
                if end == groups:
                    continue
                block[end] = w
                end += 1
                scratch.parent[w] = x  # the parent's incidence, towards its child
    for y in range(count):
        v = block[y]
        inside[v] = 0
        for x in range(model.first[v], model.first[v + 1]):
            neighbours[model.other[x]] = 0
    return count


@inlined
def _price(model: Model, state: State, scratch: Scratch, count: int, factor: float, noise: float) -> None:
    """Costs of the tree's strategies under the labels outside of it, with bytes and noise."""
    theta = scratch.theta
    for y in range(count):
        v = scratch.block[y]
        for i in range(model.offset[v], model.offset[v + 1]):
            theta[i] = float(state.seen[i])
            if noise > 0.0:
                theta[i] -= noise * np.log(-np.log(1e-12 + _random(state.numbers) * (1.0 - 2e-12)))
        for a in range(state.numbers[WATCHED]):
            price = factor * state.weight[a]
            for i in range(model.offset[v], model.offset[v + 1]):
                theta[i] += price * state.bytes[i, a]
    for y in range(1, count):
        v = scratch.block[y]
        x = scratch.parent[v]
        p = _origin(model, x, v)
        at = model.base[x] + state.label[p] * model.own[x]
        for i in range(model.offset[v + 1] - model.offset[v]):
            theta[model.offset[v] + i] -= model.edge_cost[at + i * model.across[x]]
        at = model.base[x] + state.label[v] * model.across[x]
        for i in range(model.offset[p + 1] - model.offset[p]):
            theta[model.offset[p] + i] -= model.edge_cost[at + i * model.own[x]]


@inlined
def _origin(model: Model, x: int, v: int) -> int:
    """Group whose incidence x is."""
    low, high = 0, len(model.first) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if model.first[middle] <= x:
            low = middle
        else:
            high = middle
    return low


@inlined
def _choose(model: Model, scratch: Scratch, count: int) -> None:
    """Best labels of the tree: least costs from its leaves to its root, labels back."""
    theta, offset = scratch.theta, model.offset
    for y in range(count - 1, 0, -1):
        v = scratch.block[y]
        x = scratch.parent[v]
        p = _origin(model, x, v)
        k = offset[v + 1] - offset[v]
        for t in range(offset[p + 1] - offset[p]):
            at, stride = model.base[x] + t * model.own[x], model.across[x]
            least = theta[offset[v]] + model.edge_cost[at]
            for s in range(1, k):
                least = min(least, theta[offset[v] + s] + model.edge_cost[at + s * stride])
            theta[offset[p] + t] += least
    for y in range(count):
        v = scratch.block[y]
        x = scratch.parent[v]
        best, least = 0, np.inf
        at, stride = 0, 0
        if y > 0:
            p = _origin(model, x, v)
            at, stride = model.base[x] + scratch.chosen[p] * model.own[x], model.across[x]
        for s in range(offset[v + 1] - offset[v]):
            c = theta[offset[v] + s] + (model.edge_cost[at + s * stride] if y > 0 else 0)
            if c < least:
                best, least = s, c
        scratch.chosen[v] = best
