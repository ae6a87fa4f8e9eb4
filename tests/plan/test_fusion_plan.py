"""Plans of kernels: from one call and from the command line, as files, checked, traced and drawn."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from command_line import check_failure
from fusion_graphs import CHIP, chain_graph, fusable_graphs
from hypothesis import given, settings

import graphrl
from graphrl.cli import main
from graphrl.costs.fusion.exact import KernelGraph
from graphrl.costs.fusion.problem import fusion_problem
from graphrl.errors import GraphrlError, PlanError, ProblemError
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.readers.json import write_json
from graphrl.plan import Plan
from graphrl.plan.trace import trace_events
from graphrl.solvers.fusion.rules import fuse_by

CHAIN = chain_graph("dot_general mul exp reshape reduce_sum")  # 8 B each: mul, exp and reshape go into the sum


def chain_plan(**options: Any) -> Plan:
    """Kernels of the chain, on the tests' chip."""
    return graphrl.optimize(CHAIN, fuse="all", chip=CHIP, evaluations=1, method="given", **options)


def test_a_plan_of_kernels() -> None:
    plan = chain_plan(objective="makespan")
    assert dict(plan.placement) == {"0": 0, "4": 0}
    assert plan.inlining is not None
    assert plan.inlining.inlined == ("1", "2", "3")
    # launch 1 s; 16 B at 2 B/s; and 32 operations at 4 a second in the sum's kernel
    assert plan.value == (1 + 16 / 2) + (1 + 16 / 2)
    assert plan.check(CHAIN).makespan == plan.value


def test_without_fusion_nothing_of_it_is_in_the_plan() -> None:
    plan = graphrl.optimize(CHAIN, evaluations=1, method="given")
    assert plan.inlining is None
    assert plan.to_dict()["version"] == 1


@settings(max_examples=20)
@given(fusable_graphs())
def test_plans_on_two_devices_are_what_they_say(graph: ComputationGraph) -> None:
    plan = graphrl.optimize(
        graph, fuse="flips", chip=CHIP, objective="makespan", devices=2, bandwidth=2.0, method="list", evaluations=1
    )
    kernels = fuse_by("flips", fusion_problem(graph, CHIP))
    assert set(plan.placement) == {graph.ops[root].name for root in kernels.members}
    loaded = Plan.from_dict(plan.to_dict())
    assert loaded == dataclasses.replace(plan, bound=None)
    loaded.check(graph)


def test_the_file_of_a_plan_of_kernels(tmp_path: Path) -> None:
    chain_plan().save(tmp_path / "plan.json")
    file = json.loads((tmp_path / "plan.json").read_text())
    assert file["version"] == 2
    assert file["inlined"] == ["1", "2", "3"]
    assert file["chip"] == {
        "name": "tests",
        "flops_per_second": 4.0,
        "bytes_per_second": 2.0,
        "launch_seconds": 1.0,
        "source": "given by the user",
        "product_workspace": 0,
    }
    assert file["order"] == [{"op": "0"}, {"op": "4"}]
    again = Plan.load(tmp_path / "plan.json").attach(CHAIN)
    again.plot(tmp_path / "plan.png")
    assert (tmp_path / "plan.png").stat().st_size > 0


def _with(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda file: file.update({key: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_with("inlined", ["1", "2", "nine"]), "inlined names op 'nine', which graph 'chain' does not have"),
        (_with("inlined", ["1", "1", "2", "3"]), "inlined names op '1' twice: must name it once"),
        (_with("inlined", ["0", "1", "2", "3"]), "op '0' of type 'dot_general' cannot be inlined"),
        (_with("inlined", ["1", "2"]), "placement misses op '3'"),
        (_with("inlined", [1]), "inlined has 1: must be a list of op names"),
        (_with("chip", {"name": "x"}), "chip has no key 'flops_per_second'"),
        (_with("version", 1), "the plan has the unknown key"),
        (
            lambda file: file["chip"].update(flops_per_second=0),
            "flops_per_second is 0.0: must be a number from 1 ",
        ),
        (lambda file: file["chip"].update(launch_seconds=2.0), "makespan is stated as 18.0: it is 20.0"),
        (lambda file: file.pop("chip"), "the plan has no key 'chip'"),
    ],
)
def test_broken_plans_of_kernels_are_refused(change: Callable[[dict[str, Any]], None], message: str) -> None:
    file = chain_plan().to_dict()
    change(file)
    with pytest.raises(PlanError) as error:
        Plan.from_dict(file).check(CHAIN)
    assert message in str(error.value)


def test_trace_and_timeline_show_kernels() -> None:
    slices = {event["name"]: event for event in trace_events(chain_plan().timeline()) if event["ph"] == "X"}
    assert slices["4"]["args"]["inlined"] == ["1", "2", "3"]
    assert slices["0"]["args"]["inlined"] == []
    assert slices["4"]["dur"] == pytest.approx(9e6)


def test_progress_and_interrupts_see_plans_of_kernels() -> None:
    plans = list[Plan]()
    graphrl.optimize(
        CHAIN,
        fuse="single",
        chip=CHIP,
        evaluations=50,
        method="random",
        progress=lambda evaluations, seconds, plan, value: plans.append(plan()),
    )
    assert plans
    assert all(plan.inlining is not None for plan in plans)


def test_kernels_of_a_graph_that_is_one_of_kernels_already() -> None:
    plan = chain_plan()
    assert plan.inlining is not None
    kernels = plan.inlining.kernels(CHAIN)
    assert isinstance(kernels, KernelGraph)
    assert plan.check(kernels).makespan == plan.makespan


def test_a_function_is_fused() -> None:
    def loss(x: jax.Array) -> jax.Array:
        return jnp.tanh(x * 2.0 + 1.0).sum()

    unfused, fused = (
        graphrl.optimize(loss, jnp.ones(1000, jnp.float32), fuse=rule, objective="makespan", evaluations=1)
        for rule in ("none", "flips")
    )
    assert len(unfused.placement) == 4
    assert len(fused.placement) == 1
    assert fused.value < unfused.value / 3


def test_faults() -> None:
    known = "none, single, xla, all, flips, anneal, joint"
    with pytest.raises(ProblemError, match=f"^unknown fusion rule 'most': known are {known}$"):
        graphrl.optimize(CHAIN, fuse="most")
    bare = dataclasses.replace(CHAIN, ops=tuple(dataclasses.replace(op, flops=0) for op in CHAIN.ops))
    with pytest.raises(GraphrlError, match="has run times and no flops"):
        graphrl.optimize(bare, fuse="all")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, plan = tmp_path / "chain.json", tmp_path / "plan.json"
    write_json(CHAIN, model)
    command = ["optimize", str(model), "--fuse", "--chip", "4,2,1", "--evaluations", "1", "--objective", "makespan"]
    assert main([*command, "--output", str(plan), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["fusion"] == {"kernels": 2, "inlined": 3, "chip": "4,2,1"}
    assert summary["value"] == 18.0
    Plan.load(plan).check(CHAIN)
    assert main(command) == 0
    assert "2, with 3 inlined ops" in capsys.readouterr().out


def test_a_plan_of_kernels_is_no_order_for_a_map(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, plan = tmp_path / "chain.json", tmp_path / "plan.json"
    write_json(CHAIN, model)
    chain_plan().save(plan)
    check_failure(["map", str(model), "--order", str(plan)], 1, "is a plan of kernels", capsys)
