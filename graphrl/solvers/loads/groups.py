"""Groups of ops that share a device, and blocks of groups: the units of placements for `max_load`.

`Groups` joins colocated ops. `Blocks` are the units of contiguous splits (Tarnawski et al. 2020, section 5 and their
code). A split is contiguous if its devices can be numbered so that no forward op precedes one of an earlier device. Ops
that no such split can separate form one block: those that are colocated, and those on a cycle of the forward graph
after colocated ops are merged.

Backward ops follow the forward ops that they are colocated with. Without forward ops, the reversed edges between
backward ops replace those between the missing forward ops.

A block without run time and with only one neighbour joins it. That costs nothing where memory does not bind, and leaves
far fewer splits.
"""

import dataclasses
from typing import Self

import numpy as np

from graphrl.costs.exact import Routes
from graphrl.costs.problem import ACCELERATOR, Pipeline, Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.topology import Waiting, distinct
from graphrl.plan import Plan
from graphrl.solvers.base import PlacedOrder, Task
from graphrl.solvers.rules.simple import depth_first


@dataclasses.dataclass(frozen=True, eq=False)
class Groups:
    """b groups of ops, and m nets: tensors that are read by another group than their producer's. Tensors that join the
    same groups are one net.
    """

    of: np.ndarray  # [n] int64, the group of each op
    runtime: np.ndarray  # [b, 2] float64, seconds on an accelerator and on a CPU; inf where it cannot run
    weight: np.ndarray  # [b] int64, bytes
    seconds: np.ndarray  # [m] float64, transfer time of each net
    ends: list[list[int]]  # [m] groups that a net joins, its producer's first
    kinds: np.ndarray  # [d] int64, ACCELERATOR or CPU
    limit: float  # memory limit of an accelerator in bytes, inf without a limit

    @classmethod
    def of_ops(cls, graph: ComputationGraph, problem: Problem, of: np.ndarray | None = None) -> Self:
        """Builds the groups of a graph, by default those of colocation.

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
        """Number of accelerators, which are the first devices."""
        return int((self.kinds == ACCELERATOR).sum())

    def can_run(self, group: int, device: int) -> bool:
        """True if a device can run a group, memory aside."""
        return bool(np.isfinite(self.runtime[group, self.kinds[device]]))

    def incidence(self) -> list[list[int]]:
        """Returns the nets of each group, ascending: `[b]`."""
        nets: list[list[int]] = [[] for _ in self.weight]
        for net, ends in enumerate(self.ends):
            for group in ends:
                nets[group].append(net)
        return nets


def _check_devices(graph: ComputationGraph, problem: Problem, of: np.ndarray, runtime: np.ndarray) -> None:
    there = np.isfinite(runtime) & np.array([problem.accelerators > 0, problem.cpus > 0])
    impossible = np.flatnonzero(~there.any(axis=1))
    if len(impossible):
        op = graph.ops[int(np.argmax(of == impossible[0]))].name
        others = "" if (of == impossible[0]).sum() == 1 else " and the ops colocated with it"
        kinds = f"{problem.accelerators} accelerators and {problem.cpus} CPUs"
        raise ProblemError(f"op {op!r}{others} can run on none of the devices: {kinds}")


def _nets(graph: ComputationGraph, pipeline: Pipeline, of: np.ndarray) -> dict[tuple[int, ...], float]:
    """Returns the transfer time of each net in seconds, keyed by the groups that it joins, its producer's first."""
    a = graph.arrays
    home = of[a.producer]
    pairs = distinct(a.use_tensor.astype(np.int64) * len(of) + of[a.use_op])
    tensors, readers = np.divmod(pairs, len(of))
    remote = readers != home[tensors]
    readers_of: dict[int, list[int]] = {}
    for tensor, reader in zip(tensors[remote].tolist(), readers[remote].tolist(), strict=True):
        readers_of.setdefault(tensor, []).append(reader)
    seconds: dict[tuple[int, ...], float] = {}
    for tensor, groups in readers_of.items():
        if pipeline.transfer[tensor] > 0:
            ends = (int(home[tensor]), *groups)
            seconds[ends] = seconds.get(ends, 0.0) + float(pipeline.transfer[tensor])
    return seconds


def placed_order(graph: ComputationGraph, problem: Problem, placement: np.ndarray) -> PlacedOrder:
    """Completes a placement `[n]`: ops in topological order, every transfer right before its first reader."""
    routes, rank = Routes(graph, problem, placement), graph.arrays.rank
    first = np.full(len(routes.transfers), len(rank))
    slot = routes.use_instance - routes.num_tensors
    remote = slot >= 0
    np.minimum.at(first, slot[remote], rank[graph.arrays.use_op[remote]])
    keys = np.concatenate([2 * rank + 1, 2 * first])
    return placement, routes.nodes[np.argsort(keys, kind="stable")]


