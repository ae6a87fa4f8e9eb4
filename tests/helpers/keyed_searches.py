"""What the tests of the searches on keys share: problems of every kind, a tiny graph, Ctrl-C."""

from collections.abc import Callable

from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
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

DIAMOND = ComputationGraph(
    "diamond",
    (
        Op("a", runtime=1, outputs=(Tensor("a0", 4),)),
        Op("b", runtime=2, inputs=("a0",), outputs=(Tensor("b0", 3),)),
        Op("c", runtime=3, inputs=("a0",), outputs=(Tensor("c0", 5),), workspace_bytes=2),
        Op("d", runtime=1, inputs=("b0", "c0"), outputs=(Tensor("d0", 1),)),
    ),
)


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
