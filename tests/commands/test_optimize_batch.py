"""Plans of many graphs at once: `graphrl.optimize_batch` and `graphrl optimize --batch`."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from command_line import check_failure

import graphrl
from graphrl.agents.regal import once
from graphrl.agents.regal.config import RegalConfig
from graphrl.agents.regal.network import Policy
from graphrl.cli import main
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.sets import load_graphs
from graphrl.graphs.graph import ComputationGraph, Op, Pipelined
from graphrl.graphs.padding import batch_sizes, common_sizes, sizes
from graphrl.plan import Plan

GRAPHS = load_graphs(["kinds:30x2", "layered:12", "series-parallel:30x2"])
MAKESPAN: dict[str, Any] = {"objective": "makespan", "devices": 2}
SETTINGS = {
    "sequential": RegalConfig(rounds=1, width=8),
    "independent": RegalConfig(rounds=1, width=8, placement="independent"),
}


@pytest.fixture(scope="module", params=SETTINGS)
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An untrained policy of REGAL."""
    path, config = tmp_path_factory.mktemp("policy") / "policy.msgpack", SETTINGS[request.param]
    params = jax.tree.map(np.asarray, Policy.initial(config, jax.random.key(0)))
    Policy(config, params, "by hand").save(path)
    return str(path)


def decisions(plans: list[Plan]) -> list[tuple[str, dict[str, int], list[object], float, int]]:
    return [(plan.graph, dict(plan.placement), list(plan.order), plan.value, plan.evaluations) for plan in plans]


@pytest.mark.parametrize(
    ("method", "problem"),
    [("list", MAKESPAN), ("list:quick=true", MAKESPAN), ("list", {}), ("list:quick=true", {}), ("topoformer", {})],
)
def test_a_batch_has_the_plans_of_single_graphs_in_order(method: str, problem: dict[str, Any]) -> None:
    plans = graphrl.optimize_batch(GRAPHS, **problem, method=method)
    for plan, graph in zip(plans, GRAPHS, strict=True):
        plan.check(graph)
        assert (plan.method, plan.bound) == (method.partition(":")[0], None)
    alone = [graphrl.optimize(graph, **problem, method=method, evaluations=1) for graph in GRAPHS]
    assert decisions(plans) == decisions(alone)


def test_a_policy_plans_a_batch_as_single_graphs(policy: str) -> None:
    method = f"regal-once:samples=3,checkpoint={policy}"
    plans = graphrl.optimize_batch(GRAPHS, **MAKESPAN, method=method, seed=4)
    some = 1, 2, 4  # each compiles a program for its own size
    alone = [graphrl.optimize(GRAPHS[i], **MAKESPAN, method=method, evaluations=100, seed=4) for i in some]
    assert decisions([plans[i] for i in some]) == decisions(alone)


def test_more_draws_are_never_worse_and_are_counted(policy: str) -> None:
    few, many = (
        graphrl.optimize_batch(GRAPHS[3:], **MAKESPAN, method=f"regal-once:samples={samples},checkpoint={policy}")
        for samples in (1, 8)
    )
    assert all(plan.value <= other.value for plan, other in zip(many, few, strict=True))
    assert sum(plan.value for plan in many) < sum(plan.value for plan in few)
    assert many[0].evaluations == 8 * few[0].evaluations
    for count in (1, 3):
        limited = graphrl.optimize_batch(
            GRAPHS[:1], **MAKESPAN, method=f"regal-once:checkpoint={policy}", evaluations=count
        )
        assert limited[0].evaluations == count


def test_one_program_for_a_bucket(policy: str) -> None:
    graph, method = GRAPHS[2], f"regal-once:samples=2,checkpoint={policy}"
    before = once._best_plans._cache_size()  # type: ignore[attr-defined]
    for count in (5, 8, 6):  # batches are filled up to 8
        assert len(graphrl.optimize_batch([graph] * count, **MAKESPAN, method=method)) == count
    assert once._best_plans._cache_size() == before + 1  # type: ignore[attr-defined]


