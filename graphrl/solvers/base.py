"""What a solver is: a function from a graph, a problem, a budget and a seed to a Plan.

Stopping early: a solver that can be stopped catches KeyboardInterrupt (Ctrl-C) around its chunks of device work and
raises `Interrupted(plan)` with its best plan so far; before it has one it lets KeyboardInterrupt pass.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan import Plan

Decisions = tuple[np.ndarray, np.ndarray]  # placement [n] of ops, order [m] of node ids as in costs/exact

MAX_EVALUATIONS = 2**31 - 1  # counters are int32 on the device


@dataclasses.dataclass(frozen=True)
class Budget:
    """How much a solver may spend: it stops at whichever limit comes first.

    Attributes:
      evaluations: decoded and costed solutions, or None for no limit.
      seconds: of wall clock, compilation included, or None for no limit.

    Raises:
      ProblemError: neither is given, or one is out of range.
    """

    evaluations: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.evaluations is None and self.seconds is None:
            raise ProblemError("a budget needs evaluations or seconds: neither was given")
        count, seconds = self.evaluations, self.seconds
        if count is not None and (
            isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_EVALUATIONS
        ):
            raise ProblemError(f"evaluations is {count!r}: must be an integer from 1 to 2^31 - 1")
        if seconds is not None and (
            isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf
        ):
            raise ProblemError(f"seconds is {seconds!r}: must be a finite number above 0")

    def less(self, evaluations: int, seconds: float) -> "Budget | None":
        """What is left after spending so much, or None if nothing is."""
        count = None if self.evaluations is None else self.evaluations - evaluations
        time = None if self.seconds is None else self.seconds - seconds
        if (count is not None and count < 1) or (time is not None and time <= 0):
            return None
        return Budget(count, time)


class Progress(Protocol):
    """Called by a solver between its chunks of work, a few times a second at most.

    Arguments:
      evaluations: spent so far.
      seconds: since the solver began.
      plan: makes the best plan so far (exact costs, on the host: call it only where it is needed).
      value: the best objective so far as the device knows it (float32, bytes or seconds): good enough to show.
    """

    def __call__(self, evaluations: int, seconds: float, plan: Callable[[], Plan], value: float) -> None: ...


class Solver(Protocol):
    """A search for a good plan.

    Raises:
      Interrupted: the user stopped it and it has a plan.
      GraphrlError: the solver cannot take this graph or problem; the message says why.
    """

    def __call__(
        self, graph: ComputationGraph, problem: Problem, budget: Budget, seed: int, progress: Progress | None = None
    ) -> Plan: ...


class Interrupted(KeyboardInterrupt):
    """Ctrl-C came while a solver had a plan already.

    It is a KeyboardInterrupt, so that code which knows nothing of it stops all the same.

    Attributes:
      plan: the best found until then.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__("interrupted: the best plan so far is in .plan")
        self.plan = plan
