"""Trees and series-parallel graphs: the known least peak, and a clear answer for other graphs."""

import numpy as np
import pytest
from hypothesis import given, settings
from optima import optimum
from random_graphs import graphs

from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.families import sample
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.flow import Flow, Usage
from graphrl.solvers.orders.series_parallel import best_order, solve

ANY = Budget(evaluations=1)


@pytest.mark.parametrize("family", ["in-tree", "out-tree", "series-parallel"])
@pytest.mark.parametrize("ops", [2, 13, 300])
def test_the_known_peak(family: str, ops: int) -> None:
    graph, facts = sample(family, ops, ops)
    plan = solve(Task(graph, Problem(), ANY, 0))
    plan.check(graph)
    assert plan.value == plan.bound == facts["optimal_peak_memory"]


@settings(max_examples=30)
@given(graphs(max_ops=7))
def test_where_it_answers_it_is_the_optimum(graph: ComputationGraph) -> None:
    flow = Flow(graph)
    order = best_order(flow)
    if order is not None:
        peak = Usage(flow)(np.array(order)).max()
        assert peak == optimum(graph, Problem())


def test_kept_and_unread_outputs_workspace_and_a_shortcut_edge() -> None:
    """a feeds b and c, d joins them and waits for a as well."""
    ops = (
        Op("a", outputs=(Tensor("a0", 4), Tensor("a1", 2))),
        Op("b", inputs=("a0",), outputs=(Tensor("b0", 3), Tensor("unread", 9)), workspace_bytes=1),
        Op("c", inputs=("a1",), outputs=(Tensor("c0", 5), Tensor("kept", 7))),
        Op("d", inputs=("b0", "c0"), after=("a",)),
    )
    graph = ComputationGraph("diamond", ops, outputs=("kept",))
    assert solve(Task(graph, Problem(), ANY, 0)).value == optimum(graph, Problem())


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (Problem(), "needs a series-parallel graph or a tree"),
        (Problem(devices=2), "method 'series-parallel' orders the ops of one device"),
        (Problem("makespan"), "minimises peak_memory"),
    ],
)
def test_what_it_cannot_take(problem: Problem, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        solve(Task(layered(30, 0), problem, ANY, 0))
