"""ShardingPlan: a strategy for every node of a sharding problem, its exact cost and peak, and its search.

Its file has the format "graphrl-sharding", version 1. The contest's answer is the list of strategies alone.
"""

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from graphrl.errors import PlanError, ProblemError
from graphrl.files import read_document, write_atomically
from graphrl.sharding.problem import PROHIBITIVE, UNLIMITED, ShardingProblem

FORMAT, VERSION = "graphrl-sharding", 1


@dataclasses.dataclass(frozen=True)
class ShardingPlan:
    """A plan of one problem.

    Attributes:
      problem: the problem's name.
      method: method that found the plan.
      cost: exact cost.
      bound: lower bound of the cost of any feasible plan.
      peak_bytes: most bytes at any time.
      limit: memory limit in bytes; None without one.
      seconds: wall-clock time of the search.
      seed: seed of the search.
      strategies: strategy of each node.
    """

    problem: str
    method: str
    cost: int
    bound: int
    peak_bytes: int
    limit: int | None
    seconds: float
    seed: int
    strategies: list[int]

    @classmethod
    def of(
        cls,
        problem: ShardingProblem,
        strategies: np.ndarray,
        method: str,
        bound: int,
        seconds: float = 0.0,
        seed: int = 0,
    ) -> "ShardingPlan":
        """Makes the plan of `[n]` strategies, with their exact cost and peak, whether it fits or not."""
        limit = None if problem.limit == UNLIMITED else problem.limit
        cost, peak = problem.total_cost(strategies), problem.peak(strategies)
        return cls(problem.name, method, cost, bound, peak, limit, seconds, seed, strategies.tolist())

    @property
    def gap(self) -> float:
        """Relative gap of the cost above the bound; infinite for a bound of 0 below the cost."""
        return gap(self.cost, self.bound)

    def check(self, problem: ShardingProblem) -> None:
        """Checks the plan against its problem: recomputes cost and peak.

        Raises:
          PlanError: it has other nodes, a prohibitive cost, more bytes than the limit, or states wrong figures.
        """
        try:
            strategies = problem.check(self.strategies)
        except ProblemError as error:
            raise PlanError(str(error)) from None
        node, edge = problem.costs(strategies)
        if max(node.max(initial=0), edge.max(initial=0)) >= PROHIBITIVE:
            raise PlanError("the plan has a prohibitive cost")
        for key, value in (("cost", problem.total_cost(strategies)), ("peak_bytes", problem.peak(strategies))):
            if getattr(self, key) != value:
                raise PlanError(f"{key} is stated as {getattr(self, key)}: it is {value}")
        if self.peak_bytes > problem.limit:
            raise PlanError(f"the plan takes {self.peak_bytes} bytes: the limit is {problem.limit}")

    def to_dict(self) -> dict[str, Any]:
        """Converts the plan to a JSON object of the file's format."""
        return {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan to a JSON file, atomically.

        Raises:
          GraphrlError: the file cannot be written; an old one is untouched.
        """
        write_atomically(path, lambda file: file.write(json.dumps(self.to_dict()) + "\n"))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "ShardingPlan":
        """Reads a plan file. `check` it before trusting its numbers.

        Raises:
          GraphrlError: the file cannot be read, or is no plan of this format; one line.
        """
        return read_document(Path(path), ShardingPlan, FORMAT, VERSION)

    def contest_list(self) -> str:
        """Returns the contest's answer: the strategies in brackets."""
        return json.dumps(self.strategies)


def gap(cost: int, bound: int) -> float:
    """Returns the relative gap of a cost above a lower bound; infinite for a bound of 0 below the cost."""
    if cost <= bound:
        return 0.0
    return cost / bound - 1 if bound > 0 else math.inf


def gap_text(cost: int, bound: int) -> str:
    """Returns in words how far from the optimum a plan of this cost can be."""
    if cost <= bound:
        return "optimal"
    if bound <= 0:
        return "no bound above 0"
    return f"at most {100 * gap(cost, bound):,.2f}% above the optimum"
