"""Placements by rule: METIS, which cuts few bytes, and a human expert's stages of whole layers."""

import numpy as np
import pytest
from search_graphs import random_dag

from graphrl.costs.problem import Problem
from graphrl.graphs.datasets.known_optima import in_tree
from graphrl.graphs.datasets.workloads import go
from graphrl.graphs.graph import ComputationGraph, Op, Pipelined, Tensor
from graphrl.methods import find_solver
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.rules.placements import named_layers, partition

# METIS and depth first


def bridge(cheap: int) -> ComputationGraph:
    """Two chains of ten ops with tensors of 100 bytes, joined by one tensor of `cheap` bytes."""
    ops = []
    for chain in "xy":
        for i in range(10):
            inputs = (f"{chain}{i - 1}",) if i else (("bridge",) if chain == "y" else ())
            outputs = (Tensor(f"{chain}{i}", 100), *((Tensor("bridge", cheap),) if chain == "x" and i == 5 else ()))
            ops.append(Op(f"{chain}{i}", "", 1.0, inputs, outputs))
    return ComputationGraph("bridge", tuple(ops))


@pytest.mark.parametrize("objective", ["makespan", "peak_memory"])
def test_the_cheap_tensor_is_what_crosses(objective: str) -> None:
    graph = bridge(cheap=1)
    placement = partition(graph, Problem(objective, 2), 0)  # type: ignore[arg-type]
    assert len(set(placement[:10])) == len(set(placement[10:])) == 1
    assert placement[0] != placement[10]


def test_parts_are_balanced_by_what_the_objective_counts() -> None:
    for seed in range(3):
        graph = random_dag(seed)
        a = graph.arrays
        for objective, weight in (("makespan", a.runtime), ("peak_memory", a.tensor_bytes)):
            placement = partition(graph, Problem(objective, 2), 0)  # type: ignore[arg-type]
            assert 0.4 < np.bincount(placement, weight, minlength=2)[0] / weight.sum() < 0.6


@pytest.mark.parametrize("devices", [2, 3])
def test_few_ops_are_shared_out_in_silence(devices: int, capfd: pytest.CaptureFixture[str]) -> None:
    for num_ops in range(1, 3 * devices):
        placement = partition(in_tree(num_ops, 0).graph, Problem("makespan", devices), 0)
        assert placement.max() < devices
        if num_ops < 2 * devices:
            assert np.bincount(placement, minlength=devices).min() == num_ops // devices
    assert capfd.readouterr().out == ""  # METIS itself writes there


# The expert's stages, independent of the order in which a model is unrolled


SIZE = 8


def op(name: str, runtime: float, inputs: tuple[str, ...] = (), group: int | None = None, weights: int = 0) -> Op:
    extras = None if group is None else Pipelined(colocation=group)
    outputs = (Tensor(f"{name}:0", SIZE),)
    read = tuple(f"{one}:0" for one in inputs)
    return Op(name, "op", runtime, read, outputs, weight_bytes=weights, pipelined=extras)


def recurrent(layers: int, steps: int, weights: int = 4) -> ComputationGraph:
    """A training step: layers unrolled step by step, each with a parameter, and a backward op for every forward op."""
    ops, backward = [op(f"variable/{layer}", 0.0, group=1000 + layer, weights=weights) for layer in range(layers)], []
    for t in range(steps):
        for layer in range(layers):
            name, group = f"jvp(lstm{layer}/t{t})/dot.{t}", layer * steps + t
            inputs = [f"variable/{layer}"]
            inputs += [f"jvp(lstm{layer}/t{t - 1})/dot.{t - 1}"] * (t > 0)
            inputs += [f"jvp(lstm{layer - 1}/t{t})/dot.{t}"] * (layer > 0)
            ops.append(op(name, 1.0, tuple(inputs), group))
            backward.append((f"transpose(jvp(lstm{layer}/t{t}))/dot.{t}", name, group))
    before = ops[-1].name
    for name, forward, group in backward[::-1]:
        ops.append(op(name, 2.0, (before, forward), group))
        before = name
    return ComputationGraph("recurrent", tuple(ops))


def planned(graph: ComputationGraph, problem: Problem, method: str = "expert") -> Plan:
    plan = find_solver(method)(Task(graph, problem, Budget(evaluations=1)))
    plan.check(graph)
    return plan


@pytest.mark.parametrize("order", ["fifo", "level"])
@pytest.mark.parametrize("devices", [2, 4])
def test_a_layer_is_on_one_device_with_its_parameter_and_its_backward_ops(devices: int, order: str) -> None:
    graph = recurrent(4, 3)
    plan = planned(graph, Problem("makespan", devices, "link"), f"expert:order={order}")
    for name, device in plan.placement.items():
        layer = next(int(part) for part in name.replace("variable/", "lstm").split("lstm")[1] if part.isdigit())
        assert device == layer * devices // 4


def test_ops_without_scopes_are_cut_where_the_work_is_equal() -> None:
    ops = [op("a", 3.0), op("b", 1.0, ("a",)), op("c", 1.0, ("b",)), op("d", 3.0, ("c",))]
    plan = planned(ComputationGraph("chain", tuple(ops)), Problem("makespan", 2))
    assert list(plan.placement.values()) == [0, 0, 1, 1]


def test_an_op_outside_all_scopes_is_a_layer_of_its_own() -> None:
    """JAX names ops that it differentiates outside a scope `jvp()/add.3`: these ops do not form a layer."""
    names = ["jvp(a)/x", "jvp()/y", "jvp(b)/x", "jvp(b)/y", "transpose(jvp())/z"]
    ops = [op(name, 1.0, (names[i - 1],) if i else ()) for i, name in enumerate(names)]
    layer = named_layers(ComputationGraph("chain", tuple(ops)), 2)
    assert layer is not None
    assert layer.tolist() == [0, 1, 2, 2, 3]


def test_stages_of_equal_bytes_where_those_of_equal_work_do_not_fit() -> None:
    ops = [op("a", 1.0, weights=30), op("b", 1.0, ("a",), weights=30), op("c", 4.0, ("b",), weights=0)]
    graph = ComputationGraph("heavy", tuple(ops))
    problem = Problem("makespan", 2, memory_limit=60, resident_weights=True)
    plan = planned(graph, problem)
    assert list(plan.placement.values()) == [0, 1, 1]
    assert plan.excess == 0
    assert plan.evaluations == 2
    free = Problem("makespan", 2, resident_weights=True)
    assert list(planned(graph, free).placement.values()) == [0, 0, 1]


def test_auto_begins_with_the_stages_where_layers_have_names() -> None:
    """There a list schedule leaves all ops on one device."""
    graph, problem = go.load("transformer-xl-4").colocated, Problem("makespan", 4, "link", 2e-6, 20e9)
    level = planned(graph, problem, "expert:order=level").makespan
    assert planned(graph, problem, "list").makespan > level
    assert find_solver("auto")(Task(graph, problem, Budget(evaluations=4))).makespan <= level
