"""The human expert's placement: contiguous stages of equal work along the layers, one a device.

GO (Zhou et al. 2020, section 4) compares with a human expert's placements and says no more of them: this is how experts
split such models. A layer is what the model's author named so, the first part of the scope in the ops' names (all
`jvp(lstm0/t3)/add.9` are of `lstm0`, unrolled or not); where fewer than the devices have names, every op is one. The
layers follow one another as their first ops do. An op goes with the first of those that it is colocated with, so that a
backward op stands where its forward op does, and what takes no time and depends on nothing, such as a parameter, with
its first reader.
"""

import re

import numpy as np

from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.topology import least_first
from graphrl.plan import Plan
from graphrl.solvers.base import PlacedOrder, Task
from graphrl.solvers.flow import Flow
from graphrl.solvers.rules.plan_builder import placed, prepare
from graphrl.solvers.rules.plan_state import Builder, builder
from graphrl.solvers.rules.simple import breadth_first
from graphrl.solvers.solver import solver

_TRANSFORMS = re.compile(r"^(?:\w+\()*/*")  # of JAX, before a scope: jvp(, vmap(


@solver("expert", "layers in contiguous stages of equal work, one a device", colocates=True, prepare=prepare)
def solve(task: Task, *, order: str = "fifo") -> Plan:
    """One plan, whatever the budget and the seed; two if stages of equal work are more than the memory limit, where
    stages of equal bytes may not be.

    Args:
      order: of the ops: "fifo", first in, first out, as the paper's framework runs them, or "level", what the longest
        path of run times follows first.

    Raises:
      ProblemError: there is no such order.
    """
    if order not in ("fifo", "level"):
        raise ProblemError(f"order is {order!r}: must be fifo or level")
    graph, b = task.graph, builder(task.graph, task.problem)
    layer = named_layers(graph, task.problem.devices)
    if layer is None:
        layer = np.unique(graph.arrays.rank[_leaders(graph)], return_inverse=True)[1]
    ops = np.array(breadth_first(Flow(graph))) if order == "fifo" else _by_level(b, graph)
    plans: list[Plan] = []
    for work in (graph.arrays.runtime, _bytes(graph, task.problem)):
        stage = equal_parts(np.bincount(layer, work), task.problem.devices)
        plans.append(task.plan(*placed(b, ops, stage[layer]), evaluations=len(plans) + 1))
        if plans[-1].excess == 0:
            break
    best = min(plans, key=lambda plan: plan.rank)
    return task.answer(task.known(best, len(plans)))


def layer_stages(graph: ComputationGraph, problem: Problem) -> PlacedOrder | None:
    """Stages of equal work, ops by the longest path that follows; None where fewer layers than devices have names."""
    layer = named_layers(graph, problem.devices)
    if layer is None:
        return None
    b, stage = builder(graph, problem), equal_parts(np.bincount(layer, graph.arrays.runtime), problem.devices)
    return placed(b, _by_level(b, graph), stage[layer])


def equal_parts(work: np.ndarray, parts: int) -> np.ndarray:
    """The part of each of m pieces of work that follow one another: cut where the work so far passes a further equal
    part. `[m]` int64.
    """
    middle = np.cumsum(work) - work / 2
    return np.minimum((middle * parts / max(float(work.sum()), 1e-300)).astype(np.int64), parts - 1)


def named_layers(graph: ComputationGraph, least: int) -> np.ndarray | None:
    """The layer of each op, `[n]` int64, numbered along the model; an op of no name is one of its own. None if fewer
    than `least` have names.
    """
    leader = _leaders(graph)
    names = [_scope(graph.ops[op].name) for op in leader.tolist()]
    if len({*names} - {None}) < least:
        return None
    return np.unique(_first(names, graph.arrays.rank[leader]), return_inverse=True)[1]


def _by_level(b: Builder, graph: ComputationGraph) -> np.ndarray:
    """The ops `[n]` in an order in which, of those that are ready, what the longest path follows is first."""
    return np.array(least_first(b.rank, graph.arrays.waiting()))


def _leaders(graph: ComputationGraph) -> np.ndarray:
    """With which op's layer each op goes: `[n]`."""
    a, n = graph.arrays, graph.arrays.num_ops
    group = np.arange(n) if graph.colocation is None else graph.colocation
    first = np.full(int(group.max()) + 1, n)
    np.minimum.at(first, group, a.rank)
    leader = a.topological[first]  # of each group
    source, target = a.dependencies()
    reader = np.full(n, n)
    np.minimum.at(reader, source, a.rank[target])
    works = (np.bincount(target, minlength=n) > 0) | (a.runtime > 0)
    alone = works[leader] | (reader[leader] == n)
    beside = a.topological[np.minimum(reader[leader], n - 1)]
    return np.where(alone, leader, leader[group[beside]])[group]


def _scope(name: str) -> str | None:
    scope, slash, _ = _TRANSFORMS.sub("", name).partition("/")
    return scope.rstrip(")") or None if slash else None  # jvp()/add.3 has none


def _first(names: list[str | None], rank: np.ndarray) -> np.ndarray:
    """The rank of the first op of each name, its own for those without: `[n]`."""
    firsts: dict[str, int] = {}
    for op in np.argsort(rank, kind="stable").tolist():
        if (name := names[op]) is not None:
            firsts.setdefault(name, int(rank[op]))
    own = rank.tolist()
    return np.array([own[op] if name is None else firsts[name] for op, name in enumerate(names)])


def _bytes(graph: ComputationGraph, problem: Problem) -> np.ndarray:
    """What each op holds, at least until it is read: `[n]` float64."""
    a = graph.arrays
    written = np.bincount(a.producer, a.tensor_bytes, minlength=a.num_ops)
    return written + (a.weight_bytes if problem.resident_weights else 0)
