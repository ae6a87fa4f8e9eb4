"""Placements without search: the human expert's stages of layers, and METIS' parts of few edges.

**Expert** (method "expert"): contiguous stages of equal work along the layers, one a device. GO (Zhou et al. 2020,
section 4) compares with a human expert's placements and does not describe them further: this is how experts split such
models. A layer is named by the model's author: the first part of the scope in the ops' names (all `jvp(lstm0/t3)/add.9`
are of `lstm0`, unrolled or not). If fewer layers than devices have names, every op is a layer. Layers are ordered by
their first ops. An op goes with the first of the ops that it is colocated with, so that a backward op is placed with
its forward op. An op that takes no time and depends on nothing, such as a parameter, goes with its first reader.

**METIS** (method "metis"), REGAL's "graph partitioning + depth first search": METIS places the ops, XLA's depth-first
rule orders them. The ops are divided into parts of equal run time (for makespan) or bytes (for peak memory) so that few
bytes cross (Karypis & Kumar 1998, through pymetis); each device then runs its ops in the order of
`rules.compilers.xla_depth_first`, and a transfer runs right before its first reader. Deviations: REGAL partitions with
XLA's Kernighan-Lin variant, which is not published; an edge weighs its tensor's bytes even where several readers share
one transfer, since METIS counts the edges that are cut.
"""

import re

import numpy as np

from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError, require
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.topology import least_first
from graphrl.plan import Plan
from graphrl.solvers.base import PlacedOrder, Task
from graphrl.solvers.flow import Flow
from graphrl.solvers.rules.compilers import xla_depth_first
from graphrl.solvers.rules.plan_builder import place_all, prepare
from graphrl.solvers.rules.plan_state import Builder, builder
from graphrl.solvers.rules.simple import breadth_first
from graphrl.solvers.solver import solver

LARGEST = 2**20  # largest weight of an op or an edge: METIS adds them up as 32-bit integers
TOTAL = 2**30  # largest weight of all ops or edges together
_TRANSFORMS = re.compile(r"^(?:\w+\()*/*")  # JAX's transforms before a scope: jvp(, vmap(


