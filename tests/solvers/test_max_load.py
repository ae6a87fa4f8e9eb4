"""The objective max_load: costs of a placement on the host and on the device, its bound, and refusals."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from command_line import check_failure
from hypothesis import given
from hypothesis import strategies as st
from partitioned_graphs import TRAINING, costs_of, edge, file_of, least, node, random_pipeline

import graphrl
from graphrl.cli import main
from graphrl.costs.bounds import lower_bound
from graphrl.costs.device.loads import loads, padded_pipeline
from graphrl.costs.problem import Pipeline, Problem
from graphrl.errors import PlanError, ProblemError
from graphrl.graphs.graph import ComputationGraph, Machine, Op, Pipelined, Tensor
from graphrl.graphs.padding import common_sizes
from graphrl.plan import Plan
from graphrl.solvers.loads.groups import placed_order


def two_readers(cpus: int = 0) -> tuple[ComputationGraph, Problem]:
    """a0 is read twice on the second device, b0 and c0 once on the third."""
    op: dict[str, Any] = {"weight_bytes": 5, "pipelined": Pipelined(cpu_runtime=100.0)}
    graph = ComputationGraph(
        "two-readers",
        (
            Op("a", runtime=1.0, outputs=(Tensor("a0", 8),), **op),
            Op("b", runtime=2.0, inputs=("a0",), outputs=(Tensor("b0", transfer_seconds=0.25),), **op),
            Op("c", runtime=4.0, inputs=("a0",), outputs=(Tensor("c0", transfer_seconds=0.5),), **op),
            Op("d", runtime=8.0, inputs=("b0", "c0", "a0"), after=("a",), **op),
        ),
    )
    return graph, Problem("max_load", 3, latency=1.0, bandwidth=4.0, cpus=cpus)


def test_a_tensor_is_paid_once_by_each_device() -> None:
    graph, problem = two_readers()
    costs = costs_of(graph, problem, [0, 1, 1, 2])
    assert costs.loads == (1 + 3, 2 + 4 + 3 + 0.25 + 0.5, 8 + 3 + 0.25 + 0.5)
    assert costs.objective(problem) == 11.75
    assert costs.peak_memory == (5, 10, 5)


def test_a_cpu_pays_for_no_transfer() -> None:
    graph, problem = two_readers(cpus=1)
    costs = costs_of(graph, problem, [0, 1, 1, 2])
    assert costs.loads == (4, 9.75, 100)
    limited = dataclasses.replace(problem, memory_limit=6)
    assert costs.excess(limited) == 4
    assert costs_of(graph, limited, [0, 1, 2, 2]).excess(limited) == 0


def test_the_makespan_is_that_of_one_sample() -> None:
    """a 0-1, a0 to b 1-4, b 4-6, c 6-10, b0 10-10.25, c0 10.25-10.75, a0 to d 10.75-13.75 as rendezvous, d 8 s."""
    graph, problem = two_readers()
    assert costs_of(graph, problem, [0, 1, 1, 2]).makespan <= 1 + 3 + 2 + 4 + 0.25 + 0.5 + 3 + 8
    assert costs_of(graph, problem, [0, 0, 0, 0]).makespan == 15


def test_what_a_placement_must_keep() -> None:
    graph = ComputationGraph(
        "kept",
        (
            Op("a", pipelined=Pipelined(1.0, colocation=7)),
            Op("b", pipelined=Pipelined(1.0, colocation=7)),
            Op("c", pipelined=Pipelined(1.0, cpu_only=True)),
            Op("d"),
        ),
    )
    problem = Problem("max_load", 2, cpus=1)
    assert costs_of(graph, problem, [1, 1, 1, 0]).loads == (0, 3)
    for placement, message in (
        ([0, 1, 1, 0], "colocated ops 'a' and 'b' are on devices 0 and 1"),
        ([0, 0, 0, 0], "op 'c' is placed on device 0, an accelerator: it cannot run there"),
        ([0, 0, 1, 1], "op 'd' is placed on device 1, a CPU: it cannot run there"),
    ):
        with pytest.raises(PlanError) as fault:
            costs_of(graph, problem, placement)
        assert message in str(fault.value)


def some_placement(graph: ComputationGraph, problem: Problem, rng: np.random.Generator) -> np.ndarray:
    """A placement that keeps colocation; devices are random, even where ops cannot run."""
    pipeline = Pipeline.of(graph, problem)
    return rng.integers(problem.devices, size=len(graph.ops))[pipeline.colocation].astype(np.int32)


@given(st.integers(0, 10**6), st.integers(2, 24), st.integers(1, 4), st.integers(0, 2), st.booleans())
def test_device_and_host_agree(seed: int, ops: int, accelerators: int, cpus: int, training: bool) -> None:
    graph = random_pipeline(seed, ops, cpus=cpus > 0, training=training)
    problem = Problem("max_load", accelerators + cpus, memory_limit=20, cpus=cpus)
    padded = padded_pipeline(graph, problem, common_sizes([graph, random_pipeline(0, 24)]))
    rng = np.random.default_rng(seed)
    for _ in range(3):
        placement = some_placement(graph, problem, rng)
        room = np.zeros(padded.runtime.shape[0], np.int32)
        room[: len(placement)] = placement
        device = jitted(padded, room)
        assert int(device.apart) == 0
        try:
            host = costs_of(graph, problem, placement.tolist())
        except PlanError:
            assert np.isinf(np.asarray(device.loads)).any()
            continue
        np.testing.assert_allclose(np.asarray(device.loads) * padded.second_unit, host.loads, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(np.asarray(device.resident) * padded.byte_unit, host.peak_memory, rtol=1e-5)
        assert float(device.excess) * float(padded.byte_unit) == pytest.approx(host.excess(problem), abs=1e-3)
        assert max(host.loads) >= lower_bound(graph, problem)


jitted = jax.jit(loads)


def test_ops_that_are_not_together_are_counted() -> None:
    graph = random_pipeline(1, 6, cpus=False, training=True)
    problem = Problem("max_load", 2)
    placement = np.array([0, 0, 0, 1, 0, 0], np.int32)
    assert int(jitted(padded_pipeline(graph, problem), placement).apart) == 1


@pytest.mark.parametrize("seed", range(4))
def test_no_placement_is_below_the_bound(seed: int) -> None:
    """Without transfers the bound of groups that can be divided is often reached."""
    graph = random_pipeline(seed, 6, cpus=seed % 2 == 0)
    problem = Problem("max_load", 2 + seed % 2, cpus=(seed + 1) % 2)
    assert lower_bound(graph, problem) <= least(graph, problem)


def test_the_machine_of_the_file_is_the_default() -> None:
    machine = Machine(6, 1, 100)
    assert Problem.on(machine, objective="max_load") == Problem("max_load", 7, memory_limit=100, cpus=1)
    assert Problem.on(machine, objective="max_load", devices=4) == Problem("max_load", 4, memory_limit=100)
    assert Problem.on(machine, objective="max_load", cpus=0) == Problem("max_load", 6, memory_limit=100)
    assert Problem.on(machine, objective="makespan", devices=2) == Problem("makespan", 2)
    assert Problem.on(None, objective="max_load", cpus=2) == Problem("max_load", 3, cpus=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "makespan", "cpus": 1}, "cpus requires the objective max_load"),
        ({"objective": "max_load", "devices": 2, "cpus": 3}, "cpus is 3: must be an integer from 0 to 2"),
        ({"objective": "peak_memory", "memory_limit": 5}, "memory_limit requires the objective makespan or max_load"),
    ],
)
def test_problems_that_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        Problem.on(None, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "list"}, "objective must not be max_load"),
        ({"method": "brkga"}, "objective must not be max_load"),
        ({"fuse": "single"}, "fuse requires the objective peak_memory or makespan"),
        ({"method": "stage-dp", "objective": "makespan"}, "method 'stage-dp' minimises max_load"),
    ],
)
def test_what_places_does_not_order(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        graphrl.optimize(two_readers()[0], **({"objective": "max_load"} | options), devices=3, evaluations=10)


def test_plans_are_written_and_read(tmp_path: Path) -> None:
    graph, problem = two_readers(cpus=1)
    decisions = placed_order(graph, problem, np.array([0, 1, 1, 2]))
    plan = Plan.from_order(graph, problem, *decisions, method="test", seconds=1.0, evaluations=1, seed=0)
    plan.save(tmp_path / "plan.json")
    read = Plan.load(tmp_path / "plan.json").attach(graph)
    assert (read.problem, read.value, read.makespan) == (problem, plan.value, plan.makespan)
    assert read.bound == lower_bound(graph, problem)
    read.plot(tmp_path / "plan.png")
    read.trace(tmp_path / "trace.json")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each layer on a separate accelerator: 4 + 6 ms and 1 + 2 ms of transfers."""
    path = tmp_path / "training.json"
    path.write_text(json.dumps(TRAINING))
    command = ["optimize", str(path), "--objective", "max_load", "--evaluations", "50"]
    assert main([*command, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["value"] == pytest.approx(0.013)
    assert (summary["model"]["devices"], summary["model"]["cpus"], summary["model"]["memory_limit"]) == (3, 1, 100)
    assert main([*command, "--devices", "2"]) == 0
    assert "load per device" in capsys.readouterr().out


def test_comparisons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Graphs of one machine are compared on it; for different machines the user has to give --devices."""
    for name, accelerators in (("one", 2), ("two", 2), ("three", 3)):
        (tmp_path / f"{name}.json").write_text(json.dumps({**TRAINING, "maxFPGAs": accelerators}))
    command = ["compare", *(str(tmp_path / f"{name}.json") for name in ("one", "two", "three"))]
    options = ["--objective", "max_load", "--methods", "equal-stages,stage-dp", "--evaluations", "10"]
    assert main([*command[:3], *options]) == 0
    assert "max load on 3 devices" in capsys.readouterr().out
    check_failure([*command, *options], 2, "name different machines: give --devices", capsys)
    assert main([*command, *options, "--devices", "2"]) == 0


def test_a_file_whose_ops_run_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cpu.json"
    path.write_text(json.dumps(file_of([node(1, 1.0), node(2, 1.0, supportedOnFpga=0)], [edge(1, 2, 1.0)], cpus=0)))
    fault = "op '2:node2' can run on none of the devices: 2 accelerators and 0 CPUs"
    for method in ("auto", "stage-dp", "anneal-load", "cp-sat", "equal-stages"):
        check_failure(["optimize", str(path), "--objective", "max_load", "--method", method], 2, fault, capsys)
