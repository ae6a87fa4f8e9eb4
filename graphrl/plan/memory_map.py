"""MemoryMap: the memory of a chip for every op's weights and outputs, its cost, its file and its picture.

A MemoryMap is always valid. Its file has the format "graphrl-map", version 1, and is read strictly.

The picture (`map_figure`) shows the contents of every memory at each step, over the latency by op and what bounds it.
Memories run from the fastest on top to the slowest, each with a colour that its ops below have.
"""

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from graphrl.colours import COLOURS, FAINT, GREY, GRID, LIMIT, PALE, TEXT
from graphrl.costs.maps.chip import MemoryChip
from graphrl.costs.maps.chip_file import chip_from_dict
from graphrl.costs.maps.exact import MapCosts, compiler, evaluate
from graphrl.costs.maps.problem import MapProblem, map_problem
from graphrl.errors import PlanError
from graphrl.files import write_atomically
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.readers.json import read_strict_json
from graphrl.plan.plot import DPI, WIDTH, Picture, clean, draw_heading
from graphrl.units import byte_unit, format_bytes, format_seconds, time_unit, whole_numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FORMAT, VERSION = "graphrl-map", 1
PROVED = 2e-5  # above the bound: CP-SAT's default gap, and what it rounds
RELATIVE_ERROR = 1e-9  # of stated seconds: a map may have been written by a tool that rounds


