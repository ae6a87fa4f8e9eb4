"""Simulated annealing as a `Solver`: the best order of one device that its chains find within the budget."""

import dataclasses
import functools
import math
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from graphrl.errors import ProblemError
from graphrl.graphs.padding import bucket
from graphrl.plan import Plan
from graphrl.solvers.base import Task
from graphrl.solvers.flow import Flow
from graphrl.solvers.orders.anneal.moves import LEVELS, Moves, WeighedBuffers, build_moves
from graphrl.solvers.orders.anneal.window import STEPS, Chains, anneal_window
from graphrl.solvers.orders.random_orders import Drawing
from graphrl.solvers.orders.usage import Usage
from graphrl.solvers.rules.memory_orders import memory_orders
from graphrl.solvers.solver import solver

WIDTH = 128  # places of a window
MAX_CHAINS = 1024
CHUNK_SECONDS = 0.25  # of device work between two looks at the clock
CHUNK = 16  # windows, where the budget is in evaluations
RANDOM_STARTS = 64
MAX_RANDOM_OPS = 5_000  # random orders are far from the best on larger graphs, and slow to draw
START = 2e-3  # temperature, a part of the best peak, of the chain in the middle of the ladder
FINE = (
    6.4e-3  # where buffers are larger than this part of the peak (by their root mean square), it is hotter by as much
)
COOLING = 4.0  # from the start to the end
SPREAD = 4.0  # of the start temperatures between the hottest and the coldest chain


@solver("anneal", "simulated annealing over orders, several chains from the orders of quick rules", one_device=True)
def solve(task: Task, *, chains: int = 8, starts: Sequence[np.ndarray] = ()) -> Plan:
    """An evaluation is one move of one chain, weighed at all its places.

    Args:
      chains: that anneal side by side, each from another start.
      starts: orders `[n]` of ops to start from beside the quick rules'.

    Raises:
      ProblemError: chains is out of range.
    """
    if not 1 <= chains <= MAX_CHAINS:
        raise ProblemError(f"chains is {chains}: must be from 1 to {MAX_CHAINS:,}")
    search = _Search(task, chains, starts)
    search.run()
    return search.plan()


