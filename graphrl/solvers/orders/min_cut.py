"""Method "min-cut": orders of one device through the states of minimum cuts, in passes of divide and conquer.

Let v be the op at which a part of the order needs most memory. A minimum cut (`costs/bounds/cuts.py`) determines the
ops that should run before v, for v to need least. The part is split there into those ops, v, and the others. Each side
is ordered separately, by the best of the given orders there. Where v already needs the minimum, the part is finished:
no order of it is better.

The passes start from the orders of quick rules. They end when the peak meets the bound that the cuts prove, on most
compiled programs within a second.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from graphrl.costs.bounds import lower_bound
from graphrl.costs.bounds.cuts import DONE, LATER, OPEN, Cuts, Needs
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan import Plan
from graphrl.solvers.base import Task
from graphrl.solvers.flow import Flow, Usage
from graphrl.solvers.rules.compilers import xla_depth_first, xla_list, xla_post_order
from graphrl.solvers.rules.memory_orders import memory_orders
from graphrl.solvers.solver import solver

FROM_BEST = 0.7  # share of passes that use the best order so far
MAX_OTHERS = 4  # fewer other orders than this take part in a pass
NOISE = 0.1  # sizes for the cuts are multiplied by up to about exp(+-NOISE), most of them by much less


@solver("min-cut", "orders from minimum cuts at the peak, which also prove a lower bound", one_device=True)
def solve(task: Task, *, starts: Sequence[np.ndarray] = ()) -> Plan:
    """Orders ops by passes of minimum cuts. An evaluation is one order whose memory is computed.

    Args:
      starts: orders `[n]` of ops to start from, in addition to those of the quick rules.
    """
    passes = Passes(task.graph, task.seed, starts, task.is_spent)

    def plan() -> Plan:
        bound = task.order_value(passes.bound)
        return task.plan(None, passes.best, evaluations=passes.evaluations, bound=bound)

    task.best = plan
    while passes.peak > passes.bound and not task.is_spent(passes.evaluations):
        passes.next(lambda: task.is_spent(passes.evaluations))
        task.report(passes.evaluations, task.order_value(passes.peak))
    passes.tighten()
    return plan()


class Passes:
    """Passes over one graph; each makes a new order from earlier ones.

    Args:
      graph: graph to order on one device; resident weights are ignored here.
      seed: seed of the random choices that passes make.
      starts: orders `[n]` of ops, in addition to those of the rules.
      is_spent: (evaluations) -> True if no further orders should be tried.

    Attributes:
      usage: computes the bytes at each op of an order.
      orders: the starts and the rules' orders, `[n]` each, that of least peak first.
      best, peak: the order of least peak so far, of equals the newest, and its peak in bytes.
      bound: lower bound of the peak of all orders, in bytes.
    """

    def __init__(
        self,
        graph: ComputationGraph,
        seed: int,
        starts: Sequence[np.ndarray] = (),
        is_spent: Callable[[int], bool] = lambda evaluations: False,
    ) -> None:
        self._graph = graph
        flow = Flow(graph)
        self.usage = Usage(flow)
        orders: list[np.ndarray] = []
        peaks: list[int] = []
        for order in _orders(flow, starts):
            orders.append(np.array(order, np.int64))
            peaks.append(int(self.usage(orders[-1]).max()))
            if is_spent(len(orders)):
                break
        self.orders = [orders[i] for i in np.argsort(peaks, kind="stable")]
        self.best, self.peak = self.orders[0], min(peaks)
        needs = Needs(graph)
        self._sizes = needs.least[needs.least > 0]
        self._division = Division(Cuts(graph, needs), self.usage)
        self._rng = np.random.default_rng(seed)
        self._num_passes = 0
        self.bound = 0
        self._bound_order: np.ndarray | None = None
        self.tighten()

    @property
    def evaluations(self) -> int:
        """Number of orders whose memory was computed."""
        return len(self.orders) + self._division.evaluations

    def next(self, is_spent: Callable[[], bool]) -> np.ndarray:
        """Makes the next pass and returns its order `[n]`; the pass ends early once `is_spent` returns True.

        The first pass uses all the rules; later ones the best order and some others, with cuts through slightly
        different sizes.
        """
        orders, weight = self.orders, None
        if self._num_passes:
            rng = self._rng
            others = [self.orders[i] for i in rng.permutation(len(self.orders))[: rng.integers(MAX_OTHERS)]]
            first = [self.best] if not others or rng.random() < FROM_BEST else []
            noise = NOISE * rng.random() ** 2 * rng.standard_normal(len(self._sizes))
            orders, weight = [*first, *others], np.rint(self._sizes * np.exp(noise)).astype(np.int64)
        self._num_passes += 1
        order = self._division(orders, self.bound, self._rng, weight, is_spent)
        peak = int(self.usage(order).max())
        if peak <= self.peak:  # of equals the newer, so that the next pass starts elsewhere
            self.best, self.peak = order, peak
        return order

    def tighten(self) -> None:
        """Improves the bound by means of the best order, unless that was tried or the bound is reached."""
        if self.peak > self.bound and self.best is not self._bound_order:
            self._bound_order = self.best
            self.bound = max(self.bound, int(lower_bound(self._graph, Problem(), self.best)))


def _orders(flow: Flow, starts: Sequence[np.ndarray]) -> Iterator[Sequence[int] | np.ndarray]:
    yield from starts
    yield from memory_orders(flow)
    for rule in (xla_list, xla_depth_first, xla_post_order):
        yield rule(flow)


class Division:
    """Makes passes: divides an order by minimum cuts and orders the parts.

    Attributes:
      evaluations: number of orders whose memory was computed.
    """

    def __init__(self, cuts: Cuts, usage: Usage) -> None:
        self._cuts, self._usage = cuts, usage
        self.evaluations = 0

    def __call__(
        self,
        orders: Sequence[np.ndarray],
        target: int,
        rng: np.random.Generator,
        weight: np.ndarray | None,
        is_spent: Callable[[], bool],
    ) -> np.ndarray:
        """Computes an order `[n]`.

        Args:
          orders: existing orders, `[n]` each, whose relative order of ops the parts take over; must not be empty.
          target: bytes: parts that need no more are not changed.
          rng: chooses between the earliest and the latest minimum cut.
          weight: see `Cuts.least`; other sizes lead to other cuts that are nearly as good.
          is_spent: returns True to stop with the current order.
        """
        places = np.argsort(np.stack(orders), axis=1)
        order = np.array(orders[0])
        parts = [(0, len(order))]
        while parts and not is_spent():
            begin, end = parts.pop()
            peak, at = self._arrange(order, begin, end, places, is_spent)
            if peak <= target:
                continue
            op, phase = int(order[at]), np.full(len(order), OPEN)
            phase[order[:begin]], phase[order[end:]] = DONE, LATER
            late = bool(rng.integers(2))
            cut = self._cuts.least(op, phase, late=late)
            if cut.need >= peak:
                target = max(target, peak)  # this much is needed anyway: a part that needs less gains nothing
                continue
            done = (cut if weight is None else self._cuts.least(op, phase, late=late, weight=weight)).done
            part = order[begin:end]
            before, after = part[done[part] & (part != op)], part[~done[part]]
            order[begin:end] = np.concatenate([before, [op], after])
            middle = begin + len(before)
            parts += [part for part in ((begin, middle), (middle + 1, end)) if part[1] - part[0] > 1]
        return order

    def _arrange(
        self, order: np.ndarray, begin: int, end: int, places: np.ndarray, is_spent: Callable[[], bool]
    ) -> tuple[int, int]:
        """Orders the ops of a part, in place, like the order in which they need least. Returns the peak of the part in
        bytes, and its place.
        """
        part = order[begin:end].copy()
        best: tuple[int, int, np.ndarray] | None = None
        for candidate in np.unique(np.stack([part[np.argsort(place[part])] for place in places]), axis=0):
            order[begin:end] = candidate
            usage = self._usage(order)[begin:end]
            self.evaluations += 1
            if best is None or usage.max() < best[0]:
                best = int(usage.max()), begin + int(usage.argmax()), candidate
            if is_spent():
                break
        assert best is not None
        order[begin:end] = best[2]
        return best[0], best[1]
