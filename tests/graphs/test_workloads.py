"""Workloads by name: GO's shipped graphs, their contents, and their number of ops as documented."""

import re
from pathlib import Path

import numpy as np
import pytest
from reproduce.workloads import problem
from workloads_table import PAGE

from graphrl.cli import main
from graphrl.costs.fusion.exact import fuse
from graphrl.costs.fusion.problem import fusion_problem
from graphrl.errors import GraphrlError, ProblemError
from graphrl.graphs.datasets.sets import in_both, load_graph, load_graphs
from graphrl.graphs.datasets.workloads import NAMES, go, load
from graphrl.graphs.datasets.zoo import storage
from graphrl.graphs.roofline import CHIPS, INTERCONNECTS, Chip

RNNLM = go.load("rnnlm-2")


def counts() -> dict[str, int]:
    """Ops of all shipped workloads, without building their graphs."""
    counts = {}
    for name, setting in go.WORKLOADS.items():
        rows = storage.contents(go.DATA / storage.file_name(setting.architecture, go.KIND, go.LEVEL))
        (counts[name],) = (ops for *_, batch, _, ops in rows if batch == setting.batch)
    return counts


def test_the_fourteen_of_table_2_are_shipped() -> None:
    ops = counts()
    assert len(ops) == 14
    assert ops["gnmt-8"] == max(ops.values()) > 50_000
    assert {name.split("-")[0] for name in ops} == {family.split("-")[0] for family in go.FAMILIES}
    assert sum(path.stat().st_size for path in go.DATA.iterdir()) < 400_000


