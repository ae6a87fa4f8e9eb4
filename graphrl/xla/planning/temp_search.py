"""The order of a module's instructions for which XLA needs least temporary memory: the search behind method "auto".

What XLA needs is near the peak of live bytes, but not it (graphrl/xla/assignment): buffers of results take earlier
temporaries, and packing leaves holes, some percent either way. So orders of low peak are made in several ways, and the
prediction of XLA's own figure chooses among them:
- orders of rules, and passes through minimum cuts (solvers/min_cut), on the graph of temporaries alone and on the graph
  in which results count from when they are written;
- random orders near the best so far whose peak is hardly higher: they change the packing.
"""

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from graphrl.graphs.readers.hlo.reader import HloProgram, read_hlo
from graphrl.graphs.roofline import DEFAULT_CHIP
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Interrupted, Progress
from graphrl.solvers.flow import Flow
from graphrl.solvers.orders.min_cut.passes import Passes
from graphrl.solvers.orders.nearby import Nearby
from graphrl.solvers.watch import Watch
from graphrl.xla.settings import PROBLEM

METHOD = "auto"
RULES = 4  # orders of rules of each graph whose figure is predicted
PASS_SLACK, NEAR_SLACK = 1.01, 1.003  # peaks above the best by more are not predicted
TRIES = 20  # random orders in search of one whose peak is low enough
IDLE = 1_000  # turns that find no new order, after which there are none, or hardly any


def counted(program: HloProgram) -> tuple[HloProgram, int]:
    """The program with results that count from when they are written, and the bytes of the buffers of all results."""
    other = read_hlo(program.module, chip=DEFAULT_CHIP, count_results=True)
    flow = Flow(other.graph)
    return other, sum(size for size, pinned in zip(flow.size, flow.pinned, strict=True) if pinned)


def least_temp(
    program: HloProgram,
    predict: Callable[[Sequence[str]], int],
    starts: Sequence[np.ndarray],
    budget: Budget,
    seed: int,
    progress: Progress | None = None,
) -> Plan:
    """The plan of the order with the least predicted figure; its bound is that of live bytes.

    Args:
      program: of the module.
      predict: bytes of temporaries for a sequence of all instructions.
      starts: orders `[n]` of the graph's ops that take part.
      budget: an evaluation is an order whose figure is predicted. XLA's own, the starts and the best of the rules are
        predicted whatever it is.
      seed: of all random choices.
      progress: is told the predicted bytes.

    Raises:
      Interrupted: on Ctrl-C, with the best plan so far.
    """
    watch = Watch(budget, progress)
    search = _Search(program, predict, starts, seed, watch)
    try:
        search.run()
    except KeyboardInterrupt:
        if search.best is None:
            raise
        raise Interrupted(search.plan()) from None
    return search.plan()


class _Search:
    """The best order so far, and where new ones come from.

    Attributes:
      best: `[n]`, or None before the first.
    """

    def __init__(
        self,
        program: HloProgram,
        predict: Callable[[Sequence[str]], int],
        starts: Sequence[np.ndarray],
        seed: int,
        watch: Watch,
    ) -> None:
        self._program, self._predict, self._starts, self._seed, self._watch = program, predict, starts, seed, watch
        self._predicted: dict[bytes, int] = {}
        self.best: np.ndarray | None = None
        self._least = 0

    def run(self) -> None:
        """Predicts orders until the budget is spent, or no new ones are found; nothing cheap proves one optimal."""
        graph = self._program.graph
        for order in (self._program.schedule, *self._starts):
            self._try(np.asarray(order, np.int64), always=True)
        graphs = (graph, counted(self._program)[0].graph)
        makers = [Passes(each, seed, self._starts) for seed, each in enumerate(graphs, self._seed)]
        for passes in makers:
            for order in passes.orders[:RULES]:
                self._try(order, always=order is passes.orders[0])
        nearby, rng = Nearby(Flow(graph)), np.random.default_rng(self._seed)
        last, count = 0, len(self._predicted)
        for turn in itertools.count():
            if len(self._predicted) > count:
                last, count = turn, len(self._predicted)
            if self._over() or turn - last > IDLE:
                return
            passes = makers[turn % 4 % 2]
            if turn % 4 < 2 and (turn < 2 or passes.peak > passes.bound):
                order = passes.next(self._over)
                if passes.usage(order).max() <= PASS_SLACK * passes.peak:
                    self._try(order)
            else:
                self._near(nearby, makers[0], rng)
            self._watch.report(len(self._predicted), self.plan, float(self._least))

    def plan(self) -> Plan:
        """The best so far."""
        assert self.best is not None
        n = len(self.best)
        return Plan.from_order(
            self._program.graph,
            PROBLEM,
            np.zeros(n, np.int64),
            self.best,
            method=METHOD,
            seconds=self._watch.seconds,
            evaluations=len(self._predicted),
            seed=self._seed,
        )

    def _over(self) -> bool:
        return self._watch.over(len(self._predicted))

    def _near(self, nearby: Nearby, passes: Passes, rng: np.random.Generator) -> None:
        """Predicts a random order near the best, if one of low peak is soon found."""
        assert self.best is not None
        highest = NEAR_SLACK * passes.usage(self.best).max()
        for _ in range(TRIES):
            order = nearby(self.best, rng)
            if passes.usage(order).max() <= highest:
                self._try(order)
                return
            if self._over():
                return

    def _try(self, order: np.ndarray, *, always: bool = False) -> None:
        """Predicts an order that is new, if the budget lasts, or always."""
        key = order.tobytes()
        if key in self._predicted or (self._over() and not always):
            return
        predicted = self._predicted[key] = self._predict(self._program.sequence(order))
        if self.best is None or predicted < self._least:
            self.best, self._least = order, predicted
