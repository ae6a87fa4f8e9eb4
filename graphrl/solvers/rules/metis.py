"""REGAL's "graph partitioning + depth first search": METIS places the ops, XLA's depth-first rule orders them.

The ops are divided into parts of equal run time (for makespan) or bytes (for peak memory) so that few bytes cross
(Karypis & Kumar 1998, through pymetis); each device then runs its ops in the order of `rules.xla.xla_depth_first`, and
a transfer runs right before its first reader. Deviations: REGAL partitions with XLA's Kernighan-Lin variant, which is
not published; an edge weighs its tensor's bytes even where several readers share one transfer, since METIS counts the
edges that are cut.
"""

import numpy as np

from graphrl.costs.problem import Problem
from graphrl.errors import require
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan import Plan
from graphrl.solvers.base import Task
from graphrl.solvers.flow import Flow
from graphrl.solvers.rules.plan_builder import placed, prepare
from graphrl.solvers.rules.plan_state import builder
from graphrl.solvers.rules.xla import xla_depth_first
from graphrl.solvers.solver import solver

LARGEST = 2**20  # weight of an op or an edge: METIS adds them up as 32-bit integers
TOTAL = 2**30  # of all ops or edges


@solver(
    "metis",
    "METIS places the ops, XLA's depth-first rule orders them (REGAL's baseline)",
    colocates=True,
    prepare=prepare,
)
def solve(task: Task) -> Plan:
    """One plan, whatever the budget; the seed is METIS's.

    Raises:
      MissingExtraError: pymetis is not installed.
    """
    placement = partition(task.graph, task.problem, task.seed)
    plan = placed(builder(task.graph, task.problem), np.array(xla_depth_first(Flow(task.graph))), placement)
    return task.answer(task.plan(*plan, evaluations=1))


def partition(graph: ComputationGraph, problem: Problem, seed: int) -> np.ndarray:
    """The device of each op, `[n] int64`; what is colocated is one vertex. Fewer than two a device go to the devices in
    turn.

    Raises:
      MissingExtraError: pymetis is not installed.
    """
    pymetis = require("pymetis", "metis", "method 'metis'")
    a = graph.arrays
    group = np.arange(a.num_ops) if graph.colocation is None else graph.colocation
    count = int(group.max()) + 1
    if problem.devices == 1 or count < 2 * problem.devices:  # METIS bisects, and complains of parts without ops
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
    """Groups `[n]` of ops that share a tensor, both ways, ascending, and the bytes that they share: three `[x]`."""
    a = graph.arrays
    writer, reader = group[a.producer[a.use_tensor]], group[a.use_op]
    apart = writer != reader
    writer, reader = writer[apart], reader[apart]
    pair = np.concatenate([writer * a.num_ops + reader, reader * a.num_ops + writer])
    both = np.tile(a.tensor_bytes[a.use_tensor[apart]].astype(np.float64), 2)
    pairs, index = np.unique(pair, return_inverse=True)
    source, target = np.divmod(pairs, a.num_ops)
    return source, target, np.bincount(index, both, minlength=len(pairs))


def _integers(weights: np.ndarray) -> np.ndarray:
    """Weights in proportion, small enough for METIS: `int64`."""
    if not weights.size or weights.max() <= 0:
        return np.ones(len(weights), np.int64)
    scale = min(LARGEST / float(weights.max()), TOTAL / float(weights.sum(dtype=np.float64)))
    return np.round(weights * scale).astype(np.int64)