@dataclasses.dataclass(frozen=True)
class MemoryMap:
    """A valid map of one graph on one chip, with its exact latency and how it came about.

    Attributes:
      graph: the graph's name.
      method: what searched.
      chip: the chip.
      latency: seconds.
      compiler_latency: seconds of the compiler's own map.
      seconds: of wall clock that the search took.
      evaluations: maps that the search costed.
      seed: of the search.
      order: names of the ops as they run.
      weights: memory of the weights of each op that has any, by op name.
      outputs: memory of the outputs of each op that writes any (aliases do not count), by op name.
      bound: no map is faster, seconds; None if not known. Not in the file.
    """

    graph: str
    method: str
    chip: MemoryChip
    latency: float
    compiler_latency: float
    seconds: float
    evaluations: int
    seed: int
    order: tuple[str, ...]
    weights: Mapping[str, int]
    outputs: Mapping[str, int]
    bound: float | None = None

    def __repr__(self) -> str:
        speed = f"{self.latency * 1e6:.1f} us, {self.speedup:.3f} times as fast as the compiler's"
        return f"MemoryMap({self.graph!r} on {self.chip.name!r}, {len(self.order)} ops, {speed}, {self.method!r})"

    @classmethod
    def from_memories(
        cls,
        problem: MapProblem,
        weights: ArrayLike,
        outputs: ArrayLike,
        *,
        method: str,
        seconds: float,
        evaluations: int,
        seed: int,
        bound: float | None = None,
    ) -> "MemoryMap":
        """What the compiler makes of a map, costed exactly.

        Args:
          weights, outputs: `[n]` memories that are asked for, by step.
          method, seconds, evaluations, seed, bound: as in the attributes.

        Raises:
          PlanError: they are no memories of the chip.
        """
        costs = evaluate(problem, weights, outputs)
        names = [problem.graph.ops[op].name for op in problem.order]
        return cls(
            graph=problem.graph.name,
            method=method,
            chip=problem.chip,
            latency=costs.latency,
            compiler_latency=compiler(problem).latency,
            seconds=float(seconds),
            evaluations=int(evaluations),
            seed=int(seed),
            order=tuple(names),
            weights=_by_name(names, costs.weights, problem.has_weights),
            outputs=_by_name(names, costs.outputs, problem.has_outputs),
            bound=bound,
        )

    @property
    def value(self) -> float:
        """What a search for maps minimises: the latency."""
        return self.latency

    @property
    def speedup(self) -> float:
        """How many times it is as fast as the compiler's own map."""
        return self.compiler_latency / self.latency if self.latency > 0 else 1.0

    @property
    def gap(self) -> float | None:
        """How far the latency is above the bound, as a fraction of the bound; None if there is no bound above 0."""
        return None if not self.bound else self.latency / self.bound - 1

    @property
    def proved(self) -> bool:
        """Whether the bound says that no map is faster, as far as it was proved."""
        return self.bound is not None and self.latency <= self.bound * (1 + PROVED)

    def problem(self, graph: ComputationGraph) -> MapProblem:
        """The problem that it answers.

        Raises:
          PlanError: the map is of another graph.
          ProblemError: the chip's largest memory cannot hold this graph.
        """
        if not isinstance(graph, ComputationGraph):
            raise PlanError(f"graph is of type {type(graph).__name__}: must be a ComputationGraph")
        if self.graph != graph.name:
            raise PlanError(f"the map is of graph {self.graph!r}: it cannot be checked against {graph.name!r}")
        index = {op.name: i for i, op in enumerate(graph.ops)}
        for name in self.order:
            if name not in index:
                raise PlanError(f"order has {_short(name)}, which is no op of graph {graph.name!r}")
        if len(self.order) != len(index):
            raise PlanError(f"order has {len(self.order)} ops: graph {graph.name!r} has {len(index)}")
        return map_problem(graph, self.chip, [index[name] for name in self.order])

    def memories(self, problem: MapProblem) -> tuple[np.ndarray, np.ndarray]:
        """The map by step: the memories of weights and of outputs, `[n] int64` each, 0 where there is nothing.

        Raises:
          PlanError: an op that has something to place is not in it, or one that has nothing is.
        """
        names = [problem.graph.ops[op].name for op in problem.order]
        parts = (("weights", self.weights, problem.has_weights), ("outputs", self.outputs, problem.has_outputs))
        arrays = []
        for what, memories, there in parts:
            needed = {name for name, has in zip(names, there.tolist(), strict=True) if has}
            for name in memories.keys() ^ needed:
                fault = f"has no memory of op {name!r}" if name in needed else f"has op {_short(name)}, which has none"
                raise PlanError(f"{what} {fault}")
            arrays.append(np.array([memories.get(name, 0) for name in names], np.int64))
        return arrays[0], arrays[1]

    def check(self, graph: ComputationGraph) -> MapCosts:
        """Recomputes all costs and compares them with what the map states.

        Raises:
          PlanError: it is of another graph, is not valid, or states a latency that is not so; the first difference.
        """
        problem = self.problem(graph)
        weights, outputs = self.memories(problem)
        costs = evaluate(problem, weights, outputs)
        for what, asked, given in (("weights", weights, costs.weights), ("outputs", outputs, costs.outputs)):
            moved = np.flatnonzero(asked != given)
            if len(moved):
                name, memory = self.order[moved[0]], self.chip.memories[asked[moved[0]]]
                raise PlanError(f"the map is not valid: {what} of op {name!r} do not fit into memory {memory.name!r}")
        true = {"latency": costs.latency, "compiler_latency": compiler(problem).latency}
        for key, value in true.items():
            if not math.isclose(getattr(self, key), value, rel_tol=RELATIVE_ERROR):
                raise PlanError(f"{key} is stated as {getattr(self, key)!r}: it is {value!r}")
        return costs

    def plot(self, graph: ComputationGraph, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Draws what every memory holds at each step over the latency by op, and saves the picture if a path is given.

        Args:
          graph: that the map is of.
          path: its ending says the format: .png, .svg or .pdf.

        Raises:
          PlanError: as `check`.
          GraphrlError: the file cannot be written, or its ending names no such format.
        """
        from graphrl.plan.plot import write_figure

        figure = map_figure(self, self.problem(graph), self.check(graph))
        if path is not None:
            write_figure(figure, path)
        return figure

    def to_dict(self) -> dict[str, Any]:
        """As its file holds it."""
        fields = {field: getattr(self, field) for field in _MapFile.__struct_fields__ if field not in _HEAD}
        fields |= {"chip": self.chip.to_dict(), "order": list(self.order)}
        fields |= {"weights": dict(self.weights), "outputs": dict(self.outputs)}
        return {"format": FORMAT, "version": VERSION, **fields}

    @staticmethod
    def from_dict(data: object) -> "MemoryMap":
        """The map of such a dict. `check` it before trusting its numbers.

        Raises:
          PlanError: one line that names the first fault.
          ProblemError: its chip is none.
        """
        if isinstance(data, dict):
            for key, right in (("format", FORMAT), ("version", VERSION)):
                if data.get(key) != right or isinstance(data[key], bool):
                    raise PlanError(f"{key} is {_short(data.get(key))}: must be {right!r}")
        try:
            file = msgspec.convert(whole_numbers(data), _MapFile)
        except (msgspec.ValidationError, OverflowError) as error:
            raise PlanError(f"a map: {error}") from None
        fields = {name: getattr(file, name) for name in file.__struct_fields__ if name not in _HEAD}
        _check_numbers(file, chip := chip_from_dict(file.chip))
        return MemoryMap(**{**fields, "chip": chip, "order": tuple(file.order)})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the map as JSON, whole or not at all.

        Raises:
          GraphrlError: the file cannot be written; an old one is untouched.
        """
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n"
        write_atomically(path, lambda file: file.write(text))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "MemoryMap":
        """Reads a map file. `check` it before trusting its numbers.

        Raises:
          GraphrlError: the file cannot be read.
          PlanError: it is no map; one line that names the file and the first fault.
        """
        return read_strict_json(path, MemoryMap.from_dict, PlanError)


class _MapFile(msgspec.Struct, forbid_unknown_fields=True):
    """The file's keys, in its order."""

    format: str
    version: int
    graph: str
    method: str
    chip: dict[str, Any]
    latency: float
    compiler_latency: float
    seconds: float
    evaluations: int
    seed: int
    order: list[str]
    weights: dict[str, int]
    outputs: dict[str, int]


_HEAD = ("format", "version")


def _by_name(names: list[str], memories: np.ndarray, there: np.ndarray) -> dict[str, int]:
    return {names[step]: int(memories[step]) for step in np.flatnonzero(there)}


def _check_numbers(file: _MapFile, chip: MemoryChip) -> None:
    for key in ("latency", "compiler_latency", "seconds", "evaluations"):
        if not 0 <= getattr(file, key) < math.inf:
            raise PlanError(f"{key} is {getattr(file, key)}: must be a finite number of at least 0")
    for what in ("weights", "outputs"):
        for name, memory in getattr(file, what).items():
            if not 0 <= memory < len(chip.memories):
                fault = f"memory {memory} for op {_short(name)}"
                raise PlanError(f"{what} has {fault}: chip {chip.name!r} has 0 to {len(chip.memories) - 1}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


OUTPUTS_ALPHA, LINE = 0.4, 1.2  # weights are drawn full; the width of a capacity's line
MOST_NAMES = 64  # ops that are named below the last axes; of more, some are numbered
FAR = 3.0  # times what a memory holds: a capacity beyond that would flatten it


def map_figure(memory_map: MemoryMap, problem: MapProblem, costs: MapCosts) -> Figure:
    """The picture of a map."""
    m = problem.memories
    each, bars = min(1.5, 7.0 / m), 2.2
    figure = Picture(figsize=(WIDTH, 1.7 + each * m + bars), dpi=DPI, layout="constrained")
    axes = figure.subplots(m + 1, 1, sharex=True, height_ratios=[each] * m + [bars])
    for memory in range(m):
        _draw_memory(axes[m - 1 - memory], problem, costs, memory)
    _draw_latency(axes[m], problem, costs)
    _draw_steps(axes[m], problem)
    parts = Patch(color=GREY, label="weights"), Patch(color=GREY, alpha=OUTPUTS_ALPHA, label="outputs")
    _legend(axes[0], "held", [Line2D([], [], color=LIMIT, linewidth=LINE, label="capacity"), *parts[::-1]])
    draw_heading(axes[0], memory_map.graph, memory_map.method, _facts(memory_map), above=14)
    return figure


def _facts(memory_map: MemoryMap) -> list[str]:
    latency, speedup = format_seconds(memory_map.latency), f"{memory_map.speedup:.3f}"
    facts = [f"latency {latency}", f"{speedup} times as fast as the compiler's own map"]
    if memory_map.bound and memory_map.gap is not None:
        near = "optimal" if memory_map.proved else f"gap {100 * memory_map.gap:.1f}%"
        facts.append(f"bound {format_seconds(memory_map.bound)} ({near})")
    return [*facts, f"chip {clean(memory_map.chip.name)}", f"{len(memory_map.order):,} ops"]


def _draw_memory(axes: Axes, problem: MapProblem, costs: MapCosts, memory: int) -> None:
    """Weights below, outputs on them, and the capacity."""
    chip_memory, colour = problem.chip.memories[memory], _colour(memory)
    held, edges = costs.held_bytes[memory], np.arange(problem.steps + 1)
    weights = int(problem.weight_pages[costs.weights == memory].sum()) * problem.chip.page
    most, capacity = int(held.max(initial=0)), chip_memory.capacity
    near = capacity is not None and 0 < capacity <= FAR * max(1, most)
    unit_bytes, unit = byte_unit(max(1, capacity if capacity and near else most))
    axes.stairs(np.full(problem.steps, weights / unit_bytes), edges, fill=True, color=colour, linewidth=0)
    axes.stairs(
        held / unit_bytes, edges, baseline=weights / unit_bytes, fill=True, color=colour, alpha=OUTPUTS_ALPHA,
        linewidth=0,
    )  # fmt: skip
    if capacity is not None and near:
        axes.axhline(capacity / unit_bytes, color=LIMIT, linewidth=LINE, zorder=4)
    top = max(most, capacity if capacity and near else 0) / unit_bytes
    axes.set_ylim(0, 1.12 * top or 1.0)
    _finish(axes, _contents(problem, memory, weights, most), colour, unit)


def _contents(problem: MapProblem, memory: int, weights: int, most: int) -> str:
    """What a memory holds, in words."""
    chip_memory = problem.chip.memories[memory]
    capacity = chip_memory.capacity
    share = f", {100 * most / capacity:.0f}%" if capacity else ""
    limit = "no limit" if capacity is None else f"of {format_bytes(capacity)}{share}"
    return f"{clean(chip_memory.name)}: weights {format_bytes(weights)}, most at once {format_bytes(most)} ({limit})"


def _draw_latency(axes: Axes, problem: MapProblem, costs: MapCosts) -> None:
    """Seconds of each step, by what takes longest in it: launch, arithmetic or a memory."""
    launch = np.full(problem.steps, problem.chip.launch)
    bound = np.column_stack([launch, problem.compute, costs.memory_seconds]).argmax(1)
    names = ["launch", "compute", *map(clean, problem.chip.names)]
    colours = [PALE, GREY, *(_colour(memory) for memory in range(problem.memories))]
    scale, unit = time_unit(float(costs.step_seconds.max(initial=0.0)))
    for number, (name, colour) in enumerate(zip(names, colours, strict=True)):
        own = np.where(bound == number, costs.step_seconds, 0.0)
        if own.any():
            label = f"{name}, {100 * own.sum() / costs.latency:.1f}% of all"
            axes.stairs(own / scale, np.arange(problem.steps + 1), fill=True, color=colour, linewidth=0, label=label)
    axes.set_ylim(0, None)
    _legend(axes, "bound by", axes.get_legend_handles_labels()[0])
    _finish(axes, "latency of each op", TEXT, unit)


def _draw_steps(axes: Axes, problem: MapProblem) -> None:
    """The ops by name where there is room, else their numbers."""
    axes.set_xlim(0, max(1, problem.steps))
    if problem.steps <= MOST_NAMES:
        names = [clean(problem.graph.ops[op].name, 22) for op in problem.order]
        axes.set_xticks(np.arange(problem.steps) + 0.5, names, rotation=90, fontsize=6.5, color=FAINT, parse_math=False)
    else:
        axes.set_xlabel("ops, in the order in which they run", color=TEXT)


def _colour(memory: int) -> str:
    return COLOURS[memory % (len(COLOURS) - 1)]  # the last one is the arithmetic's grey


def _legend(axes: Axes, title: str, handles: Sequence[Artist]) -> None:
    axes.legend(
        handles=handles, title=title, title_fontsize=8, alignment="left", loc="upper left", bbox_to_anchor=(1.0, 1.05),
        frameon=False, fontsize=8, handlelength=1.2,
    )  # fmt: skip


def _finish(axes: Axes, label: str, colour: str, unit: str) -> None:
    axes.annotate(
        label, (0, 1), xycoords="axes fraction", xytext=(0, 3), textcoords="offset points", fontsize=8.5, color=colour,
        parse_math=False,
    )  # fmt: skip
    axes.set_ylabel(unit, color=TEXT, fontsize=8.5)
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 4, 5, 10]))
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=TEXT, labelsize=8)
    axes.tick_params(axis="x", length=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
