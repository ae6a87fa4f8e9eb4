"""Simulated annealing of placements for `max_load` (method "anneal-load"), and greedy changes, compiled.

`Chain` is a placement of groups with loads that are updated at every shift of a group. `anneal` makes moves of one or
several groups at a falling temperature. `climb` tries given changes one after the other and keeps those that lower the
energy; it also computes the energy of every single change.
"""

import functools
import math
from typing import NamedTuple

import numpy as np

from graphrl.compiled import announced, entry, integer, part
from graphrl.compiled.structures import below, uniform
from graphrl.costs.problem import ACCELERATOR, Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.plan import Plan
from graphrl.solvers.anneal.driver import Annealing, Pace, temperature_at
from graphrl.solvers.base import Task
from graphrl.solvers.loads.groups import Blocks, Groups, placed_plan
from graphrl.solvers.loads.stages import equal_placement
from graphrl.solvers.solver import solver

HOT, COLD = 0.02, 2e-5  # first and last temperature of a round, relative to the first largest load
ROUNDS = 5
PACE = Pace(steps=10_000, pieces=100)
TO_NEIGHBOUR, TO_ANY, SWAP = 0.3, 0.35, 0.75  # cumulative shares: to a neighbour's device, to any, swap of two
MAX_GROUPS = 64  # maximum number of groups that move together, in the rest of the moves
SMOOTH = 4.0  # weight of the loads' norm of order 8 in the energy: many placements have the same largest load
PENALTY = 4.0  # energy of an excess as large as the limit, in mean loads at the least run times
MAX_TRIES = 8  # draws of a neighbour on another device, before a random device is drawn
ROUNDING = 1e-12  # relative, of sums that are added in another order


class Chain(NamedTuple):
    """A placement of b groups on d devices, its costs, and the chain's best placement; nets as in `groups.Groups`."""

    runtime: np.ndarray  # [b, 2] float64, inf where it cannot run
    weight: np.ndarray  # [b] float64, bytes
    nets_start: np.ndarray  # [b + 1] int64, start of each group's nets in `nets`
    nets: np.ndarray  # [y] int64, nets of each group
    ends_start: np.ndarray  # [m + 1] int64, start of each net's groups in `ends`
    ends: np.ndarray  # [y] int64, groups of each net, its producer first
    seconds: np.ndarray  # [m] float64, transfer time of each net
    kinds: np.ndarray  # [d] int64, ACCELERATOR or CPU
    device: np.ndarray  # [b] int64, device of each group
    readers: np.ndarray  # [m, d] int64, number of groups on a device that read a net
    spread: np.ndarray  # [m] int64, number of devices with readers
    load: np.ndarray  # [d] float64, seconds
    weights: np.ndarray  # [d] float64, bytes
    best: np.ndarray  # [b] int64, device of each group in the best placement
    rank: np.ndarray  # [2] float64, excess and largest load of the best placement
    moved: np.ndarray  # [MOST, 2] int64, groups of the move and their old devices
    last_draw: np.ndarray  # [b + 1] int64, the last move that drew a group; last, the number of moves
    rng: np.ndarray  # [1] uint64
    limits: np.ndarray  # [2] float64, memory limit of an accelerator in bytes, and the penalty per byte of excess


@functools.cache
def prepare() -> None:
    """Compiles the chain, or loads it, once per process."""
    groups = Groups.of_ops(ComputationGraph("one", (Op("a"),)), Problem("max_load"))
    with announced(anneal, "anneal-load", seconds=6):
        chain(groups, np.zeros(1, np.int64), np.random.SeedSequence(0))


