"""Method "anneal": simulated annealing over the topological orders of one device.

Chains at a ladder of temperatures run in parallel on all cores, and the best order that they find within the budget is
the answer. The moves of a chain stay in one window for a while: WIDTH neighbouring places of the order. A move takes
one of its ops and puts it at one of all places of the window between its last predecessor and its first successor. With
A and B the memory while another op runs, if the moved op comes after or before it, the energy at place g is

    E(g)^4 = sum over other ops r before g of f(A_r) + sum over those from g on of f(B_r) + f(at the op itself)

with f(x) = (max(0, x - floor) / scale)^4, the floor a little below the best peak: E is the 4-norm of the excess. It is
near the peak if a single place dominates, and still falls if several do. (Common choices are the peak plus its mean
excess, and single random places.) One sweep over the window computes the energies of all places.

Slice sampling draws the place (Neal 2003). It preserves exp(-E / temperature) and needs no powers: a limit above the
current energy is drawn as for Metropolis' rule, and then one of the places that stay below it.

`MoveBuffers` stores the buffers that moves count, computed once for a graph. A buffer that an op always takes over
(`reuses`, where the op is the source's only user) is one buffer with its source. Where taking over depends on the
order, the moves count the output as allocated, and the exact costs of the finished plan decide.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from graphrl.compiled import announced, entry, inlined, part
from graphrl.compiled.structures import below, uniform
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.plan import Plan
from graphrl.solvers.anneal.driver import Annealing, Pace, temperature_at
from graphrl.solvers.base import Task
from graphrl.solvers.flow import Flow, Usage
from graphrl.solvers.orders.random_orders import Drawing
from graphrl.solvers.rules.memory_orders import memory_orders
from graphrl.solvers.solver import solver

MAX_CHAINS = 1024
STEPS = 256  # number of moves of a chain in a window
PACE = Pace(steps=16, seconds=0.1, first=16)  # a step is a window
RANDOM_STARTS = 64  # number of random orders to choose starts from
MAX_RANDOM_OPS = 5_000  # random orders are far from the best on larger graphs, and slow to draw
START = 2e-3  # first temperature, relative to the best peak, of the chain in the middle of the ladder
FINE = 6.4e-3  # if the buffers' root mean square is a larger part of the peak, the start is hotter by the same factor
COOLING = 16.0  # ratio of the first to the last temperature
SPREAD = 4.0  # ratio of the first temperatures of the hottest and the coldest chain
WIDTH = 128  # number of places in a window
BAND = 0.15  # distance below the best peak where memory starts to add to the energy, relative to that peak
FOCUS = 0.75  # share of windows where the memory is near its peak; the others are anywhere
# Rows are parts of `MoveGraph.rows`; they end at the start of the next record's row.
OP = np.dtype(
    [
        ("kept", np.float64),  # bytes that the op allocates and leaves behind
        ("needed", np.float64),  # bytes in addition to live memory that it needs while it runs
        ("before", np.int64),  # row of predecessors
        ("after", np.int64),  # row of successors
        ("reads", np.int64),  # row of buffers that it may be the last to use
    ],
    align=True,
)
BUFFER = np.dtype([("size", np.float64), ("users", np.int64)], align=True)  # bytes, row of ops


@solver("anneal", "simulated annealing over orders, several chains that start from quick rules", one_device=True)
def solve(task: Task, *, chains: int = 8, starts: Sequence[np.ndarray] = ()) -> Plan:
    """Simulated annealing over orders. An evaluation is one move of one chain, over all its places. Compiling does not
    count.

    Args:
      chains: number of parallel chains, each from another start.
      starts: orders `[n]` of ops to start from, in addition to those of the quick rules.

    Raises:
      ProblemError: chains is out of range.
    """
    if not 1 <= chains <= MAX_CHAINS:
        raise ProblemError(f"chains is {chains}: must be from 1 to {MAX_CHAINS:,}")
    with task.paused_clock():
        prepare()
    limit = task.budget.evaluations
    search = _Orders(task, chains if limit is None else max(1, min(chains, limit // STEPS)), starts)
    search.run()
    return search.plan()


@functools.cache
def prepare() -> None:
    """Compiles annealing, or loads it, once per process."""
    flow = Flow(ComputationGraph("one", (Op("a"),)))
    buffers = MoveBuffers(flow)
    (chain,) = start_chains(np.zeros((1, 1), np.int64), Profile(buffers), np.random.SeedSequence(0).spawn(1))
    with announced(anneal, "anneal"):
        anneal(chain, buffers.arrays(flow), 0, STEPS, 1.0, 1.0)


class Chain(NamedTuple):
    """An order of n ops and its memory."""

    order: np.ndarray  # [n] int64, op at each place
    place: np.ndarray  # [n] int64, of each op
    during: np.ndarray  # [n] float64, bytes while the op at a place runs
    before: np.ndarray  # [n + 1] float64, bytes live before it, and at the end
    best_order: np.ndarray  # [n] int64, the order of least peak among those at the end of a window
    best: np.ndarray  # [1] float64, its peak in bytes
    rng: np.ndarray  # [1] uint64
    gain: np.ndarray  # [WIDTH + 1] float64, work space: see `_energies`
    energy: np.ndarray  # [WIDTH] float64, work space: E^4 at each place of the window, less the part shared by all


class _Orders(Annealing[tuple[Chain, float]]):
    """The chains of one graph, each with its first temperature, and the best order so far by exact peaks."""

    def __init__(self, task: Task, chains: int, starts: Sequence[np.ndarray]) -> None:
        self._task, limit = task, task.budget.evaluations
        flow = Flow(task.graph)
        self._usage = Usage(flow)
        orders = start_orders(flow, self._usage, chains, task.seed, starts)
        self._best, self._peak = orders[0], math.inf
        self._keep(orders)
        task.best = self.plan
        buffers = MoveBuffers(flow)
        self._graph = buffers.arrays(flow)
        coarse = math.sqrt(float(np.mean(buffers.size**2))) / max(1.0, self._peak) if len(buffers.size) else 0.0
        hot = START * max(1.0, coarse / FINE)
        temperatures = hot * SPREAD ** (np.linspace(-0.5, 0.5, chains) if chains > 1 else np.zeros(1))
        states = start_chains(orders, Profile(buffers), np.random.SeedSequence(task.seed).spawn(chains))
        pace = PACE._replace(evaluations=STEPS if limit is None else min(STEPS, limit))
        super().__init__(task, list(zip(states, temperatures.tolist(), strict=True)), pace)

    def plan(self) -> Plan:
        """Returns the best plan so far."""
        return self._task.plan(None, self._best, evaluations=max(1, self.evaluations))

    def walk(self, chain: tuple[Chain, float], steps: int, begin: float, end: float) -> int:
        """Makes the moves of some windows of a chain."""
        state, hot = chain
        temperatures = (temperature_at(hot, hot / COOLING, share) for share in (begin, end))
        anneal(state, self._graph, steps, self.pace.evaluations, *temperatures)
        return steps * self.pace.evaluations

    def value(self) -> float:
        """Returns the objective of the least peak so far."""
        return self._task.order_value(self._peak)

    def after(self, share: float) -> None:
        """Keeps the best order of the chains."""
        self._keep(np.stack([chain.best_order for chain, _ in self.chains]))

    def done(self) -> bool:
        """True if there is no memory to save."""
        return self._peak <= 0

    def _keep(self, orders: np.ndarray) -> None:
        peaks = self._usage.peaks(orders)
        if peaks.min() < self._peak:
            self._best, self._peak = orders[peaks.argmin()].copy(), float(peaks.min())


class MoveGraph(NamedTuple):
    """A graph of n ops and b buffers, in the form that moves read."""

    ops: np.ndarray  # [n + 1] OP
    buffers: np.ndarray  # [b + 1] BUFFER
    rows: np.ndarray  # int64


class MoveBuffers:
    """Buffers of a graph, as the moves count them.

    Attributes:
      writer: `[b]` the op that writes each buffer.
      users: `[b]` lists of the ops that read each buffer.
      size: `[b]` float64, bytes.
      pinned: `[b]` bool, True if the buffer is never freed.
      workspace: `[n]` int64, bytes.
    """

    def __init__(self, flow: Flow) -> None:
        taken: dict[int, int] = {}  # buffer -> the one that it always takes over
        for buffer, source in flow.reuses.items():
            writer = int(flow.graph.arrays.producer[buffer])
            if flow.users[source] == [writer] and not flow.pinned[source] and source not in taken.values():
                taken[buffer] = source
        index: dict[int, int] = {}
        users: list[set[int]] = []
        sizes: list[int] = []
        pinned: list[bool] = []
        self.writer: list[int] = []
        for op in flow.topological:
            for buffer in flow.writes[op]:
                if buffer in taken:
                    index[buffer] = index[taken[buffer]]
                    users[index[buffer]] |= set(flow.users[buffer])
                    pinned[index[buffer]] |= flow.pinned[buffer]
                    continue
                index[buffer] = len(users)
                self.writer.append(op)
                users.append(set(flow.users[buffer]))
                sizes.append(flow.size[buffer])
                pinned.append(flow.pinned[buffer])
        self.users = [sorted(ops) for ops in users]
        self.size, self.pinned = np.array(sizes, np.float64), np.array(pinned, bool)
        self.workspace = flow.graph.arrays.workspace_bytes

    def arrays(self, flow: Flow) -> MoveGraph:
        """Returns the arrays that compiled moves read."""
        n = flow.num_ops
        reads: list[list[int]] = [[] for _ in range(n)]
        ops, buffers = np.zeros(n + 1, OP), np.zeros(len(self.users) + 1, BUFFER)
        buffers["size"][:-1], ops["needed"][:n] = self.size, self.workspace
        np.add.at(ops["needed"], self.writer, self.size)
        for buffer, users in enumerate(self.users):
            if users or self.pinned[buffer]:
                ops["kept"][self.writer[buffer]] += self.size[buffer]
            if self.size[buffer] and not self.pinned[buffer]:
                for user in users:
                    reads[user].append(buffer)
        rows: list[int] = []
        for records, field, lists in (
            (ops, "before", flow.predecessors),
            (ops, "after", flow.successors),
            (ops, "reads", reads),
            (buffers, "users", self.users),
        ):
            records[field] = len(rows) + _begins(lists)
            rows += [entry for row in lists for entry in row]
        return MoveGraph(ops, buffers, np.array(rows, np.int64))


class Profile:
    """Computes the memory along orders, in bytes, as annealing counts it."""

    def __init__(self, buffers: MoveBuffers) -> None:
        self._needed = buffers.workspace.astype(np.float64)  # [n]
        np.add.at(self._needed, buffers.writer, buffers.size)
        kept = [b for b, users in enumerate(buffers.users) if users or buffers.pinned[b]]
        self._writer, self._size = np.array(buffers.writer, np.int64)[kept], buffers.size[kept]
        freed = [b for b in kept if not buffers.pinned[b]]
        self._users = np.array([user for b in freed for user in buffers.users[b]], np.int64)
        self._first = np.cumsum([0, *(len(buffers.users[b]) for b in freed)])[:-1]
        self._freed = buffers.size[freed]

    def __call__(self, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns bytes by place in an order `[n]`: `[n]` during its op, `[n + 1]` live before it and at the end."""
        n = len(order)
        place = np.empty(n, np.int64)
        place[order] = np.arange(n)
        change = np.zeros(n + 1)  # change of live memory by the op before each place
        np.add.at(change, place[self._writer] + 1, self._size)
        if len(self._users):
            np.add.at(change, np.maximum.reduceat(place[self._users], self._first) + 1, -self._freed)
        live = np.cumsum(change)
        return live[:n] + self._needed[order], live


