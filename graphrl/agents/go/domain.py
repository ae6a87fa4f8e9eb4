"""What is the objective's own: the quick plan that episodes begin with, and how choices are costed as plans.

The environment has its own place for it (`envs/compile/outcome.py`); whatever else there is of GO knows no objective.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from graphrl.agents.go.decode import Decoder, Rank
from graphrl.agents.go.decode import prepare as prepare_makespans
from graphrl.agents.go.decode_loads import LoadDecoder
from graphrl.agents.go.decode_loads import prepare as prepare_loads
from graphrl.costs.problem import Objective, Problem
from graphrl.envs.compile.instance import CompileParams
from graphrl.envs.compile.played import Played
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.base import PlacedOrder
from graphrl.solvers.loads.groups import placed_order
from graphrl.solvers.loads.hints import quick_plan
from graphrl.solvers.sending.hints import quick_start
from graphrl.solvers.sending.rule import with_sends


class PlanDecoder(Protocol):
    """Costs choices `[n]` of one graph, exactly, and changes them: see `Decoder`."""

    walked: int

    def together(self, placement: np.ndarray) -> np.ndarray: ...

    def rank(self, placement: np.ndarray, priority: np.ndarray, best: Rank | None = None) -> Rank: ...

    def played(self, placement: np.ndarray, priority: np.ndarray) -> Played: ...

    def gains(self, placement: np.ndarray, priority: np.ndarray) -> np.ndarray: ...

    def climb(self, placement: np.ndarray, priority: np.ndarray, changes: np.ndarray) -> np.ndarray: ...

    def plan(self, placement: np.ndarray, priority: np.ndarray) -> PlacedOrder: ...


class Start(NamedTuple):
    """A quick plan."""

    placement: np.ndarray  # [n] devices
    order: np.ndarray | None  # [n] ops, None where no order matters
    seconds: float  # makespan, or largest load


@dataclasses.dataclass(frozen=True)
class Domain:
    """What belongs to one objective.

    Attributes:
      start: of a graph, a problem and the seconds that it may take.
      plan: that a start means.
      decoder: of a graph, a problem and an instance of them.
      prepare: compiles what these need but for the network, or loads it, once in a process.
    """

    start: Callable[[ComputationGraph, Problem, float], Start]
    plan: Callable[[ComputationGraph, Problem, Start], PlacedOrder]
    decoder: Callable[[ComputationGraph, Problem, CompileParams], PlanDecoder]
    prepare: Callable[[], None]


def domain(problem: Problem) -> Domain:
    """That of a problem; its objective is one of `DOMAINS`."""
    return DOMAINS[problem.objective]


def _list_schedule(graph: ComputationGraph, problem: Problem, seconds: float) -> Start:
    start = quick_start(graph, problem, seconds)
    return Start(start.placement, start.ops, start.makespan)


def _list_plan(graph: ComputationGraph, problem: Problem, start: Start) -> PlacedOrder:
    assert start.order is not None
    return start.placement, with_sends(graph, problem, start.placement, start.order)


def _quick_split(graph: ComputationGraph, problem: Problem, seconds: float) -> Start:
    plan = quick_plan(graph, problem, seconds)
    return Start(plan.decisions(graph)[0], None, plan.value)


def _split_plan(graph: ComputationGraph, problem: Problem, start: Start) -> PlacedOrder:
    return placed_order(graph, problem, start.placement)


DOMAINS: dict[Objective, Domain] = {
    "makespan": Domain(_list_schedule, _list_plan, Decoder, prepare_makespans),
    "max_load": Domain(_quick_split, _split_plan, LoadDecoder, prepare_loads),
}
