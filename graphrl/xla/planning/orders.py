"""Better orders of a module's computations: those that loops, branches and calls run first, then the entry's.

Each is planned as if it were a program of its own (`bodies.as_program`), with what the computations that it runs need
in their new orders as the workspace of the call.
"""

import functools
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from graphrl.graphs.readers.hlo.module import Computation, HloModule
from graphrl.graphs.readers.hlo.reader import HloProgram, read_hlo
from graphrl.graphs.roofline import DEFAULT_CHIP
from graphrl.methods import find_solver
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Task
from graphrl.xla.assignment import TempPredictor
from graphrl.xla.bodies import as_program
from graphrl.xla.planning.bounds import order_of, temp_bound
from graphrl.xla.planning.temp_search import least_temp
from graphrl.xla.settings import METHOD, PROBLEM, Settings

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


def _is_small(computation: Computation) -> bool:
    inner = [i for i in computation.instructions if i.opcode not in _NO_BUFFER and not i.is_root]
    return len(inner) < MIN_OPS or sum(i.shape.bytes for i in inner) < MIN_BYTES


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