def start_chains(orders: np.ndarray, profile: Profile, seeds: Sequence[np.random.SeedSequence]) -> list[Chain]:
    """Returns chains that start from the orders `[c, n]`."""
    chains = []
    for order, seed in zip(orders, seeds, strict=True):
        during, before = profile(order)
        best = np.array([during.max(initial=0.0)])
        place, work = np.argsort(order), (np.zeros(WIDTH + 1), np.zeros(WIDTH))
        chains.append(
            Chain(order.copy(), place, during, before, order.copy(), best, seed.generate_state(1, np.uint64), *work)
        )
    return chains


@entry
def anneal(c: Chain, w: MoveGraph, windows: int, steps: int, hot: float, cold: float) -> None:
    """Makes the moves of some windows, while the temperature falls geometrically.

    Args:
      c: the chain.
      w: arrays of the graph.
      windows: number of windows.
      steps: number of moves in each window.
      hot, cold: first and last temperature, relative to the best peak.
    """
    n = len(c.order)
    width = min(n, len(c.energy))
    cooling = (cold / hot) ** (1.0 / max(1, windows))
    temperature = hot / BAND
    for _ in range(windows):
        temperature *= cooling
        floor, inverse = (1.0 - BAND) * c.best[0], 1.0 / (BAND * c.best[0])
        start = _start(c, floor, width)
        total = 0.0
        for k in range(n):
            total += _excess(c.during[k], floor, inverse)
        for _ in range(steps):
            x = c.order[start + below(c.rng, width)]
            total = _move(c, w, x, start, start + width, total, floor, inverse, temperature)
        _keep_best(c)


