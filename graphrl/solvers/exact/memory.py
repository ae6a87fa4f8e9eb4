"""The model of memory along an order of nodes, as a limit or as the objective (`peak_model`). It is exact.

Memory of every device follows the rules of `costs/exact/memory.py`. A tensor occupies memory on its producer's device,
from the start of its producer to the end of its last local use: an op that reads it, a transfer that sends it, or the
last use of an alias made there. A copy occupies memory from the start of its transfer. Kept tensors stay. Ends are only
bounded from below, and minimal in the best solution: a solution's peak is never below its plan's, and some solution has
each plan's own peak. An output that `reuses` an input does so exactly if its op is the last user of the buffer: a
literal on one device, refused on several.
"""

from collections.abc import Sequence

import numpy as np

from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import NONE, ComputationGraph
from graphrl.solvers.exact.engine import Expression, Literal, Model, byte_unit
from graphrl.solvers.exact.model import Built, Clock, Placement, Reference, build_model, order_axis
from graphrl.solvers.flow import Flow

Term = tuple[Expression, int, tuple[Literal, ...]]  # an end, its value in the reference, and its conditions


def check_memory(graph: ComputationGraph, problem: Problem) -> int:
    """Returns the unit of memory, in bytes.

    Raises:
      ProblemError: outputs reuse buffers on several devices, or the graph has too many bytes.
    """
    a = graph.arrays
    if problem.devices > 1 and (a.reuses >= 0).any():
        raise ProblemError(
            "method 'cp-sat' supports outputs that reuse an input's buffer on one device only: "
            f"devices must be 1, and is {problem.devices}"
        )
    weights = a.weight_bytes if problem.resident_weights else a.weight_bytes[:0]
    every = np.concatenate([*[a.tensor_bytes] * problem.devices, a.workspace_bytes, weights])
    return byte_unit(every.tolist())


def peak_model(
    graph: ComputationGraph, problem: Problem, reference: Reference, unit: int, low: int, high: int
) -> Built:
    """Builds the model that minimises the largest device peak.

    Args:
      reference: a known plan.
      unit: bytes per unit, see `check_memory`.
      low: units; a lower peak has no value.
      high: units of the reference's peak, at least `low`.
    """
    model = Model()
    where = Placement(model, graph, problem.devices, reference.placement)
    axis = order_axis(model, graph, where, reference)
    peak = model.integer(low, high, high)
    Memory(axis, graph, problem, unit).limit(peak)
    return build_model(model, peak, axis, graph, problem)


