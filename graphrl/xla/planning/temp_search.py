"""Search for the order of a module's instructions for which XLA needs least temporary memory: method "auto".

- `ordered` improves the orders of a module's computations: those that loops, branches and calls run first, then the
  entry's. Each is planned as if it were a program of its own (`bodies.as_program`). The temporary memory of the
  computations that it runs, in their new orders, is the workspace of the call.
- `least_temp` is the solver of one computation.
- `temp_bound` is a lower bound for XLA's temporaries in any order of a module's entry computation.

XLA's temporary memory is near the peak of live bytes, but not equal to it (graphrl/xla/assignment): buffers of results
take earlier temporaries, and packing leaves holes, some percent either way. So orders of low peak are made in several
ways, and the prediction of XLA's own figure chooses among them:

- orders of rules, and passes through minimum cuts (solvers/orders/min_cut.py), on the graph of temporaries alone and on
  the graph in which results count from when they are written;
- random orders near the best so far whose peak is hardly higher: they change the packing.
"""

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from graphrl.costs.bounds import lower_bound
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.graphs.readers.hlo.module import Computation, HloModule
from graphrl.graphs.readers.hlo.reader import HloProgram, read_hlo
from graphrl.graphs.roofline import DEFAULT_CHIP
from graphrl.methods import find_solver
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.flow import Flow
from graphrl.solvers.orders.min_cut import Passes
from graphrl.solvers.orders.random_orders import nearby
from graphrl.solvers.solver import Solver
from graphrl.xla.assignment import TempPredictor
from graphrl.xla.bodies import as_program
from graphrl.xla.settings import METHOD, PROBLEM, Settings

RULES = 4  # orders of rules of each graph whose figure is predicted
PASS_SLACK, NEAR_SLACK = 1.01, 1.003  # peaks above the best by more are not predicted
TRIES = 20  # random orders in search of one whose peak is low enough
IDLE = 1_000  # turns that find no new order, after which there are none, or hardly any
NEAR = 0.01  # above the bound, by this part of it, an order is good enough
GAIN = 0.001  # of the bytes: what a search is to gain
PATIENCE, PATIENT_TURNS = 0.2, 8  # part of the seconds, and turns, that it may go on without

# Below either, a computation is left alone: nothing that anybody would miss could be saved.
MIN_OPS = 5
MIN_BYTES = 2**20

LEAST_GAIN = 0.05  # of the program's bytes: where the bound shows that less is to be had, there is no search
LEAST_SECONDS = 0.05  # for a search, also where no time is left

_NO_BUFFER = frozenset({"parameter", "constant", "bitcast", "tuple", "get-tuple-element", "after-all"})

Schedule = Mapping[str, tuple[str, ...]]  # names of all instructions, by computation


class Ordered(NamedTuple):
    """Orders that were searched for.

    Attributes:
      found_by: the method; "" where nothing was searched.
      schedule: of all computations.
      evaluations: that it took.
    """

    found_by: str
    schedule: Schedule
    evaluations: int


def is_small(module: HloModule) -> bool:
    """Whether no computation of a module has enough instructions, or bytes between them, to be worth a search."""
    return all(_is_small(computation) for computation in module.sequential)


class Target:
    """A computation as a program of its own, and what is known of it; all but the order is found on demand."""

    def __init__(self, module: HloModule, computation: Computation, bound: float | None = None) -> None:
        """Args: `bound` if it is known."""
        self.program = as_program(module, computation)
        self.order = self.program.order(computation)
        self._bound = bound

    @functools.cached_property
    def read(self) -> HloProgram:
        """Its graph."""
        return read_hlo(self.program, chip=DEFAULT_CHIP)

    @functools.cached_property
    def predict(self) -> TempPredictor:
        """What it needs in an order."""
        return TempPredictor(self.program)

    @functools.cached_property
    def bound(self) -> float:
        """Bytes that no order needs less than, with the computations that it runs as they are."""
        if self._bound is None:
            self._bound = temp_bound(self.read, self.order, bodies_as_they_are=True)
        return self._bound

    @functools.cached_property
    def runs_others(self) -> bool:
        """Whether it runs other computations, whose orders the bound depends on."""
        return len(self.program.sequential) > 1

    def is_hopeful(self, least: float) -> bool:
        """Whether the bound leaves room for another order to save `least` bytes of what it needs."""
        needed = self.predict(self.order)
        return needed >= least and needed - self.bound >= least


