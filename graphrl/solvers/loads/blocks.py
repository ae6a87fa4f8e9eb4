"""What contiguous splits are made of (Tarnawski et al. 2020, section 5 and their code).

A split is contiguous if its devices can be numbered so that no forward op comes before one of an earlier device. Ops
that no such split can part are one block: those that are colocated, and those on a cycle of the forward graph once
colocated ops are one. Backward ops follow the forward ops that they are colocated with; where there are none, the edges
between backward ops, turned round, stand for those between the forward ops that are missing.

A block without run time and with one neighbour alone joins it, which costs nothing where memory does not bind, and
leaves far fewer splits.
"""

import dataclasses

import numpy as np

from graphrl.costs.pipeline import Pipeline
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.topology import Waiting
from graphrl.solvers.loads.groups import Groups
from graphrl.solvers.rules.simple import depth_first


@dataclasses.dataclass(frozen=True, eq=False)
class Blocks:
    """The blocks of a graph, and which come before which."""

    groups: Groups
    before: list[set[int]]  # [b] blocks that a block comes right after

    @classmethod
    def of_graph(cls, graph: ComputationGraph, problem: Problem) -> "Blocks":
        """The blocks of a graph.

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
        """Some topological orders of the blocks, `[b]` each: by level, depth first, and as their first ops stand in the
        graph where that is one.
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
    """Where the first op of each block stands: `[b]`."""
    return np.unique(of, return_index=True)[1]


def _precedence(graph: ComputationGraph, pipeline: Pipeline) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of colocation groups of which one comes before the other: two `[x]`."""
    source, target = graph.arrays.dependencies()
    group, backward = pipeline.colocation, pipeline.backward
    forward = ~backward[source] & ~backward[target]
    has_forward = np.zeros(int(group.max()) + 1, bool)
    has_forward[group[~backward]] = True
    missing = ~has_forward[group[source]] | ~has_forward[group[target]]
    turned = backward[source] & backward[target] & missing
    first = np.concatenate([group[source[forward]], group[target[turned]]])
    second = np.concatenate([group[target[forward]], group[source[turned]]])
    return first, second


def _without_cycles(source: np.ndarray, target: np.ndarray, size: int) -> np.ndarray:
    """Numbers of the strongly connected components of groups: `[size]`."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    edges = coo_array((np.ones(len(source)), (source, target)), shape=(size, size))
    return np.asarray(connected_components(edges, directed=True, connection="strong")[1], np.int64)


def _joined(graph: ComputationGraph, groups: Groups) -> np.ndarray:
    """The block that each block joins, itself for most: `[b] int64`."""
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
