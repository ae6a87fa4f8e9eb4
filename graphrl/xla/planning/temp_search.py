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
from graphrl.solvers.base import Task
from graphrl.solvers.flow import Flow
from graphrl.solvers.orders.min_cut.passes import Passes
from graphrl.solvers.orders.nearby import nearby
from graphrl.solvers.solver import Solver
from graphrl.xla.settings import METHOD

RULES = 4  # orders of rules of each graph whose figure is predicted
PASS_SLACK, NEAR_SLACK = 1.01, 1.003  # peaks above the best by more are not predicted
TRIES = 20  # random orders in search of one whose peak is low enough
IDLE = 1_000  # turns that find no new order, after which there are none, or hardly any
NEAR = 0.01  # above the bound, by this part of it, an order is good enough
GAIN = 0.001  # of the bytes: what a search is to gain
PATIENCE, PATIENT_TURNS = 0.2, 8  # part of the seconds, and turns, that it may go on without


def counted(program: HloProgram) -> tuple[HloProgram, int]:
    """The program with results that count from when they are written, and the bytes of the buffers of all results."""
    other = read_hlo(program.module, chip=DEFAULT_CHIP, count_results=True)
    flow = Flow(other.graph)
    return other, sum(size for size, pinned in zip(flow.size, flow.pinned, strict=True) if pinned)


def _least_temp(
    task: Task,
    program: HloProgram,
    predict: Callable[[Sequence[str]], int],
    starts: Sequence[np.ndarray],
    bound: float = 0.0,
) -> Plan:
    """The plan of the order with the least predicted figure; its bound is that of live bytes.

    Args:
      task: for the program's graph. An evaluation is an order whose figure is predicted; XLA's own, the starts and the
        best of the rules are predicted whatever the budget is. Progress is told the predicted bytes.
      program: of the module.
      predict: bytes of temporaries for a sequence of all instructions.
      starts: orders `[n]` of the graph's ops that take part.
      bound: bytes that no figure is below.
    """
    search = _Search(task, program, predict, starts, bound)
    search.run()
    return search.plan()


least_temp = Solver(METHOD, "the order for which XLA needs least temporary memory", _least_temp, one_device=True)


class _Search:
    """The best order so far, and where new ones come from.

    Attributes:
      best: `[n]`, or None before the first.
    """

    def __init__(
        self,
        task: Task,
        program: HloProgram,
        predict: Callable[[Sequence[str]], int],
        starts: Sequence[np.ndarray],
        bound: float,
    ) -> None:
        self._task, self._program, self._predict, self._starts = task, program, predict, starts
        self._enough = (1 + NEAR) * bound
        self._predicted: dict[bytes, int] = {}
        self.best: np.ndarray | None = None
        self._least = 0
        self._gained = (0, 0.0, 0)  # bytes, seconds and turn of the last gain that counts

    def run(self) -> None:
        """Predicts orders until the budget is spent, one is near the bound, or the search gains nothing any more."""
        graph = self._program.graph
        for order in (self._program.schedule, *self._starts):
            self._try(np.asarray(order, np.int64), always=True)
        graphs = (graph, counted(self._program)[0].graph)
        makers = []
        for seed, each in enumerate(graphs, self._task.seed):
            if self._least <= self._enough:
                return
            makers.append(Passes(each, seed, self._starts))
            for order in makers[-1].orders[:RULES]:
                self._try(order, always=order is makers[-1].orders[0])
        flow, rng = Flow(graph), np.random.default_rng(self._task.seed)
        last, count = 0, len(self._predicted)
        for turn in itertools.count():
            if len(self._predicted) > count:
                last, count = turn, len(self._predicted)
            if self._over() or turn - last > IDLE or self._least <= self._enough or self._is_idle(turn):
                return
            passes = makers[turn % 4 % 2]
            if turn % 4 < 2 and (turn < 2 or passes.peak > passes.bound):
                order = passes.next(self._over)
                if passes.usage(order).max() <= PASS_SLACK * passes.peak:
                    self._try(order)
            else:
                self._near(flow, makers[0], rng)
            self._task.report(len(self._predicted), float(self._least))

    def plan(self) -> Plan:
        """The best so far."""
        assert self.best is not None
        return self._task.plan(None, self.best, evaluations=len(self._predicted))

    def _is_idle(self, turn: int) -> bool:
        """Whether the last gain is too long ago."""
        bytes_then, seconds_then, turn_then = self._gained
        seconds = self._task.seconds
        if turn == 0 or self._least < (1 - GAIN) * bytes_then:
            self._gained = self._least, seconds, turn
            return False
        patience = PATIENCE * (self._task.end - self._task.started)
        return seconds - seconds_then > patience and turn - turn_then > PATIENT_TURNS

    def _over(self) -> bool:
        return self._task.over(len(self._predicted))

    def _near(self, flow: Flow, passes: Passes, rng: np.random.Generator) -> None:
        """Predicts a random order near the best, if one of low peak is soon found."""
        assert self.best is not None
        highest = NEAR_SLACK * passes.usage(self.best).max()
        for _ in range(TRIES):
            order = nearby(flow, self.best, rng)
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
            self._task.best = self.plan
