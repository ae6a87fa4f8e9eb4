"""Searches of placement and order on the kernels of a rule of fusion: the columns of GO's figure 6."""

import functools
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

import graphrl
from graphrl.costs.bounds import lower_bound
from graphrl.costs.exact import decode
from graphrl.costs.fusion.exact import KernelGraph, fused_graph
from graphrl.costs.fusion.problem import FusionProblem, fusion_problem
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets.workloads.go import WORKLOADS, load
from graphrl.graphs.graph import ComputationGraph
from graphrl.methods import find_solver
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.fusion.rules import fuse_by
from graphrl.solvers.rules.list_scheduling import schedule as list_schedule
from graphrl.solvers.schedules.solver import (
    MIX,
    effective_ops,
    first_heat,
    least_heat,
    prepare_with_lists,
    run_chain,
    start_chain,
    temperature,
)
from reproduce.measurements import Figures

CHIP, LATENCY, BANDWIDTH = "v100-fp32", 2e-6, 25e9
CHUNK_SECONDS, FIRST_MOVES = 0.05, 32
ORDERS = ("shift", "send")  # moves that leave the placement as it is
ALL, UNFUSED = "all three", "placement and order, no fusion"


class Search(NamedTuple):
    """A column of figure 6.

    Attributes:
      rule: of fusion.
      steps: moves of the searches that follow one another, each with an equal share of the time; None is all.
    """

    rule: str
    steps: Sequence[frozenset[str] | None]


_PLACES, _ORDERS = frozenset(MIX) - {*ORDERS, "jump"}, frozenset(ORDERS)
SEARCHES = {
    UNFUSED: Search("none", [None]),
    "placement": Search("xla", [_PLACES]),
    "placement and order": Search("xla", [None]),
    "fusion and placement": Search("flips", [_PLACES]),
    "one after the other": Search("flips", [_PLACES, _ORDERS]),
    ALL: Search("flips", [None]),
}


@functools.lru_cache(maxsize=1)
def problem_of(name: str) -> FusionProblem:
    """Of a workload."""
    return fusion_problem(load(name, CHIP).graph, CHIP)


def machine_of(name: str, limit: int | None = None) -> Problem:
    """Table 2's number of V100s for a workload, perhaps with a limit of bytes."""
    return Problem("makespan", WORKLOADS[name].devices, "link", LATENCY, BANDWIDTH, limit, resident_weights=True)


def searched(workload: str, search: str, seconds: float, seed: int) -> Figures:
    """A search by its name in `SEARCHES`, or a method on the kernels of flips."""
    problem = machine_of(workload)
    graph = fused_graph(fuse_by(SEARCHES[search].rule if search in SEARCHES else "flips", problem_of(workload)))
    if search in SEARCHES:
        plan = _start(graph, problem, with_order=SEARCHES[search].steps == [None])
        for moves in SEARCHES[search].steps:
            plan = _annealed(graph, plan, moves, seconds / len(SEARCHES[search].steps), seed)
    else:
        plan = find_solver(search)(Task(graph, problem, Budget(seconds=seconds), seed))
    exact = plan.check(graph)
    bound = lower_bound(graph, problem)
    spread = _devices_of_inlined(graph, plan.decisions(graph)[0])
    figures = {"value": plan.value, "bound": bound, "peak": int(max(exact.peak_memory))}
    return figures | {"inlined": len(spread), "apart": int((spread > 1).sum())}


def _devices_of_inlined(graph: KernelGraph, placement: np.ndarray) -> np.ndarray:
    """On how many devices each inlined op is computed: `[k]` int64."""
    members = graph.fusion.members
    pairs = {(op, int(device)) for root, device in zip(members, placement, strict=True) for op in members[root]}
    counts = np.bincount([op for op, _ in pairs], minlength=graph.fusion.problem.num_ops)
    return counts[graph.fusion.inlined]


def _start(graph: ComputationGraph, problem: Problem, *, with_order: bool) -> Plan:
    """All on one device, or the placement of a list schedule, with its order or the program's."""
    a = graph.arrays
    placement, order = list_schedule(graph, problem)
    program = a.topological.astype(np.int64)
    plans = [_plan(graph, problem, (np.zeros(a.num_ops, np.int64), program))]
    plans.append(_plan(graph, problem, (placement, order if with_order else _with_sends(graph, problem, placement))))
    return min(plans, key=lambda plan: plan.value)


def _with_sends(graph: ComputationGraph, problem: Problem, placement: np.ndarray) -> np.ndarray:
    """The program's order, each transfer before the first op that waits for it: `[m]` node ids."""
    a = graph.arrays
    keys = (a.num_ops - 1 - a.rank) / a.num_ops
    sends = np.zeros((a.num_tensors, problem.devices))
    np.maximum.at(sends, (a.use_tensor, placement[a.use_op]), keys[a.use_op])
    return decode(graph, problem, placement, keys, sends)


def _plan(graph: ComputationGraph, problem: Problem, decisions: tuple[np.ndarray, np.ndarray]) -> Plan:
    return Plan.from_order(graph, problem, *decisions, method="search", seconds=0.0, evaluations=1, seed=0)


def _annealed(graph: ComputationGraph, plan: Plan, moves: frozenset[str] | None, seconds: float, seed: int) -> Plan:
    """The best plan that one chain meets in some CPU seconds, by moves of some kinds; None is all."""
    problem = plan.problem
    mix: Mapping[str, float] = {kind: share if moves is None or kind in moves else 0.0 for kind, share in MIX.items()}
    prepare_with_lists(problem)
    start = plan.decisions(graph)
    chain = start_chain(graph, problem, start, np.random.SeedSequence(seed))
    ops, hot, least = effective_ops(graph), first_heat(problem), least_heat(problem, start)
    rate, began = 0.0, time.thread_time()
    while (share := (time.thread_time() - began) / seconds) < 1:
        count, before = max(FIRST_MOVES, int(rate * CHUNK_SECONDS)), time.thread_time()
        heat = plan.value * temperature(share, rate * seconds / len(graph.ops), ops, hot, least=least)
        made = run_chain(chain, count, heat, heat, mix)
        if not made:
            break
        rate = made / max(time.thread_time() - before, 1e-9)
    return min(plan, _plan(graph, problem, chain.best.plan), key=lambda each: each.value)


def planned(workload: str, fuse: str, limit: int, seconds: float, seed: int) -> Figures:
    """As `graphrl optimize --fuse` plans."""
    problem = machine_of(workload, limit)
    plan = graphrl.optimize(
        problem_of(workload).graph, objective="makespan", devices=problem.devices, transfer="link", latency=LATENCY,
        bandwidth=BANDWIDTH, memory_limit=limit, resident_weights=True, fuse=fuse, chip=CHIP, seconds=seconds,
        seed=seed,
    )  # fmt: skip
    return {"value": plan.value, "excess": plan.excess}
