"""OR-Tools behind one interface: a CP-SAT model with a known plan as hint, and a search with callbacks that can be
stopped.

CP-SAT takes integers only: `Quanta` converts seconds, rounded down, and `byte_unit` is the unit of bytes.
"""

import dataclasses
import importlib
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from graphrl.errors import ProblemError

TICK = 0.2  # seconds between two checks of a running search
# A variable, a literal or a linear expression of OR-Tools, which is loaded only when the method is used.
Expression = Any
Literal = Any
MAX_EXACT = 2**32  # quanta of all lengths together, if they are exact: with many more, bounds rise slowly
FINE = 2**20  # least average quanta of the lengths above 0 if they must be rounded: an error of at most 1e-6
COARSE = 2**6  # the same for `coarse` quanta, few enough for a quick search
MAX_UNITS = 2**50  # units of memory: products with positions stay inside int64


def or_tools() -> Any:
    """Imports OR-Tools' module of CP-SAT.

    Raises:
      ProblemError: it cannot be imported.
    """
    try:
        return importlib.import_module("ortools.sat.python.cp_model")
    except ImportError as error:  # also where highspy was imported before: their symbols clash
        fault = " ".join(str(error).split())[:120]
        raise ProblemError(f"method 'cp-sat' needs ortools: pip install ortools ({fault})") from None


class Model:
    """A CP-SAT model. Every variable is created with its value in a known plan: together they are the hint.

    Attributes:
      cp: the `CpModel`.
      true: the literal that is always true.
      searches: names of CP-SAT's subsolvers, in the order in which its workers take them; empty for CP-SAT's default.
    """

    def __init__(self) -> None:
        self.cp = or_tools().CpModel()
        self.true = self.cp.new_constant(1)
        self.searches: tuple[str, ...] = ()
        self._value: dict[int, int] = {self.true.index: 1}
        self._both: dict[tuple[int, int], Literal] = {}

    def integer(self, low: int, high: int, value: int) -> Expression:
        """Adds a variable from `low` to `high`, which is `value` in the known plan."""
        return self._hinted(self.cp.new_int_var(low, high, ""), value)

    def boolean(self, value: bool) -> Literal:
        """Adds a variable that is true or false, `value` in the known plan."""
        return self._hinted(self.cp.new_bool_var(""), int(value))

    def holds(self, literal: Literal) -> bool:
        """True if a literal is true in the known plan."""
        index = literal.index
        return bool(self._value[index]) if index >= 0 else not self._value[-index - 1]

    def both(self, first: Literal, second: Literal) -> Literal:
        """Returns the literal that is true if both are."""
        a, b = sorted((first.index, second.index))
        if self.true.index in (a, b):
            return second if first.index == self.true.index else first
        if (a, b) not in self._both:
            both = self.boolean(self.holds(first) and self.holds(second))
            self.cp.add_bool_or([both, ~first, ~second])
            self.cp.add_implication(both, first)
            self.cp.add_implication(both, second)
            self._both[a, b] = both
        return self._both[a, b]

    def ordered(self, before: Expression, after: Expression, *only_if: Literal) -> None:
        """Adds `before <= after`, if all the literals hold."""
        constraint = self.cp.add(before <= after)
        if only_if:
            constraint.only_enforce_if(*only_if)

    def _hinted(self, variable: Expression, value: int) -> Expression:
        self._value[variable.index] = value
        self.cp.add_hint(variable, value)
        return variable


class Limits(NamedTuple):
    """Limits and parameters of a search."""

    seconds: float
    solutions: int  # number of improving solutions after which the search stops
    seed: int
    workers: int
    gap: float  # relative gap: the search ends at a solution this near to its bound


def minimise(
    model: Model,
    objective: Expression,
    variables: Sequence[Expression],
    limits: Limits,
    take: Callable[[list[int]], None],
    tick: Callable[[], bool],
) -> int | None:
    """Minimises the objective, in separate threads.

    Args:
      variables: variables whose values make a solution.
      take: called with the values of each better solution, in the caller's thread.
      tick: called a few times a second; True ends the search. An exception that it raises, or a KeyboardInterrupt, ends
        the search too and is passed on.

    Returns:
      A bound of the objective, or None if none is known yet.
    """
    solver = _solver(limits, model.searches)
    waiting: list[list[int]] = []
    collect = _collector(variables, limits.solutions, waiting)
    model.cp.minimize(objective)
    status: list[Any] = []

    def run() -> None:
        try:
            status.append(solver.solve(model.cp, collect))
        except Exception as error:  # an error of OR-Tools: passed to the caller's thread
            status.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        running = True
        while running:
            thread.join(TICK)
            running = thread.is_alive()
            while waiting:
                take(waiting.pop(0))
            if tick():
                break
    finally:
        while thread.is_alive():
            solver.stop_search()  # no effect before the search has started
            thread.join(0.05)
    if isinstance(status[0], Exception):
        raise status[0]
    cp_model = or_tools()
    if status[0] in (cp_model.INFEASIBLE, cp_model.MODEL_INVALID):
        raise RuntimeError("cp-sat: the model rejects a known plan: a bug in graphrl")
    while waiting:
        take(waiting.pop(0))
    if status[0] == cp_model.UNKNOWN:
        return None
    return round(solver.best_objective_bound)  # an integer, and below 2^50 a float is one


