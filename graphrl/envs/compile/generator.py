"""Instances of `Compile-v0`: padded graphs with their features and options. NumPy, on the host.

Options are the devices and priority levels that an op may choose, with features of each for a network. The number of
options is a shape of these tables, so that one network serves any number. If fusion is a task, an instance has
`FusionInstance`, and `kernels_of` converts fusion priorities to kernels.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import numpy as np

from graphrl.costs import exact
from graphrl.costs.device.decisions import DeviceProblem
from graphrl.costs.device.loads import PaddedPipeline, padded_pipeline
from graphrl.costs.fusion.device import FusionSizes, PaddedFusion, fuse
from graphrl.costs.fusion.device import common_sizes as common_fusion_sizes
from graphrl.costs.fusion.device import pad as pad_fusion
from graphrl.costs.fusion.exact import fused_graph
from graphrl.costs.fusion.padded_graph import PaddedKernels, kernel_sizes, padded_kernels
from graphrl.costs.fusion.problem import FusionProblem
from graphrl.costs.problem import Pipeline, Problem, Transfer
from graphrl.envs.graph_environment import stacked
from graphrl.errors import ProblemError, clipped
from graphrl.graphs.features import buffer_bytes, node_features, type_features
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import PaddedGraph, Sizes, common_sizes, pad
from graphrl.solvers.fusion.rules import xla_like
from graphrl.solvers.loads.rules import quick_plan
from graphrl.solvers.rules.list_scheduling import quick_schedule

WAVES = 16  # number of cosines that encode a level's position
LEVEL_FEATURES = WAVES + 1
DEVICE_FEATURES = LEVEL_FEATURES + len(get_args(Transfer)) + 4


def level_features(count: int) -> np.ndarray:
    """Computes features that distinguish priority levels 0 to count - 1: `[count, LEVEL_FEATURES]` float32.

    The position of the middle of a level, from 0 to 1, is encoded as cosines of 1, 2, ... half waves: a linear map can
    distinguish up to 17 levels, and neighbouring levels have similar features. The last feature is 1 / count.
    """
    place = (np.arange(count) + 0.5) / count
    waves = np.cos(np.pi * place[:, None] * np.arange(1, WAVES + 1))
    return np.column_stack([waves, np.full(count, 1 / count)]).astype(np.float32)


def device_features(graph: ComputationGraph, problem: Problem) -> np.ndarray:
    """Computes features of the problem's devices: `[d, DEVICE_FEATURES]` float32.

    Devices are identical except for their indices, which are encoded like levels; without them all devices would be
    given the same ops. Features shared by all devices follow: the transfer model, the latency of a transfer and the
    transfer time of the mean tensor, both relative to the mean op's run time, the memory limit relative to all bytes
    that ops write or have as weights (0 without a limit), and 1 if weights are resident.
    """
    a = graph.arrays
    sizes = buffer_bytes(a)
    mean_seconds = max(a.runtime.mean(), 1e-30) if a.num_ops else 1.0
    transfer_seconds = sizes.mean() / problem.bandwidth if len(sizes) else 0.0
    total_bytes = sizes.sum() + a.weight_bytes.sum(dtype=np.float64)
    limit = 0.0 if problem.memory_limit is None else min(problem.memory_limit / max(total_bytes, 1.0), 10.0)
    shared = [float(problem.transfer == model) for model in get_args(Transfer)]
    shared += [np.log1p(problem.latency / mean_seconds), np.log1p(transfer_seconds / mean_seconds)]
    shared += [limit, float(problem.resident_weights)]
    return np.column_stack([level_features(problem.devices), np.tile(shared, (problem.devices, 1))]).astype(np.float32)


class FusionInstance(NamedTuple):
    """The fusion task of one graph, or of a batch with a leading axis g."""

    problem: PaddedFusion
    levels: jax.Array | np.ndarray  # [f, LEVEL_FEATURES] float32, features of fusion priorities


def fusion_sizes(problems: Sequence[FusionProblem], to: Sizes) -> FusionSizes:
    """Computes sizes that cover all problems, with the numbers of ops and tensors to which their graphs are padded.

    Raises:
      ProblemError: their kernels have different limits.
    """
    if len({(problem.max_ops, problem.max_arguments) for problem in problems}) > 1:
        raise ProblemError("the fusion problems of a batch must have equal limits of kernels")
    return dataclasses.replace(common_fusion_sizes(problems), ops=to.ops, tensors=to.tensors)


def fusion_instance(problem: FusionProblem, to: FusionSizes, levels: int) -> FusionInstance:
    """Creates the fusion task for one graph, with the given number of fusion priorities."""
    return FusionInstance(pad_fusion(problem, to), level_features(levels))


def kernels_of(graph: PaddedGraph, fusion: FusionInstance, priorities: jax.Array) -> PaddedKernels:
    """Fuses one graph's ops into kernels by fusion priorities `[n]` int32 from 0. Memory is linear in n."""
    return padded_kernels(graph, fusion.problem, fuse(fusion.problem, priorities), kernel_sizes(graph.sizes))


