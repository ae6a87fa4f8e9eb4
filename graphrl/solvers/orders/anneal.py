"""Method "anneal": simulated annealing over the topological orders of one device.

Chains run in parallel on all cores, and the best order that they find within the budget is the answer. With evaluations
alone a run depends on nothing else.
"""

import functools
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from graphrl.compiled import announced
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.plan import Plan
from graphrl.process import count_cores
from graphrl.solvers.base import Task
from graphrl.solvers.flow import Flow
from graphrl.solvers.orders.random_orders import Drawing
from graphrl.solvers.orders.usage import Usage
from graphrl.solvers.orders.window import WIDTH, Chain, WeighedBuffers, anneal
from graphrl.solvers.rules.memory_orders import memory_orders
from graphrl.solvers.solver import solver

MAX_CHAINS = 1024
STEPS = 256  # moves of a chain in a window
CHUNK_SECONDS = 0.1  # of work between two looks at the clock
CHUNK = 16  # windows, where the budget is in evaluations
RANDOM_STARTS = 64
MAX_RANDOM_OPS = 5_000  # random orders are far from the best on larger graphs, and slow to draw
START = 2e-3  # temperature, a part of the best peak, of the chain in the middle of the ladder
FINE = (
    6.4e-3  # where buffers are larger than this part of the peak (by their root mean square), it is hotter by as much
)
COOLING = 16.0  # from the start to the end
SPREAD = 4.0  # of the start temperatures between the hottest and the coldest chain