def test_the_page_says_how_many_ops_each_has() -> None:
    rows = re.findall(r"^\| (\S+) \| (\d+) \| ([\d,]+) \| [\d,]+ \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {name: int(ops.replace(",", "")) for name, _, ops in rows} == counts()
    assert {name: int(devices) for name, devices, _ in rows} == {
        name: setting.devices for name, setting in go.WORKLOADS.items()
    }


@pytest.mark.parametrize("name", ["transformer-xl-2", "inception-b64", "wavenet-2x18", "workloads:rnnlm-2"])
def test_names_load(name: str) -> None:
    graph = load_graph(f"workloads:{name.removeprefix('workloads:')}")
    assert graph == load(name)
    assert graph.name == name.removeprefix("workloads:")
    assert len(graph.ops) == counts()[graph.name]
    assert graph.arrays.topological.tolist() == list(range(len(graph.ops)))


def test_the_largest_loads_with_its_groups() -> None:
    workload = go.load("gnmt-8")
    assert (workload.family, workload.devices) == ("gnmt", 8)
    assert workload.colocation.shape == (len(workload.graph.ops),)
    assert workload.graph.arrays.depth.max() > 1_000


def test_egrls_and_gos_are_one_set_of_names() -> None:
    graphs = load_graphs(["workloads:resnet50", "workloads:transformer-xl-2"])
    assert [len(graph.ops) for graph in graphs] == [57, 526]
    assert len(set(NAMES)) == 17


@pytest.mark.parametrize("name", ["rnnlm-3", "resnet50/v100", "resnet*/v100", "", "/v100", "gru-*"])
def test_unknown_names_have_the_nearest_ones(name: str) -> None:
    with pytest.raises(ProblemError, match=r"unknown workload .*nearest of 17 known are workloads:\w.*GO's") as caught:
        load_graph(f"workloads:{name}")
    assert "\n" not in str(caught.value)


def test_names_with_stars_stand_for_several() -> None:
    assert [graph.name for graph in load_graphs(["workloads:transformer-xl-?"])] == [
        f"transformer-xl-{layers}" for layers in (2, 4, 8)
    ]
    with pytest.raises(ProblemError, match="names 2 workloads, where one is needed: for example"):
        load_graph("workloads:wavenet-*")
    assert in_both(["workloads:gnmt-*/v100-fp32"], ["workloads:rnnlm-2", "workloads:gnmt-8"]) == "workloads:gnmt-8"
    assert in_both(["workloads:gnmt-*"], ["workloads:rnnlm-*", "workloads:resnet50"]) is None


def test_unknown_chips_are_refused() -> None:
    with pytest.raises(GraphrlError, match="unknown chip 'p9'"):
        load("workloads:rnnlm-2/p9")


def test_the_command_takes_them(capsys: pytest.CaptureFixture[str]) -> None:
    command = "optimize workloads:transformer-xl-2/v100-fp32 --objective makespan --devices 2 --transfer link"
    assert main([*command.split(), "--method", "list", "--json"]) == 0
    assert '"graph": "transformer-xl-2"' in capsys.readouterr().out


def test_run_times_are_those_of_the_chip_that_the_name_says() -> None:
    bytes_only = go.load("rnnlm-2", Chip("b", 1e30, 1.0)).graph.arrays.runtime
    flops, variables = RNNLM.graph.arrays.flops, np.array([op.type == go.VARIABLE for op in RNNLM.graph.ops])
    for chip in ("p100-fp32", "v100-fp32"):
        figures = CHIPS[chip]
        times = np.maximum(flops / figures.flops_per_second, bytes_only / figures.bytes_per_second)
        graph = load(f"rnnlm-2/{chip}")
        np.testing.assert_allclose(
            graph.arrays.runtime, np.where(variables, 0, times + figures.launch_seconds), rtol=1e-12
        )
    np.testing.assert_array_equal(load("rnnlm-2").arrays.runtime, RNNLM.graph.arrays.runtime)


def test_flops_of_a_layer_are_those_that_a_hand_counts() -> None:
    """An LSTM of 2,048 units on 64 sequences of 40 words: per step two products of [64, 2048] and [2048, 8192]
    forward, and backward two for each; no gradient of the state before the first step.
    """
    product = 2 * 64 * 2048 * 8192
    of_layer = [op for op in RNNLM.graph.ops if "lstm1/" in op.name and op.type == "dot_general"]
    assert sum(op.flops for op in of_layer) == (40 * 6 - 1) * product
    softmax = [op for op in RNNLM.graph.ops if "softmax" in op.name and op.type == "dot_general"]
    assert sum(op.flops for op in softmax) == 3 * 2 * (64 * 40) * 2048 * 10_000


def test_inception_has_the_published_size_and_work() -> None:
    """Without the auxiliary classifier some 5.7 billion multiply-adds an image (Szegedy et al. 2015, section 1, has
    "5 billion"), and 27.2 million parameters with it.
    """
    graph = load("inception-b32")
    forward = [op for op in graph.ops if op.type == "conv_general_dilated" and not op.name.startswith("transpose")]
    per_image = sum(op.flops for op in forward) / 32 / 2
    assert 5.0e9 < per_image < 6.2e9
    assert graph.arrays.weight_bytes.sum() / 4 == pytest.approx(27.2e6, rel=0.01)
    all_convs = sum(op.flops for op in graph.ops if op.type == "conv_general_dilated") / 32 / 2
    assert 2.9 * per_image < all_convs < 3.4 * per_image


def test_amoebanet_is_the_one_of_82_million_parameters() -> None:
    assert load("amoebanet").arrays.weight_bytes.sum() / 4 == pytest.approx(82e6, rel=0.01)


def test_groups_are_forward_with_backward_and_variable_with_update() -> None:
    ops, groups = RNNLM.graph.ops, RNNLM.colocation
    assert groups.max() + 1 == len(set(groups.tolist()))
    of_group: dict[int, list[str]] = {}
    for op, group in zip(ops, groups.tolist(), strict=True):
        of_group.setdefault(group, []).append(op.name)
    for op, group in zip(ops, groups.tolist(), strict=True):
        members = of_group[group]
        if op.type == go.VARIABLE:
            name = op.name.removeprefix(f"{go.VARIABLE}/")
            assert len(members) == 3  # and the rate times the gradient
            assert all(f"update/{name}/" in member for member in members[1:])
        if op.name.startswith("transpose(jvp(lstm1"):
            scope = op.name.removeprefix("transpose(").partition("))")[0]
            assert any(member.startswith(scope) for member in members)


def test_problems_are_those_of_table_2() -> None:
    of_table = problem(RNNLM, "link", "nvlink-1")
    assert (of_table.devices, of_table.memory_limit, of_table.resident_weights) == (2, 2**34, True)
    assert of_table.transfer_seconds(20e9) == pytest.approx(1.0, rel=1e-5)
    assert all(entry.source for entry in INTERCONNECTS.values())


def test_a_missing_file_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(go, "DATA", tmp_path)
    with pytest.raises(GraphrlError, match=r"rnnlm-2\.training\.jaxpr\.json\.xz"):
        load("rnnlm-2")


def test_variables_take_no_time_as_kernels() -> None:
    graph = load_graph("workloads:transformer-xl-2")
    kernels = fuse(fusion_problem(graph, CHIPS["v100-fp32"]), np.zeros(len(graph.ops), np.int64))
    is_variable = np.array([op.type == "variable" for op in graph.ops])
    assert is_variable.any()
    assert not kernels.op_seconds[is_variable].any()
    assert kernels.op_seconds[~is_variable].sum() > 0
