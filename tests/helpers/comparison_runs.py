"""Small graphs and solvers to compare."""

from collections.abc import Callable

import pytest

import graphrl.compare.runs as execute_module
from graphrl.compare.runs import Run, make_runs
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Task


def diamond(name: str = "diamond", runtime: float = 2.0) -> ComputationGraph:
    """The worked example of `graphrl/costs`: the best order peaks at 12 B, the given one at 14 B."""
    ops = (
        Op("a", runtime=1, outputs=(Tensor("a0", 4),)),
        Op("b", runtime=runtime, inputs=("a0",), outputs=(Tensor("b0", 3),)),
        Op("c", runtime=3, inputs=("a0",), outputs=(Tensor("c0", 5),), workspace_bytes=2),
        Op("d", runtime=1, inputs=("b0", "c0"), outputs=(Tensor("d0", 1),)),
    )
    return ComputationGraph(name, ops)


def chain(length: int) -> ComputationGraph:
    """A chain of ops, which has a single order."""
    ops = [Op(f"o{i}", "", 1.0, (f"t{i - 1}",) if i else (), (Tensor(f"t{i}", 1),)) for i in range(length)]
    return ComputationGraph(f"chain{length}", tuple(ops))


def runs_of(*methods: str, seeds: int = 1, graphs: tuple[ComputationGraph, ...] = (), **options: object) -> list[Run]:
    """The runs of some methods on these graphs, by default the two above."""
    budget = Budget(50) if not options.get("seconds") else Budget(None, options["seconds"])  # type: ignore[arg-type]
    problem = Problem(devices=1)
    return make_runs(graphs or (diamond(), chain(5)), problem, methods, range(seeds), budget, cores=1)


def replace_solver(monkeypatch: pytest.MonkeyPatch, solve: Callable[[Task], Plan]) -> None:
    """Replaces every method by this one."""
    monkeypatch.setattr(execute_module, "find_solver", lambda name: solve)