@solver("anneal", "simulated annealing over orders, several chains from the orders of quick rules", one_device=True)
def solve(task: Task, *, chains: int = 8, starts: Sequence[np.ndarray] = ()) -> Plan:
    """An evaluation is one move of one chain, weighed at all its places. Compiling does not count.

    Args:
      chains: that anneal side by side, each from another start.
      starts: orders `[n]` of ops to start from beside the quick rules'.

    Raises:
      ProblemError: chains is out of range.
    """
    if not 1 <= chains <= MAX_CHAINS:
        raise ProblemError(f"chains is {chains}: must be from 1 to {MAX_CHAINS:,}")
    with task.uncounted():
        prepare()
    most = task.budget.evaluations
    search = _Search(task, chains if most is None else max(1, min(chains, most // STEPS)), starts)
    search.run()
    return search.plan()


@functools.cache
def prepare() -> None:
    """Compiles annealing, or loads it, once in a process."""
    flow = Flow(ComputationGraph("one", (Op("a"),)))
    buffers = WeighedBuffers(flow)
    (chain,) = load(np.zeros((1, 1), np.int64), Profile(buffers), np.random.SeedSequence(0).spawn(1))
    with announced(anneal, "anneal"):
        anneal(chain, buffers.arrays(flow), 0, STEPS, 1.0, 1.0)


class _Search:
    """The chains of one graph, and the best order so far by exact peaks."""

    def __init__(self, task: Task, chains: int, starts: Sequence[np.ndarray]) -> None:
        self._task = task
        flow = Flow(task.graph)
        self._usage = Usage(flow)
        orders = start_orders(flow, self._usage, chains, task.seed, starts)
        self._best, self._peak, self._evaluations = orders[0], math.inf, 0
        self._keep(orders)
        task.best = self.plan
        buffers = WeighedBuffers(flow)
        self._weighed = buffers.arrays(flow)
        self._chains = load(orders, Profile(buffers), np.random.SeedSequence(task.seed).spawn(chains))
        coarse = math.sqrt(float(np.mean(buffers.size**2))) / max(1.0, self._peak) if len(buffers.size) else 0.0
        start = START * max(1.0, coarse / FINE)
        self._hot = start * SPREAD ** (np.linspace(-0.5, 0.5, chains) if chains > 1 else np.zeros(1))

    def run(self) -> None:
        """Anneals until the budget is spent, or there is no memory to save."""
        task, most = self._task, self._task.budget.evaluations
        total = None if most is None else max(1, most // (STEPS * len(self._chains)))
        steps = STEPS if most is None else min(STEPS, most)
        done, rate = 0, 0.0  # windows of each chain so far, and in a second
        with ThreadPoolExecutor(min(len(self._chains), count_cores())) as pool:
            while self._peak > 0 and (total is None or done < total) and not (done and task.over()):
                began = time.perf_counter()
                seconds = min(CHUNK_SECONDS, max(0.0, task.end - began))
                # with evaluations alone chunks are equal: the result must not depend on the clock
                windows = CHUNK if task.budget.seconds is None else max(1, int(rate * seconds))
                windows = windows if total is None else min(windows, total - done)
                spent = [] if total is None else [(done / total, windows / total)]
                if task.budget.seconds is not None:
                    spent.append((task.seconds / task.budget.seconds, seconds / task.budget.seconds))
                share, step = max(spent)
                self._advance(pool, windows, steps, min(1.0, share), min(1.0, share + step))
                done += windows
                rate = windows / (time.perf_counter() - began)
                task.report(self._evaluations, task.order_value(self._peak))

    def plan(self) -> Plan:
        """The best so far."""
        return self._task.plan(None, self._best, evaluations=max(1, self._evaluations))

    def _advance(self, pool: ThreadPoolExecutor, windows: int, steps: int, begin: float, end: float) -> None:
        """Some windows of all chains, between two shares of the cooling."""

        def advance(chain: Chain, hot: float) -> None:
            anneal(chain, self._weighed, windows, steps, hot * COOLING**-begin, hot * COOLING**-end)

        list(pool.map(advance, self._chains, self._hot.tolist()))
        self._evaluations += windows * steps * len(self._chains)
        self._keep(np.stack([chain.best_order for chain in self._chains]))

    def _keep(self, orders: np.ndarray) -> None:
        peaks = self._usage.peaks(orders)
        if peaks.min() < self._peak:
            self._best, self._peak = orders[peaks.argmin()].copy(), float(peaks.min())


class Profile:
    """The memory along orders, in bytes, as annealing weighs it."""

    def __init__(self, buffers: WeighedBuffers) -> None:
        self._needed = buffers.workspace.astype(np.float64)  # [n]
        np.add.at(self._needed, buffers.writer, buffers.size)
        lasting = [b for b, users in enumerate(buffers.users) if users or buffers.pinned[b]]
        self._writer, self._size = np.array(buffers.writer, np.int64)[lasting], buffers.size[lasting]
        freed = [b for b in lasting if not buffers.pinned[b]]
        self._users = np.array([user for b in freed for user in buffers.users[b]], np.int64)
        self._first = np.cumsum([0, *(len(buffers.users[b]) for b in freed)])[:-1]
        self._freed = buffers.size[freed]

    def __call__(self, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bytes `[n]` while the op at each place of an order `[n]` runs; `[n + 1]` live before it, and at the end."""
        n = len(order)
        place = np.empty(n, np.int64)
        place[order] = np.arange(n)
        change = np.zeros(n + 1)  # of live memory, by the op before each place
        np.add.at(change, place[self._writer] + 1, self._size)
        if len(self._users):
            np.add.at(change, np.maximum.reduceat(place[self._users], self._first) + 1, -self._freed)
        live = np.cumsum(change)
        return live[:n] + self._needed[order], live


def load(orders: np.ndarray, profile: Profile, seeds: Sequence[np.random.SeedSequence]) -> list[Chain]:
    """Chains that stand at the orders `[c, n]`."""
    chains = []
    for order, seed in zip(orders, seeds, strict=True):
        during, before = profile(order)
        best = np.array([during.max(initial=0.0)])
        place, work = np.argsort(order), (np.zeros(WIDTH + 1), np.zeros(WIDTH))
        chains.append(
            Chain(order.copy(), place, during, before, order.copy(), best, seed.generate_state(1, np.uint64), *work)
        )
    return chains


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