@solver(
    "anneal-load",
    "max_load: simulated annealing of placements, compiled for the host",
    objectives=("max_load",),
    prepare=prepare,
)
def solve(task: Task, *, rounds: int = ROUNDS, hot: float = HOT, cold: float = COLD, hint: Plan | None = None) -> Plan:
    """Anneals from equal stages, or from the hint. An evaluation is a move.

    Moves take a group of colocated ops to the device of a neighbour or to any, swap two, or take some connected groups.
    The energy is the largest load, some of the norm of order 8 of all loads, and a penalty for bytes over the limit.

    Args:
      rounds: number of times that the temperature falls, each from the chain's current state. Each round settles early
        which devices have the few largest groups.
      hot, cold: first and last temperature of a round, relative to the first largest load.
      hint: a plan to start from.

    Raises:
      ProblemError: an option is out of range, or an op can run nowhere.
    """
    if not 0 < cold <= hot < math.inf:
        raise ProblemError(f"hot is {hot} and cold is {cold}: must be numbers above 0, and cold at most hot")
    if type(rounds) is not int or rounds < 1:
        raise ProblemError(f"rounds is {rounds!r}: must be an integer of at least 1")
    if hint is None:
        first = placed_plan(task, equal_placement(Blocks.of_graph(task.graph, task.problem)), evaluations=1)
    else:
        first = task.as_answer(hint)
    task.best = lambda: first
    search = _Loads(task, first, rounds, hot * first.value, cold * first.value)
    task.best = search.plan
    search.run()
    return search.plan()


class _Loads(Annealing[Chain]):
    """A chain whose temperature falls from `hot` to `cold`, seconds, once per round."""

    def __init__(self, task: Task, first: Plan, rounds: int, hot: float, cold: float) -> None:
        self._task, self._first, self._rounds, self._hot, self._cold = task, first, rounds, hot, cold
        self._groups = Groups.of_ops(task.graph, task.problem)
        device = np.zeros(len(self._groups.weight), np.int64)
        device[self._groups.of] = first.decisions(task.graph)[0]
        super().__init__(task, [chain(self._groups, device, np.random.SeedSequence(task.seed))], PACE, evaluations=1)

    def plan(self) -> Plan:
        """Returns the best plan so far."""
        plan = placed_plan(self._task, self.chains[0].best[self._groups.of], evaluations=self.evaluations)
        return plan if plan.rank <= self._first.rank else self._task.as_answer(self._first, self.evaluations)

    def walk(self, chain: Chain, steps: int, begin: float, end: float) -> int:
        """Makes moves, at the temperatures between two shares of the budget, in the round of the first share."""
        part = self._rounds * begin % 1.0
        shares = part, min(1.0, part + self._rounds * (end - begin))
        anneal(chain, steps, *(temperature_at(self._hot, self._cold, share) for share in shares))
        return steps

    def value(self) -> float:
        """Returns the largest load of the best placement, in seconds."""
        return float(self.chains[0].rank[1])

    def done(self) -> bool:
        """True if no load takes time."""
        return self._hot <= 0


def chain(groups: Groups, device: np.ndarray, seed: np.random.SeedSequence) -> Chain:
    """Returns a chain that starts from a device for each group, `[b]`."""
    incidence, (count, devices) = groups.incidence(), (len(groups.weight), len(groups.kinds))
    nets, limit = len(groups.seconds), groups.limit
    lowest = float(np.minimum(groups.runtime[:, 0], groups.runtime[:, 1]).sum()) / devices
    c = Chain(
        runtime=groups.runtime,
        weight=groups.weight.astype(np.float64),
        nets_start=np.cumsum([0, *map(len, incidence)]),
        nets=np.array([net for row in incidence for net in row], np.int64),
        ends_start=np.cumsum([0, *map(len, groups.ends)]),
        ends=np.array([group for ends in groups.ends for group in ends], np.int64),
        seconds=groups.seconds,
        kinds=groups.kinds,
        device=device.copy(),
        readers=np.zeros((nets, devices), np.int64),
        spread=np.zeros(nets, np.int64),
        load=np.zeros(devices),
        weights=np.zeros(devices),
        best=device.copy(),
        rank=np.full(2, np.inf),
        moved=np.zeros((MAX_GROUPS, 2), np.int64),
        last_draw=np.zeros(count + 1, np.int64),
        rng=seed.generate_state(1, np.uint64),
        limits=np.array([limit, PENALTY * lowest / limit]),
    )
    anneal(c, 0, 1.0, 1.0)
    return c


