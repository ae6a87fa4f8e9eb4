"""What choices of `Compile-v0` are as schedules, and what these cost: on the host, exactly."""

import functools

import numpy as np

from graphrl.compiled import announced
from graphrl.costs import exact
from graphrl.costs.problem import Problem
from graphrl.envs.compile.instance import CompileParams, instance
from graphrl.envs.compile.played import Played
from graphrl.envs.compile.played_on_host import played_on_host
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.graphs.topology import rings
from graphrl.solvers.base import PlacedOrder
from graphrl.solvers.sending.ordering import in_order_of
from graphrl.solvers.sending.plans import placed
from graphrl.solvers.sending.rule import with_sends
from graphrl.solvers.sending.search import changed_makespans, climb, makespan
from graphrl.solvers.sending.solver import prepare_with_lists

Rank = tuple[int, float]  # bytes over the memory limit, seconds


@functools.cache
def prepare() -> None:
    """Compiles what costs and quick plans need, or loads it, once in a process."""
    exact.prepare()
    prepare_with_lists()
    graph, problem, nothing = ComputationGraph("one", (Op("a"),)), Problem("makespan", 2), np.zeros(1, np.int64)
    with announced(climb, "go", seconds=4):
        decoder = Decoder(graph, problem, instance(graph, problem))
        decoder.played(nothing, nothing)
        decoder.climb(nothing, nothing, np.empty((0, 2), np.int64))
        decoder.rank(nothing, nothing)


class Decoder:
    """Of one graph and problem, and of an instance that was made of them.

    Attributes:
      walked: ops and uses that are walked along to cost a change, about.
    """

    def __init__(self, graph: ComputationGraph, problem: Problem, instance: CompileParams) -> None:
        n = len(graph.ops)
        self._graph, self._problem, self._plan = graph, problem, placed(graph, problem)
        self._heap, self._waits = np.zeros((2, n), np.int64)
        self._leader, self._step = np.asarray(instance.leader)[:n], float(instance.reach) * n
        self._shape = np.shape(instance.runs_on)
        self.walked = n + len(graph.arrays.use_op)
        self._keys = np.empty(n)
        self._keys[np.asarray(instance.order)[:n]] = np.arange(n - 1.0, -1, -1)

    def together(self, placement: np.ndarray) -> np.ndarray:
        """A placement `[n]` with every group on the device of its first op in the order."""
        return placement[self._leader]

    def rank(self, placement: np.ndarray, priority: np.ndarray, best: Rank | None = None) -> Rank:
        """Of the plan that choices `[n]` mean: the least is the best. Whether a plan is within the memory limit is not
        looked at where that cannot make it better than the best.
        """
        placement, ops = self._ordered(placement, priority)
        seconds = makespan(self._plan)
        if self._problem.memory_limit is None or (best is not None and best <= (0, seconds)):
            return 0, seconds
        nodes = with_sends(self._graph, self._problem, placement, ops)
        return exact.evaluate(self._graph, self._problem, placement, nodes).rank(self._problem)

    def run(self, placement: np.ndarray, priority: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """When each op ends, `[n]` float64 seconds, and its place in the order, `[n]` int64, in that plan."""
        self._ordered(placement, priority)
        makespan(self._plan)
        return self._plan.ops["end"][:-1].copy(), self._plan.ops["place"][:-1].copy()

    def played(self, placement: np.ndarray, priority: np.ndarray) -> Played:
        """What that plan did, as the instance's observation has it."""
        end, place = self.run(placement, priority)
        rows, devices = self._shape
        return played_on_host(self._graph, self.together(placement), place, end, devices, rows)

    def gains(self, placement: np.ndarray, priority: np.ndarray) -> np.ndarray:
        """How many percent the makespan falls where one op is on another device, with its group if it is the one that
        decides for it: `[n, d]` float64, 0 where it does not fall.
        """
        self._ordered(placement, priority)
        now, makespans = makespan(self._plan), np.empty((len(self._keys), self._problem.devices))
        self._plan.ops["mate"][:-1] = self._graph.mates
        changed_makespans(self._plan, np.empty(len(self._keys), np.int64), makespans)
        decides = self._leader == np.arange(len(self._keys))
        return np.where(decides[:, None], saved(now, makespans), 0)

    def climb(
        self, placement: np.ndarray, priority: np.ndarray, changes: np.ndarray, group: np.ndarray | None = None
    ) -> np.ndarray:
        """Makes one change after the other, ops and devices `[k, 2]` int64, and keeps those that make nothing worse:
        the placement then.

        Args:
          group: `[n]` int64, the ops of one number, which stand on one device, move together; by default those that are
            colocated do.
        """
        group = self._graph.leaders if group is None else group
        self._ordered(placement, priority)
        self._plan.ops["mate"][:-1] = rings(group)
        climb(self._plan, changes, np.empty(len(self._keys), np.int64))
        return self._plan.ops["device"][:-1].astype(np.int64)

    def plan(self, placement: np.ndarray, priority: np.ndarray) -> PlacedOrder:
        """The plan that choices `[n]` mean."""
        placement, ops = self._ordered(placement, priority)
        return placement, with_sends(self._graph, self._problem, placement, ops)

    def _ordered(self, placement: np.ndarray, priority: np.ndarray) -> PlacedOrder:
        """The placement with groups together, and the ops in the order of the priorities, as `self._plan` has them."""
        placement = self.together(placement)
        self._plan.ops["device"][:-1] = placement
        in_order_of(self._plan, -(self._keys + self._step * priority), self._heap, self._waits)
        return placement, self._plan.order.copy()


def saved(now: float, makespans: np.ndarray) -> np.ndarray:
    """How many percent shorter makespans are than the one that is now; 0 where they are not."""
    return np.maximum(0, 100 * (1 - makespans / max(now, 1e-30)))
