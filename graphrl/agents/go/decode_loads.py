"""What choices of `Compile-v0` are as plans of pipelined execution (`max_load`), and what these cost: on the host."""

import functools

import jax.numpy as jnp
import numpy as np

from graphrl.agents.go.decode import Rank, saved
from graphrl.compiled import announced
from graphrl.costs import exact
from graphrl.costs.device.loads import PaddedPipeline
from graphrl.costs.problem import Problem
from graphrl.envs.compile.instance import CompileParams, instance
from graphrl.envs.compile.loaded import loaded
from graphrl.envs.compile.played import Played
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.solvers.base import PlacedOrder
from graphrl.solvers.loads import anneal, stages
from graphrl.solvers.loads.climb import climb
from graphrl.solvers.loads.groups import Groups, placed_order
from graphrl.solvers.loads.moves import chain

NONE = np.empty((0, 2), np.int64)  # of changes, and of energies


@functools.cache
def prepare() -> None:
    """Compiles what costs and quick plans need, or loads it, once in a process."""
    exact.prepare()
    stages.prepare()
    anneal.prepare()
    graph, problem = ComputationGraph("one", (Op("a"),)), Problem("max_load")
    groups = Groups.of_ops(graph, problem)
    with announced(climb, "go for max_load", seconds=5):
        instance(graph, problem)
        placed_order(graph, problem, np.zeros(1, np.int64))
        climb(chain(groups, np.zeros(1, np.int64), np.random.SeedSequence(0)), NONE, np.empty((0, 1)))


class LoadDecoder:
    """`Decoder` for the largest load: see there. Priorities count for nothing."""

    walked = 1  # of a group's neighbours, next to nothing

    def __init__(self, graph: ComputationGraph, problem: Problem, instance: CompileParams) -> None:
        assert isinstance(instance.problem, PaddedPipeline)
        n = len(graph.ops)
        self._graph, self._problem, self._pipeline = graph, problem, instance.problem
        self._leader, self._rows = np.asarray(instance.leader)[:n], len(instance.leader)
        groups = Groups.of_ops(graph, problem)
        self._group, count = groups.of, len(groups.weight)
        self._chain = chain(groups, np.zeros(count, np.int64), np.random.SeedSequence(0))
        self._free = np.zeros((0, problem.devices))

    def together(self, placement: np.ndarray) -> np.ndarray:
        """A placement `[n]` with every group on the device of its first op in the order."""
        return placement[self._leader]

    def rank(self, placement: np.ndarray, priority: np.ndarray, best: Rank | None = None) -> Rank:
        """See `Decoder.rank`."""
        self._climb(placement, NONE, self._free)
        excess, seconds = self._chain.rank.tolist()
        return round(excess), seconds

    def played(self, placement: np.ndarray, priority: np.ndarray) -> Played:
        """See `Decoder.played`."""
        rows = np.zeros(self._rows, np.int32)
        rows[: len(placement)] = self.together(placement)
        return loaded(self._pipeline, jnp.asarray(rows)).played

    def gains(self, placement: np.ndarray, priority: np.ndarray) -> np.ndarray:
        """How many percent less the energy is by which annealing goes (`loads/moves.py`: the largest load alone does
        not tell most changes apart) where one group is on another device: `[n, d]` float64 of its first op.
        """
        energies = np.empty((len(self._chain.device), self._problem.devices))
        self._climb(placement, NONE, energies)
        now = float(energies[0, self._chain.device[0]])
        decides = self._leader == np.arange(len(placement))
        return np.where(decides[:, None], saved(now, energies[self._group]), 0)

    def climb(self, placement: np.ndarray, priority: np.ndarray, changes: np.ndarray) -> np.ndarray:
        """See `Decoder.climb`."""
        of_groups = np.stack([self._group[changes[:, 0]], changes[:, 1]], 1)
        self._climb(placement, of_groups, self._free)
        return self._chain.device[self._group]

    def plan(self, placement: np.ndarray, priority: np.ndarray) -> PlacedOrder:
        """See `Decoder.plan`."""
        return placed_order(self._graph, self._problem, self.together(placement))

    def _climb(self, placement: np.ndarray, changes: np.ndarray, energies: np.ndarray) -> None:
        self._chain.device[self._group] = self.together(placement)
        climb(self._chain, changes, energies)
