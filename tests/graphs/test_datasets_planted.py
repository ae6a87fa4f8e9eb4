"""P|prec|Cmax instances: the planted plan is as long as it says, and no plan is shorter."""

import numpy as np
import pytest
from shortest_makespan import optimum

from graphrl.costs.bounds import lower_bound
from graphrl.costs.exact import evaluate
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.known_optima import planted
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.rules.list_scheduling import solve_list


@pytest.mark.parametrize("devices", [1, 2, 3, 8])
@pytest.mark.parametrize("num_ops", [8, 50, 300])
def test_the_planted_plan_meets_the_bound(num_ops: int, devices: int) -> None:
    for seed in range(10):
        instance = planted(num_ops, devices, seed)
        for bandwidth in (float("inf"), 1.0):  # tensors are small enough to arrive in time at a byte per second
            problem = Problem("makespan", devices, "free", bandwidth=bandwidth)
            assert evaluate(instance.graph, problem, instance.placement, instance.order).makespan == instance.makespan
        assert (
            lower_bound(instance.graph, problem) == instance.makespan == instance.graph.arrays.runtime.sum() / devices
        )
        plan = Plan.from_order(
            instance.graph,
            problem,
            instance.placement,
            instance.order,
            method="planted",
            seconds=0.0,
            evaluations=0,
            seed=seed,
        )
        plan.check(instance.graph)
        assert instance.graph.arrays.topological.tolist() == list(range(num_ops))
        assert (instance.graph.arrays.runtime >= 1).all()


def test_the_optimum_is_that_of_an_independent_solver() -> None:
    for seed in range(6):
        instance = planted(9, 2, seed)
        assert optimum(instance.graph, 2) == instance.makespan


def test_list_scheduling_often_misses_the_optimum() -> None:
    """That is what the instances are for."""
    missed = 0
    for seed in range(20):
        instance = planted(60, 4, seed)
        value = solve_list(Task(instance.graph, Problem("makespan", 4, "free"), Budget(evaluations=1), 0)).value
        assert value >= instance.makespan
        missed += value > instance.makespan
    assert missed >= 10


def test_same_seed_same_instance() -> None:
    assert planted(40, 3, 5).graph == planted(40, 3, 5).graph
    assert planted(40, 3, 5).graph != planted(40, 3, 6).graph
    assert planted(40, 3, 5).graph != planted(40, 2, 5).graph


def test_inputs_and_window_shape_the_graph() -> None:
    few, many = (planted(200, 2, 0, inputs=inputs).graph.arrays for inputs in (0.5, 4.0))
    assert 60 < len(few.use_op) < 130
    assert 400 < len(many.use_op) < 800
    near = planted(200, 2, 0, window=1).graph.arrays
    assert np.abs(near.use_op - near.producer[near.use_tensor]).max() < 40


def test_errors() -> None:
    with pytest.raises(ProblemError, match="num_ops is 3: must be an integer of at least 4"):
        planted(3, 4, 0)
    with pytest.raises(ProblemError, match="devices is 0"):
        planted(3, 0, 0)
