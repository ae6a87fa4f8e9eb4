"""The oracle of tiny graphs, by naive enumeration with exact costs."""

import dataclasses
import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optima import least_rank, optimum, placements
from random_graphs import graphs, problems
from worked_example import TINY

from graphrl.costs import exact
from graphrl.costs.bounds import lower_bound
from graphrl.costs.exact.routes import Routes
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph, Op, Tensor


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


@pytest.mark.parametrize(
    ("problem", "value"),
    [
        (Problem(), 12),
        (Problem("makespan"), 7.0),
        (Problem("makespan", 2, "free"), 5.0),
        (Problem("makespan", 2, "rendezvous"), 5.0),  # b goes away and comes back when c has ended
        (Problem("makespan", 2, "free", latency=0.5, bandwidth=4.0), 6.5),  # c and d go: 1 + 1.5 + 3 + 1
        (Problem("makespan", 2, "rendezvous", latency=0.5, bandwidth=4.0), 7.0),
        (Problem("makespan", 1, memory_limit=12), 7.0),
    ],
)
def test_worked_example(problem: Problem, value: float) -> None:
    assert optimum(TINY, problem) == value


def test_the_place_of_a_transfer_matters_under_rendezvous() -> None:
    """The sender's own user of a0 must wait for the transfer (2 to 6 s), else the receiver waits for it (6 to 10 s)."""
    graph = ComputationGraph(
        "fork",
        (
            Op("a", runtime=1, outputs=(Tensor("a0", 4),)),
            Op("b", runtime=4, inputs=("a0",)),
            Op("c", runtime=4, inputs=("a0",)),
        ),
    )
    assert optimum(graph, Problem("makespan", 2, "rendezvous", bandwidth=4.0)) == 6.0


@pytest.mark.parametrize(("ops", "devices", "count"), [(1, 1, 1), (4, 1, 1), (4, 2, 8), (4, 4, 15), (3, 9, 5)])
def test_placements_up_to_names(ops: int, devices: int, count: int) -> None:
    seen = {tuple(placement.tolist()) for placement in placements(ops, devices)}
    assert len(seen) == len(list(placements(ops, devices))) == count

    def renamed(placement: tuple[int, ...]) -> tuple[int, ...]:
        names: dict[int, int] = {}
        return tuple(names.setdefault(device, len(names)) for device in placement)

    assert {renamed(placement) for placement in itertools.product(range(devices), repeat=ops)} == seen