def targets_of(module: HloModule) -> dict[str, Target]:
    """The computations of a module that are not too small, by name, callees first."""
    return {c.name: Target(module, c) for c in module.sequential if not _is_small(c)}


def ordered(
    module: HloModule,
    targets: Mapping[str, Target],
    starts: Sequence[Schedule],
    settings: Settings,
    end: float,
    least: float,
) -> Ordered:
    """Searches for an order of every computation for which that may be worth it, callees first.

    Args:
      module: scheduled.
      targets: what is known of its computations.
      starts: schedules of it that take part; the first is the best of them.
      settings: of the searches.
      end: time of `time.perf_counter` at which they are over.
      least: bytes that a search must be able to save.
    """
    schedule, method, evaluations = dict(starts[0]), "", 0
    for number, (name, before) in enumerate(targets.items()):
        bound = None if before.runs_others else before.bound
        target = Target(module.with_orders(schedule), module.computations[name], bound)
        if target.is_hopeful(least):
            seconds = (end - time.perf_counter()) / (len(targets) - number)
            plan, schedule[name] = _search(target, [start[name] for start in starts], settings, seconds)
            method, evaluations = plan.method, evaluations + plan.evaluations
    return Ordered(method, schedule, evaluations)


def _search(
    target: Target, starts: Sequence[tuple[str, ...]], settings: Settings, seconds: float
) -> tuple[Plan, tuple[str, ...]]:
    """The plan of a target's graph, and its sequence or, if it is not above that, one of the starts."""
    graph = target.read.graph
    task = Task(graph, PROBLEM, Budget(None, max(LEAST_SECONDS, seconds)), settings.seed, settings.progress)
    if settings.method == METHOD:
        orders = [order_of(target.read, start) for start in dict.fromkeys(starts)]
        plan = least_temp(task, target.read, target.predict, orders, target.bound)
    else:
        plan = find_solver(settings.method)(task)
    sequence = target.read.sequence(plan.decisions(graph)[1])
    return plan, min((*dict.fromkeys(starts), sequence), key=target.predict)


def counted(program: HloProgram) -> tuple[HloProgram, int]:
    """The program with results that count from when they are written, and the bytes of the buffers of all results."""
    other = read_hlo(program.module, chip=DEFAULT_CHIP, count_results=True)
    flow = Flow(other.graph)
    return other, sum(size for size, pinned in zip(flow.size, flow.pinned, strict=True) if pinned)


def order_of(program: HloProgram, sequence: Sequence[str]) -> np.ndarray:
    """The order `[n]` of the graph's ops in a sequence of all instructions."""
    place = {op.name: k for k, op in enumerate(program.graph.ops)}
    return np.array([place[name] for name in sequence if name in place], np.int64)


def temp_bound(program: HloProgram, sequence: Sequence[str], *, bodies_as_they_are: bool = False) -> float:
    """Bytes that XLA's temporaries need in any order, beside the results; a good order makes the bound tight.

    Args:
      program: of the module.
      sequence: of all instructions.
      bodies_as_they_are: count what loops, branches and calls need inside. No proof: that may lie in buffers that hold
        nothing meanwhile.
    """
    everything, results = counted(program)
    graph = everything.graph
    if not bodies_as_they_are:
        graph = ComputationGraph(graph.name, tuple(_least(graph.ops)), graph.inputs, graph.outputs)
    return max(0.0, lower_bound(graph, PROBLEM, order_of(program, sequence)) - results)


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


def _least(ops: Sequence[Op]) -> Iterator[Op]:
    """Ops with the bytes that they need for certain. What a loop or a branch needs inside may lie in the buffers of
    what it is given and what it gives, while they hold nothing; the results of a call in those of its operands.
    """
    called = {t.name for op in ops if op.type == "call" for t in op.outputs if t.alias is None}
    for op in ops:
        outputs = (dataclasses.replace(t, bytes=0, reuses=None) if t.name in called else t for t in op.outputs)
        outputs = (dataclasses.replace(t, reuses=None) if t.reuses in called else t for t in outputs)
        yield dataclasses.replace(op, outputs=tuple(outputs), workspace_bytes=0)


def _is_small(computation: Computation) -> bool:
    inner = [i for i in computation.instructions if i.opcode not in _NO_BUFFER and not i.is_root]
    return len(inner) < MIN_OPS or sum(i.shape.bytes for i in inner) < MIN_BYTES
