"""`graphrl shard`: its printed and written results, and its refusals."""

import json
import re
from pathlib import Path

import pytest
from command_line import check_failure
from shardings import TINY, brute_force, write

from graphrl.cli import main
from graphrl.commands.shard import _Writer
from graphrl.sharding.layers import layers
from graphrl.sharding.plan import ShardingPlan
from graphrl.sharding.problem import read_problem
from graphrl.sharding.search import search
from graphrl.sharding.worker import Report


def test_a_problem_is_solved_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, path, picture = write(tmp_path / "tiny.json.gz", TINY), tmp_path / "plan.json", tmp_path / "plan.svg"
    command = ["shard", str(source), "--seconds", "2", "--output", str(path), "--plot", str(picture)]
    assert main([*command, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    problem = read_problem(source)
    assert printed["cost"] == brute_force(problem) == 6
    assert 1 <= printed["bound"] <= 6  # the dual's best is 3; the exact search proves 6 if it has the time
    assert printed["written"] == [str(path), str(picture)]
    assert printed["sizes"]["problem"]["nodes"] == 2
    plan = ShardingPlan.load(path)
    plan.check(problem)
    assert picture.read_bytes()[:4] == b"<?xm"
    assert main([*command[:4], "--contest"]) == 0
    assert json.loads(capsys.readouterr().out) == plan.strategies
    assert main(command[:4]) == 0
    assert re.search("cost +6, (optimal|at most .* above the optimum)", capsys.readouterr().out)


def test_the_best_plan_so_far_is_in_the_file(tmp_path: Path) -> None:
    """Each write leaves a whole file with a feasible plan, whenever the command is killed."""
    problem, path = layers(60, 1), tmp_path / "plan.json"
    write_plan, costs = _Writer(str(path)), []

    def report(state: Report) -> None:
        write_plan(state)
        if path.exists():
            plan = ShardingPlan.load(path)
            plan.check(problem)
            costs.append(plan.cost)

    plan, _ = search(problem, 2.0, workers=1, report=report)
    assert costs
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] >= plan.cost


def test_a_problem_has_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shard", "sharding-layers:20@7", "--seconds", "1", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["problem"], printed["sizes"]["problem"]["nodes"]) == ("sharding-layers:20@7", 20)
    check_failure(["shard", "sharding-layers:20x2"], 2, "names 2 problems, where one is needed", capsys)


FAULTS = [
    ((), 1, "cannot read"),
    (("--seconds", "0"), 2, "must be"),
    (("--output", "plan.png"), 2, "is written as JSON"),
    (("--plot", "plan.txt"), 1, "plan.txt"),
    (("--json", "--contest"), 2, "give one of them"),
]


@pytest.mark.parametrize(("arguments", "code", "fault"), FAULTS)
def test_faults_are_one_line(
    tmp_path: Path, arguments: tuple[str, ...], code: int, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "missing.json" if not arguments else write(tmp_path / "tiny.json", TINY)
    check_failure(["shard", str(source), *arguments], code, fault, capsys)


def test_a_problem_without_a_plan_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(json.dumps(TINY))
    document["problem"]["usage_limit"] = 1
    source = write(tmp_path / "tight.json", document)
    check_failure(["shard", str(source)], 2, "the least bytes of all nodes exceed the memory limit", capsys)