@entry
def anneal(c: Chain, moves: int, hot: float, cold: float) -> None:
    """Makes `moves` moves while the temperature falls geometrically from `hot` to `cold`, seconds."""
    recount(c)
    largest, excess = largest_load(c), largest_excess(c)
    _keep_best(c, largest, excess)
    energy = energy_of(c, largest, excess)
    cooling = (cold / hot) ** (1.0 / max(1, moves))
    temperature = hot
    for _ in range(moves):
        temperature *= cooling
        count = _draw(c)
        if count == 0:
            continue
        largest, excess = largest_load(c), largest_excess(c)
        new_energy = energy_of(c, largest, excess)
        if new_energy <= energy - temperature * np.log(uniform(c.rng)):
            energy = new_energy
            _keep_best(c, largest, excess)
            continue
        for i in range(count - 1, -1, -1):
            shift(c, c.moved[i, 0], c.moved[i, 1])


@entry
def climb(c: Chain, changes: np.ndarray, energies: np.ndarray) -> None:
    """Tries to move groups to other devices, by `changes` `[k, 2]` int64. Keeps a change if it lowers the energy
    (`energy_of`) and raises neither the largest load nor the excess. Without changes it only costs the placement.

    `energies` `[b, d]`, if it has rows, is filled with the energy after each single move of a group; inf where the
    group cannot run. Afterwards `c.rank` has the costs.
    """
    recount(c)
    largest, excess = largest_load(c), largest_excess(c)
    energy = energy_of(c, largest, excess)
    for row in range(len(changes)):
        group, to = changes[row]
        home = c.device[group]
        if to == home or not np.isfinite(c.runtime[group, c.kinds[to]]):
            continue
        shift(c, group, to)
        new_largest, new_excess = largest_load(c), largest_excess(c)
        new_energy = energy_of(c, new_largest, new_excess)
        if new_energy < energy * (1 - ROUNDING) and new_largest <= largest * (1 + ROUNDING) and new_excess <= excess:
            energy, largest, excess = new_energy, new_largest, new_excess
        else:
            shift(c, group, home)
    c.rank[0], c.rank[1] = excess, largest
    for group in range(len(energies)):
        home = c.device[group]
        for to in range(len(c.load)):
            energies[group, to] = np.inf
            if np.isfinite(c.runtime[group, c.kinds[to]]):
                shift(c, group, to)
                energies[group, to] = energy_of(c, largest_load(c), largest_excess(c))
                shift(c, group, home)


@part
def recount(c: Chain) -> None:
    """Recomputes the loads from scratch, as updated sums drift."""
    for device in range(len(c.load)):
        c.load[device] = c.weights[device] = 0.0
    for group in range(len(c.device)):
        c.load[c.device[group]] += c.runtime[group, c.kinds[c.device[group]]]
        c.weights[c.device[group]] += c.weight[group]
    for net in range(len(c.seconds)):
        c.spread[net] = 0
        home = c.device[c.ends[c.ends_start[net]]]
        for device in range(len(c.load)):
            c.readers[net, device] = 0
        for i in range(c.ends_start[net] + 1, c.ends_start[net + 1]):
            device = c.device[c.ends[i]]
            c.spread[net] += c.readers[net, device] == 0
            c.readers[net, device] += 1
        for device in range(len(c.load)):
            if _charged(c, net, home, device):
                c.load[device] += c.seconds[net]


@part
def _charged(c: Chain, net: int, home: int, device: int) -> bool:
    """True if a device sends or receives a net whose producer is on the device `home`."""
    if c.kinds[device] != ACCELERATOR:
        return False
    here = c.readers[net, device] > 0
    return here if device != home else c.spread[net] > here


@part
def shift(c: Chain, group: int, to: int) -> None:
    """Moves a group to another device."""
    old = c.device[group]
    c.device[group] = to
    c.load[old] -= c.runtime[group, c.kinds[old]]
    c.load[to] += c.runtime[group, c.kinds[to]]
    c.weights[old] -= c.weight[group]
    c.weights[to] += c.weight[group]
    for i in range(c.nets_start[group], c.nets_start[group + 1]):
        net = c.nets[i]
        producer, seconds = c.ends[c.ends_start[net]], c.seconds[net]
        if producer == group:
            c.load[old] += seconds * (integer(_charged(c, net, to, old)) - integer(_charged(c, net, old, old)))
            c.load[to] += seconds * (integer(_charged(c, net, to, to)) - integer(_charged(c, net, old, to)))
            continue
        home = c.device[producer]
        at_old, at_to = integer(_charged(c, net, home, old)), integer(_charged(c, net, home, to))
        at_home = integer(_charged(c, net, home, home))
        c.readers[net, old] -= 1
        c.spread[net] -= c.readers[net, old] == 0
        c.spread[net] += c.readers[net, to] == 0
        c.readers[net, to] += 1
        c.load[old] += seconds * (integer(_charged(c, net, home, old)) - at_old)
        c.load[to] += seconds * (integer(_charged(c, net, home, to)) - at_to)
        if home != old and home != to:
            c.load[home] += seconds * (integer(_charged(c, net, home, home)) - at_home)