Task = Literal["placement", "priority", "fusion"]
OBJECTIVES = "makespan", "max_load"
LEVELS, FUSION_LEVELS = 16, 4  # numbers of priorities and of fusion priorities; the paper does not state them


def check_tasks(tasks: Sequence[str]) -> None:
    """Checks that the tasks are known and not repeated.

    Raises:
      ProblemError: there are no tasks, or a task is unknown or repeated.
    """
    if not tasks or len(set(tasks)) < len(tasks) or not set(tasks) <= set(get_args(Task)):
        text = f"must be one or more of {', '.join(get_args(Task))}, each once"
        raise ProblemError(f"tasks are {clipped(', '.join(map(str, tasks))) or 'none'}: {text}")


class Choices(NamedTuple):
    """An option for every op, by task."""

    placement: jax.Array | np.ndarray  # [n] int32, device
    priority: jax.Array | np.ndarray  # [n] int32, level
    fusion: jax.Array | np.ndarray | None = None  # [n] int32, fusion priority; None without a fusion problem

    def of(self, tasks: Sequence[str]) -> dict[str, jax.Array | np.ndarray]:
        """Returns the choices of the given tasks, by task."""
        return {task: getattr(self, task) for task in tasks}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CompileInstance:
    """One graph, its problem, and features for the network; a batch has a leading axis g.

    d is the largest number of devices in a batch; for graphs with fewer, the last ones do not exist. The type of
    `problem` determines the objective: a `DeviceProblem` is for the makespan, a `PaddedPipeline` for the largest load.
    """

    graph: PaddedGraph
    problem: DeviceProblem | PaddedPipeline  # for d devices
    nodes: jax.Array | np.ndarray  # [n, F] float32, features of ops; 0 for padding
    order: jax.Array | np.ndarray  # [n] int32, ops in a topological order, then padding
    reach: jax.Array | np.ndarray  # [] float32, how far a level moves an op, as a share of the order
    devices: jax.Array | np.ndarray  # [d, DEVICE_FEATURES] float32; 0 for devices that do not exist
    levels: jax.Array | np.ndarray | None  # [l, LEVEL_FEATURES] float32, of priorities; None if order is irrelevant
    runs_on: jax.Array | np.ndarray  # [n, d] bool, devices that can run each op, with its group; for padding the first
    leader: jax.Array | np.ndarray  # [n] int32, the op that determines each op's device: itself, or its group's first
    start: Choices  # choices before the first step
    baseline: jax.Array | np.ndarray  # [] float32, second units: the reference run time of rewards
    fusion: FusionInstance | None = None  # None: every op is a kernel

    @property
    def num_ops(self) -> jax.Array:
        """Number of real ops: `[]` int32."""
        return self.graph.num_ops

    @property
    def second_unit(self) -> jax.Array | np.ndarray:
        """Seconds per time unit of the instance's costs: `[]` float32."""
        return self.problem.second_unit if isinstance(self.problem, PaddedPipeline) else self.graph.second_unit


