"""Converts choices of `Compile-v0` to plans, and computes their exact costs, on the host.

- `Decoder` creates schedules, for the makespan.
- `LoadDecoder` creates plans for the largest load of pipelined execution (`max_load`).
- `DECODERS` has the decoder of each objective. All other files of GO are the same for every objective; the environment
  has its own functions for each (`envs/compile/reward.py`).
- `hint_instance` creates an instance that starts from the plan of a quick heuristic, the hint, as choices. Devices are
  interchangeable: without such a plan a policy cannot distinguish them and can only guess. With a plan, devices differ
  by the ops on them. GO's authors do not state what breaks this symmetry.
"""

import functools
import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from graphrl.agents.go.config import GoSettings
from graphrl.compiled import announced
from graphrl.costs import exact
from graphrl.costs.device.loads import PaddedPipeline
from graphrl.costs.problem import Objective, Problem
from graphrl.envs.compile.features import PlanFeatures, load_features, schedule_features_on_host
from graphrl.envs.compile.generator import Choices, CompileInstance, make_instance
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.graphs.padding import Sizes
from graphrl.graphs.topology import rings
from graphrl.solvers.anneal import loads
from graphrl.solvers.anneal.loads import chain
from graphrl.solvers.anneal.loads import climb as climb_loads
from graphrl.solvers.base import PlacedOrder
from graphrl.solvers.loads import stages
from graphrl.solvers.loads.groups import Groups, placed_order
from graphrl.solvers.loads.rules import quick_plan
from graphrl.solvers.transfer_rules.plans import op_plan, order_by_keys, with_transfers
from graphrl.solvers.transfer_rules.search import climb, makespan, neighbour_makespans
from graphrl.solvers.transfer_rules.solver import prepare_with_lists, quick_start

Rank = tuple[int, float]  # bytes over the memory limit, seconds


class Start(NamedTuple):
    """The plan of a quick rule, from which episodes and searches start."""

    placement: np.ndarray  # [n] devices
    order: np.ndarray | None  # [n] ops, None if the objective ignores order
    seconds: float  # makespan, or largest load


