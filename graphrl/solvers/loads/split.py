"""A split from a file, as the human experts' of dnn-partitioning: {"fpgas": [{"nodes": [1, 2]}, ...], "cpus": [...]}.

Nodes are the ids of the graph's file: 7 is the op "7" or "7:anything" (graphs/readers/partitioning.py). The n-th entry
of `fpgas` is accelerator n, that of `cpus` CPU n. Ops that are not named go where those are that they are colocated
with, so that an expert's split of the forward pass is one of the training step, too.
"""

from typing import Any

import numpy as np

from graphrl.costs.pipeline import Pipeline
from graphrl.errors import ProblemError
from graphrl.graphs.readers.json import read_strict_json
from graphrl.plan import Plan
from graphrl.solvers.base import Task
from graphrl.solvers.loads.groups import placed_plan
from graphrl.solvers.solver import solver
from graphrl.units import whole_numbers

Split = dict[int, tuple[str, int]]  # by node: "fpgas" or "cpus", and the number of the entry


@solver("split", "max_load: the split of a file, such as an expert's of dnn-partitioning", objectives=("max_load",))
def solve(task: Task, *, file: str = "") -> Plan:
    """One plan, whatever the budget and the seed.

    Args:
      file: the split's path.

    Raises:
      ProblemError: there is no such file, it holds no split, or none of this graph and these devices.
    """
    if not file:
        raise ProblemError("method 'split' needs the file of a split: write split:file=PATH")
    split = read_strict_json(file, _split, ProblemError)
    return task.answer(placed_plan(task, _placement(task, split), evaluations=1))


def _split(value: object) -> Split:
    split: Split = {}
    for key in ("fpgas", "cpus"):
        entries = value.get(key) if isinstance(value, dict) else None
        if not isinstance(entries, list):
            raise ProblemError(f"it is no split: it has no list {key!r} of devices")
        for number, entry in enumerate(entries):
            for node in _nodes(entry, f"{key}[{number}]"):
                if node in split:
                    raise ProblemError(f"node {node} is on two devices: must be on one")
                split[node] = key, number
    return split


def _nodes(entry: object, where: str) -> list[int]:
    nodes: Any = whole_numbers(entry.get("nodes")) if isinstance(entry, dict) else None
    if not isinstance(nodes, list) or any(type(node) is not int for node in nodes):
        raise ProblemError(f"{where} has no list 'nodes' of ids: it is needed")
    return nodes


def _placement(task: Task, split: Split) -> np.ndarray:
    """The device of each op, `[n]`."""
    graph, problem = task.graph, task.problem
    room = {"fpgas": (0, problem.accelerators), "cpus": (problem.accelerators, problem.cpus)}
    op_of = {op.name.partition(":")[0]: index for index, op in enumerate(graph.ops)}
    colocation = Pipeline.of(graph, problem).colocation
    device = np.full(len(graph.ops), -1)
    together = np.full(int(colocation.max()) + 1, -1)
    for node, (kind, number) in split.items():
        if str(node) not in op_of:
            raise ProblemError(f"the split has node {node}: {graph.name!r} has no such op")
        first, count = room[kind]
        if number >= count:
            raise ProblemError(f"the split places node {node} on {kind}[{number}]: the problem has {count} of them")
        op = op_of[str(node)]
        device[op] = together[colocation[op]] = first + number
    device = np.where(device < 0, together[colocation], device)
    if (device < 0).any():
        name = graph.ops[int(np.argmax(device < 0))].name
        raise ProblemError(f"the split says nothing of op {name!r}, nor of one that it is colocated with")
    return device