def make_instance(
    graph: ComputationGraph,
    problem: Problem,
    to: Sizes | None = None,
    *,
    devices: int | None = None,
    levels: int = LEVELS,
    baseline: float | None = None,
    start: Choices | None = None,
    order: np.ndarray | None = None,
    reach: float = 1.0,
    fusion: FusionProblem | None = None,
    fusion_levels: int = FUSION_LEVELS,
    fusion_to: FusionSizes | None = None,
) -> CompileInstance:
    """Converts a graph to an instance.

    Args:
      graph: any graph; each of its groups (`ComputationGraph.colocation`) is on one device.
      problem: the devices and their transfers; its objective is the makespan or the largest load.
      to: sizes to pad to, by default the graph's bucket.
      devices: d, the padded number of devices; by default the problem's.
      levels: l, the number of priorities; ignored under `max_load`.
      baseline: seconds of a reference plan; None is `quick_schedule`'s makespan, with `fusion` that of the kernels of
        the rule like XLA's, or the largest load of `quick_plan`.
      start: `[ops]` each, the choices before the first step; None is -1 (no choice) for all.
      order: `[ops]` int32, a topological order of the ops, for ties between priorities; None is the graph's own.
      reach: share of the order by which one more priority level moves a ready op forward: 1 is all of it, so that the
        higher level always runs first.
      fusion: the graph's fusion problem, whose chip determines the run times of kernels, independent of the graph's own
        run times; None fuses nothing.
      fusion_levels: f, the number of fusion priorities.
      fusion_to: sizes to pad `fusion` to, with the numbers of ops and tensors of `to`; by default its bucket.

    Raises:
      GraphError: `to` is too small for the graph.
      ProblemError: another objective; fewer devices than the problem has; fewer levels than one; fusion of another
        graph, or under `max_load`; an op that no device can run.
    """
    to = common_sizes([graph]) if to is None else to
    devices = problem.devices if devices is None else devices
    _check(graph, problem, devices, levels, fusion, fusion_levels)
    padded, n = pad(graph, to), len(graph.ops)
    if baseline is None:
        baseline = _quick_baseline(graph, problem, fusion)
    pipelined = problem.objective == "max_load"
    costs = padded_pipeline(graph, problem, to, devices) if pipelined else DeviceProblem.of(problem)
    no_choice = np.full(n, -1)
    start = Choices(no_choice, no_choice) if start is None else start
    if fusion is None or start.fusion is None:
        start = start._replace(fusion=None if fusion is None else no_choice)
    if fusion is not None and fusion_to is None:
        fusion_to = fusion_sizes([fusion], to)
    order = graph.arrays.topological if order is None else np.asarray(order, np.int32)
    rest = np.arange(n, to.ops, dtype=np.int32)
    instance = CompileInstance(
        graph=padded,
        problem=costs if isinstance(costs, PaddedPipeline) else dataclasses.replace(costs, devices=devices),
        nodes=_rows(np.concatenate([node_features(graph), type_features(graph)], 1), to.ops),
        order=np.concatenate([order, rest]),
        reach=np.asarray(reach, np.float32),
        devices=_rows(device_features(graph, problem), devices),
        levels=None if pipelined else level_features(levels),
        runs_on=_runs_on(graph, problem, to.ops, devices),
        leader=np.concatenate([_leaders(order, graph.colocation), rest]),
        start=jax.tree.map(lambda one: _rows(np.asarray(one, np.int32), to.ops), start),
        baseline=np.asarray(baseline, np.float32),
        fusion=None if fusion is None or fusion_to is None else fusion_instance(fusion, fusion_to, fusion_levels),
    )
    return dataclasses.replace(instance, baseline=instance.baseline / instance.second_unit)


