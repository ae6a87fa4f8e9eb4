"""A graph whose ops are put together: what methods for `max_load` place are groups of ops that share a device."""

import dataclasses
from typing import Self

import numpy as np

from graphrl.costs.exact import Routes
from graphrl.costs.pipeline import ACCELERATOR, Pipeline
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.topology import distinct
from graphrl.plan import Plan
from graphrl.solvers.base import PlacedOrder, Task


@dataclasses.dataclass(frozen=True, eq=False)
class Groups:
    """b groups of ops, and m nets: tensors that are read by another group than their producer's. Those of the same
    groups are one net.
    """

    of: np.ndarray  # [n] int64, the group of each op
    runtime: np.ndarray  # [b, 2] float64, seconds on an accelerator and on a CPU; inf where it cannot run
    weight: np.ndarray  # [b] int64, bytes
    seconds: np.ndarray  # [m] float64, of a transfer
    ends: list[list[int]]  # [m] groups that a net joins, its producer's first
    kinds: np.ndarray  # [d] int64, ACCELERATOR or CPU
    limit: float  # bytes of an accelerator, inf without a limit

    @classmethod
    def of_ops(cls, graph: ComputationGraph, problem: Problem, of: np.ndarray | None = None) -> Self:
        """The groups of a graph, by default those of colocation.

        Raises:
          ProblemError: the ops of a group can run together on no device.
        """
        pipeline = Pipeline.of(graph, problem)
        of = pipeline.colocation if of is None else of
        count = int(of.max()) + 1
        runtime = np.stack([np.bincount(of, kind, minlength=count) for kind in pipeline.runtime.T], axis=1)
        _check_devices(graph, problem, of, runtime)
        weight = np.zeros(count, np.int64)
        np.add.at(weight, of, graph.arrays.weight_bytes)
        seconds = _nets(graph, pipeline, of)
        limit = np.inf if problem.memory_limit is None else float(problem.memory_limit)
        values = np.array(list(seconds.values()), np.float64)
        return cls(of, runtime, weight, values, [list(ends) for ends in seconds], pipeline.kinds, limit)

    @property
    def accelerators(self) -> int:
        """How many of the devices are accelerators: the first ones."""
        return int((self.kinds == ACCELERATOR).sum())

    def can_run(self, group: int, device: int) -> bool:
        """Whether a device can run a group, memory aside."""
        return bool(np.isfinite(self.runtime[group, self.kinds[device]]))

    def incidence(self) -> list[list[int]]:
        """The nets of each group, ascending: `[b]`."""
        nets: list[list[int]] = [[] for _ in self.weight]
        for net, ends in enumerate(self.ends):
            for group in ends:
                nets[group].append(net)
        return nets


def _check_devices(graph: ComputationGraph, problem: Problem, of: np.ndarray, runtime: np.ndarray) -> None:
    there = np.isfinite(runtime) & np.array([problem.accelerators > 0, problem.cpus > 0])
    nowhere = np.flatnonzero(~there.any(axis=1))
    if len(nowhere):
        op = graph.ops[int(np.argmax(of == nowhere[0]))].name
        together = "" if (of == nowhere[0]).sum() == 1 else " and the ops that go with it"
        kinds = f"{problem.accelerators} accelerators and {problem.cpus} CPUs"
        raise ProblemError(f"op {op!r}{together} can run on none of the devices, {kinds}")


def _nets(graph: ComputationGraph, pipeline: Pipeline, of: np.ndarray) -> dict[tuple[int, ...], float]:
    """Seconds by the groups that a net joins, its producer's first."""
    a = graph.arrays
    home = of[a.producer]
    pairs = distinct(a.use_tensor.astype(np.int64) * len(of) + of[a.use_op])
    tensors, readers = np.divmod(pairs, len(of))
    away = readers != home[tensors]
    readers_of: dict[int, list[int]] = {}
    for tensor, reader in zip(tensors[away].tolist(), readers[away].tolist(), strict=True):
        readers_of.setdefault(tensor, []).append(reader)
    seconds: dict[tuple[int, ...], float] = {}
    for tensor, groups in readers_of.items():
        if pipeline.transfer[tensor] > 0:
            ends = (int(home[tensor]), *groups)
            seconds[ends] = seconds.get(ends, 0.0) + float(pipeline.transfer[tensor])
    return seconds


def placed_order(graph: ComputationGraph, problem: Problem, placement: np.ndarray) -> PlacedOrder:
    """A placement `[n]` with an order that runs its ops as they stand topologically, and every transfer right before
    its first reader.
    """
    routes, rank = Routes(graph, problem, placement), graph.arrays.rank
    first = np.full(len(routes.transfers), len(rank))
    slot = routes.use_instance - routes.num_tensors
    remote = slot >= 0
    np.minimum.at(first, slot[remote], rank[graph.arrays.use_op[remote]])
    when = np.concatenate([2 * rank + 1, 2 * first])
    return placement, routes.nodes[np.argsort(when, kind="stable")]


def placed_plan(
    task: Task, placement: np.ndarray, *, evaluations: int, bound: float | None = None, optimal: bool = False
) -> Plan:
    """The plan of a placement `[n]`."""
    decisions = placed_order(task.graph, task.problem, placement)
    return task.plan(*decisions, evaluations=evaluations, bound=bound, optimal=optimal)
