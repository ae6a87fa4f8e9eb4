"""Compiled simulated annealing of plans whose sends follow by the rule of `plans.py`."""

import functools
import math
from typing import NamedTuple

import numpy as np

from graphrl.compiled import announced, entry, integer, part
from graphrl.compiled.structures import below, uniform
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.solvers.anneal.clusters import Clusters
from graphrl.solvers.anneal.driver import copied, copy_into
from graphrl.solvers.base import PlacedOrder
from graphrl.solvers.sending.plans import Placed, placed, put, walk, with_sends

NAME = "anneal-ops"
WEIGHT = 0.1  # of the mean last clock in the energy
# Shares of the moves: an op, with its group, to another device; then a shift in the order; else several connected ops.
ALONE, SHIFT = 0.45, 0.8


class Chain(NamedTuple):
    """A plan, the best plan, and the ops of the last move."""

    plan: Placed
    device: np.ndarray  # [n] int64, of the best plan
    order: np.ndarray  # [n] int64
    moved: np.ndarray  # [n] int64, ops
    score: np.ndarray  # [2] float64: energy, and the makespan of the best
    rng: np.ndarray  # [1] uint64


def chain(graph: ComputationGraph, problem: Problem, start: PlacedOrder, seed: np.random.SeedSequence) -> Chain:
    """A chain that starts from a plan; the plan's transfers are ignored."""
    prepare()
    plan, n = placed(graph, problem), len(graph.ops)
    made = _chain(plan, seed.generate_state(1, np.uint64))
    place_at(made, start[0], start[1][start[1] < n])
    return made


def another(one: Chain, seed: np.random.SeedSequence) -> Chain:
    """Another chain at the same plan, with its own seed."""
    other = copied(one)
    other.rng[:] = seed.generate_state(1, np.uint64)
    return other


def go_on_from(chain: Chain, other: Chain) -> None:
    """Copies another chain's plan into a chain, which keeps its own best."""
    copy_into(chain.plan, other.plan)
    chain.score[0] = other.score[0]


def _chain(plan: Placed, rng: np.ndarray) -> Chain:
    device, order, moved = np.zeros((3, len(plan.order)), np.int64)
    return Chain(plan, device, order, moved, np.zeros(2), rng)


def place_at(chain: Chain, placement: np.ndarray, ops: np.ndarray) -> float:
    """Sets the chain to a plan, which becomes its best; returns its makespan, seconds."""
    put(chain.plan, placement, ops)
    anneal(chain, 0, 1.0, 1.0)
    return float(chain.score[1])


def best_plan(graph: ComputationGraph, problem: Problem, chain: Chain) -> PlacedOrder:
    """The best plan of a chain, with its transfers."""
    placement = chain.device.copy()
    return placement, with_sends(graph, problem, placement, chain.order.copy())


@functools.cache
def prepare() -> None:
    """Compiles annealing, or loads it, once per process."""
    graph = ComputationGraph("one", (Op("a"),))
    problem = Problem("makespan", 2)
    plan = placed(graph, problem)
    one = _chain(plan, np.zeros(1, np.uint64))
    with announced(anneal, NAME, seconds=4):
        anneal(one, 0, 1.0, 1.0)
        with_sends(graph, problem, np.zeros(1, np.int64), np.zeros(1, np.int64))
        Clusters(graph, problem).of(np.zeros(1, np.int64), 1)


@entry
def makespan(plan: Placed) -> float:
    """Makespan of a plan, seconds."""
    return walk(plan, np.inf)


@entry
def changed_makespans(plan: Placed, moved: np.ndarray, makespans: np.ndarray) -> None:
    """Writes for every op and device `[n, d]` the makespan of the plan with that op, and its group, on that device,
    seconds. It is infinite if longer than the plan's, and the plan's own on the op's device.

    Args:
      moved: `[n]` int64, overwritten.
    """
    ops, now = plan.ops, walk(plan, np.inf)
    for v in range(len(plan.order)):
        was = ops[v].device
        for device in range(plan.devices):
            _place_group(plan, v, device, moved, integer(0))
            makespans[v, device] = now if device == was else walk(plan, now)
        _place_group(plan, v, was, moved, integer(0))


@entry
def climb(plan: Placed, changes: np.ndarray, moved: np.ndarray) -> float:
    """Moves one op after the other, with its group, to another device, and keeps the change if the energy does not
    rise. Returns the final makespan, seconds.

    Args:
      changes: `[k, 2]` int64, ops and devices.
      moved: `[n]` int64, overwritten.
    """
    makespan = walk(plan, np.inf)
    energy = _energy(plan, makespan)
    for i in range(len(changes)):
        v = changes[i, 0]
        was = plan.ops[v].device
        if changes[i, 1] == was:
            continue
        _place_group(plan, v, changes[i, 1], moved, integer(0))
        tried = walk(plan, energy)
        changed = _energy(plan, tried)
        if changed <= energy:
            energy, makespan = changed, tried
        else:
            _place_group(plan, v, was, moved, integer(0))
    return makespan


