"""The problem instances of `Compile-v0`: padded graphs with their features and options. NumPy, on the host."""

import dataclasses
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import numpy as np

from graphrl.costs import exact
from graphrl.costs.device.problem import DeviceProblem
from graphrl.costs.problem import Problem
from graphrl.envs.compile.options import device_features, level_features
from graphrl.errors import ProblemError
from graphrl.graphs.features import node_features
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.op_types import type_features
from graphrl.graphs.padding import PaddedGraph, Sizes, common_sizes, pad
from graphrl.solvers.rules.list_scheduling import quick_schedule

Task = Literal["placement", "priority"]
LEVELS = 16  # of priorities; the paper does not say how many


class Choices(NamedTuple):
    """A choice of every op, by task."""

    placement: jax.Array | np.ndarray  # [n] int32, device
    priority: jax.Array | np.ndarray  # [n] int32, level

    def of(self, tasks: Sequence[str]) -> dict[str, jax.Array | np.ndarray]:
        """Those of some tasks."""
        return {task: getattr(self, task) for task in tasks}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CompileParams:
    """One graph, the problem that it is compiled for, and what the network sees; a batch has a leading axis g.

    The d devices are as many as any graph of a batch has; of one that has fewer, the last are not there.
    """

    graph: PaddedGraph
    problem: DeviceProblem  # of d devices
    nodes: jax.Array | np.ndarray  # [n, F] float32, features of ops; 0 for padding
    order: jax.Array | np.ndarray  # [n] int32, ops in a topological order, then padding
    devices: jax.Array | np.ndarray  # [d, DEVICE_FEATURES] float32; 0 for those that are not there
    levels: jax.Array | np.ndarray  # [l, LEVEL_FEATURES] float32, of priorities
    present: jax.Array | np.ndarray  # [d] bool, devices that are there
    leader: jax.Array | np.ndarray  # [n] int32, the op on whose device each op stands: itself, or its group's first
    start: Choices  # what is chosen before the first step
    baseline: jax.Array | np.ndarray  # [] float32, second units: the run time that others are compared with


def instance(
    graph: ComputationGraph,
    problem: Problem,
    to: Sizes | None = None,
    *,
    devices: int | None = None,
    levels: int = LEVELS,
    colocation: np.ndarray | None = None,
    baseline: float | None = None,
    start: Choices | None = None,
) -> CompileParams:
    """A graph as an instance.

    Args:
      graph: any.
      problem: the devices and what moves between them; its objective is the makespan.
      to: sizes to pad to, by default the graph's bucket.
      devices: d, by default the problem's.
      levels: l, of priorities.
      colocation: `[ops]` int32, the group of each op: ops of a group stand on one device; None for none.
      baseline: seconds of the best plan that there was; None is `quick_schedule`'s makespan, which knows no groups.
      start: `[ops]` each, what is chosen before the first step; None is -1 for all, nothing.

    Raises:
      GraphError: `to` is too small for the graph.
      ProblemError: another objective; fewer devices than the problem has; fewer levels than one; groups not of each op.
    """
    to = common_sizes([graph]) if to is None else to
    devices = problem.devices if devices is None else devices
    _check(problem, devices, levels)
    padded, n = pad(graph, to), len(graph.ops)
    if colocation is not None and np.shape(colocation) != (n,):
        raise ProblemError(f"colocation has shape {np.shape(colocation)}: must be {(n,)}, a group for each op")
    if baseline is None:
        baseline = exact.evaluate(graph, problem, *quick_schedule(graph, problem)).makespan
    if start is None:
        start = Choices(np.full(n, -1), np.full(n, -1))
    rest = np.arange(n, to.ops, dtype=np.int32)
    return CompileParams(
        graph=padded,
        problem=dataclasses.replace(DeviceProblem.of(problem), devices=devices),
        nodes=_rows(np.concatenate([node_features(graph), type_features(graph)], 1), to.ops),
        order=np.concatenate([graph.arrays.topological, rest]),
        devices=_rows(device_features(graph, problem), devices),
        levels=level_features(levels),
        present=np.arange(devices) < problem.devices,
        leader=np.concatenate([_leaders(graph, colocation), rest]),
        start=Choices(*(_rows(np.asarray(one, np.int32), to.ops) for one in start)),
        baseline=np.float32(baseline) / padded.second_unit,
    )


def instances(
    graphs: Sequence[ComputationGraph],
    problems: Sequence[Problem],
    to: Sizes | None = None,
    *,
    levels: int = LEVELS,
    colocations: Sequence[np.ndarray | None] | None = None,
) -> CompileParams:
    """A batch of instances (leading axis g), padded to `to` (by default the bucket that holds them all).

    Args:
      graphs, problems: of each instance; the problems' transfer models are equal, and memory limits set or not.
      to, levels: see `instance`.
      colocations: groups of each instance's ops; None for none at all.

    Raises:
      GraphError, ProblemError: see `instance`; problems that cannot be in a batch.
    """
    to, devices = common_sizes(graphs) if to is None else to, max(problem.devices for problem in problems)
    kinds = {(problem.transfer, problem.memory_limit is None, problem.resident_weights) for problem in problems}
    if len(kinds) > 1:
        raise ProblemError("the problems of a batch must have one transfer model, and all or none a memory limit")
    colocations = [None] * len(graphs) if colocations is None else colocations
    each = (
        instance(graph, problem, to, devices=devices, levels=levels, colocation=groups)
        for graph, problem, groups in zip(graphs, problems, colocations, strict=True)
    )
    return jax.tree.map(lambda *leaves: np.stack(leaves), *each)


def _leaders(graph: ComputationGraph, colocation: np.ndarray | None) -> np.ndarray:
    """Of each op the first op of its group in the topological order: `[ops]` int32."""
    order = graph.arrays.topological
    if colocation is None:
        return np.arange(len(order), dtype=np.int32)
    _, first, group = np.unique(colocation[order], return_index=True, return_inverse=True)
    leaders = np.empty(len(order), np.int32)
    leaders[order] = order[first][group]
    return leaders


def _check(problem: Problem, devices: int, levels: int) -> None:
    if problem.objective != "makespan":
        raise ProblemError(f"objective is {problem.objective!r}: must be makespan")
    if devices < problem.devices:
        raise ProblemError(f"devices is {devices}: must be at least the problem's {problem.devices}")
    if levels < 1:
        raise ProblemError(f"levels is {levels}: must be at least 1")


def _rows(rows: np.ndarray, count: int) -> np.ndarray:
    """With zeros at the end, `[count, ...]`."""
    return np.pad(rows, ((0, count - len(rows)), *[(0, 0)] * (rows.ndim - 1)))
