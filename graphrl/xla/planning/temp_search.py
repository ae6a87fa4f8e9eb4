"""Search for the order of a module's instructions with the least temporary memory under XLA: method "auto".

- `search_orders` improves the orders of a module's computations: first of those that loops, branches and calls run,
  then of the entry. Each is planned as a separate program (`as_program`). The temporary memory of the
  computations that it runs, in their new orders, is the workspace of the call.
- `least_temp` is the solver for one computation.
- `temp_bound` computes a lower bound on XLA's temporaries in any order of a module's entry computation.

XLA's temporary memory is near the peak of live bytes, but not equal to it (graphrl/xla/assignment): buffers of results
store earlier temporaries, and packing leaves holes, some percent either way. So orders of low peak are generated in
several ways, and the one with the least predicted temporary memory is chosen:

- orders by priority rules, and improvements of them by minimum cuts (solvers/orders/min_cut.py), on the graph of
  temporaries alone and on the graph in which results count from when they are written;
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
from graphrl.graphs.readers.hlo.module import Computation, HloModule, as_program
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
from graphrl.xla.settings import METHOD, PROBLEM, Settings

RULES = 4  # number of priority-rule orders that are predicted, for each graph
PASS_SLACK, NEAR_SLACK = 1.01, 1.003  # orders with a higher peak, relative to the best, are not predicted
TRIES = 20  # most random orders to generate until one has a peak that is low enough
IDLE = 1_000  # turns without a new order that end the search: hardly any are left
NEAR = 0.01  # an order is good enough if it is above the bound by at most this share of it
GAIN = 0.001  # least gain that counts, as a share of the bytes
PATIENCE, PATIENT_TURNS = 0.2, 8  # share of the seconds, and turns, that the search continues without such a gain

# Below either, a computation is left alone: the possible saving is negligible.
MIN_OPS = 5
MIN_BYTES = 2**20

LEAST_GAIN = 0.05  # share of the program's bytes: no search if the bound allows only a smaller saving
LEAST_SECONDS = 0.05  # time of a search, even if no time is left

_NO_BUFFER = frozenset({"parameter", "constant", "bitcast", "tuple", "get-tuple-element", "after-all"})

Schedule = Mapping[str, tuple[str, ...]]  # name of a computation -> names of all its instructions in order


class OrderResult(NamedTuple):
    """Result of a search for the orders of a module's computations.

    Attributes:
      found_by: the method; "" if no computation was searched.
      schedule: the orders of all computations.
      evaluations: number of orders evaluated, by all searches together.
    """

    found_by: str
    schedule: Schedule
    evaluations: int


def is_small(module: HloModule) -> bool:
    """True if no computation of a module has enough instructions and bytes to be worth a search."""
    return all(_is_small(computation) for computation in module.sequential)


class Target:
    """A computation to search on, as a separate program, with its graph, predictor and bound (computed on demand)."""

    def __init__(self, module: HloModule, computation: Computation, bound: float | None = None) -> None:
        """Args: `bound`, if it is known."""
        self.program = as_program(module, computation)
        self.order = self.program.order(computation)
        self._bound = bound

    @functools.cached_property
    def read(self) -> HloProgram:
        """The program with its graph."""
        return read_hlo(self.program, chip=DEFAULT_CHIP)

    @functools.cached_property
    def predict(self) -> TempPredictor:
        """Predicts the program's temporary memory in an order."""
        return TempPredictor(self.program)

    @functools.cached_property
    def bound(self) -> float:
        """Lower bound on its temporaries in bytes in any order, with the computations that it runs in their present
        orders. Not proven if it runs other computations, see `temp_bound`.
        """
        if self._bound is None:
            self._bound = temp_bound(self.read, self.order, count_bodies=True)
        return self._bound

    @functools.cached_property
    def runs_others(self) -> bool:
        """True if it runs other computations; the bound depends on their orders."""
        return len(self.program.sequential) > 1

    def can_save(self, least: float) -> bool:
        """True if the bound allows another order to save `least` bytes."""
        needed = self.predict(self.order)
        return needed >= least and needed - self.bound >= least