@entry
def anneal(chain: Chain, moves: int, hot: float, cold: float) -> int:
    """Makes `moves` moves while the temperature, seconds, falls; returns the number of accepted moves. With 0 moves it
    evaluates the current plan, which becomes the best.
    """
    plan, moved, score, rng = chain.plan, chain.moved, chain.score, chain.rng
    n, kept = len(plan.order), 0
    if moves == 0:
        makespan = walk(plan, np.inf)
        score[0], score[1] = _energy(plan, makespan), makespan
        _keep(chain)
        return 0
    for move in range(moves):
        temperature = hot * (cold / hot) ** (move / moves)
        v, kind = below(rng, n), uniform(rng)
        was, count, place = plan.ops[v].device, 0, plan.ops[v].place
        if kind > ALONE and kind <= SHIFT:
            if not _shift(plan, v, rng):
                continue
        else:
            device = _other(plan, v, rng)
            if device == was:
                continue
            count = _place(plan, v, device, kind > SHIFT, moved, rng)
        limit = score[0] - temperature * math.log(uniform(rng))
        makespan = walk(plan, limit)
        energy = _energy(plan, makespan)
        if energy <= limit:
            score[0] = energy
            kept += 1
            if makespan < score[1]:
                score[1] = makespan
                _keep(chain)
        elif count > 0:
            for i in range(count):
                plan.ops[moved[i]].device = was
        else:
            _move(plan, v, place)
    return kept


@part
def _energy(plan: Placed, makespan: float) -> float:
    """Energy of the plan, seconds."""
    total = 0.0
    for device in range(plan.devices):
        total += plan.clocks[device]
    return makespan + WEIGHT * total / plan.devices


@part
def _keep(chain: Chain) -> None:
    for v in range(len(chain.device)):
        chain.device[v], chain.order[v] = chain.plan.ops[v].device, chain.plan.order[v]


@part
def _other(plan: Placed, v: int, rng: np.ndarray) -> int:
    """A device for an op: with chance 2/3 that of a random predecessor or successor, else any."""
    ops, rows = plan.ops, plan.rows
    before, after = ops[v + 1].before - ops[v].before, ops[v + 1].after - ops[v].after
    if before + after > 0 and below(rng, integer(3)) > 0:
        which = below(rng, before + after)
        row = ops[v].before + which if which < before else ops[v].after + which - before
        return ops[rows[row]].device
    return below(rng, integer(plan.devices))


@part
def _place(plan: Placed, v: int, device: int, several: bool, moved: np.ndarray, rng: np.ndarray) -> int:
    """Moves an op to another device. With `several`, ops of its old device before or after it go along, those before or
    after these, and so on. Returns the number of ops that moved, which are in `moved`.
    """
    ops, rows, was = plan.ops, plan.rows, plan.ops[v].device
    count = _place_group(plan, v, device, moved, integer(0))
    if not several:
        return count
    most, seen = 2 + below(rng, integer(14)), integer(0)
    forth = below(rng, integer(2)) == 0
    while seen < count and count < most:
        u = moved[seen]
        seen += 1
        begin, end = (ops[u].after, ops[u + 1].after) if forth else (ops[u].before, ops[u + 1].before)
        for e in range(begin, end):
            w = integer(rows[e])
            if ops[w].device == was and count < most:
                count = _place_group(plan, w, device, moved, count)
    return count


@part
def _place_group(plan: Placed, v: int, device: int, moved: np.ndarray, count: int) -> int:
    """Moves an op and its colocated ops to another device and appends them to `moved`; returns the new count."""
    ops, member = plan.ops, v
    while True:
        ops[member].device = device
        moved[count] = member
        count += 1
        member = ops[member].mate
        if member == v:
            return count


@part
def _shift(plan: Placed, v: int, rng: np.ndarray) -> bool:
    """Moves an op to another place between its predecessors and successors; False if there is no other place."""
    ops, rows = plan.ops, plan.rows
    first, last = integer(0), len(plan.order) - 1
    for e in range(ops[v].before, ops[v + 1].before):
        first = max(first, ops[rows[e]].place + 1)
    for e in range(ops[v].after, ops[v + 1].after):
        last = min(last, ops[rows[e]].place - 1)
    if first >= last:
        return False
    place = first + below(rng, last - first)
    _move(plan, v, place if place < ops[v].place else place + 1)
    return True


@part
def _move(plan: Placed, v: int, place: int) -> None:
    """Moves an op to a place in the order; those between shift by one."""
    ops, order = plan.ops, plan.order
    at = ops[v].place
    step = 1 if place > at else -1
    while at != place:
        order[at] = order[at + step]
        ops[order[at]].place = at
        at += step
    order[at] = v
    ops[v].place = at
