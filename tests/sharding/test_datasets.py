"""Sharding problems by name: random models of layers, and connected parts of files."""

from pathlib import Path

import numpy as np
import pytest
from shardings import TINY, random_problem, write

from graphrl.errors import GraphrlError
from graphrl.sharding.datasets import load_problem, load_problems, part
from graphrl.sharding.layers import layers, least_bytes
from graphrl.sharding.problem import PROHIBITIVE, ShardingProblem, read_problem


def same(one: ShardingProblem, other: ShardingProblem) -> bool:
    return all(np.array_equal(value, vars(other)[name]) for name, value in vars(one).items() if name != "times")


@pytest.mark.parametrize("nodes", [1, 2, 3, 30, 101])
def test_models_of_layers_are_problems_of_that_many_nodes(nodes: int) -> None:
    for seed in range(5):
        problem = layers(nodes, seed)
        assert same(problem, layers(nodes, seed))
        assert len(problem.sizes) == nodes
        assert problem.peak(least_bytes(problem)) <= problem.limit
        assert (problem.sizes[problem.edges].prod(1) == np.diff(problem.edge_offset)).all()
        assert (problem.edges[:, 0] != problem.edges[:, 1]).all()
        assert set(problem.edges.ravel()) | {0} == set(range(nodes))  # connected to something
        assert (problem.cost >= 0).all()
        assert (problem.interval[:, 0] < problem.interval[:, 1]).all()
    assert not same(layers(nodes, 0), layers(nodes, 1))


def test_a_model_has_what_an_auto_sharder_lists() -> None:
    problem = next(one for one in (layers(60, seed) for seed in range(50)) if one.sizes.max() == 16)
    assert set(problem.sizes) <= {4, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16}
    (weights, product), *_ = (
        edge for edge in problem.edges if problem.sizes[edge[0]] == 9 and problem.sizes[edge[1]] == 16
    )
    of_products = slice(problem.offset[product], problem.offset[product + 1])
    of_weights = problem.usage[problem.offset[weights] : problem.offset[weights + 1]]
    assert np.unique(of_weights).size >= 3  # whole, split by one axis of the mesh, by both
    assert problem.cost[of_products][0] > problem.cost[of_products].min()  # a split saves time
    assert (problem.edge_cost >= PROHIBITIVE).any()  # a weight and its update
    assert (problem.edge_cost == 0).any()  # the same split on both sides


def test_the_limit_excludes_the_cheapest_plans() -> None:
    problems = [layers(50, seed) for seed in range(20)]
    cheapest = [
        np.array([one.cost[a:b].argmin() for a, b in zip(one.offset, one.offset[1:], strict=False)]) for one in problems
    ]
    too_large = [one.peak(plan) > one.limit for one, plan in zip(problems, cheapest, strict=True)]
    assert np.mean(too_large) > 0.5


def test_a_part_has_the_nodes_edges_and_costs_of_the_whole() -> None:
    whole = layers(80, 1)
    cut = part(whole, 30, 5)
    assert same(cut, part(whole, 30, 5))
    assert len(cut.sizes) == 30
    assert len(cut.edges) >= 29  # connected
    assert cut.limit >= cut.peak(least_bytes(cut))
    least = least_bytes(whole)
    assert cut.limit / whole.limit == pytest.approx(cut.peak(least_bytes(cut)) / whole.peak(least), rel=1e-6)
    assert set(cut.edge_cost) <= set(whole.edge_cost)
    assert set(map(tuple, cut.interval)) <= set(map(tuple, whole.interval))


def test_a_part_of_everything_is_the_whole() -> None:
    whole = random_problem(4)
    cut = part(whole, len(whole.sizes), 0)
    plan = np.zeros(len(whole.sizes), np.int64)
    assert cut.total_cost(plan) == whole.total_cost(plan)
    assert cut.limit == whole.limit
    np.testing.assert_array_equal(cut.edges, whole.edges)


def test_names_are_files_sets_and_parts(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.json.gz", TINY)
    assert [one.name for one in load_problems(["sharding-layers:20x3@7", str(path)])] == [
        "sharding-layers:20@7",
        "sharding-layers:20@8",
        "sharding-layers:20@9",
        "tiny",
    ]
    assert same(load_problem("sharding-layers:20@8"), layers(20, 8))
    assert [one.name for one in load_problems([f"{path}:1x2@3"])] == ["tiny:1@3", "tiny:1@4"]
    assert same(load_problem(path), read_problem(path))


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("sharding-layers:x3", "is no set of problems: an example is sharding-layers:200x64@7"),
        ("sharding-layers:0", "has 0 nodes: must be from 1 to 1,000,000"),
        ("sharding-layers:5x0", "has 0 problems: must be from 1"),
        ("sharding-layers:5x2", "names 2 problems, where one is needed"),
        ("absent.json", "cannot read absent.json"),
        ("absent.json:4", "cannot read absent.json: No such file"),
        ("tiny.json:3", "'tiny' has 2 nodes: no part of it has 3"),
    ],
)
def test_faults_of_names_are_one_line(name: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "tiny.json", TINY)
    with pytest.raises(GraphrlError, match=fault) as raised:
        load_problem(name)
    assert "\n" not in str(raised.value)
