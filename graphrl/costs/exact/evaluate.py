"""Exact costs of a placement and an order, both checked first: `evaluate` returns `Costs`.

The costs are defined in the docstring of `graphrl.costs`. They are computed on the host, in int64 and float64.

- `run_times`: start and end of every op and transfer along an order, the host twin of the clocks in `device/decode.py`.
- `Stages`: the work of each device for a sample in pipelined execution, the host twin of `device/loads.py`.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from graphrl.compiled import late_entry
from graphrl.compiled.structures import rows_by
from graphrl.costs.exact.memory import memory_changes
from graphrl.costs.exact.routes import Routes
from graphrl.costs.host.clocks import TRANSFERS, run_op, run_transfer
from graphrl.costs.problem import ACCELERATOR, CPU, Pipeline, Problem, Transfer
from graphrl.errors import PlanError
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.topology import distinct


def run_times(
    routes: Routes, slots: np.ndarray, lengths: Sequence[float] | np.ndarray, transfer: Transfer, devices: int
) -> tuple[np.ndarray, np.ndarray]:
    """Computes start and end of every order entry, in the unit of `lengths`: two `[m] float64`.

    Args:
      slots: `[m]` a topological order of all slots (see `Routes`).
      lengths: `[slots]`, duration of each op and each transfer.
    """
    seconds, clocks = np.asarray(lengths, np.float64), np.zeros((2, devices))
    start, end = np.empty(len(slots)), np.empty(len(seconds))
    waits = rows_by(routes.after, routes.before, len(seconds))
    ends = routes.reads_on, routes.writes_on
    _run_all(TRANSFERS[transfer], routes.num_ops, ends, waits, seconds, clocks, slots, start, end)
    return start, end[slots]


@dataclasses.dataclass(frozen=True, eq=False)
class Costs:
    """Costs of a placement and an order of m entries (ops and transfers)."""

    makespan: float  # seconds: latest end of an op
    peak_memory: tuple[int, ...]  # [devices] bytes
    start: np.ndarray  # [m] float64 seconds, by order entry
    end: np.ndarray  # [m] float64 seconds
    # Per device [c, 3] int64: order entry, bytes compared with the peak, bytes after it; entry -1 is the start.
    memory_changes: tuple[np.ndarray, ...]
    loads: tuple[float, ...] = ()  # [devices] seconds, under the objective max_load

    @functools.cached_property
    def memory(self) -> tuple[np.ndarray, ...]:
        """Per device `[m, 2] int64` bytes: live as compared with the peak (workspace included), and after releases."""
        dense = []
        for changes in self.memory_changes:
            last = np.searchsorted(changes[:, 0], np.arange(len(self.start)), side="right") - 1
            bytes_live = np.stack([changes[last, 2], changes[last, 2]], axis=1)
            bytes_live[changes[1:, 0], 0] = changes[1:, 1]
            dense.append(bytes_live)
        return tuple(dense)

    def objective(self, problem: Problem) -> float:
        """Returns the value to minimise: seconds of makespan or largest load, or bytes of the largest peak."""
        if problem.objective == "max_load":
            return max(self.loads)
        return self.makespan if problem.objective == "makespan" else max(self.peak_memory)

    def excess(self, problem: Problem) -> int:
        """Returns the bytes by which the largest device peak exceeds the memory limit; 0 if the plan is feasible."""
        return problem.excess(self.peak_memory)

    def feasible(self, problem: Problem) -> bool:
        """True if every device stays within the memory limit, or there is no limit."""
        return self.excess(problem) == 0

    def rank(self, problem: Problem) -> tuple[int, float]:
        """Returns a sort key of plans, best first: feasible ones by objective, then infeasible ones by excess."""
        return self.excess(problem), self.objective(problem)


def evaluate(graph: ComputationGraph, problem: Problem, placement: ArrayLike, order: ArrayLike) -> Costs:
    """Computes the costs of running `order` under `placement`.

    Args:
      placement: `[n]` device of each op.
      order: `[m]` node ids: every op and every needed transfer once, each after its dependencies.

    Raises:
      PlanError: one line that names the rule that the placement or the order breaks.
    """
    routes = Routes(graph, problem, placement)
    slots = _checked_slots(graph, problem, routes, order)
    if problem.objective == "max_load":
        return _pipelined_costs(Stages(graph, problem, routes), routes, slots, problem)
    start, end = run_times(routes, slots, routes.seconds(graph, problem), problem.transfer, problem.devices)
    changes = memory_changes(graph, problem, routes, slots)
    return Costs(
        makespan=float(end[slots < routes.num_ops].max()),
        peak_memory=tuple(int(device[:, 1].max()) for device in changes),
        start=start,
        end=end,
        memory_changes=changes,
    )


@functools.cache
def prepare() -> None:
    """Compiles or loads the functions that `evaluate` calls, once in a process, in about a second."""
    ops = Op("a", outputs=(Tensor("x", 1),)), Op("b", inputs=("x",), outputs=(Tensor("y", 1, reuses="x"),))
    _ = evaluate(ComputationGraph("two", ops), Problem(), (0, 0), (0, 1)).memory


@late_entry
def _run_all(
    transfer: int,
    num_ops: int,
    routes: tuple[np.ndarray, np.ndarray],
    waits: tuple[np.ndarray, np.ndarray],
    seconds: np.ndarray,
    clocks: np.ndarray,
    slots: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
) -> None:
    """Runs all slots: writes `start` by order entry and `end` by slot.

    Args:
      transfer, num_ops: number of the transfer model (`TRANSFERS`), and number of ops, which are the first slots.
      routes: `[s]` int each, the devices that a slot starts from and ends on.
      waits: `[s + 1]` and `[x]` int, start of each slot's row, and the slots that it waits for.
      seconds: `[s]` duration of each slot.
      clocks: `[2, d]`, initially 0.
      slots: `[m]` the order.
    """
    (here, there), (begins, sources) = routes, waits
    for place in range(len(slots)):
        slot, ready = slots[place], 0.0
        for row in range(begins[slot], begins[slot + 1]):
            ready = max(ready, end[sources[row]])
        if slot < num_ops:
            start[place] = run_op(clocks, here[slot], ready, seconds[slot])
        else:
            start[place] = run_transfer(transfer, clocks, here[slot], there[slot], ready, seconds[slot])
        end[slot] = start[place] + seconds[slot]


def _checked_slots(graph: ComputationGraph, problem: Problem, routes: Routes, order: ArrayLike) -> np.ndarray:
    """Converts an order to slots `[m]`; it must have each slot exactly once and break no dependency."""
    ids = np.asarray(order)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise PlanError(f"order of shape {ids.shape} and type {ids.dtype}: must be a list of integer node ids")
    ids = ids.astype(np.int64)
    slots = np.searchsorted(routes.nodes, ids)
    unknown = np.flatnonzero(routes.nodes[np.minimum(slots, len(routes.nodes) - 1)] != ids)
    if len(unknown):
        name = _node_name(graph, problem, int(ids[unknown[0]]))
        raise PlanError(
            f"order has {name}, which this placement does not need: must have only ops and needed transfers"
        )
    count = np.bincount(slots, minlength=len(routes.nodes))
    for wrong, what in ((count == 0, "misses"), (count > 1, "repeats")):
        if wrong.any():
            name = _node_name(graph, problem, int(routes.nodes[np.argmax(wrong)]))
            raise PlanError(f"order {what} {name}: must have every op and every needed transfer once")
    position = np.empty(len(slots), np.int64)
    position[slots] = np.arange(len(slots))
    broken = np.flatnonzero(position[routes.before] > position[routes.after])
    if len(broken):
        pair = routes.nodes[[routes.before[broken[0]], routes.after[broken[0]]]]
        first, second = (_node_name(graph, problem, int(node)) for node in pair)
        raise PlanError(f"order has {second} before {first}, which it depends on: it must come after")
    return slots


class Stages:
    """Work of each device for one sample, under a placement, in pipelined execution.

    Attributes:
      seconds: `[slots]` duration of every op and every transfer, as `Routes` numbers them.
      loads: `[devices]` float64, seconds.
      resident: `[devices]` int64, bytes of weights.

    Raises:
      PlanError: an op is on a device that cannot run it.
    """

    def __init__(self, graph: ComputationGraph, problem: Problem, routes: Routes) -> None:
        pipeline, placement, devices = Pipeline.of(graph, problem), routes.placement, problem.devices
        runtime = pipeline.runtime[np.arange(len(placement)), pipeline.kinds[placement]]
        _check_placement(graph, pipeline, placement, runtime)
        moved = pipeline.transfer[routes.transfer_tensor]
        self.seconds = np.concatenate([runtime, moved])
        sent_tensors = distinct(routes.transfer_tensor)
        moving = np.bincount(routes.transfer_to, moved, minlength=devices)
        moving += np.bincount(routes.home[sent_tensors], pipeline.transfer[sent_tensors], minlength=devices)
        self.loads = np.bincount(placement, runtime, minlength=devices)
        self.loads += np.where(pipeline.kinds == ACCELERATOR, moving, 0.0)
        self.resident = np.zeros(devices, np.int64)
        np.add.at(self.resident, placement, graph.arrays.weight_bytes)


def _pipelined_costs(stages: Stages, routes: Routes, slots: np.ndarray, problem: Problem) -> Costs:
    """Returns loads and resident weights as `Costs`; the makespan is that of a single sample."""
    start, end = run_times(routes, slots, stages.seconds, problem.transfer, problem.devices)
    resident = tuple(stages.resident.tolist())
    return Costs(
        makespan=float(end[slots < routes.num_ops].max()),
        peak_memory=resident,
        start=start,
        end=end,
        memory_changes=tuple(np.array([[-1, size, size]], np.int64) for size in resident),
        loads=tuple(stages.loads.tolist()),
    )


def _node_name(graph: ComputationGraph, problem: Problem, node: int) -> str:
    n, t = graph.arrays.num_ops, graph.arrays.num_tensors
    if 0 <= node < n:
        return f"op {graph.ops[node].name!r}"
    tensor, device = divmod(node - n, problem.devices)
    return f"the transfer of {graph.tensor_names[tensor]!r} to device {device}" if 0 <= tensor < t else f"node {node}"


def _check_placement(graph: ComputationGraph, pipeline: Pipeline, placement: np.ndarray, runtime: np.ndarray) -> None:
    bad = np.flatnonzero(np.isinf(runtime))
    if len(bad):
        op, device = graph.ops[bad[0]].name, placement[bad[0]]
        kind = "a CPU" if pipeline.kinds[device] == CPU else "an accelerator"
        raise PlanError(f"op {op!r} is placed on device {device}, {kind}: it cannot run there")
