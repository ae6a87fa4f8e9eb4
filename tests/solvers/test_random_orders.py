"""Orders drawn at random: how they are drawn, their exact memory, budgets and seeds."""

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs

from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.solvers.base import Budget, Interrupted, Task
from graphrl.solvers.flow import Flow, Usage
from graphrl.solvers.orders import random_orders
from graphrl.solvers.orders.random_orders import Drawing

BUDGET = Budget(evaluations=1000)


@settings(max_examples=30)
@given(graphs(max_ops=12), st.integers(0, 99))
def test_peaks_of_many_orders_are_exact(graph: ComputationGraph, seed: int) -> None:
    flow = Flow(graph)
    for by_priority in (False, True):
        orders = Drawing(flow).draw(np.random.default_rng(seed), 7, by_priority)
        assert orders is not None
        usage = Usage(flow)
        assert usage.peaks(orders).tolist() == [flow.peak(order) for order in orders.tolist()]
        assert usage(orders).tolist() == [usage(order).tolist() for order in orders]


@pytest.mark.parametrize(("by_priority", "share"), [(False, 1 / 4), (True, 1 / 3)])
def test_how_orders_are_drawn(by_priority: bool, share: float) -> None:
    """x before both of a chain a b of three ready at first two: 1/2 of the draws if uniform among the ready, 1/3 if by
    priority; and last with 1/4 and 1/3.
    """
    ops = (Op("a", outputs=(Tensor("a", 1),)), Op("b", inputs=("a",)), Op("x"))
    flow = Flow(ComputationGraph("three", ops))
    orders = Drawing(flow).draw(np.random.default_rng(0), 40_000, by_priority)
    assert orders is not None
    assert set(map(tuple, orders.tolist())) == {(0, 1, 2), (0, 2, 1), (2, 0, 1)}
    assert abs((orders[:, 2] == 2).mean() - share) < 0.01


def test_random_orders_keep_the_budget_and_the_seed() -> None:
    graph = layered(100, 0)
    for solve in (random_orders.solve_ready, random_orders.solve_priorities):
        assert solve(Task(graph, Problem(), Budget(evaluations=7), 0)).evaluations == 7
        plan = solve(Task(graph, Problem(), BUDGET, 0))
        assert plan.evaluations == 100
        assert plan.order == solve(Task(graph, Problem(), BUDGET, 0)).order
        assert plan.order != solve(Task(graph, Problem(), BUDGET, 1)).order
        assert solve(Task(graph, Problem(), BUDGET, 0), samples=0).evaluations == 1000
        assert solve(Task(graph, Problem(), BUDGET, 0), samples=1000).value <= plan.value
        started = time.perf_counter()
        assert solve(Task(graph, Problem(), Budget(seconds=0.2), 0), samples=0).evaluations > 100
        assert time.perf_counter() - started < 1.0
        with pytest.raises(ProblemError, match="samples is -1"):
            solve(Task(graph, Problem(), BUDGET, 0), samples=-1)


def test_random_orders_can_be_interrupted() -> None:
    values: list[float] = []

    def progress(evaluations: int, seconds: float, plan: Any, value: float) -> None:
        values.append(value)
        raise KeyboardInterrupt

    with pytest.raises(Interrupted) as stop:
        random_orders.solve_ready(Task(layered(100, 0), Problem(), Budget(seconds=60), 0, progress), samples=0)
    assert stop.value.plan.value == values[0]
