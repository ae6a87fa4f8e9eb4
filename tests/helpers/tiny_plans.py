"""Plans to test with: the worked example of `graphrl/costs` on two devices, and random ones."""

from typing import Any

from hypothesis import strategies as st
from random_graphs import graphs, plans, problems

from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.plan import Plan

TINY = ComputationGraph(
    "tiny",
    (
        Op("a", "input", 1.0, (), (Tensor("a0", 4),)),
        Op("b", "MatMul", 2.0, ("a0",), (Tensor("b0", 3),)),
        Op("c", "Conv", 3.0, ("a0",), (Tensor("c0", 5),), workspace_bytes=2),
        Op("d", "Add", 1.0, ("b0", "c0"), (Tensor("d0", 1),)),
    ),
)
A0_TO_1, C0_TO_0 = 4 + 0 * 2 + 1, 4 + 2 * 2 + 0
TWO = ([0, 0, 1, 0], [0, 1, A0_TO_1, 2, C0_TO_0, 3])  # the worked example on two devices


def tiny_plan(**changes: Any) -> Plan:
    """The worked example on two devices."""
    problem = Problem(devices=2, **changes)
    return Plan.from_order(TINY, problem, *TWO, method="list", seconds=0.5, evaluations=1, seed=3)


def random_plan(data: st.DataObject) -> tuple[ComputationGraph, Plan]:
    """Any graph with any plan of it."""
    graph, problem = data.draw(graphs()), data.draw(problems())
    placement, order = data.draw(plans(graph, problem))
    return graph, Plan.from_order(graph, problem, placement, order, method="m", seconds=1, evaluations=2, seed=0)
