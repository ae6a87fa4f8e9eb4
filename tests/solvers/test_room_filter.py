"""The filter keeps the graphs on which BRKGA gains much from more evaluations, or fits the memory with them."""

import functools

import numpy as np
import pytest

from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.regal_like import regal_like
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.graphs.padding import common_sizes
from graphrl.solvers.chromosomes.brkga import Parameters
from graphrl.solvers.chromosomes.room_filter import Room, room_to_improve

# In a chain every solution takes the same time: there is nothing to gain.
CHAIN = ComputationGraph("chain", tuple(Op(f"{i}", runtime=1.0, after=(f"{i - 1}",) * (i > 0)) for i in range(16)))
GRAPHS = [*(regal_like(seed, num_ops=16) for seed in range(5)), CHAIN]
SIZES = common_sizes(GRAPHS)
PARAMETERS = Parameters(population=20, elites=4, mutants=4)
PROBLEM = Problem("makespan", 2, "rendezvous")


@functools.cache
def room(problem: Problem, low: int = 16, high: int = 800, shorter: float = 0.2) -> Room:
    return room_to_improve(GRAPHS, range(6), problem, low, high, shorter, PARAMETERS)


def test_a_graph_is_kept_if_many_evaluations_are_a_fifth_better() -> None:
    few, many, kept = room(PROBLEM)
    assert (many <= few).all()
    assert many[-1] == few[-1] == 16
    assert not kept[-1]
    assert kept.any()
    for graph, value in zip(GRAPHS, many.tolist(), strict=True):
        assert lower_bound(graph, PROBLEM) <= value < graph.arrays.runtime.sum() * 1.001
        assert value == round(value)  # whole seconds stay whole in the graph's units
    assert room(PROBLEM, shorter=0.0).kept.all()


def test_a_result_does_not_depend_on_the_batch() -> None:
    turned = room_to_improve(GRAPHS[::-1], range(6)[::-1], PROBLEM, 16, 800, 0.2, PARAMETERS, SIZES)
    assert turned.low[::-1].tolist() == room(PROBLEM).low.tolist()
    assert turned.high[::-1].tolist() == room(PROBLEM).high.tolist()


def test_a_graph_is_kept_if_only_many_evaluations_fit_the_memory() -> None:
    few, many, kept = room(Problem("makespan", 2, memory_limit=317))  # above the least known peaks of some graphs
    assert (np.isinf(few) | ~np.isinf(many)).all()
    fits_late = np.isinf(few) & np.isfinite(many)
    assert fits_late.any()
    assert kept[fits_late].all()
    assert not kept[np.isinf(many)].any()


def test_errors() -> None:
    with pytest.raises(ProblemError, match="6 graphs and 2 seeds"):
        room_to_improve(GRAPHS, [0, 1], PROBLEM, 16, 800)
    for low, high in ((15, 800), (160, 160), (800, 160)):
        with pytest.raises(ProblemError, match=f"limits of {low} and {high} evaluations: the low one must"):
            room_to_improve(GRAPHS, range(6), PROBLEM, low, high, 0.2, PARAMETERS)
    with pytest.raises(ProblemError, match="shorter is 1"):
        room_to_improve(GRAPHS, range(6), PROBLEM, 80, 800, 1.0)