def targets_of(module: HloModule) -> dict[str, Target]:
    """Returns the computations of a module that are not too small; keys are their names, callees come first."""
    return {c.name: Target(module, c) for c in module.sequential if not _is_small(c)}


def search_orders(
    module: HloModule,
    targets: Mapping[str, Target],
    starts: Sequence[Schedule],
    settings: Settings,
    end: float,
    least: float,
) -> OrderResult:
    """Searches for orders of the computations that may save `least` bytes, callees first.

    Args:
      module: the scheduled module.
      targets: name of a computation -> target, from `targets_of`.
      starts: schedules to start from; the first must be the best.
      settings: settings of the searches.
      end: time by `time.perf_counter` at which they end.
      least: bytes that a search must be able to save.
    """
    schedule, method, evaluations = dict(starts[0]), "", 0
    for number, (name, before) in enumerate(targets.items()):
        bound = None if before.runs_others else before.bound
        target = Target(module.with_orders(schedule), module.computations[name], bound)
        if target.can_save(least):
            seconds = (end - time.perf_counter()) / (len(targets) - number)
            plan, schedule[name] = _search(target, [start[name] for start in starts], settings, seconds)
            method, evaluations = plan.method, evaluations + plan.evaluations
    return OrderResult(method, schedule, evaluations)


def _search(
    target: Target, starts: Sequence[tuple[str, ...]], settings: Settings, seconds: float
) -> tuple[Plan, tuple[str, ...]]:
    """Plans a target's graph; returns the plan and its sequence, or a start if that is predicted to need no more."""
    graph = target.read.graph
    task = Task(graph, PROBLEM, Budget(None, max(LEAST_SECONDS, seconds)), settings.seed, settings.progress)
    if settings.method == METHOD:
        orders = [order_of(target.read, start) for start in dict.fromkeys(starts)]
        plan = least_temp(task, target.read, target.predict, orders, target.bound)
    else:
        plan = find_solver(settings.method)(task)
    sequence = target.read.sequence(plan.decisions(graph)[1])
    return plan, min((*dict.fromkeys(starts), sequence), key=target.predict)


def with_result_buffers(program: HloProgram) -> tuple[HloProgram, int]:
    """Returns the program with a graph in which results count from when they are written, and the bytes of the buffers
    of all results.
    """
    other = read_hlo(program.module, chip=DEFAULT_CHIP, count_results=True)
    flow = Flow(other.graph)
    return other, sum(size for size, pinned in zip(flow.size, flow.pinned, strict=True) if pinned)


def order_of(program: HloProgram, sequence: Sequence[str]) -> np.ndarray:
    """Converts a sequence of all instructions to an order `[n]` of the graph's ops."""
    place = {op.name: k for k, op in enumerate(program.graph.ops)}
    return np.array([place[name] for name in sequence if name in place], np.int64)


def temp_bound(program: HloProgram, sequence: Sequence[str], *, count_bodies: bool = False) -> float:
    """Computes a lower bound on XLA's temporaries in any order, in bytes, in addition to the results.

    Args:
      program: the module with its graph.
      sequence: an order of all instructions; a good order makes the bound tight.
      count_bodies: whether to count the bytes that loops, branches and calls need inside. The bound is then not proven:
        these bytes may be in buffers that are unused meanwhile.
    """
    everything, results = with_result_buffers(program)
    graph = everything.graph
    if not count_bodies:
        graph = ComputationGraph(graph.name, tuple(_least(graph.ops)), graph.inputs, graph.outputs)
    return max(0.0, lower_bound(graph, PROBLEM, order_of(program, sequence)) - results)


def _least_temp(
    task: Task,
    program: HloProgram,
    predict: Callable[[Sequence[str]], int],
    starts: Sequence[np.ndarray],
    bound: float = 0.0,
) -> Plan:
    """Searches for the order with the fewest predicted bytes of temporaries; the bound of its plan is for live bytes.

    Args:
      task: task for the program's graph. Each predicted order counts as an evaluation; XLA's own, the starts and the
        best order of the rules are predicted whatever the budget is. Progress receives the predicted bytes.
      program: the module with its graph.
      predict: predicts the bytes of temporaries for a sequence of all instructions.
      starts: orders `[n]` of the graph's ops to start from.
      bound: lower bound on the bytes of temporaries.
    """
    search = _Search(task, program, predict, starts, bound)
    search.run()
    return search.plan()


