"""MemoryMap: the memory of a chip for every op's weights and outputs, and its costs. Maps are always valid.

Its file has the format "graphrl-map", version 1, and is read strictly; the picture is in `plan/map_plot.py`.
"""

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from graphrl.costs.maps.chip import MemoryChip, chip_from_dict
from graphrl.costs.maps.exact import MapCosts, compiler, evaluate
from graphrl.costs.maps.problem import MapProblem, map_problem
from graphrl.errors import PlanError
from graphrl.files import write_atomically
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.readers.json import read_strict_json
from graphrl.units import as_integers, format_seconds

if TYPE_CHECKING:
    from graphrl.plan.plot import Picture

FORMAT, VERSION = "graphrl-map", 1
PROVED = 2e-5  # above the bound: CP-SAT's default gap and rounding
RELATIVE_ERROR = 1e-9  # of stated seconds: a map may have been written by a tool that rounds


@dataclasses.dataclass(frozen=True)
class MemoryMap:
    """A valid map of one graph on one chip, with its exact latency and its search.

    Attributes:
      graph: the graph's name.
      method: method that found the map.
      chip: chip with the memories.
      latency: exact latency, in seconds.
      compiler_latency: latency of the compiler's own map, in seconds.
      seconds: wall-clock time of the search.
      evaluations: number of maps that the search costed.
      seed: seed of the search.
      order: names of the ops as they run.
      weights: memory (its index) for each op's weights, by op name, for ops that have weights.
      outputs: memory for each op's outputs, by op name, for ops that write any (aliases do not count).
      bound: lower bound of the latency, in seconds; None if not known. Not in the file.
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
        """Creates the map that the compiler makes of the requested memories, with its exact costs.

        Args:
          weights, outputs: `[n]` requested memories, by step.
          method, seconds, evaluations, seed, bound: as in the attributes.

        Raises:
          PlanError: a requested memory is not one of the chip's.
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
        """The value that a search for maps minimises: the latency."""
        return self.latency

    @property
    def speedup(self) -> float:
        """Speedup over the compiler's own map."""
        return self.compiler_latency / self.latency if self.latency > 0 else 1.0

    @property
    def gap(self) -> float | None:
        """Relative gap of the latency above the bound; None without a bound above 0."""
        return None if not self.bound else self.latency / self.bound - 1

    @property
    def proved(self) -> bool:
        """True if the latency equals the bound, up to the accuracy of proofs: no map is faster."""
        return self.bound is not None and self.latency <= self.bound * (1 + PROVED)

    def problem(self, graph: ComputationGraph) -> MapProblem:
        """Builds the problem that the map solves.

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
            raise PlanError(
                f"order has {len(self.order)} ops: graph {graph.name!r} has {len(index)}; a map of a function or a "
                "file is of its layers, graphrl.graphs.coarsen.coarsened(graph)"
            )
        return map_problem(graph, self.chip, [index[name] for name in self.order])

    def memories(self, problem: MapProblem) -> tuple[np.ndarray, np.ndarray]:
        """Returns each step's memory for weights and for outputs, `[n] int64` each, 0 for steps without any.

        Raises:
          PlanError: an op with weights or outputs is missing, or an op without them is present.
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
        """Checks the map: recomputes all costs, compares them with the stated ones, and returns them.

        Raises:
          PlanError: the map is of another graph, is not valid, or states a wrong latency; names the first difference.
        """
        problem = self.problem(graph)
        weights, outputs = self.memories(problem)
        costs = evaluate(problem, weights, outputs)
        for what, requested, assigned in (("weights", weights, costs.weights), ("outputs", outputs, costs.outputs)):
            moved = np.flatnonzero(requested != assigned)
            if len(moved):
                name, memory = self.order[moved[0]], self.chip.memories[requested[moved[0]]]
                raise PlanError(f"the map is not valid: {what} of op {name!r} do not fit into memory {memory.name!r}")
        true = {"latency": costs.latency, "compiler_latency": compiler(problem).latency}
        for key, value in true.items():
            if not math.isclose(getattr(self, key), value, rel_tol=RELATIVE_ERROR):
                raise PlanError(f"{key} is stated as {getattr(self, key)!r}: it is {value!r}")
        return costs

    def plot(self, graph: ComputationGraph, path: str | os.PathLike[str] | None = None) -> "Picture":
        """Draws the contents of every memory at each step over the latency by op; saves the picture if a path is given.

        Args:
          graph: the map's graph.
          path: its ending selects the format: .png, .svg or .pdf.

        Raises:
          PlanError: as `check`.
          GraphrlError: the file cannot be written, or its ending names no such format.
        """
        from graphrl.plan.map_plot import map_figure
        from graphrl.plan.plot import write_figure

        facts = [f"latency {format_seconds(self.latency)}"]
        facts.append(f"{self.speedup:.3f} times as fast as the compiler's own map")
        if self.bound and self.gap is not None:
            near = "optimal" if self.proved else f"gap {100 * self.gap:.1f}%"
            facts.append(f"bound {format_seconds(self.bound)} ({near})")
        figure = map_figure(self.problem(graph), self.check(graph), self.method, facts)
        if path is not None:
            write_figure(figure, path)
        return figure

    def to_dict(self) -> dict[str, Any]:
        """Converts the map to a JSON object of the file's format."""
        fields = {field: getattr(self, field) for field in _MapFile.__struct_fields__ if field not in _HEAD}
        fields |= {"chip": self.chip.to_dict(), "order": list(self.order)}
        fields |= {"weights": dict(self.weights), "outputs": dict(self.outputs)}
        return {"format": FORMAT, "version": VERSION, **fields}

    @staticmethod
    def from_dict(data: object) -> "MemoryMap":
        """Reads a map from a JSON object of the file's format. `check` it before trusting its numbers.

        Raises:
          PlanError: one line that names the first fault.
          ProblemError: the chip is not valid.
        """
        if isinstance(data, dict):
            for key, right in (("format", FORMAT), ("version", VERSION)):
                if data.get(key) != right or isinstance(data[key], bool):
                    raise PlanError(f"{key} is {_short(data.get(key))}: must be {right!r}")
        try:
            file = msgspec.convert(as_integers(data), _MapFile)
        except (msgspec.ValidationError, OverflowError) as error:
            raise PlanError(f"a map: {error}") from None
        fields = {name: getattr(file, name) for name in file.__struct_fields__ if name not in _HEAD}
        _check_numbers(file, chip := chip_from_dict(file.chip))
        return MemoryMap(**{**fields, "chip": chip, "order": tuple(file.order)})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the map to a JSON file, atomically.

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
          PlanError: the file is not a map; one line that names the file and the first fault.
        """
        return read_strict_json(path, MemoryMap.from_dict, PlanError)


class _MapFile(msgspec.Struct, forbid_unknown_fields=True):
    """Keys of the map file, in the file's order."""

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
