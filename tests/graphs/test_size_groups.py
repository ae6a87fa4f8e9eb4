"""Sizes that graphs share: they hold each of them, are few, and change no result."""

import dataclasses

import numpy as np
import pytest
from device_graphs import random_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from search_graphs import random_dag

from graphrl.compare.runs import Executor, make_runs
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets.sets import load_graphs
from graphrl.graphs.padding import Sizes, common_sizes, pad, shared_sizes, sizes
from graphrl.methods import find_solver
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.chromosomes import brkga_solver

RENDEZVOUS = Problem("makespan", 2)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=8))
def test_every_graph_fits_and_alone_has_its_own_bucket(seeds: list[int]) -> None:
    graphs = [random_graph(np.random.default_rng(seed)) for seed in seeds]
    shared = shared_sizes(graphs)
    for graph, to in zip(graphs, shared, strict=True):
        assert pad(graph, to).sizes == to
    assert shared_sizes(graphs[:1]) == [common_sizes(graphs[:1])]


def test_sizes_are_few_and_close() -> None:
    graphs = load_graphs(["regal-like:x24"])
    shared = shared_sizes(graphs)
    assert len(set(shared)) <= 10 < len({common_sizes([graph]) for graph in graphs})
    for graph, to in zip(graphs, shared, strict=True):
        real = sizes(graph)
        assert to.ops <= 1.25 * 1.125 * real.ops
        assert to.tensors <= 1.25 * 1.125 * real.tensors
        assert to.uses <= 2 * 1.125 * real.uses


@pytest.mark.parametrize(
    ("method", "problem"),
    [
        *((method, RENDEZVOUS) for method in ("brkga", "brkga+", "brkga-tuned")),
        ("auto", RENDEZVOUS),
    ],
)
def test_padding_changes_no_result(method: str, problem: Problem) -> None:
    graph, solve = random_dag(5), find_solver(method)
    to = Sizes(**{name: 8 + 3 * size // 2 for name, size in dataclasses.asdict(common_sizes([graph])).items()})
    own, padded = (solve(Task(graph, problem, Budget(300), 1, sizes=sizes)) for sizes in (None, to))
    assert (padded.placement, padded.order) == (own.placement, own.order)


def test_a_comparison_compiles_a_program_for_graphs_of_similar_sizes() -> None:
    graphs = load_graphs([f"series-parallel:{ops}" for ops in (100, 110, 120)])
    runs = make_runs(graphs, RENDEZVOUS, ["brkga"], [0], Budget(160), cores=1)
    assert len({run.sizes for run in runs}) == 1 < len({common_sizes([graph]) for graph in graphs})
    programs = getattr(brkga_solver._evolve, "_cache_size")  # noqa: B009  (types do not know it)
    before = programs()
    executor = Executor()
    assert [executor.execute(run).error for run in runs] == [None] * 3
    assert programs() == before + 1


def test_under_a_budget_in_seconds_every_graph_has_its_own_bucket() -> None:
    runs = make_runs(load_graphs(["layered:50x2"]), RENDEZVOUS, ["brkga"], [0], Budget(None, 1.0), cores=1)
    assert [run.sizes for run in runs] == [None, None]
    assert len({dataclasses.replace(run, sizes=common_sizes([run.graph])).key for run in runs}) == 2
