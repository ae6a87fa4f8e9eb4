"""What the tests of the searches on keys share: problems of every kind, Ctrl-C."""

from collections.abc import Callable

from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Interrupted, Task
from graphrl.solvers.solver import Solver

PROBLEMS = [
    Problem("makespan", 2, "rendezvous", latency=0.5, bandwidth=20.0),
    Problem("makespan", 3, "link", latency=0.5, bandwidth=20.0),
    Problem("makespan", 2, "free"),
    Problem("peak_memory", 2, "rendezvous"),
    Problem("peak_memory", 1),
]


def interrupted_plan(solve: Solver, graph: ComputationGraph, problem: Problem) -> Plan:
    """The plan of an `Interrupted` that comes with the second progress report."""
    reports = 0

    def stop(evaluations: int, seconds: float, plan: Callable[[], Plan], value: float) -> None:
        nonlocal reports
        reports += 1
        if reports == 2:
            raise KeyboardInterrupt

    try:
        solve(Task(graph, problem, Budget(seconds=60.0), 0, stop))
    except Interrupted as stopped:
        return stopped.plan
    raise AssertionError("the search did not stop")
