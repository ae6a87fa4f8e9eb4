"""Problems of shardings: reading, exact costs and memory, plans and their files."""

import copy
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shardings import TINY, random_problem, write

from graphrl.errors import GraphrlError, PlanError, ProblemError
from graphrl.sharding.plan import ShardingPlan, gap_text
from graphrl.sharding.problem import PROHIBITIVE, ShardingProblem, read_problem


@pytest.mark.parametrize("name", ["tiny.json", "tiny.json.gz"])
def test_costs_and_memory_are_exact(tmp_path: Path, name: str) -> None:
    problem = read_problem(write(tmp_path / name, TINY))
    assert problem.name == "tiny"
    assert problem.limit == 5
    assert problem.total_cost(np.array([0, 1])) == 5 + 0 + 4  # row of node 0, column of node 1
    assert problem.total_cost(np.array([1, 0])) == 1 + 2 + 3
    assert problem.times.tolist() == [0, 1, 2, 3]
    assert problem.memory(np.array([1, 1])).tolist() == [3, 6, 3, 0]
    assert problem.peak(np.array([0, 1])) == 4


def test_costs_above_two_to_the_63_are_exact(tmp_path: Path) -> None:
    document = copy.deepcopy(TINY)
    document["problem"]["nodes"]["costs"] = [[2**63 - 1, 1], [2**63 - 1, 0]]
    problem = read_problem(write(tmp_path / "large.json", document))
    assert problem.total_cost(np.array([0, 0])) == 2 * (2**63 - 1)


def test_memory_is_that_of_each_time() -> None:
    problem = random_problem(3, nodes=9)
    plan = np.zeros(9, np.int64)
    usage = problem.usage[problem.offset[:-1]]
    for time, held in zip(problem.times, problem.memory(plan), strict=True):
        alive = (problem.interval[:, 0] <= time) & (time < problem.interval[:, 1])
        assert held == usage[alive].sum()


def _set(*path: Any) -> Callable[[Any], None]:
    """A change of a document: the last item is the value at the path of the others."""

    def change(document: Any) -> None:
        *keys, last, value = path
        for key in keys:
            document = document[key]
        if value is None:
            del document[last]
        else:
            document[last] = value

    return change


BROKEN = [
    (_set("problem", "nodes", None), "missing required field `nodes`"),
    (_set("problem", "nodes", "costs", 7), "nodes.costs[0] is no list of integers"),
    (_set("problem", "nodes", "costs", [[5, 1], [2, -1]]), "an integer of at least 0 is expected"),
    (_set("problem", "nodes", "costs", [[5, 1], [2, 0.5]]), "an integer of at least 0 is expected"),
    (_set("problem", "nodes", "costs", [[5, 1], [2, 2**63]]), "above 2^63 - 1"),
    (_set("problem", "nodes", "costs", [[5, 1], []]), "nodes.costs[1] is empty"),
    (_set("problem", "nodes", "usages", [[5, 1], [2]]), "nodes.usages[1] has not as many items"),
    (_set("problem", "nodes", "usages", [[5, 1]]), "nodes.usages has 1 items"),
    (_set("problem", "nodes", "intervals", [[0, 1], [1]]), "nodes.intervals[1] must be a pair"),
    (_set("problem", "edges", "nodes", [[0, 2]]), "edges.nodes[0] has a node that is not there"),
    (_set("problem", "edges", "costs", [[0, 1, 2]]), "edges.costs[0] must have a cost for each pair"),
    (_set("problem", "usage_limit", -1), "usage_limit is -1"),
]


@pytest.mark.parametrize(("change", "fault"), BROKEN)
def test_broken_files_are_refused_in_one_line(tmp_path: Path, change: Any, fault: str) -> None:
    document = copy.deepcopy(TINY)
    change(document)
    path = write(tmp_path / "broken.json", document)
    with pytest.raises(ProblemError) as error:
        read_problem(path)
    assert fault in str(error.value)
    assert "broken.json" in str(error.value)
    assert "\n" not in str(error.value)


def test_truncated_files_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "whole.json", TINY)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(GraphrlError, match="is no sharding problem"):
        read_problem(path)


def _plan(problem: ShardingProblem, strategies: list[int]) -> ShardingPlan:
    return ShardingPlan.of(problem, np.array(strategies), "auto", 0, 0.5)


def test_a_plan_is_saved_and_checked(tmp_path: Path) -> None:
    problem = read_problem(write(tmp_path / "tiny.json", TINY))
    plan = _plan(problem, [0, 0])
    plan.save(tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text())["format"] == "graphrl-sharding"
    loaded = ShardingPlan.load(tmp_path / "plan.json")
    assert loaded == plan
    assert loaded.contest_list() == "[0, 0]"
    loaded.check(problem)


def test_the_gap_is_in_words() -> None:
    assert gap_text(8, 8) == "optimal"
    assert gap_text(12, 8) == "at most 50.00% above the optimum"
    assert gap_text(12, 0) == "no bound above 0"


def test_wrong_plans_are_refused(tmp_path: Path) -> None:
    problem = read_problem(write(tmp_path / "tiny.json", TINY))
    with pytest.raises(PlanError, match="takes 6 bytes: the limit is 5"):
        _plan(problem, [1, 1]).check(problem)
    with pytest.raises(PlanError, match="cost is stated as 3: it is 7"):
        dataclasses.replace(_plan(problem, [0, 0]), cost=3).check(problem)
    with pytest.raises(PlanError, match="there is no strategy 2"):
        dataclasses.replace(_plan(problem, [0, 0]), strategies=[0, 2]).check(problem)
    with pytest.raises(PlanError, match="a strategy for each node"):
        dataclasses.replace(_plan(problem, [0, 0]), strategies=[0]).check(problem)
    problem.edge_cost[0] = PROHIBITIVE
    with pytest.raises(PlanError, match="prohibitive"):
        _plan(problem, [0, 0]).check(problem)
