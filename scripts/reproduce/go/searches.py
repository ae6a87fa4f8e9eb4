"""A method on a graph with some seconds: what it came to, and when."""

from collections.abc import Callable
from typing import Any, NamedTuple

from graphrl.costs.problem import Problem
from graphrl.errors import GraphrlError
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes
from graphrl.methods import find_solver
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Task
from reproduce.measurements import Figures

# One plan, whatever the seconds; METIS's is that of seed 0.
RULES = frozenset({"given", "list", "hlfet", "etf", "expert", "metis"})
NEAR = 1e-3  # a search has come to its value where it is within such a part of it


class Entry(NamedTuple):
    """A method and the seconds that it gets.

    Attributes:
      method: with its options; one that plays a policy names its file.
      seconds: of a search.
      name: in tables.
    """

    method: str
    seconds: float
    name: str

    @property
    def key(self) -> dict[str, Any]:
        """Its part of a measurement's key."""
        return {"method": self.method, "seconds": self.seconds}

    @property
    def is_rule(self) -> bool:
        """Whether one run says all."""
        return self.method.partition(":")[0] in RULES

    @property
    def label(self) -> str:
        """As tables name it."""
        return f"`{self.name}`" + ("" if self.is_rule else f" {self.seconds:g} s")


def entry_of(text: str, seconds: float) -> Entry:
    """Reads "auto@10", or "auto" with these seconds.

    Raises:
      GraphrlError: what stands after the @ is no number.
    """
    method, at, own = text.partition("@")
    try:
        return Entry(method, float(own) if at else seconds, method)
    except ValueError:
        raise GraphrlError(f"{text!r}: must be a method, and after @ its seconds") from None


def search(graph: ComputationGraph, problem: Problem, entry: Entry, seed: int, sizes: Sizes | None = None) -> Figures:
    """The makespan of the best plan, the bytes that it exceeds the memory limit by, seconds, evaluations, and after
    which seconds which value was reached, as far as the method told. Networks see the graph padded to the sizes.
    """
    reached: list[tuple[float, float]] = []

    def watch(evaluations: int, seconds: float, plan: Callable[[], Plan], value: float) -> None:
        if not reached or value < reached[-1][1]:
            reached.append((round(seconds, 3), value))

    plan = find_solver(entry.method)(Task(graph, problem, Budget(seconds=entry.seconds), seed, watch, sizes=sizes))
    plan.check(graph)
    return {
        "makespan": plan.makespan,
        "excess": plan.excess,
        "seconds": plan.seconds,
        "evaluations": plan.evaluations,
        "reached": reached,
    }


def time_to(figures: Figures, value: float) -> float | None:
    """After which seconds a search had a plan within `NEAR` of a makespan; None if it never had."""
    return next((spent for spent, other in figures["reached"] if other <= value * (1 + NEAR)), None)