least_temp = Solver(METHOD, "the order for which XLA needs least temporary memory", _least_temp, one_device=True)


class _Search:
    """State of a search: the best order so far, and the sources of new ones.

    Attributes:
      best: `[n]`: the best order so far; None before the first.
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
        self._last_gain = (0, 0.0, 0)  # bytes, seconds and turn of the last gain that counts

    def run(self) -> None:
        """Predicts orders until the budget is spent, one is near the bound, or the search no longer gains."""
        graph = self._program.graph
        for order in (self._program.schedule, *self._starts):
            self._try(np.asarray(order, np.int64), always=True)
        graphs = (graph, with_result_buffers(self._program)[0].graph)
        generators = []
        for seed, each in enumerate(graphs, self._task.seed):
            if self._least <= self._enough:
                return
            generators.append(Passes(each, seed, self._starts))
            for order in generators[-1].orders[:RULES]:
                self._try(order, always=order is generators[-1].orders[0])
        flow, rng = Flow(graph), np.random.default_rng(self._task.seed)
        last, count = 0, len(self._predicted)
        for turn in itertools.count():
            if len(self._predicted) > count:
                last, count = turn, len(self._predicted)
            if self._over() or turn - last > IDLE or self._least <= self._enough or self._is_idle(turn):
                return
            passes = generators[turn % 4 % 2]
            if turn % 4 < 2 and (turn < 2 or passes.peak > passes.bound):
                order = passes.next(self._over)
                if passes.usage(order).max() <= PASS_SLACK * passes.peak:
                    self._try(order)
            else:
                self._try_nearby(flow, generators[0], rng)
            self._task.report(len(self._predicted), float(self._least))

    def plan(self) -> Plan:
        """Returns the plan of the best order so far."""
        assert self.best is not None
        return self._task.plan(None, self.best, evaluations=len(self._predicted))

    def _is_idle(self, turn: int) -> bool:
        """True if the last gain was too many turns and seconds ago."""
        bytes_then, seconds_then, turn_then = self._last_gain
        seconds = self._task.seconds
        if turn == 0 or self._least < (1 - GAIN) * bytes_then:
            self._last_gain = self._least, seconds, turn
            return False
        patience = PATIENCE * (self._task.end - self._task.started)
        return seconds - seconds_then > patience and turn - turn_then > PATIENT_TURNS

    def _over(self) -> bool:
        return self._task.is_spent(len(self._predicted))

    def _try_nearby(self, flow: Flow, passes: Passes, rng: np.random.Generator) -> None:
        """Predicts the temporaries of a random order near the best, if one of low peak is found within `TRIES`."""
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
        """Predicts an order's temporaries unless that was done before; only within the budget, or with `always`."""
        key = order.tobytes()
        if key in self._predicted or (self._over() and not always):
            return
        predicted = self._predicted[key] = self._predict(self._program.sequence(order))
        if self.best is None or predicted < self._least:
            self.best, self._least = order, predicted
            self._task.best = self.plan


def _least(ops: Sequence[Op]) -> Iterator[Op]:
    """Yields ops with only the bytes that they certainly need, for a lower bound.

    A loop's or a branch's inner temporaries may be in the buffers of its arguments and results while these are unused;
    the results of a call may be in the buffers of its operands.
    """
    called = {t.name for op in ops if op.type == "call" for t in op.outputs if t.alias is None}
    for op in ops:
        outputs = (dataclasses.replace(t, bytes=0, reuses=None) if t.name in called else t for t in op.outputs)
        outputs = (dataclasses.replace(t, reuses=None) if t.reuses in called else t for t in outputs)
        yield dataclasses.replace(op, outputs=tuple(outputs), workspace_bytes=0)


def _is_small(computation: Computation) -> bool:
    inner = [i for i in computation.instructions if i.opcode not in _NO_BUFFER and not i.is_root]
    return len(inner) < MIN_OPS or sum(i.shape.bytes for i in inner) < MIN_BYTES