def make_instances(
    graphs: Sequence[ComputationGraph],
    problems: Sequence[Problem],
    to: Sizes | None = None,
    *,
    levels: int = LEVELS,
    fusions: Sequence[FusionProblem] | None = None,
    fusion_levels: int = FUSION_LEVELS,
) -> CompileInstance:
    """Converts graphs to a batch (leading axis g), padded to `to` (by default the smallest bucket that covers all).

    Args:
      graphs, problems: one per instance; the problems must have the same objective, transfer model and residency of
        weights, and all or no memory limits.
      to, levels, fusion_levels: see `make_instance`.
      fusions: one per instance, with equal limits of kernels; None fuses nothing.

    Raises:
      GraphError, ProblemError: see `make_instance`; problems that cannot be in a batch.
    """
    to, devices = common_sizes(graphs) if to is None else to, max(problem.devices for problem in problems)
    kinds = {(one.objective, one.transfer, one.memory_limit is None, one.resident_weights) for one in problems}
    if len(kinds) > 1:
        fault = "must have one transfer model and one objective, and all or none a memory limit"
        raise ProblemError(f"the problems of a batch {fault}")
    shared: dict[str, Any] = {"devices": devices, "levels": levels, "fusion_levels": fusion_levels}
    shared["fusion_to"] = None if fusions is None else fusion_sizes(fusions, to)
    each_fusion: Sequence[FusionProblem | None] = [None] * len(graphs) if fusions is None else fusions
    rows = (
        make_instance(graph, problem, to, fusion=fusion, **shared)
        for graph, problem, fusion in zip(graphs, problems, each_fusion, strict=True)
    )
    return stacked(list(rows))


def _quick_baseline(graph: ComputationGraph, problem: Problem, fusion: FusionProblem | None) -> float:
    """Computes the run time, in seconds, of a quick rule's plan."""
    if problem.objective == "max_load":
        return quick_plan(graph, problem).value
    run = graph if fusion is None else fused_graph(xla_like(fusion))
    return exact.evaluate(run, problem, *quick_schedule(run, problem)).makespan


def _runs_on(graph: ComputationGraph, problem: Problem, ops: int, devices: int) -> np.ndarray:
    """Computes which devices can run each op together with its group, `[ops, devices]` bool; for the makespan, all
    devices that exist.
    """
    runs_on = np.zeros((ops, devices), bool)
    runs_on[:, : problem.devices] = True
    if problem.objective == "max_load":
        runtime, kinds = Pipeline.of(graph, problem).runtime, Pipeline.of(graph, problem).kinds
        group_runtime = np.zeros_like(runtime)
        np.add.at(group_runtime, graph.leaders, runtime)
        runs_on[: len(graph.ops), : problem.devices] = np.isfinite(group_runtime[graph.leaders])[:, kinds]
    runs_on[len(graph.ops) :] = np.arange(devices) == 0
    return runs_on


def _leaders(order: np.ndarray, colocation: np.ndarray | None) -> np.ndarray:
    """Finds for each op the first op of its group in the order: `[ops]` int32."""
    if colocation is None:
        return np.arange(len(order), dtype=np.int32)
    _, first, group = np.unique(colocation[order], return_index=True, return_inverse=True)
    leaders = np.empty(len(order), np.int32)
    leaders[order] = order[first][group]
    return leaders


def _check(
    graph: ComputationGraph,
    problem: Problem,
    devices: int,
    levels: int,
    fusion: FusionProblem | None,
    fusion_levels: int,
) -> None:
    if problem.objective not in OBJECTIVES:
        raise ProblemError(f"objective is {problem.objective!r}: must be {' or '.join(OBJECTIVES)}")
    if devices < problem.devices:
        raise ProblemError(f"devices is {devices}: must be at least the problem's {problem.devices}")
    if levels < 1:
        raise ProblemError(f"levels is {levels}: must be at least 1")
    if fusion_levels < 1:
        raise ProblemError(f"fusion_levels is {fusion_levels}: must be at least 1")
    if fusion is not None and fusion.graph is not graph:
        raise ProblemError(f"the fusion problem is of another graph than {graph.name!r}: it must be of this one")
    if fusion is not None and problem.objective == "max_load":
        raise ProblemError("fusion needs the objective makespan: kernels are not placed under max_load")


def _rows(rows: np.ndarray, count: int) -> np.ndarray:
    """Pads rows with zeros at the end to `[count, ...]`."""
    return np.pad(rows, ((0, count - len(rows)), *[(0, 0)] * (rows.ndim - 1)))
