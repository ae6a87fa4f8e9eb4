"""Compiled simulated annealing of plans whose transfers are determined by the rule of `plans.py`."""

import functools
import math
from typing import NamedTuple

import numpy as np

from graphrl.compiled import announced, entry, integer, part
from graphrl.compiled.structures import below, uniform
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.solvers.anneal.clusters import Clusters
from graphrl.solvers.anneal.driver import copy_arrays, copy_into
from graphrl.solvers.base import PlacedOrder
from graphrl.solvers.transfer_rules.plans import OpPlan, op_plan, set_plan, walk, with_transfers

NAME = "anneal-ops"
WEIGHT = 0.1  # weight of the mean last clock in the energy
# Cumulative shares of moves: an op and its group to another device; a shift in the order; else several connected ops.
SINGLE, SHIFT = 0.45, 0.8


class Chain(NamedTuple):
    """A plan, the best plan, and the ops of the last move."""

    plan: OpPlan
    device: np.ndarray  # [n] int64, devices of the best plan
    order: np.ndarray  # [n] int64, order of the best plan
    moved: np.ndarray  # [n] int64, ops of the last move
    score: np.ndarray  # [2] float64: energy of the plan, and makespan of the best plan
    rng: np.ndarray  # [1] uint64


def chain(graph: ComputationGraph, problem: Problem, start: PlacedOrder, seed: np.random.SeedSequence) -> Chain:
    """Returns a chain that starts from a plan; the plan's transfers are ignored."""
    prepare()
    plan, n = op_plan(graph, problem), len(graph.ops)
    new_chain = _chain(plan, seed.generate_state(1, np.uint64))
    set_chain(new_chain, start[0], start[1][start[1] < n])
    return new_chain


def copy_chain(one: Chain, seed: np.random.SeedSequence) -> Chain:
    """Copies a chain and gives the copy its own seed."""
    other = copy_arrays(one)
    other.rng[:] = seed.generate_state(1, np.uint64)
    return other


def copy_plan(chain: Chain, other: Chain) -> None:
    """Copies another chain's plan into a chain, which keeps its own best."""
    copy_into(chain.plan, other.plan)
    chain.score[0] = other.score[0]


def _chain(plan: OpPlan, rng: np.ndarray) -> Chain:
    device, order, moved = np.zeros((3, len(plan.order)), np.int64)
    return Chain(plan, device, order, moved, np.zeros(2), rng)


def set_chain(chain: Chain, placement: np.ndarray, ops: np.ndarray) -> float:
    """Sets the chain to a plan, which becomes its best plan; returns the plan's makespan in seconds."""
    set_plan(chain.plan, placement, ops)
    anneal(chain, 0, 1.0, 1.0)
    return float(chain.score[1])


def best_plan(graph: ComputationGraph, problem: Problem, chain: Chain) -> PlacedOrder:
    """Returns the best plan of a chain, with its transfers."""
    placement = chain.device.copy()
    return placement, with_transfers(graph, problem, placement, chain.order.copy())


@functools.cache
def prepare() -> None:
    """Compiles annealing, or loads it, once per process."""
    graph = ComputationGraph("one", (Op("a"),))
    problem = Problem("makespan", 2)
    plan = op_plan(graph, problem)
    one = _chain(plan, np.zeros(1, np.uint64))
    with announced(anneal, NAME, seconds=4):
        anneal(one, 0, 1.0, 1.0)
        with_transfers(graph, problem, np.zeros(1, np.int64), np.zeros(1, np.int64))
        Clusters(graph, problem).of(np.zeros(1, np.int64), 1)


@entry
def makespan(plan: OpPlan) -> float:
    """Computes the makespan of a plan, in seconds."""
    return walk(plan, np.inf)


@entry
def neighbour_makespans(plan: OpPlan, moved: np.ndarray, makespans: np.ndarray) -> None:
    """Writes for every op and device `[n, d]` the makespan of the plan with that op, and its group, on that device, in
    seconds. It is infinite if longer than the plan's, and the plan's own on the op's device.

    Args:
      moved: `[n]` int64, overwritten.
    """
    ops, now = plan.ops, walk(plan, np.inf)
    for v in range(len(plan.order)):
        old = ops[v].device
        for device in range(plan.devices):
            _move_group(plan, v, device, moved, integer(0))
            makespans[v, device] = now if device == old else walk(plan, now)
        _move_group(plan, v, old, moved, integer(0))


@entry
def climb(plan: OpPlan, changes: np.ndarray, moved: np.ndarray) -> float:
    """Tries to move ops, one after the other and each with its group, to other devices; keeps a change if the energy
    does not rise. Returns the final makespan, seconds.

    Args:
      changes: `[k, 2]` int64, an op and its new device.
      moved: `[n]` int64, overwritten.
    """
    makespan = walk(plan, np.inf)
    energy = _energy(plan, makespan)
    for i in range(len(changes)):
        v = changes[i, 0]
        old = plan.ops[v].device
        if changes[i, 1] == old:
            continue
        _move_group(plan, v, changes[i, 1], moved, integer(0))
        new_makespan = walk(plan, energy)
        new_energy = _energy(plan, new_makespan)
        if new_energy <= energy:
            energy, makespan = new_energy, new_makespan
        else:
            _move_group(plan, v, old, moved, integer(0))
    return makespan


