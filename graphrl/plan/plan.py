"""`Plan`, the result of planning: the device of each op, the order of ops and transfers, and their exact costs.

Its steps are in `plan/steps.py`, the file format in `plan/format.py`, the trace and the curves of time and memory in
`plan/trace.py`, and the picture in `plan/plot.py`.
"""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from graphrl.costs.bounds import lower_bound
from graphrl.costs.exact import Costs, evaluate
from graphrl.costs.problem import Problem
from graphrl.errors import PlanError
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan.format import Inlining, plan_from_dict, plan_to_dict, read_plan, write_plan
from graphrl.plan.steps import PlacedOps, Step, Steps, order_array, placement_array
from graphrl.plan.trace import Timeline, write_trace
from graphrl.units import format_bytes, format_objective, format_seconds

if TYPE_CHECKING:
    from graphrl.plan.plot import Picture

RELATIVE_ERROR = 1e-9  # of stated seconds: a plan may have been written by a tool that rounds


@dataclasses.dataclass(frozen=True)
class Plan:
    """A placement and an order for one graph, with their exact costs and their search.

    Attributes:
      graph: the graph's name.
      problem: the planning problem.
      method: solver that found the plan.
      placement: device of each op, by op name, in the graph's order. In a plan of kernels, here and in the order,
        kernels replace ops, under the names of their roots.
      order: every op and every transfer that the placement needs, in the order in which they run.
      value: value of the objective: bytes (int) for "peak_memory", seconds (float) for "makespan" and "max_load".
      makespan: seconds from start to end, under the problem's transfer model; for "max_load", of a single sample.
      peak_memory: `[devices]` peak bytes of each device; for "max_load", bytes of its weights.
      seconds: wall-clock time of the search.
      evaluations: number of solutions that the search decoded and costed.
      seed: seed of the search.
      inlining: the ops that kernels compute; None in a plan of single ops.
      bound: a lower bound of the objective, or None if not known. Not in the file: `attach` recomputes it.
    """

    graph: str
    problem: Problem
    method: str
    placement: Mapping[str, int]
    order: Sequence[Step]
    value: float
    makespan: float
    peak_memory: tuple[int, ...]
    seconds: float
    evaluations: int
    seed: int
    inlining: Inlining | None = None
    bound: float | None = None
    # Data of trace and plot; a loaded plan has none until `attach`.
    _graph: ComputationGraph | None = dataclasses.field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:  # one line: the decisions would fill pages
        objective = self.problem.objective
        bound = "none" if self.bound is None else format_objective(objective, self.bound)
        value = f"{objective} {format_objective(objective, self.value)}, bound {bound}"
        return f"Plan({self.graph!r}, {len(self.placement)} ops, {value}, method {self.method!r}, seed {self.seed})"

    @classmethod
    def from_order(
        cls,
        graph: ComputationGraph,
        problem: Problem,
        placement: ArrayLike,
        order: ArrayLike,
        *,
        method: str,
        seconds: float,
        evaluations: int,
        seed: int,
        bound: float | None = None,
    ) -> "Plan":
        """Creates a plan from a placement and an order, with its exact costs.

        Args:
          graph: graph of ops, or of kernels (`KernelGraph`).
          placement: `[n]` device of each op.
          order: `[m]` node ids as in `costs/exact`: op v is v, the transfer of tensor t to device b is
            `n + t * devices + b`.
          method, seconds, evaluations, seed, bound: as in the attributes.

        Raises:
          PlanError: the placement or the order breaks a rule.
        """
        costs = evaluate(graph, problem, placement, order)
        return cls(
            graph=graph.name,
            problem=problem,
            method=method,
            placement=PlacedOps(graph, np.asarray(placement)),
            order=Steps(graph, problem.devices, np.asarray(order)),
            value=costs.objective(problem),
            makespan=costs.makespan,
            peak_memory=costs.peak_memory,
            seconds=float(seconds),
            evaluations=int(evaluations),
            seed=int(seed),
            inlining=Inlining.of(graph),
            bound=bound,
            _graph=graph,
        )

    @property
    def gap(self) -> float | None:
        """Relative gap of the value above the bound; None without a bound above 0."""
        return None if not self.bound else self.value / self.bound - 1

    @property
    def excess(self) -> int:
        """Number of bytes by which the largest device peak is above the memory limit; 0 if the plan is feasible."""
        return self.problem.excess(self.peak_memory)

    @property
    def rank(self) -> tuple[int, float]:
        """Sort key of plans of one problem, best first: feasible before infeasible, then by value."""
        return self.excess, self.value

    def check(self, graph: ComputationGraph) -> Costs:
        """Checks the plan: recomputes all costs from placement and order, and compares them with the stated ones.

        Args:
          graph: the planned graph of single ops, also for a plan of kernels, whose run times are recomputed too.

        Raises:
          PlanError: the plan is of another graph, breaks a rule, or states a wrong cost; names the first difference.
        """
        if not isinstance(graph, ComputationGraph):
            raise PlanError(f"graph is of type {type(graph).__name__}: must be a ComputationGraph")
        if self.graph != graph.name:
            raise PlanError(f"the plan is of graph {self.graph!r}: it cannot be checked against {graph.name!r}")
        graph = self._planned(graph)
        costs = evaluate(graph, self.problem, *self.decisions(graph))
        if self.peak_memory != costs.peak_memory:
            pairs = zip(self.peak_memory, costs.peak_memory, strict=True)
            device, (stated, true) = next((d, pair) for d, pair in enumerate(pairs) if pair[0] != pair[1])
            raise PlanError(f"peak_memory of device {device} is stated as {stated} bytes: it is {true}")
        for name, cost in (("makespan", costs.makespan), ("value", costs.objective(self.problem))):
            stated = getattr(self, name)
            if not math.isclose(stated, cost, rel_tol=RELATIVE_ERROR):
                raise PlanError(f"{name} is stated as {stated!r}: it is {cost!r}")
        return costs

    def decisions(self, graph: ComputationGraph) -> tuple[np.ndarray, np.ndarray]:
        """Converts names to indices of `graph`: returns placement `[n] int64`, and order `[m] int64` of node ids.

        Args:
          graph: the planned graph; for a plan of kernels the graph of kernels.

        Raises:
          PlanError: an op or a tensor is not in the graph, or an op has no device.
        """
        return placement_array(self.placement, graph), order_array(self.order, graph, self.problem)

    def attach(self, graph: ComputationGraph) -> "Plan":
        """Checks a loaded plan and returns it with its bound and the data that `trace` and `plot` need.

        Raises:
          PlanError: as `check`.
        """
        self.check(graph)
        graph = self._planned(graph)
        placement, order = self.decisions(graph)
        return dataclasses.replace(
            self,
            placement=PlacedOps(graph, placement),
            order=Steps(graph, self.problem.devices, order),
            bound=lower_bound(graph, self.problem, order) if self.bound is None else self.bound,
            _graph=graph,
        )

    def _planned(self, graph: ComputationGraph) -> ComputationGraph:
        """Returns the graph whose ops are placed: the graph of kernels for a plan of kernels, else `graph`."""
        return graph if self.inlining is None else self.inlining.kernels(graph)

    def to_dict(self) -> dict[str, Any]:
        """Converts the plan to a JSON object of format "graphrl-plan", version 1, or 2 for a plan of kernels.

        Raises:
          PlanError: a cost is infinite, which the format cannot represent.
        """
        return plan_to_dict({field.name: getattr(self, field.name) for field in dataclasses.fields(self)})

    @staticmethod
    def from_dict(data: object) -> "Plan":
        """Reads a plan from a JSON object of the file's format.

        Raises:
          PlanError: one line that names the first fault.
        """
        return Plan(**plan_from_dict(data))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan to a JSON file, atomically.

        Raises:
          GraphrlError: the file cannot be written; an old one is untouched.
        """
        write_plan(self.to_dict(), path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Plan":
        """Reads a plan file. `check` or `attach` it before trusting its numbers.

        Raises:
          GraphrlError: the file cannot be read (gzipped files are supported).
          PlanError: the file is not a plan; one line that names the file and the first fault.
        """
        return Plan(**read_plan(path))

    def timeline(self, *, by_position: bool | None = None) -> Timeline:
        """Computes the run interval of every entry and the memory curves, the data of `trace` and `plot`.

        Args:
          by_position: True for positions in the order instead of seconds; None does so only if the makespan is 0.

        Raises:
          PlanError: the plan has no graph (`attach` gives it one).
        """
        if self._graph is None:
            raise PlanError(f"the plan of {self.graph!r} was loaded without its graph: call plan.attach(graph) first")
        placement, order = self.decisions(self._graph)
        costs = evaluate(self._graph, self.problem, placement, order)
        if by_position is None:
            by_position = costs.makespan == 0
        return Timeline(self._graph, self.problem, placement, order, costs, by_position=by_position)

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Writes trace events as JSON, for ui.perfetto.dev or chrome://tracing.

        Raises:
          PlanError: the plan has no graph (`attach` gives it one).
          GraphrlError: the file cannot be written; an old one is untouched.
        """
        facts = {"graph": self.graph, "method": self.method, "objective": self.problem.objective, "value": self.value}
        facts |= {"makespan_seconds": self.makespan, "transfer_model": self.problem.transfer}
        write_trace(self.timeline(), facts, path)

    def plot(self, path: str | os.PathLike[str] | None = None, *, by_position: bool | None = None) -> "Picture":
        """Draws device lanes over memory curves, and saves the picture if a path is given.

        Args:
          path: its ending selects the format: .png, .svg or .pdf.
          by_position: see `timeline`.

        Raises:
          PlanError: the plan has no graph (`attach` gives it one).
          GraphrlError: the file cannot be written, or its ending names no such format.
        """
        from graphrl.plan.plot import plan_figure, write_figure

        timeline = self.timeline(by_position=by_position)
        facts = self._facts(timed=not timeline.by_position)
        figure = plan_figure(timeline, self.graph, self.method, facts, self.bound)
        if path is not None:
            write_figure(figure, path)
        return figure

    def _facts(self, *, timed: bool) -> list[str]:
        """Returns texts for a picture's heading; `timed` if its axis is time, not the position in the order."""
        problem, gap, ops = self.problem, "", len(self.placement)
        facts = [f"{problem.objective.replace('_', ' ')} {format_objective(problem.objective, self.value)}"]
        if self.bound is not None:
            if self.gap is not None and not self.excess:
                gap = f" (gap {100 * self.gap:.1f}%)" if self.gap > 0 else " (optimal)"
            facts.append(f"bound {format_objective(problem.objective, self.bound)}{gap}")
        if problem.objective != "makespan" and timed:
            facts.append(f"makespan {format_seconds(self.makespan)}")
        if problem.objective != "peak_memory":
            facts.append(f"peak memory {format_bytes(max(self.peak_memory))}")
        if self.inlining is None:
            facts.append(f"{ops:,} op{'s' * (ops > 1)}")
        else:
            facts.append(f"{ops:,} kernel{'s' * (ops > 1)} of {ops + len(self.inlining.inlined):,} ops")
        if problem.devices > 1:
            facts.append(f"{problem.devices} devices, {problem.transfer} transfers ({len(self.order) - ops:,})")
        return facts