@solver("expert", "layers in contiguous stages of equal work, one per device", colocates=True, prepare=prepare)
def solve_expert(task: Task, *, order: str = "fifo") -> Plan:
    """Makes one plan, whatever the budget and the seed; a second one, with stages of equal bytes, if stages of equal
    work exceed the memory limit.

    Args:
      order: order of the ops: "fifo", first in, first out, as the paper's (GO's) framework runs them, or "level", the
        op with the longest path of run times after it first.

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
        plans.append(task.plan(*place_all(b, ops, stage[layer]), evaluations=len(plans) + 1))
        if plans[-1].excess == 0:
            break
    best = min(plans, key=lambda plan: plan.rank)
    return task.answer(task.as_answer(best, len(plans)))


def layer_stages(graph: ComputationGraph, problem: Problem) -> PlacedOrder | None:
    """Places layers in stages of equal work, ops by the longest path after them; None if too few layers have names."""
    layer = named_layers(graph, problem.devices)
    if layer is None:
        return None
    b, stage = builder(graph, problem), equal_parts(np.bincount(layer, graph.arrays.runtime), problem.devices)
    return place_all(b, _by_level(b, graph), stage[layer])


def equal_parts(work: np.ndarray, parts: int) -> np.ndarray:
    """Returns the part of each piece of work `[m]`, cut where the work so far passes the next equal part: int64."""
    middle = np.cumsum(work) - work / 2
    return np.minimum((middle * parts / max(float(work.sum()), 1e-300)).astype(np.int64), parts - 1)


def named_layers(graph: ComputationGraph, least: int) -> np.ndarray | None:
    """Returns the layer of each op, `[n]` int64, numbered along the model; an op without a name is its own layer. None
    if fewer than `least` layers have names.
    """
    leader = _leaders(graph)
    names = [_scope(graph.ops[op].name) for op in leader.tolist()]
    if len({*names} - {None}) < least:
        return None
    return np.unique(_first(names, graph.arrays.rank[leader]), return_inverse=True)[1]


def _by_level(b: Builder, graph: ComputationGraph) -> np.ndarray:
    """Returns the ops `[n]` in topological order, of the ready ones the one with the longest path after it first."""
    return np.array(least_first(b.rank, graph.arrays.waiting()))


def _leaders(graph: ComputationGraph) -> np.ndarray:
    """Returns the op whose layer each op joins: `[n]`."""
    a, n = graph.arrays, graph.arrays.num_ops
    group = np.arange(n) if graph.colocation is None else graph.colocation
    first = np.full(int(group.max()) + 1, n)
    np.minimum.at(first, group, a.rank)
    leader = a.topological[first]  # the leader of each group
    source, target = a.dependencies()
    reader = np.full(n, n)
    np.minimum.at(reader, source, a.rank[target])
    works = (np.bincount(target, minlength=n) > 0) | (a.runtime > 0)
    is_leader = works[leader] | (reader[leader] == n)
    neighbour = a.topological[np.minimum(reader[leader], n - 1)]
    return np.where(is_leader, leader, leader[group[neighbour]])[group]


def _scope(name: str) -> str | None:
    scope, slash, _ = _TRANSFORMS.sub("", name).partition("/")
    return scope.rstrip(")") or None if slash else None  # jvp()/add.3 has no scope


def _first(names: list[str | None], rank: np.ndarray) -> np.ndarray:
    """Returns, for each op, the rank of the first op of the same name; an op without a name has its own rank: `[n]`."""
    firsts: dict[str, int] = {}
    for op in np.argsort(rank, kind="stable").tolist():
        if (name := names[op]) is not None:
            firsts.setdefault(name, int(rank[op]))
    own = rank.tolist()
    return np.array([own[op] if name is None else firsts[name] for op, name in enumerate(names)])


def _bytes(graph: ComputationGraph, problem: Problem) -> np.ndarray:
    """Returns the bytes that each op keeps, at least until they are read: `[n]` float64."""
    a = graph.arrays
    written = np.bincount(a.producer, a.tensor_bytes, minlength=a.num_ops)
    return written + (a.weight_bytes if problem.resident_weights else 0)


@solver(
    "metis",
    "METIS places the ops, XLA's depth-first rule orders them (REGAL's baseline)",
    colocates=True,
    prepare=prepare,
)
def solve_metis(task: Task) -> Plan:
    """Makes one plan, whatever the budget; the seed is METIS's.

    Raises:
      MissingExtraError: pymetis is not installed.
    """
    placement = partition(task.graph, task.problem, task.seed)
    plan = place_all(builder(task.graph, task.problem), np.array(xla_depth_first(Flow(task.graph))), placement)
    return task.answer(task.plan(*plan, evaluations=1))


def partition(graph: ComputationGraph, problem: Problem, seed: int) -> np.ndarray:
    """Returns the device of each op, `[n] int64`; colocated ops are one vertex. With fewer than two vertices per
    device, they go to the devices in turn.

    Raises:
      MissingExtraError: pymetis is not installed.
    """
    pymetis = require("pymetis", "metis", "method 'metis'")
    a = graph.arrays
    group = np.arange(a.num_ops) if graph.colocation is None else graph.colocation
    count = int(group.max()) + 1
    if problem.devices == 1 or count < 2 * problem.devices:  # METIS bisects, and rejects parts without ops
        return group % problem.devices
    if problem.objective == "makespan":
        weight = a.runtime
    else:
        weight = a.workspace_bytes + (a.weight_bytes if problem.resident_weights else 0)
        weight = weight + np.bincount(a.producer, a.tensor_bytes, minlength=a.num_ops)
    weight = np.bincount(group, weight)
    source, target, num_bytes = _edges(graph, group)
    options = pymetis.Options(seed=seed % 2**31)
    parts = pymetis.part_graph(
        problem.devices,
        pymetis.CSRAdjacency(np.searchsorted(source, np.arange(count + 1)).tolist(), target.tolist()),
        vweights=_integers(weight).tolist(),
        eweights=np.maximum(1, _integers(num_bytes)).tolist(),
        options=options,
    )
    return np.array(parts.vertex_part, np.int64)[group]


def _edges(graph: ComputationGraph, group: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns pairs of groups `[n]` of ops that share a tensor, in both directions, ascending, and the shared bytes:
    three `[x]`.
    """
    a = graph.arrays
    writer, reader = group[a.producer[a.use_tensor]], group[a.use_op]
    crossing = writer != reader
    writer, reader = writer[crossing], reader[crossing]
    pair = np.concatenate([writer * a.num_ops + reader, reader * a.num_ops + writer])
    num_bytes = np.tile(a.tensor_bytes[a.use_tensor[crossing]].astype(np.float64), 2)
    pairs, index = np.unique(pair, return_inverse=True)
    source, target = np.divmod(pairs, a.num_ops)
    return source, target, np.bincount(index, num_bytes, minlength=len(pairs))


def _integers(weights: np.ndarray) -> np.ndarray:
    """Scales weights to integers that are small enough for METIS: `int64`."""
    if not weights.size or weights.max() <= 0:
        return np.ones(len(weights), np.int64)
    scale = min(LARGEST / float(weights.max()), TOTAL / float(weights.sum(dtype=np.float64)))
    return np.round(weights * scale).astype(np.int64)