class Decoder:
    """Converts choices (a device and a priority per op) for one instance to schedules, and evaluates and improves them.

    Attributes:
      ops_per_change: approximate number of ops and uses visited to evaluate a change.
    """

    def __init__(self, graph: ComputationGraph, problem: Problem, instance: CompileInstance) -> None:
        n = len(graph.ops)
        self._graph, self._problem, self._plan = graph, problem, op_plan(graph, problem)
        self._heap, self._waits = np.zeros((2, n), np.int64)
        self._leader, self._step = np.asarray(instance.leader)[:n], float(instance.reach) * n
        self._shape = np.shape(instance.runs_on)
        self.ops_per_change = n + len(graph.arrays.use_op)
        self._keys = np.empty(n)
        self._keys[np.asarray(instance.order)[:n]] = np.arange(n - 1.0, -1, -1)

    @staticmethod
    @functools.cache
    def prepare() -> None:
        """Compiles the functions for costs and quick plans, or loads them from a cache, once per process."""
        exact.prepare()
        prepare_with_lists()
        graph, problem, zero = ComputationGraph("one", (Op("a"),)), Problem("makespan", 2), np.zeros(1, np.int64)
        with announced(climb, "go", seconds=4):
            decoder = Decoder(graph, problem, make_instance(graph, problem))
            decoder.plan_features(zero, zero)
            decoder.climb(zero, zero, np.empty((0, 2), np.int64))
            decoder.rank(zero, zero)

    @staticmethod
    def start(graph: ComputationGraph, problem: Problem, seconds: float) -> Start:
        """Computes the plan from which episodes start, by the quick rules that fit into the given seconds."""
        start = quick_start(graph, problem, seconds)
        return Start(start.placement, start.ops, start.makespan)

    @staticmethod
    def plan_of(graph: ComputationGraph, problem: Problem, start: Start) -> PlacedOrder:
        """Returns the plan of a start, as devices and an order of ops and transfers."""
        assert start.order is not None
        return start.placement, with_transfers(graph, problem, start.placement, start.order)

    def colocated(self, placement: np.ndarray) -> np.ndarray:
        """Moves every colocation group to the device of its first op in the order; placements are `[n]`."""
        return placement[self._leader]

    def rank(self, placement: np.ndarray, priority: np.ndarray, best: Rank | None = None) -> Rank:
        """Evaluates the plan that choices `[n]` encode: lower ranks are better. The memory limit is checked only if the
        plan could be better than `best`.
        """
        return self._rank(*self._ordered(placement, priority), best)

    def _rank(self, placement: np.ndarray, ops: np.ndarray, best: Rank | None) -> Rank:
        seconds = makespan(self._plan)
        if self._problem.memory_limit is None or (best is not None and best <= (0, seconds)):
            return 0, seconds
        nodes = with_transfers(self._graph, self._problem, placement, ops)
        return exact.evaluate(self._graph, self._problem, placement, nodes).rank(self._problem)

    def ranked(self, placement: np.ndarray, place: np.ndarray, best: Rank) -> tuple[Rank, Start]:
        """Evaluates a placement with ops in the order of `place`, as far as dependencies permit; see `rank`.

        Args:
          placement, place: `[n]` each, device of each op and its position in an order.
          best: see `rank`.
        """
        placement, ops = self._ordered(placement, place, place.astype(np.float64))
        rank = self._rank(placement, ops, best)
        return rank, Start(placement, ops, rank[1])

    def run(self, placement: np.ndarray, priority: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Simulates the plan of these choices: returns each op's end, `[n]` float64 seconds, and its position in the
        order, `[n]` int64.
        """
        self._ordered(placement, priority)
        makespan(self._plan)
        return self._plan.ops["end"][:-1].copy(), self._plan.ops["place"][:-1].copy()

    def plan_features(self, placement: np.ndarray, priority: np.ndarray) -> PlanFeatures:
        """Computes features of the plan's schedule, as in the instance's observation."""
        end, place = self.run(placement, priority)
        rows, devices = self._shape
        return schedule_features_on_host(self._graph, self.colocated(placement), place, end, devices, rows)

    def gains(self, placement: np.ndarray, priority: np.ndarray) -> np.ndarray:
        """Computes the percent by which the makespan decreases if one op moves to each other device: `[n, d]` float64,
        0 without a decrease. The first op of a colocation group moves its group; the group's other ops have 0.
        """
        self._ordered(placement, priority)
        now, makespans = makespan(self._plan), np.empty((len(self._keys), self._problem.devices))
        self._plan.ops["next_member"][:-1] = self._graph.next_colocated
        neighbour_makespans(self._plan, np.empty(len(self._keys), np.int64), makespans)
        decides = self._leader == np.arange(len(self._keys))
        return np.where(decides[:, None], percent_saved(now, makespans), 0)

    def climb(
        self, placement: np.ndarray, priority: np.ndarray, changes: np.ndarray, group: np.ndarray | None = None
    ) -> np.ndarray:
        """Applies changes, `[k, 2]` int64 pairs of an op and its new device, one after the other, undoes those that
        make the plan worse, and returns the final placement.

        Args:
          group: `[n]` int64, ops with the same number, which must be on one device, move together; by default colocated
            ops.
        """
        group = self._graph.leaders if group is None else group
        self._ordered(placement, priority)
        self._plan.ops["next_member"][:-1] = rings(group)
        climb(self._plan, changes, np.empty(len(self._keys), np.int64))
        return self._plan.ops["device"][:-1].astype(np.int64)

    def plan(self, placement: np.ndarray, priority: np.ndarray) -> PlacedOrder:
        """Returns the plan that choices `[n]` encode, as devices and an order of ops and transfers."""
        placement, ops = self._ordered(placement, priority)
        return placement, with_transfers(self._graph, self._problem, placement, ops)

    def _ordered(self, placement: np.ndarray, priority: np.ndarray, place: np.ndarray | None = None) -> PlacedOrder:
        """Returns the placement with groups on one device, and the ops in the order of the priorities, or of `place`;
        also sets `self._plan`.
        """
        placement = self.colocated(placement)
        self._plan.ops["device"][:-1] = placement
        keys = -(self._keys + self._step * priority) if place is None else place
        order_by_keys(self._plan, keys, self._heap, self._waits)
        return placement, self._plan.order.copy()


def percent_saved(now: float, makespans: np.ndarray) -> np.ndarray:
    """Computes the percent by which makespans are shorter than `now`; 0 if they are not."""
    return np.maximum(0, 100 * (1 - makespans / max(now, 1e-30)))


NO_CHANGES = np.empty((0, 2), np.int64)  # no changes


class LoadDecoder:
    """As `Decoder`, but for the objective `max_load`, the largest load of a device. Priorities are ignored."""

    ops_per_change = 1  # only a group's neighbours: negligible

    def __init__(self, graph: ComputationGraph, problem: Problem, instance: CompileInstance) -> None:
        assert isinstance(instance.problem, PaddedPipeline)
        n = len(graph.ops)
        self._graph, self._problem, self._pipeline = graph, problem, instance.problem
        self._leader, self._rows = np.asarray(instance.leader)[:n], len(instance.leader)
        groups = Groups.of_ops(graph, problem)
        self._group, count = groups.of, len(groups.weight)
        self._chain = chain(groups, np.zeros(count, np.int64), np.random.SeedSequence(0))
        self._free = np.zeros((0, problem.devices))

    @staticmethod
    @functools.cache
    def prepare() -> None:
        """See `Decoder.prepare`."""
        exact.prepare()
        stages.prepare()
        loads.prepare()
        graph, problem = ComputationGraph("one", (Op("a"),)), Problem("max_load")
        groups = Groups.of_ops(graph, problem)
        with announced(climb_loads, "go for max_load", seconds=5):
            make_instance(graph, problem)
            placed_order(graph, problem, np.zeros(1, np.int64))
            climb_loads(chain(groups, np.zeros(1, np.int64), np.random.SeedSequence(0)), NO_CHANGES, np.empty((0, 1)))

    @staticmethod
    def start(graph: ComputationGraph, problem: Problem, seconds: float) -> Start:
        """See `Decoder.start`."""
        plan = quick_plan(graph, problem, seconds)
        return Start(plan.decisions(graph)[0], None, plan.value)

    @staticmethod
    def plan_of(graph: ComputationGraph, problem: Problem, start: Start) -> PlacedOrder:
        """See `Decoder.plan_of`."""
        return placed_order(graph, problem, start.placement)

    def colocated(self, placement: np.ndarray) -> np.ndarray:
        """See `Decoder.colocated`."""
        return placement[self._leader]

    def rank(self, placement: np.ndarray, priority: np.ndarray, best: Rank | None = None) -> Rank:
        """See `Decoder.rank`."""
        self._climb(placement, NO_CHANGES, self._free)
        excess, seconds = self._chain.rank.tolist()
        return round(excess), seconds

    def plan_features(self, placement: np.ndarray, priority: np.ndarray) -> PlanFeatures:
        """See `Decoder.plan_features`."""
        rows = np.zeros(self._rows, np.int32)
        rows[: len(placement)] = self.colocated(placement)
        return load_features(self._pipeline, jnp.asarray(rows)).features

    def gains(self, placement: np.ndarray, priority: np.ndarray) -> np.ndarray:
        """Computes the percent by which annealing's energy decreases if a group moves to each other device: `[n, d]`
        float64, at the group's first op. The energy (`anneal/loads.py`) also ranks plans with equal largest loads.
        """
        energies = np.empty((len(self._chain.device), self._problem.devices))
        self._climb(placement, NO_CHANGES, energies)
        now = float(energies[0, self._chain.device[0]])
        decides = self._leader == np.arange(len(placement))
        return np.where(decides[:, None], percent_saved(now, energies[self._group]), 0)

    def climb(self, placement: np.ndarray, priority: np.ndarray, changes: np.ndarray) -> np.ndarray:
        """See `Decoder.climb`."""
        of_groups = np.stack([self._group[changes[:, 0]], changes[:, 1]], 1)
        self._climb(placement, of_groups, self._free)
        return self._chain.device[self._group]

    def plan(self, placement: np.ndarray, priority: np.ndarray) -> PlacedOrder:
        """See `Decoder.plan`."""
        return placed_order(self._graph, self._problem, self.colocated(placement))

    def _climb(self, placement: np.ndarray, changes: np.ndarray, energies: np.ndarray) -> None:
        self._chain.device[self._group] = self.colocated(placement)
        climb_loads(self._chain, changes, energies)


PlanDecoder = Decoder | LoadDecoder
DECODERS: dict[Objective, type[Decoder] | type[LoadDecoder]] = {"makespan": Decoder, "max_load": LoadDecoder}


def hint_instance(
    graph: ComputationGraph,
    problem: Problem,
    to: Sizes,
    settings: GoSettings,
    hint: Start | None = None,
    devices: int = 1,
) -> CompileInstance:
    """Creates an instance (see `make_instance`) for a policy with these settings, with at least `devices` devices.
    It starts from the hint, by default that of `Decoder.start`, in the hint's order, and its baseline is the hint's run
    time.
    """
    if hint is None:
        hint = DECODERS[problem.objective].start(graph, problem, math.inf)
    n = len(graph.ops)
    return make_instance(
        graph,
        problem,
        to,
        devices=max(devices, problem.devices, *settings.devices),
        levels=settings.levels,
        baseline=hint.seconds,
        start=Choices(hint.placement, np.full(n, settings.levels // 2)),
        order=hint.order,
        reach=settings.reach,
    )
