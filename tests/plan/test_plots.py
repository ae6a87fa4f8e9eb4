"""Pictures of plans and of memory maps: their content, and edge cases."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import matplotlib.text
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from map_problems import WORKED_CHIP, WORKED_GRAPH, asked, problems
from tiny_plans import tiny_plan

from graphrl.costs.maps.chip import ChipMemory, MemoryChip
from graphrl.costs.maps.problem import MapProblem, map_problem
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.plan import Plan
from graphrl.plan.memory_map import MemoryMap


def big_graph(ops: int) -> ComputationGraph:
    random = np.random.default_rng(0)
    kinds = [f"Type{i}" for i in range(12)]
    return ComputationGraph(
        f"chain of {ops}",
        tuple(
            Op(
                f"op{i}",
                kinds[i % 12],
                float(random.exponential(1e-5)),
                (f"t{i - 1}",) if i else (),
                (Tensor(f"t{i}", int(random.integers(10**6))),),
            )
            for i in range(ops)
        ),
    )


def test_picture_formats(tmp_path: Path) -> None:
    for suffix, start in (("png", b"\x89PNG"), ("svg", b"<?xm"), ("pdf", b"%PDF")):
        path = tmp_path / f"plan.{suffix}"
        figure = tiny_plan().plot(path)
        assert path.read_bytes()[:4] == start
    assert len(list(tmp_path.iterdir())) == 3
    assert figure._repr_png_()[:4] == b"\x89PNG"  # what notebooks show


def texts(figure: Any) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(matplotlib.text.Text))


def test_picture_says_what_matters() -> None:
    shown = texts(dataclasses.replace(tiny_plan(), bound=9).plot())
    for text in (
        "tiny",
        "list",
        "peak 11 B on device 1, at c",
        "bound 9 B",
        "gap 22.2%",
        "rendezvous",
        "MatMul",
        "57%",
    ):
        assert text in shown


@pytest.mark.parametrize("peak", [0, 5, 9])
def test_the_label_of_the_peak_stays_in_the_picture(peak: int) -> None:
    ops = [Op(f"a_name_that_is_as_long_as_those_of_layers_in_layers_{i}", "x", 1.0, (), (), ()) for i in range(10)]
    ops[peak] = dataclasses.replace(ops[peak], workspace_bytes=123_456_789)
    graph, nowhere = ComputationGraph("wide", tuple(ops)), np.zeros(10, np.int64)
    problem = Problem("makespan", 2)
    figure = Plan.from_order(graph, problem, nowhere, range(10), method="m", seconds=1, evaluations=1, seed=0).plot()
    figure.canvas.draw()
    (label,) = (text for axes in figure.axes for text in axes.texts if text.get_text().startswith("peak "))
    box = label.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width


@pytest.mark.parametrize(("ops", "devices"), [(1, 20), (5000, 1), (2000, 20)])
def test_small_and_large_pictures(tmp_path: Path, ops: int, devices: int) -> None:
    graph = big_graph(ops)
    placement = np.arange(ops) * devices // ops
    transfers = [ops + i * devices + placement[i + 1] for i in range(ops - 1) if placement[i] != placement[i + 1]]
    order: list[int] = []
    for i in range(ops):
        order += [node for node in transfers if (node - ops) // devices == i - 1]
        order.append(i)
    problem = Problem("makespan", devices, memory_limit=10**9)
    plan = Plan.from_order(graph, problem, placement, order, method="m", seconds=1, evaluations=1, seed=0)
    plan = dataclasses.replace(plan, bound=0.7 * plan.value)
    figure = plan.plot(tmp_path / "plan.png")
    width, height = figure.get_size_inches()
    assert width == 12
    assert height < 13
    assert len(figure.axes[0].texts) < 300  # names only where they fit


def test_odd_names_and_sizes_can_be_drawn(tmp_path: Path) -> None:
    names = ["$x_1", "日本", "a\nb", "<b>", "x" * 300, "\\alpha$"]
    ops = tuple(Op(name, name, 0.0, (), (Tensor(f"t{i}", 0),)) for i, name in enumerate(names))
    graph = ComputationGraph("$graph_{", ops)
    order = list(range(len(ops)))
    plan = Plan.from_order(graph, Problem(), [0] * len(ops), order, method="$", seconds=0, evaluations=1, seed=0)
    plan.plot(tmp_path / "plan.png")
    plan.trace(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


# Memory maps


def made(problem: MapProblem, weights: Any, outputs: Any) -> MemoryMap:
    return MemoryMap.from_memories(problem, weights, outputs, method="m", seconds=0, evaluations=1, seed=0, bound=5)


def test_the_picture_of_a_map_says_what_matters(tmp_path: Path) -> None:
    problem = map_problem(WORKED_GRAPH, WORKED_CHIP)
    figure = made(problem, [1, 1], [1, 1]).plot(WORKED_GRAPH, tmp_path / "map.png")
    shown = texts(figure)
    for text in (
        "small: weights 4 B, peak 8 B (of 8 B, 100%)",
        "big: weights 0 B, peak 4 B (no limit)",
        "latency 6.00 s",
        "bound 5.00 s (gap 20.0%)",
        "big, 66.7% of all",  # b waits for its output there, 4 of 6 s
        "compute, 33.3% of all",
    ):
        assert text in shown
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


@settings(max_examples=5)
@given(st.data())
def test_any_map_can_be_drawn(data: st.DataObject) -> None:
    problem = data.draw(problems())
    figure = made(problem, *data.draw(asked(problem))).plot(problem.graph)
    assert len(figure.axes) == problem.memories + 1


def test_large_and_odd_maps_can_be_drawn(tmp_path: Path) -> None:
    tower = tuple(ChipMemory(f"$m_{i}", None if i == 0 else 2**40 if i < 3 else 0, 1, 1) for i in range(16))
    ops = (Op("$x_1", outputs=(Tensor("日本", 0),)), Op("a\nb" * 99, inputs=("日本",)))
    for graph in (layered(1000, 0), ComputationGraph("$graph_{", ops)):
        problem = map_problem(graph, MemoryChip("$c_{", 1.0, tower))
        same = np.full(problem.steps, 2)
        figure = made(problem, same, same).plot(graph, tmp_path / "map.png")
        assert figure.get_size_inches()[1] < 14