@dataclasses.dataclass(frozen=True)
class Quanta:
    """Seconds as whole quanta, rounded down, so that a bound in quanta is a bound in seconds.

    Attributes:
      lengths: quanta, one for each of the seconds given.
      exact: nothing was rounded, and sums of them are exact in float64.
    """

    lengths: tuple[int, ...]
    numerator: int  # a quantum is numerator / denominator seconds
    denominator: int
    exact: bool

    @classmethod
    def of(cls, seconds: Sequence[float], coarse: bool = False) -> "Quanta":
        """Returns the coarsest exact quanta if these are at most 2^32 in all, else 2^20 or more quanta on average.

        `coarse` quanta are exact if their average over the seconds above 0 is at most 2^8, else the average is 2^6 or
        more.
        """
        total = math.fsum(seconds)
        if total == 0:
            return cls((0,) * len(seconds), 1, 1, True)
        ratios = [value.as_integer_ratio() for value in seconds]
        denominator = max(below for _, below in ratios)  # a power of two
        whole = [above * (denominator // below) for above, below in ratios]
        numerator = math.gcd(*whole)
        count = sum(value > 0 for value in seconds)
        if sum(whole) // numerator <= (4 * COARSE * count if coarse else MAX_EXACT) and sum(whole) < 2**53:
            return cls(tuple(value // numerator for value in whole), numerator, denominator, True)
        target = count * (COARSE if coarse else FINE)
        exponent = math.frexp(total)[1] - 1 - (target - 1).bit_length()  # a quantum is 2^exponent
        numerator, shift = 2 ** max(exponent, 0), max(-exponent, 0)
        lengths = tuple((above << shift) // (below * numerator) for above, below in ratios)
        return cls(lengths, numerator, 2**shift, False)

    def bound(self, quanta: int) -> float:
        """Converts a lower bound of all plans in quanta to one in seconds."""
        seconds = quanta * self.numerator / self.denominator
        # A plan's float64 clock may be below the exact sum by its rounding.
        return seconds if self.exact else seconds * (1 - (len(self.lengths) + 4) * 2**-50)

    def at_least(self, seconds: float) -> int:
        """Converts a lower bound of all plans' makespans in seconds to one in quanta."""
        above, below = seconds.as_integer_ratio()
        quanta, rest = divmod(above * self.denominator, below * self.numerator)
        return quanta + (rest > 0) if self.exact else max(0, quanta - len(self.lengths) - 2)


def byte_unit(sizes: Sequence[int]) -> int:
    """Returns the number of bytes that all sizes are multiples of (their greatest common divisor).

    Raises:
      ProblemError: there would be more than 2^50 of them in all.
    """
    unit = math.gcd(*sizes) or 1
    if sum(sizes) // unit > MAX_UNITS:
        raise ProblemError(f"method 'cp-sat' counts up to 2^50 units of {unit} bytes: the graph has more")
    return unit


def _solver(limits: Limits, searches: Sequence[str]) -> Any:
    solver = or_tools().CpSolver()
    solver.parameters.max_time_in_seconds = limits.seconds
    solver.parameters.random_seed = limits.seed % 2**31
    solver.parameters.num_workers = limits.workers
    solver.parameters.relative_gap_limit = limits.gap
    solver.parameters.subsolvers.extend(searches)
    solver.parameters.catch_sigint_signal = False  # Ctrl-C is Python's
    return solver


def _collector(variables: Sequence[Expression], solutions: int, waiting: list[list[int]]) -> Any:
    """Returns a callback that adds each solution's values to `waiting` and ends the search after `solutions`."""
    cp_model, left = or_tools(), solutions

    class Collector(cp_model.CpSolverSolutionCallback):  # type: ignore[name-defined]
        def on_solution_callback(self) -> None:
            nonlocal left
            left -= 1
            if left >= 0:
                waiting.append([self.value(variable) for variable in variables])
            if left <= 0:
                self.stop_search()

    return Collector()