class _Search:
    """The chains of one graph, and the best order found so far by exact peaks."""

    def __init__(self, task: Task, chains: int, starts: Sequence[np.ndarray]) -> None:
        self._task = task
        flow = Flow(task.graph)
        self._usage = Usage(flow)
        orders = start_orders(flow, self._usage, chains, task.seed, starts)
        self._best, self._peak = orders[0], math.inf
        self._keep(orders)
        buffers = WeighedBuffers(flow)
        quantum = _quantum(buffers, float(self._usage.peaks(orders).max()))
        self._profile = Profile(buffers, quantum)
        self._moves = build_moves(flow, buffers, quantum)
        self._chains = load(orders, self._profile)
        coarse = math.sqrt(float(np.mean(buffers.size**2))) / max(1.0, self._peak) if len(buffers.size) else 0.0
        self._start = START * max(1.0, coarse / FINE)
        self._key = jax.random.key(task.seed)
        self._evaluations = 0
        task.best = self.plan

    def run(self) -> None:
        """Anneals until the budget is spent. The first window compiles, and cooling starts after it."""
        task, most = self._task, self._task.budget.evaluations
        total = None if most is None else max(1, most // (STEPS * len(self._chains.best)))
        self._advance(0, 1, *task.share(0, total))
        done, windows = 1, 1 if task.budget.seconds is not None else CHUNK
        while (total is None or done < total) and not task.over():
            windows = windows if total is None else min(windows, total - done)
            began, (spent, pace) = time.perf_counter(), task.share(done, total)
            self._advance(done, windows, spent - done * pace, pace)
            done += windows
            task.report(self._evaluations, task.order_value(self._peak))
            if task.budget.seconds is not None:  # else chunks are equal, for the result must not depend on the clock
                windows = max(1, int(CHUNK_SECONDS * windows / (time.perf_counter() - began)))

    def plan(self) -> Plan:
        """The best so far."""
        return self._task.plan(None, self._best, evaluations=max(1, self._evaluations))

    def _advance(self, first: int, windows: int, offset: float, pace: float) -> None:
        c = len(self._chains.best)
        ladder = SPREAD ** (np.arange(c) / max(1, c - 1) - 0.5) if c > 1 else np.ones(1)
        chains = _anneal(
            self._chains,
            self._moves,
            self._key,
            first,
            windows,
            jnp.asarray(self._start * ladder[:, None], jnp.float32),
            offset,
            pace,
            min(WIDTH, self._chains.order.shape[1]),
        )
        self._evaluations += windows * STEPS * c
        self._keep(self._orders(chains.best_order))
        # memory anew, for it is inexact where buffers were left out; the best stays
        fresh = load(self._orders(chains.order), self._profile)
        self._chains = dataclasses.replace(fresh, best_order=chains.best_order, best=chains.best)

    def _orders(self, padded: jax.Array) -> np.ndarray:
        """Orders `[c, n]`: padding may stand between ops."""
        n, orders = len(self._best), np.asarray(padded)
        return orders[orders < n].reshape(len(orders), n).astype(np.int64)

    def _keep(self, orders: np.ndarray) -> None:
        peaks = self._usage.peaks(orders)
        if peaks.min() < self._peak:
            self._best, self._peak = orders[peaks.argmin()], float(peaks.min())


class Profile:
    """The memory along orders, in quanta, on the host: what annealing keeps of its orders. Called at its start, and
    between chunks, where a left-out buffer (moves.py) may have made what it keeps inexact.
    """

    def __init__(self, buffers: WeighedBuffers, quantum: float) -> None:
        size = np.rint(buffers.size / quantum)
        self._needed = np.rint(buffers.workspace / quantum)  # [n]
        np.add.at(self._needed, buffers.writer, size)
        lasting = [b for b, users in enumerate(buffers.users) if users or buffers.pinned[b]]
        self._writer, self._size = np.array(buffers.writer, np.int64)[lasting], size[lasting]
        freed = [b for b in lasting if not buffers.pinned[b]]
        self._users = np.array([user for b in freed for user in buffers.users[b]], np.int64)
        self._first = np.cumsum([0, *(len(buffers.users[b]) for b in freed)])[:-1]
        self._freed = size[freed]

    def __call__(self, orders: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Quanta `[lanes, n]` while the op at each place runs, and `[lanes, n + 1]` live before it and at the end."""
        lanes, n = orders.shape
        position = np.empty((lanes, n), np.int64)
        np.put_along_axis(position, orders, np.arange(n)[None], axis=1)
        lane = np.arange(lanes)[:, None]
        change = np.zeros((lanes, n + 1))  # of live memory, by the op before each place
        np.add.at(change, (lane, position[:, self._writer] + 1), self._size)
        if len(self._users):
            last = np.maximum.reduceat(position[:, self._users], self._first, axis=1)
            np.add.at(change, (lane, last + 1), -self._freed)
        live = np.cumsum(change, axis=1)
        return live[:, :n] + self._needed[orders], live


def load(orders: np.ndarray, profile: Profile) -> Chains:
    """Chains that stand at the orders `[c, n]`, on the device."""
    c, n = orders.shape
    size = bucket(n)
    order = np.full((c, size), size, np.int32)
    order[:, :n] = orders
    place = np.full((c, size + 1), 2 * size, np.int32)
    np.put_along_axis(place, order[:, :n], np.arange(n, dtype=np.int32)[None], axis=1)
    during, before = np.zeros((2, c, size + 3), np.float32)
    during[:, 1 : n + 1], before[:, 1 : n + 2] = profile(orders)
    during[:, n + 1 :], before[:, n + 2 :] = before[:, n + 1 : n + 2], before[:, n + 1 : n + 2]
    best = during[:, 1 : n + 1].max(1)
    return Chains(*(jnp.array(x) for x in (order, place, during, before, order, best)))


def start_orders(flow: Flow, usage: Usage, chains: int, seed: int, given: Sequence[np.ndarray]) -> np.ndarray:
    """Different orders `[c, n]`: the given ones, those of the rules, and random ones, the best."""
    orders = [*given, *memory_orders(flow)]
    if flow.num_ops <= MAX_RANDOM_OPS:
        drawn = Drawing(flow).draw(np.random.default_rng(seed), RANDOM_STARTS, by_priority=True)
        assert drawn is not None  # no time limit was given
        orders += list(drawn)
    distinct = np.unique(np.stack(orders), axis=0)
    ranked = distinct[np.argsort(usage.peaks(distinct), kind="stable")]
    return ranked[np.arange(chains) % len(ranked)]


def _quantum(buffers: WeighedBuffers, peak: float) -> float:
    """Bytes of a quantum: exact where memory then has few enough levels."""
    sizes = np.concatenate([buffers.size, buffers.workspace]).astype(np.int64)
    exact = float(np.gcd.reduce(sizes)) or 1.0
    return max(exact, peak / LEVELS)


@functools.partial(jax.jit, static_argnames=("width",), donate_argnames=("chains",))
def _anneal(
    chains: Chains,
    moves: Moves,
    key: jax.Array,
    first: int,
    windows: int,
    hot: jax.Array,
    offset: float,
    pace: float,
    width: int,
) -> Chains:
    """Some windows from the `first` on; when window i opens, offset + pace * i of the cooling is done."""

    def window(i: jax.Array, chains: Chains) -> Chains:
        spent = jnp.clip(offset + pace * jnp.asarray(i, jnp.float32), 0.0, 1.0)
        temperature = hot * jnp.exp(-spent * math.log(COOLING))
        return anneal_window(chains, moves, jax.random.fold_in(key, i), temperature, width)

    return lax.fori_loop(first, first + windows, window, chains)
