"""Pictures of memory maps: what they say, and that odd ones can be drawn."""

from pathlib import Path
from typing import Any

import matplotlib.text
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from map_problems import WORKED_CHIP, WORKED_GRAPH, asked, problems

from graphrl.costs.maps.chip import ChipMemory, MemoryChip
from graphrl.costs.maps.problem import MapProblem, map_problem
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.plan.memory_map import MemoryMap


def made(problem: MapProblem, weights: Any, outputs: Any) -> MemoryMap:
    return MemoryMap.from_memories(problem, weights, outputs, method="m", seconds=0, evaluations=1, seed=0, bound=5)


def texts(figure: Any) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(matplotlib.text.Text))


def test_the_picture_says_what_matters(tmp_path: Path) -> None:
    problem = map_problem(WORKED_GRAPH, WORKED_CHIP)
    figure = made(problem, [1, 1], [1, 1]).plot(WORKED_GRAPH, tmp_path / "map.png")
    shown = texts(figure)
    for text in (
        "small: weights 4 B, most at once 8 B (of 8 B, 100%)",
        "big: weights 0 B, most at once 4 B (no limit)",
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
    for graph in (layered(3000, 0), ComputationGraph("$graph_{", ops)):
        problem = map_problem(graph, MemoryChip("$c_{", 1.0, tower))
        same = np.full(problem.steps, 2)
        figure = made(problem, same, same).plot(graph, tmp_path / "map.png")
        assert figure.get_size_inches()[1] < 14