def placed_plan(
    task: Task, placement: np.ndarray, *, evaluations: int, bound: float | None = None, optimal: bool = False
) -> Plan:
    """Builds the plan of a placement `[n]`."""
    decisions = placed_order(task.graph, task.problem, placement)
    return task.plan(*decisions, evaluations=evaluations, bound=bound, optimal=optimal)


@dataclasses.dataclass(frozen=True, eq=False)
class Blocks:
    """The blocks of a graph, and which of them precede which."""

    groups: Groups
    before: list[set[int]]  # [b] direct predecessors of each block

    @classmethod
    def of_graph(cls, graph: ComputationGraph, problem: Problem) -> "Blocks":
        """Builds the blocks of a graph.

        Raises:
          ProblemError: as `Groups.of_ops`.
        """
        pipeline = Pipeline.of(graph, problem)
        source, target = _precedence(graph, pipeline)
        size = int(pipeline.colocation.max()) + 1
        of = _without_cycles(source, target, size)[pipeline.colocation]
        groups = Groups.of_ops(graph, problem, of)
        joined = _joined(graph, groups)
        of = np.unique(joined[of], return_inverse=True)[1]
        groups = Groups.of_ops(graph, problem, of)
        label = np.zeros(size, np.int64)
        label[pipeline.colocation] = of
        before: list[set[int]] = [set() for _ in groups.weight]
        for first, second in zip(label[source].tolist(), label[target].tolist(), strict=True):
            if first != second:
                before[second].add(first)
        return cls(groups, before)

    def orders(self) -> list[np.ndarray]:
        """Returns some topological orders of the blocks, `[b]` each: by level, depth first, and by their first ops in
        the graph if that is topological.
        """
        after: list[list[int]] = [[] for _ in self.before]
        for block, before in enumerate(self.before):
            for other in sorted(before):
                after[other].append(block)
        given = np.argsort(_places(self.groups.of), kind="stable")
        counts = [len(before) for before in self.before]
        deep = depth_first(Waiting(counts, after))
        level = [0] * len(counts)
        for block in deep:
            level[block] = max((level[other] + 1 for other in self.before[block]), default=0)
        by_level = np.lexsort((_places(self.groups.of), np.array(level)))
        return [by_level, np.array(deep), *([given] if self._is_order(given) else [])]

    def _is_order(self, order: np.ndarray) -> bool:
        place = np.argsort(order)
        return all(place[other] < place[block] for block, before in enumerate(self.before) for other in before)


def _places(of: np.ndarray) -> np.ndarray:
    """Returns the index of the first op of each block: `[b]`."""
    return np.unique(of, return_index=True)[1]


def _precedence(graph: ComputationGraph, pipeline: Pipeline) -> tuple[np.ndarray, np.ndarray]:
    """Returns pairs of colocation groups of which the first comes before the second: two `[x]`."""
    source, target = graph.arrays.dependencies()
    group, backward = pipeline.colocation, pipeline.backward
    forward = ~backward[source] & ~backward[target]
    has_forward = np.zeros(int(group.max()) + 1, bool)
    has_forward[group[~backward]] = True
    missing = ~has_forward[group[source]] | ~has_forward[group[target]]
    reversed_edges = backward[source] & backward[target] & missing
    first = np.concatenate([group[source[forward]], group[target[reversed_edges]]])
    second = np.concatenate([group[target[forward]], group[source[reversed_edges]]])
    return first, second


def _without_cycles(source: np.ndarray, target: np.ndarray, size: int) -> np.ndarray:
    """Returns the number of the strongly connected component of each group: `[size]`."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    edges = coo_array((np.ones(len(source)), (source, target)), shape=(size, size))
    return np.asarray(connected_components(edges, directed=True, connection="strong")[1], np.int64)


def _joined(graph: ComputationGraph, groups: Groups) -> np.ndarray:
    """Returns the block that each block joins, itself for most: `[b] int64`."""
    source, target = (groups.of[ops].tolist() for ops in graph.arrays.dependencies())
    near: list[set[int]] = [set() for _ in groups.weight]
    for first, second in zip(source, target, strict=True):
        if first != second:
            near[first].add(second)
            near[second].add(first)
    idle = (np.where(np.isfinite(groups.runtime), groups.runtime, 0.0) == 0).all(axis=1)
    runs = np.isfinite(groups.runtime)
    into = np.arange(len(near))
    waiting = [block for block in range(len(near)) if idle[block] and len(near[block]) == 1]
    while waiting:
        block = waiting.pop()
        if len(near[block]) != 1:
            continue
        (other,) = near[block]
        if (runs[other] & ~runs[block]).any():
            continue
        into[block] = other
        near[other].discard(block)
        near[block] = set()
        if idle[other] and len(near[other]) == 1:
            waiting.append(other)
    while (into != into[into]).any():
        into = into[into]
    return into
