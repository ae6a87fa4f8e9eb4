"""Placements for `max_load` without search: methods "greedy-load" and "split", and quick starts for learned searches.

- "greedy-load" (`solve_greedy`) places block after block where the largest load stays least.
- "split" (`solve_split`) reads a file such as the human experts' of dnn-partitioning:
  {"fpgas": [{"nodes": [1, 2]}, ...], "cpus": [...]}. Nodes are the ids of the graph's file: 7 is the op "7" or
  "7:anything" (`graphs/readers/partitioning.py`). The n-th entry of `fpgas` is accelerator n, that of `cpus` CPU n. Ops
  that are not named go to the device of the ops that they are colocated with, so that an expert's split of the forward
  pass is one of the training step, too.
- `quick_plan` returns the best of some quick placements, from which learned searches start.
"""

import math
import time
from typing import Any

import numpy as np

from graphrl.costs.problem import Pipeline, Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.readers.json import read_strict_json
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.loads.groups import Blocks, Groups, placed_plan
from graphrl.solvers.loads.stages import stage_dp
from graphrl.solvers.solver import solver
from graphrl.units import as_integers

GREEDY_SECONDS = 3e-4  # estimated time of greedy-load per op and use


@solver(
    "greedy-load",
    "max_load: each block in topological order, on the device where the largest load grows least",
    objectives=("max_load",),
)
def solve_greedy(task: Task) -> Plan:
    """Makes one plan, whatever the budget. Blocks (`groups.py`) are placed in the order of their levels. A block goes
    to a device with room for it, of those to the one that raises the largest load least, then to the one of least load.
    """
    blocks = Blocks.of_graph(task.graph, task.problem)
    loads = _Loads(blocks.groups)
    for block in blocks.orders()[0].tolist():
        loads.place(block, min(loads.devices(block), key=lambda device: loads.rank(block, device)))
    return task.answer(placed_plan(task, loads.device[blocks.groups.of], evaluations=1))


class _Loads:
    """Loads of the devices while blocks are placed.

    Attributes:
      device: `[b]` device of each block, -1 for blocks that are not placed.
    """

    def __init__(self, groups: Groups) -> None:
        self._groups, self._nets = groups, groups.incidence()
        self.device = np.full(len(groups.weight), -1)
        self._load, self._bytes = [0.0] * len(groups.kinds), [0.0] * len(groups.kinds)

    def devices(self, block: int) -> list[int]:
        """Returns the devices that can run a block."""
        return [device for device in range(len(self._load)) if self._groups.can_run(block, device)]

    def rank(self, block: int, device: int) -> tuple[float, float, float]:
        """Returns the excess, the largest load and the device's load if a block went there."""
        added = self._added(block, device)
        largest = max(load + added.get(other, 0.0) for other, load in enumerate(self._load))
        total = self._bytes[device] + self._groups.weight[block]
        excess = max(0.0, total - self._groups.limit) if device < self._groups.accelerators else 0.0
        return excess, largest, self._load[device] + added[device]

    def place(self, block: int, device: int) -> None:
        """Puts a block on a device."""
        for other, seconds in self._added(block, device).items():
            self._load[other] += seconds
        self._bytes[device] += self._groups.weight[block]
        self.device[block] = device

    def _added(self, block: int, device: int) -> dict[int, float]:
        """Returns the seconds that a block adds to devices: its own, and those of nets that then span more devices."""
        groups = self._groups
        added = {device: float(groups.runtime[block, groups.kinds[device]])}
        for net in self._nets[block]:
            before = {int(self.device[other]) for other in groups.ends[net]} - {-1}
            if not before or device in before:
                continue
            for other in {device} | (before if len(before) == 1 else set()):
                if other < groups.accelerators:
                    added[other] = added.get(other, 0.0) + float(groups.seconds[net])
        return added


Split = dict[int, tuple[str, int]]  # of each node: "fpgas" or "cpus", and the number of the entry


@solver("split", "max_load: a split from a file, such as an expert's of dnn-partitioning", objectives=("max_load",))
def solve_split(task: Task, *, file: str = "") -> Plan:
    """Reads one plan from a file, whatever the budget and the seed.

    Args:
      file: the split's path.

    Raises:
      ProblemError: there is no such file, it has no split, or its split does not fit this graph and these devices.
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
            raise ProblemError(f"not a split: it has no list {key!r} of devices")
        for number, entry in enumerate(entries):
            for node in _nodes(entry, f"{key}[{number}]"):
                if node in split:
                    raise ProblemError(f"node {node} is on two devices: must be on one")
                split[node] = key, number
    return split


def _nodes(entry: object, where: str) -> list[int]:
    nodes: Any = as_integers(entry.get("nodes")) if isinstance(entry, dict) else None
    if not isinstance(nodes, list) or any(type(node) is not int for node in nodes):
        raise ProblemError(f"{where} has no list 'nodes' of ids: must have one")
    return nodes


def _placement(task: Task, split: Split) -> np.ndarray:
    """Returns the device of each op, `[n]`."""
    graph, problem = task.graph, task.problem
    kinds = {"fpgas": (0, problem.accelerators), "cpus": (problem.accelerators, problem.cpus)}
    op_of = {op.name.partition(":")[0]: index for index, op in enumerate(graph.ops)}
    colocation = Pipeline.of(graph, problem).colocation
    device = np.full(len(graph.ops), -1)
    group_device = np.full(int(colocation.max()) + 1, -1)
    for node, (kind, number) in split.items():
        if str(node) not in op_of:
            raise ProblemError(f"the split has node {node}: {graph.name!r} has no such op")
        first, count = kinds[kind]
        if number >= count:
            raise ProblemError(f"the split places node {node} on {kind}[{number}]: the problem has {count} of them")
        op = op_of[str(node)]
        device[op] = group_device[colocation[op]] = first + number
    device = np.where(device < 0, group_device[colocation], device)
    if (device < 0).any():
        name = graph.ops[int(np.argmax(device < 0))].name
        raise ProblemError(f"the split places neither op {name!r} nor an op that it is colocated with")
    return device


def quick_plan(graph: ComputationGraph, problem: Problem, seconds: float = math.inf) -> Plan:
    """Returns the best of equal stages, the best contiguous splits of some topological orders (`stage-dp:ideals=0`:
    hundredths of a second on 2,000 ops, and mostly as good as the best of all contiguous ones), and `greedy-load`.

    Args:
      seconds: time limit: slower rules are left out, except equal stages.

    Raises:
      ProblemError: an op can run nowhere.
    """
    end = time.perf_counter() + seconds
    best = stage_dp(Task(graph, problem, _within(seconds)), ideals=0)
    left = end - time.perf_counter()
    if GREEDY_SECONDS * (len(graph.ops) + len(graph.arrays.use_op)) > left:
        return best
    return min(best, solve_greedy(Task(graph, problem, _within(left))), key=lambda plan: plan.rank)


def _within(seconds: float) -> Budget:
    return Budget(evaluations=1, seconds=None if math.isinf(seconds) else max(seconds, 1e-9))
