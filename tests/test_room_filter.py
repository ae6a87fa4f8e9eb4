"""The filter keeps the graphs on which BRKGA gains much, or fits the memory, from more evaluations."""

import functools

import numpy as np
import pytest

from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.regal_like import regal_like
from graphrl.graphs.padding import common_sizes
from graphrl.solvers.chromosomes.brkga import Parameters
from graphrl.solvers.chromosomes.room_filter import Room, room_to_improve

GRAPHS = [regal_like(seed, num_ops=16) for seed in range(6)]
SIZES = common_sizes(GRAPHS)
PARAMETERS = Parameters(population=20, elites=4, mutants=4)
PROBLEM = Problem("makespan", 2, "rendezvous")


@functools.cache
def room(problem: Problem, low: int = 16, high: int = 800, shorter: float = 0.2) -> Room:
    return room_to_improve(GRAPHS, range(6), problem, low, high, shorter, PARAMETERS)


def test_a_graph_is_kept_if_many_evaluations_are_a_fifth_better() -> None:
    found = room(PROBLEM)
    assert (found.high <= found.low).all()
    assert found.kept.tolist() == (found.high <= 0.8 * found.low).tolist()
    assert found.kept.any()
    for graph, value in zip(GRAPHS, found.high.tolist(), strict=True):
        assert lower_bound(graph, PROBLEM) <= value < graph.arrays.runtime.sum() * 1.001
        assert value == round(value)  # whole seconds stay whole in the graph's units
    less = room(PROBLEM, shorter=0.0)
    assert less.kept.all()


def test_a_result_does_not_depend_on_the_batch() -> None:
    turned = room_to_improve(GRAPHS[::-1], range(6)[::-1], PROBLEM, 16, 800, 0.2, PARAMETERS, SIZES)
    assert turned.low[::-1].tolist() == room(PROBLEM).low.tolist()
    assert turned.high[::-1].tolist() == room(PROBLEM).high.tolist()


def test_a_graph_is_kept_if_only_many_evaluations_fit_the_memory() -> None:
    found = room(Problem("makespan", 2, memory_limit=317))  # above the least peaks that are known of four graphs
    assert (np.isinf(found.low) | ~np.isinf(found.high)).all()
    fits_late = np.isinf(found.low) & np.isfinite(found.high)
    assert fits_late.any()
    assert found.kept[fits_late].all()
    assert not found.kept[np.isinf(found.high)].any()


def test_errors() -> None:
    with pytest.raises(ProblemError, match="6 graphs and 2 seeds"):
        room_to_improve(GRAPHS, [0, 1], PROBLEM, 16, 800)
    for low, high in ((15, 800), (160, 160), (800, 160)):
        with pytest.raises(ProblemError, match=f"limits of {low} and {high} evaluations: the low one must"):
            room_to_improve(GRAPHS, range(6), PROBLEM, low, high, 0.2, PARAMETERS)
    with pytest.raises(ProblemError, match="shorter is 1"):
        room_to_improve(GRAPHS, range(6), PROBLEM, 80, 800, 1.0)