def test_sizes_of_a_batch_cover_its_graphs_and_are_few() -> None:
    graphs = [*GRAPHS, *load_graphs(["layered:30x20"])]
    chosen = batch_sizes(graphs)
    assert all(common_sizes([graph]).ops == to.ops for graph, to in zip(graphs, chosen, strict=True))
    assert all(to.covers(sizes(graph)) for graph, to in zip(graphs, chosen, strict=True))
    assert len(set(chosen[-20:])) <= 3


def test_other_methods_plan_one_graph_after_another() -> None:
    plans = graphrl.optimize_batch(GRAPHS[:2], method="anneal", evaluations=50)
    alone = [graphrl.optimize(graph, method="anneal", evaluations=50) for graph in GRAPHS[:2]]
    assert decisions(plans) == decisions(alone)
    with pytest.raises(ProblemError, match="'anneal' plans one graph after another: give evaluations or seconds"):
        graphrl.optimize_batch(GRAPHS, method="anneal")


def test_faults_name_the_graph_or_the_option() -> None:
    group = Pipelined(colocation=1)
    together = ComputationGraph("pair", (Op("a", pipelined=group), Op("b", pipelined=group)))
    with pytest.raises(ProblemError, match="graph 'pair' has colocated ops"):
        graphrl.optimize_batch([GRAPHS[0], together], **MAKESPAN, method="regal-once")
    with pytest.raises(ProblemError, match="devices must be 1, and is 2"):
        graphrl.optimize_batch(GRAPHS, devices=2, method="topoformer")
    with pytest.raises(ProblemError, match="samples is 0"):
        graphrl.optimize_batch(GRAPHS, **MAKESPAN, method="regal-once:samples=0")
    assert graphrl.optimize_batch([]) == []


def test_an_interruption_has_the_plans_so_far() -> None:
    def stop(done: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(graphrl.Interrupted) as stopped:
        graphrl.optimize_batch(GRAPHS, method="hlfet", evaluations=1, progress=stop)
    assert [plan and plan.graph for plan in stopped.value.plan] == [GRAPHS[0].name, GRAPHS[1].name] + [None] * 3


def test_the_command_writes_a_plan_on_each_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "plans.jsonl"
    options = ["--objective", "makespan", "--devices", "2"]
    assert main(["optimize", "--batch", "layered:12", "series-parallel:30x2", *options, "--output", str(path)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "plans a second" in out
    plans = [Plan.from_dict(json.loads(line)) for line in path.read_text().splitlines()]
    graphs = load_graphs(["layered:12", "series-parallel:30x2"])
    for plan, graph in zip(plans, graphs, strict=True):
        plan.check(graph)
    assert main(["optimize", "--batch", "series-parallel:30x2", "layered:12", *options, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["graphs"], data["method"]) == (3, "list")
    assert [row["value"] for row in data["plans"]] == [plan.value for plan in (*plans[1:], plans[0])]


def test_over_the_memory_limit_the_command_fails(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--objective", "makespan", "--memory-limit", "1", "--json"]
    assert main(["optimize", "--batch", "layered:12x3", *options]) == 1
    out, err = capsys.readouterr()
    assert [row["feasible"] for row in json.loads(out)["plans"]] == [False] * 3
    assert err == "graphrl: error: 3 of 3 graphs have no plan within the memory limit\n"


def test_faults_of_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_failure(["optimize", "layered:12", "layered:13"], 2, "2 models, where one is planned", capsys)
    check_failure(["optimize", "--batch", "layered:12x2", "--plot", "a.png"], 2, "--plot is for one graph", capsys)
    check_failure(["optimize", "--batch", "layered:12x2", "--output", "a.onnx"], 2, "must end in .jsonl", capsys)
    check_failure(["optimize", "--batch", str(folder / "none.json")], 1, "none.json", capsys)