def start_orders(flow: Flow, usage: Usage, chains: int, seed: int, given: Sequence[np.ndarray]) -> np.ndarray:
    """Returns different orders `[c, n]`: the best of the given ones, those of the rules, and random ones. They repeat
    if there are fewer than c.
    """
    orders = [*given, *memory_orders(flow)]
    if flow.num_ops <= MAX_RANDOM_OPS:
        drawn = Drawing(flow).draw(np.random.default_rng(seed), RANDOM_STARTS, by_priority=True)
        assert drawn is not None  # no time limit was given
        orders += list(drawn)
    distinct = np.unique(np.stack(orders), axis=0)
    ranked = distinct[np.argsort(usage.peaks(distinct), kind="stable")]
    return ranked[np.arange(chains) % len(ranked)]


def _begins(lists: Sequence[Sequence[int]]) -> np.ndarray:
    """Returns the starts of consecutive rows, and the end of the last."""
    return np.cumsum([0, *map(len, lists)])


@part
def _start(c: Chain, floor: float, width: int) -> int:
    """Draws the first place of a window: around a place drawn by its excess, or around any place."""
    n = len(c.order)
    middle = below(c.rng, n)
    if uniform(c.rng) < FOCUS:
        total = 0.0
        for k in range(n):
            total += max(0.0, c.during[k] - floor)
        left = total * uniform(c.rng)
        for k in range(n):
            left -= max(0.0, c.during[k] - floor)
            if left <= 0.0:
                middle = k
                break
    return max(0, min(middle - width // 2, n - width))


@inlined
def _excess(num_bytes: float, floor: float, inverse: float) -> float:
    part = max(0.0, num_bytes - floor) * inverse
    return (part * part) * (part * part)


@part
def _move(
    c: Chain,
    w: MoveGraph,
    x: int,
    start: int,
    stop: int,
    total: float,
    floor: float,
    inverse: float,
    temperature: float,
) -> float:
    """Moves op x within places `start` to `stop` - 1; returns the order's new E^4, which was `total`."""
    ops, rows, place, energy = w.ops, w.rows, c.place, c.energy
    here, low, high = place[x], start, stop - 1
    for e in range(ops[x].before, ops[x + 1].before):
        low = max(low, place[rows[e]] + 1)
    for e in range(ops[x].after, ops[x + 1].after):
        high = min(high, place[rows[e]] - 1)
    if low >= high:
        return total
    _energies(c, w, x, low, high, floor, inverse)
    outside = max(0.0, total - energy[here - low])
    limit = np.sqrt(np.sqrt(total)) - temperature * np.log(uniform(c.rng))
    limit = limit * limit * limit * limit - outside
    allowed = 0
    for g in range(high - low + 1):
        allowed += energy[g] <= limit
    choice = below(c.rng, allowed) if allowed else 0
    there = here
    for g in range(high - low + 1):
        if energy[g] <= limit:
            if choice == 0:
                there = low + g
                break
            choice -= 1
    if there != here:
        _shift(c, w, x, there, low)
    return max(0.0, outside + energy[there - low])


@part
def _keep_best(c: Chain) -> None:
    peak = 0.0
    for k in range(len(c.order)):
        peak = max(peak, c.during[k])
    if peak < c.best[0]:
        c.best[0] = peak
        for k in range(len(c.order)):
            c.best_order[k] = c.order[k]


@part
def _energies(c: Chain, w: MoveGraph, x: int, low: int, high: int, floor: float, inverse: float) -> None:
    """Computes the energies of op x at places `low` to `high`, and the gains: by how much the memory at the place of
    another op, from `low` to `high` + 1, is larger if x ran before it (x's outputs, less the inputs that it freed).
    """
    ops, buffers, rows, place, during, before = w.ops, w.buffers, w.rows, c.place, c.during, c.before
    gain, energy = c.gain, c.energy
    here, size = place[x], high - low + 1
    for k in range(size + 1):
        gain[k] = 0.0
    gain[0] = ops[x].kept
    for e in range(ops[x].reads, ops[x + 1].reads):
        buffer = rows[e]
        last = low - 1  # place of the last other op that uses it
        for u in range(buffers[buffer].users, buffers[buffer + 1].users):
            if rows[u] != x:
                last = max(last, place[rows[u]])
        if last <= high:
            gain[last + 1 - low] -= buffers[buffer].size
    later = 0.0  # energy of the ops that run after x, if x goes first
    total_gain = 0.0
    for k in range(size + 1):
        total_gain += gain[k]
        gain[k] = total_gain
        if k < size and low + k != here:
            larger = during[low + k] + (total_gain if low + k < here else 0.0)
            later += _excess(larger, floor, inverse)
    needed, earlier = ops[x].needed, 0.0
    for g in range(size):
        k = g if low + g < here else g + 1  # the op that x goes before
        from_x = 0.0 if low + k <= here else gain[k]  # part of the current memory there that is due to x
        while_x = before[low + k] - from_x + needed
        energy[g] = earlier + later + _excess(while_x, floor, inverse)
        if g + 1 < size:
            without_x = during[low + k] - from_x
            later -= _excess(without_x + gain[k], floor, inverse)
            earlier += _excess(without_x, floor, inverse)


@part
def _shift(c: Chain, w: MoveGraph, x: int, there: int, low: int) -> None:
    """Moves op x to place `there`; the gains are those from place `low` on."""
    order, place, during, before, gain = c.order, c.place, c.during, c.before, c.gain
    here = place[x]
    step = 1 if there > here else -1
    live = before[there] if step < 0 else before[there + 1] - gain[there + 1 - low]
    for k in range(here + step, there + step, step):
        op = order[k]
        order[k - step], place[op] = op, k - step
        during[k - step] = during[k] - step * gain[k - low]
        before[k - step] = before[k] - step * gain[k - low]
    order[there], place[x] = x, there
    before[there], during[there] = live, live + w.ops[x].needed