class Memory:
    """Memory of every device along an axis (see `model.py`), in units of bytes.

    Args:
      axis: starts of nodes, of at least length 1 each, alone on the devices that they concern.
      unit: bytes per unit, see `check_memory`.
    """

    def __init__(self, axis: Clock, graph: ComputationGraph, problem: Problem, unit: int) -> None:
        self.axis, self.model, self.where = axis, axis.model, axis.where
        self.graph, self.problem = graph, problem
        a = graph.arrays
        self.size = (a.tensor_bytes // unit).tolist()
        self.workspace, self.weights = (a.workspace_bytes // unit).tolist(), (a.weight_bytes // unit).tolist()
        self.intervals: list[list[tuple[Expression, int]]] = [[] for _ in range(self.where.devices)]  # intervals, sizes
        self.end: dict[int, tuple[Expression, int]] = {}  # end of each tensor on its producer's device
        self.copies: list[list[tuple[int, int]]] = [[] for _ in self.size]  # by tensor
        for copy in self.where.copies:
            self.copies[copy[0]].append(copy)
        self.flow = Flow(graph)
        self.takes = self._reuses()
        sharers = np.flatnonzero(a.alias >= 0).tolist()
        self.aliases = {
            tensor: [x for x in sharers if a.alias[x] == tensor] for tensor in set(a.alias[sharers].tolist())
        }
        for tensor in np.argsort(-a.rank[a.producer], kind="stable").tolist():  # aliases come before their sources
            self._add_home(tensor)
            for copy in self.copies[tensor]:
                self._add_copy(*copy)

    def limit(self, peak: Expression) -> None:
        """Limits the memory of every device to `peak`, a variable or a number."""
        cp, where = self.model.cp, self.where
        for device, intervals in enumerate(self.intervals):
            for op, num_bytes in enumerate(self.workspace):
                if num_bytes:
                    here = where.on[op][device], ""
                    run = cp.new_optional_fixed_size_interval_var(self.axis.start[op], self.axis.lengths.op[op], *here)
                    intervals.append((run, num_bytes))
            if self.problem.resident_weights and any(self.weights):
                intervals.append((cp.new_fixed_size_interval_var(0, self.axis.horizon, ""), self._weights_on(device)))
            cp.add_cumulative([run for run, _ in intervals], [size for _, size in intervals], peak)

    def _weights_on(self, device: int) -> Expression:
        on = [(weight, here[device]) for weight, here in zip(self.weights, self.where.on, strict=True) if weight]
        hint = sum(weight for weight, here in on if self.model.holds(here))
        weights = self.model.integer(0, sum(self.weights), hint)
        self.model.cp.add(weights == sum(weight * here for weight, here in on))
        return weights

    def _add_home(self, tensor: int) -> None:
        axis, where, a = self.axis, self.where, self.graph.arrays
        producer = where.producer[tensor]
        last = [self._end(producer)]
        last += [self._end(user, where.same(producer, user)) for user in where.users[tensor]]
        last += [self._end(where.node(*copy), where.copies[copy]) for copy in self.copies[tensor]]
        last += [(*self.end[x], (where.same(producer, where.producer[x]),)) for x in self.aliases.get(tensor, ())]
        last += [(*self.end[x], (takes,)) for x, (source, takes) in self.takes.items() if source == tensor]
        if a.kept[tensor]:
            last.append((axis.horizon, axis.horizon, ()))
        self.end[tensor] = self._latest(last)
        if a.alias[tensor] == NONE and self.size[tensor]:
            allocates = ~self.takes[tensor][1] if tensor in self.takes else self.model.true
            present = [self.model.both(on, allocates) for on in where.on[producer]]
            self._add(tensor, producer, self.end[tensor], present)

    def _add_copy(self, tensor: int, device: int) -> None:
        where = self.where
        if not self.size[tensor]:
            return
        node, copied = where.node(tensor, device), where.copies[tensor, device]
        last = [(0, 0, ()), self._end(node, copied)]
        last += [self._end(user, where.on[user][device]) for user in where.users[tensor]]
        last += [(*self.end[x], (where.on[where.producer[x]][device],)) for x in self.aliases.get(tensor, ())]
        present = [copied if other == device else None for other in range(where.devices)]
        self._add(tensor, node, self._latest(last), present)

    def _end(self, node: int, *when: Literal) -> Term:
        return self.axis.end[node], self.axis.hint_end[node], when

    def _latest(self, ends: Sequence[Term]) -> tuple[Expression, int]:
        """Returns the end of a buffer, and its value in the reference."""
        hint = max(value for _, value, when in ends if all(map(self.model.holds, when)))
        variable = self.model.integer(0, self.axis.horizon, hint)
        for end, _, when in ends:
            self.model.ordered(end, variable, *when)
        return variable, hint

    def _add(self, tensor: int, node: int, end: tuple[Expression, int], present: Sequence[Literal | None]) -> None:
        start, hint = self.axis.start[node], self.axis.hint_start[node]
        size = self.model.integer(0, self.axis.horizon, max(0, end[1] - hint))
        for intervals, here in zip(self.intervals, present, strict=True):
            if here is not None:
                run = self.model.cp.new_optional_interval_var(start, size, end[0], here, "")
                intervals.append((run, self.size[tensor]))

    def _reuses(self) -> dict[int, tuple[int, Literal]]:
        """Returns, for each tensor that reuses, the buffer that it may take over and a literal, true if it does."""
        takes: dict[int, tuple[int, Literal]] = {}
        if self.where.devices > 1:
            return takes
        claimed = set()
        for tensor, source in sorted(self.flow.reuses.items()):
            op = self.where.producer[tensor]
            if not self.flow.pinned[source] and (op, source) not in claimed:  # the first output that wants it gets it
                claimed.add((op, source))
                takes[tensor] = source, self._is_last(op, self.flow.users[source])
        return takes

    def _is_last(self, op: int, users: Sequence[int]) -> Literal:
        axis, hint = self.axis, max(self.axis.hint_end[user] for user in users)
        last = self.model.integer(0, axis.horizon, hint)
        self.model.cp.add_max_equality(last, [axis.end[user] for user in users])
        is_last = self.model.boolean(hint == axis.hint_end[op])
        self.model.ordered(last, axis.end[op], is_last)
        self.model.ordered(axis.end[op] + 1, last, ~is_last)
        return is_last
