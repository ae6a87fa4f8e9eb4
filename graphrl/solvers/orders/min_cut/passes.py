"""Orders through minimum cuts, one pass of divide and conquer after the other, from the orders of quick rules."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from graphrl.costs.bounds import lower_bound
from graphrl.costs.bounds.cuts import Cuts
from graphrl.costs.bounds.needs import Needs
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.flow import Flow
from graphrl.solvers.orders.min_cut.divide import Division
from graphrl.solvers.orders.usage import Usage
from graphrl.solvers.rules.memory_orders import memory_orders
from graphrl.solvers.rules.xla import xla_depth_first, xla_list, xla_post_order

FROM_BEST = 0.7  # of the passes have the best order so far among theirs
OTHERS = 4  # fewer other orders than this take part in a pass
NOISE = 0.1  # sizes that cuts go by are multiplied by up to about exp(+-NOISE), most of them by much less


class Passes:
    """The passes over one graph.

    Args:
      graph: to be ordered on one device; resident weights count nowhere here.
      seed: of the choices that passes make.
      starts: orders `[n]` of ops beside those of the rules.
      over: whether, after so many evaluations, no more rules are to be tried.

    Attributes:
      usage: gives the bytes at each op of an order.
      orders: `[n]` each, the starts and the rules', that of least peak first.
      best, peak: the order of least peak so far, of equals the newest, and its bytes.
      bound: bytes that no order's peak is below.
    """

    def __init__(
        self,
        graph: ComputationGraph,
        seed: int,
        starts: Sequence[np.ndarray] = (),
        over: Callable[[int], bool] = lambda evaluations: False,
    ) -> None:
        self._graph = graph
        flow = Flow(graph)
        self.usage = Usage(flow)
        orders: list[np.ndarray] = []
        peaks: list[int] = []
        for order in _orders(flow, starts):
            orders.append(np.array(order, np.int64))
            peaks.append(int(self.usage(orders[-1]).max()))
            if over(len(orders)):
                break
        self.orders = [orders[i] for i in np.argsort(peaks, kind="stable")]
        self.best, self.peak = self.orders[0], min(peaks)
        needs = Needs(graph)
        self._sizes = needs.least[needs.least > 0]
        self._division = Division(Cuts(graph, needs), self.usage)
        self._rng = np.random.default_rng(seed)
        self._passed = 0
        self.bound = 0
        self._tightened_by: np.ndarray | None = None
        self.tighten()

    @property
    def evaluations(self) -> int:
        """Orders whose memory was computed."""
        return len(self.orders) + self._division.evaluations

    def next(self, over: Callable[[], bool]) -> np.ndarray:
        """The order `[n]` of the next pass, which ends early once `over` says so.

        The first pass goes by all the rules; later ones by the best order and some others, with cuts through somewhat
        different sizes.
        """
        orders, weight = self.orders, None
        if self._passed:
            rng = self._rng
            others = [self.orders[i] for i in rng.permutation(len(self.orders))[: rng.integers(OTHERS)]]
            first = [self.best] if not others or rng.random() < FROM_BEST else []
            noise = NOISE * rng.random() ** 2 * rng.standard_normal(len(self._sizes))
            orders, weight = [*first, *others], np.rint(self._sizes * np.exp(noise)).astype(np.int64)
        self._passed += 1
        order = self._division(orders, self.bound, self._rng, weight, over)
        peak = int(self.usage(order).max())
        if peak <= self.peak:  # of equals the newer, so that the next pass starts elsewhere
            self.best, self.peak = order, peak
        return order

    def tighten(self) -> None:
        """Improves the bound with the help of the best order, if that may."""
        if self.peak > self.bound and self.best is not self._tightened_by:
            self._tightened_by = self.best
            self.bound = max(self.bound, int(lower_bound(self._graph, Problem(), self.best)))


def _orders(flow: Flow, starts: Sequence[np.ndarray]) -> Iterator[Sequence[int] | np.ndarray]:
    yield from starts
    yield from memory_orders(flow)
    for rule in (xla_list, xla_depth_first, xla_post_order):
        yield rule(flow)