@part
def largest_load(c: Chain) -> float:
    largest = c.load[0]
    for device in range(1, len(c.load)):
        largest = max(largest, c.load[device])
    return largest


@part
def largest_excess(c: Chain) -> float:
    excess = 0.0
    for device in range(len(c.load)):
        if c.kinds[device] == ACCELERATOR:
            excess = max(excess, c.weights[device] - c.limits[0])
    return excess


@part
def energy_of(c: Chain, largest: float, excess: float) -> float:
    """Returns the energy in seconds: the largest load, a norm of all loads, and a penalty for the excess."""
    norm = 0.0
    for device in range(len(c.load)):
        ratio = c.load[device] / largest if largest > 0 else 0.0
        square = ratio * ratio
        norm += square * square * square * square
    return largest * (1.0 + SMOOTH * np.sqrt(np.sqrt(np.sqrt(norm / len(c.load))))) + c.limits[1] * excess


@part
def _keep_best(c: Chain, largest: float, excess: float) -> None:
    if excess < c.rank[0] or (excess == c.rank[0] and largest < c.rank[1]):
        c.rank[0], c.rank[1] = excess, largest
        for group in range(len(c.device)):
            c.best[group] = c.device[group]


@part
def _neighbour(c: Chain, group: int) -> int:
    """Returns a random group on one of a group's nets; the group itself if it has no nets."""
    degree = c.nets_start[group + 1] - c.nets_start[group]
    if degree == 0:
        return group
    net = c.nets[c.nets_start[group] + below(c.rng, degree)]
    first = c.ends_start[net]
    return c.ends[first + below(c.rng, c.ends_start[net + 1] - first)]


@part
def _shift_in_move(c: Chain, count: int, group: int, to: int) -> int:
    """Shifts a group as a part of the move; returns the number of groups in the move."""
    if c.device[group] == to or not np.isfinite(c.runtime[group, c.kinds[to]]):
        return count
    c.moved[count, 0], c.moved[count, 1] = group, c.device[group]
    shift(c, group, to)
    return count + 1


@part
def _draw(c: Chain) -> int:
    """Draws and makes a move; returns the number of groups that it moves."""
    u, group = uniform(c.rng), below(c.rng, len(c.device))
    if u < TO_NEIGHBOUR:
        return _shift_in_move(c, 0, group, c.device[_neighbour(c, group)])
    if u < TO_ANY:
        return _shift_in_move(c, 0, group, below(c.rng, len(c.load)))
    if u < SWAP:
        other = below(c.rng, len(c.device))
        old = c.device[group]
        count = _shift_in_move(c, 0, group, c.device[other])
        return _shift_in_move(c, count, other, old) if count else count
    return _draw_cluster(c, group)


@part
def _draw_cluster(c: Chain, group: int) -> int:
    """Moves connected groups of one device to the device of a neighbour of theirs or to any; returns their number."""
    here, size = c.device[group], 2 << below(c.rng, 6)
    to = here
    for _ in range(MAX_TRIES):
        to = c.device[_neighbour(c, group)]
        if to != here:
            break
    if to == here:
        to = below(c.rng, len(c.load))
    if to == here:
        return 0
    c.last_draw[-1] += 1
    number, count = c.last_draw[-1], integer(0)
    for _ in range(2 * min(size, MAX_GROUPS)):
        if c.device[group] == here and c.last_draw[group] != number:
            c.last_draw[group] = number
            count = _shift_in_move(c, count, group, to)
            if count == min(size, MAX_GROUPS):
                break
        other = _neighbour(c, group)
        if c.device[other] == here or c.last_draw[other] == number:
            group = other
    return count