@entry
def anneal(chain: Chain, moves: int, hot: float, cold: float) -> int:
    """Makes `moves` moves while the temperature, in seconds, falls from `hot` to `cold`; returns the number of accepted
    moves. With 0 moves it evaluates the current plan, which becomes the best.
    """
    plan, moved, score, rng = chain.plan, chain.moved, chain.score, chain.rng
    n, accepted = len(plan.order), 0
    if moves == 0:
        makespan = walk(plan, np.inf)
        score[0], score[1] = _energy(plan, makespan), makespan
        _keep_best(chain)
        return 0
    for move in range(moves):
        temperature = hot * (cold / hot) ** (move / moves)
        v, kind = below(rng, n), uniform(rng)
        old, count, place = plan.ops[v].device, 0, plan.ops[v].place
        if kind > SINGLE and kind <= SHIFT:
            if not _shift(plan, v, rng):
                continue
        else:
            device = _draw_device(plan, v, rng)
            if device == old:
                continue
            count = _move_ops(plan, v, device, kind > SHIFT, moved, rng)
        limit = score[0] - temperature * math.log(uniform(rng))
        makespan = walk(plan, limit)
        energy = _energy(plan, makespan)
        if energy <= limit:
            score[0] = energy
            accepted += 1
            if makespan < score[1]:
                score[1] = makespan
                _keep_best(chain)
        elif count > 0:
            for i in range(count):
                plan.ops[moved[i]].device = old
        else:
            _move(plan, v, place)
    return accepted


@part
def _energy(plan: OpPlan, makespan: float) -> float:
    """Returns the energy of the plan, in seconds, from its makespan and the clocks of the last walk."""
    total = 0.0
    for device in range(plan.devices):
        total += plan.clocks[device]
    return makespan + WEIGHT * total / plan.devices


@part
def _keep_best(chain: Chain) -> None:
    for v in range(len(chain.device)):
        chain.device[v], chain.order[v] = chain.plan.ops[v].device, chain.plan.order[v]


@part
def _draw_device(plan: OpPlan, v: int, rng: np.ndarray) -> int:
    """Draws a device for an op: with probability 2/3 that of a random predecessor or successor, else any."""
    ops, rows = plan.ops, plan.rows
    before, after = ops[v + 1].before - ops[v].before, ops[v + 1].after - ops[v].after
    if before + after > 0 and below(rng, integer(3)) > 0:
        neighbour = below(rng, before + after)
        row = ops[v].before + neighbour if neighbour < before else ops[v].after + neighbour - before
        return ops[rows[row]].device
    return below(rng, integer(plan.devices))


@part
def _move_ops(plan: OpPlan, v: int, device: int, several: bool, moved: np.ndarray, rng: np.ndarray) -> int:
    """Moves an op to another device. With `several`, ops of its old device before or after it go along, those before or
    after these, and so on. Returns the number of ops that moved, which are in `moved`.
    """
    ops, rows, old = plan.ops, plan.rows, plan.ops[v].device
    count = _move_group(plan, v, device, moved, integer(0))
    if not several:
        return count
    max_count, expanded = 2 + below(rng, integer(14)), integer(0)
    forward = below(rng, integer(2)) == 0
    while expanded < count and count < max_count:
        u = moved[expanded]
        expanded += 1
        begin, end = (ops[u].after, ops[u + 1].after) if forward else (ops[u].before, ops[u + 1].before)
        for e in range(begin, end):
            w = integer(rows[e])
            if ops[w].device == old and count < max_count:
                count = _move_group(plan, w, device, moved, count)
    return count


@part
def _move_group(plan: OpPlan, v: int, device: int, moved: np.ndarray, count: int) -> int:
    """Moves an op and its colocated ops to another device and appends them to `moved`; returns the new count."""
    ops, member = plan.ops, v
    while True:
        ops[member].device = device
        moved[count] = member
        count += 1
        member = ops[member].next_member
        if member == v:
            return count


@part
def _shift(plan: OpPlan, v: int, rng: np.ndarray) -> bool:
    """Moves an op to a random other place between its predecessors and successors; False if there is no other place."""
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
def _move(plan: OpPlan, v: int, place: int) -> None:
    """Moves an op to a place in the order; the ops between shift by one."""
    ops, order = plan.ops, plan.order
    at = ops[v].place
    step = 1 if place > at else -1
    while at != place:
        order[at] = order[at + step]
        ops[order[at]].place = at
        at += step
    order[at] = v
    ops[v].place = at
