"""The oracle of tiny graphs against naive enumeration with exact costs."""

import dataclasses
import itertools
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st
from optima import least_rank, optimum
from random_graphs import graphs, problems

from graphrl.costs import exact
from graphrl.costs.bounds import lower_bound
from graphrl.costs.exact.routes import Routes
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph


def all_orders(routes: Routes) -> Iterator[list[int]]:
    """Every topological order of the node ids of a placement."""
    size = len(routes.nodes)
    before = [{int(b) for b, a in zip(routes.before, routes.after, strict=True) if a == slot} for slot in range(size)]

    def extend(order: list[int]) -> Iterator[list[int]]:
        if len(order) == size:
            yield [int(routes.nodes[slot]) for slot in order]
        for slot in range(size):
            if slot not in order and before[slot] <= set(order):
                yield from extend([*order, slot])

    return extend([])


def least_rank_of_all(graph: ComputationGraph, problem: Problem) -> tuple[int, float]:
    """The least rank of all plans, each costed by `exact.evaluate`."""
    return min(
        exact.evaluate(graph, problem, placement, order).rank(problem)
        for placement in itertools.product(range(problem.devices), repeat=len(graph.ops))
        for order in all_orders(Routes(graph, problem, placement))
    )


@settings(max_examples=60)
@given(graphs(max_ops=4), problems(max_devices=2), st.sampled_from([None, 1, 6, 12, 20]))
def test_it_finds_the_optimum(graph: ComputationGraph, problem: Problem, limit: int | None) -> None:
    if problem.objective == "makespan":
        problem = dataclasses.replace(problem, memory_limit=limit)
    if sum(len(op.inputs) for op in graph.ops) > 4:
        graph = dataclasses.replace(graph, ops=tuple(dataclasses.replace(op, after=()) for op in graph.ops))
    assert least_rank(graph, problem) == least_rank_of_all(graph, problem)
    assert optimum(graph, problem) >= lower_bound(graph, problem)
