"""Figure 6's form: the gain of joint decisions on fusion, placement and order, by searches with equal time.

Run times are those of V100s with NVLink between them (`link`). Colocation groups are ignored. Workloads that take too
long are left out: GNMT, AmoebaNet, and the larger variants.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

import graphrl
from graphrl.compare.report import markdown
from graphrl.costs.bounds import lower_bound
from graphrl.costs.fusion.exact import KernelGraph, fused_graph
from graphrl.costs.problem import Problem
from graphrl.envs.compile.env import order_of_keys
from graphrl.graphs.datasets.workloads.go import WORKLOADS
from graphrl.graphs.graph import ComputationGraph
from graphrl.methods import find_solver
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.fusion.rules import fuse_by
from graphrl.solvers.rules.list_scheduling import schedule as list_schedule
from graphrl.solvers.schedules.solver import MIX
from reproduce.chain import anneal
from reproduce.go.fusion import CHIP, problem_of
from reproduce.go.settings import Settings, ratio_interval
from reproduce.measurements import Figures, Key
from reproduce.results import Table

SMALL = (
    "transformer-xl-2", "transformer-xl-4", "transformer-xl-8", "wavenet-2x18", "rnnlm-2", "rnnlm-4", "inception-b32",
)  # fmt: skip
LIMIT = 1.1  # of the peak of a plan without fusion and without limit: memory of a device in the second table
LATENCY, BANDWIDTH = 2e-6, 25e9
ORDERS = ("shift", "send")  # moves that leave the placement as it is
ALL, UNFUSED = "all three", "placement and order, no fusion"


class Search(NamedTuple):
    """A column of figure 6.

    Attributes:
      rule: fusion rule.
      steps: kinds of moves of each search in sequence; searches share the time equally. None is all kinds.
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


def figure6(settings: Settings) -> Iterator[Table]:
    """Yields tables of separate and joint decisions, without a memory limit and with one."""
    names, seconds = SMALL if not settings.quick else SMALL[:1], settings.times[-1]
    yield _together(settings, names, seconds)
    yield _limited(settings, names, seconds)


def machine_of(name: str, limit: int | None = None) -> Problem:
    """Returns the problem of a workload: table 2's number of V100s, optionally with a memory limit in bytes."""
    return Problem("makespan", WORKLOADS[name].devices, "link", LATENCY, BANDWIDTH, limit, resident_weights=True)


def _together(settings: Settings, names: Sequence[str], seconds: float) -> Table:
    columns = [*SEARCHES, *(settings.methods or ())]
    rows = [[_searches(settings, name, column, seconds) for column in columns] for name in names]
    lines = [
        [name, *map(_mean_milliseconds, row), *_kernels(row[columns.index(ALL)])]
        for name, row in zip(names, rows, strict=True)
    ]
    notes = [
        note
        for place, column in enumerate(columns)
        if column != ALL
        for note in _compared(ALL, column, [(row[columns.index(ALL)], row[place]) for row in rows])
    ]
    how = (
        f"Run time in ms on table 2's number of V100s, `link`, NVLink, no memory limit; {seconds:g} CPU seconds of "
        f"simulated annealing for each of {settings.seeds} seeds, means. Where fusion is not decided it is that of "
        "the rule `xla`, where the order is not, it is the program's; all start from a list schedule, or from one "
        "device if that is better. Fusion that is decided is that of `flips`, and one after the other is fusion, "
        "then placement, then order. Methods of other names decide placement and order of the kernels of `flips`. "
        "The bound is of these kernels; the last columns are the number of ops that they inline, and the number of "
        "these that the plan of all three computes on several devices."
    )
    table = markdown(("workload", *columns, "bound", "inlined", "on several devices"), lines)
    joint = next((note for note in notes if note.startswith(f"{ALL} against one after")), "none complete")
    summary = f"Run time in equal search time, {joint}."
    return settings.measurements.table("Placement, order and fusion", how, table, notes=notes, summary=summary)


def _limited(settings: Settings, names: Sequence[str], seconds: float) -> Table:
    rules = ("none", "flips", "joint")
    lines, rows = list[list[str]](), list[list[list[Figures]]]()
    for name in names:
        if free := _searches(settings, name, UNFUSED, seconds):
            limit = int(LIMIT * free[0]["peak"])
            rows.append([_plans(settings, name, rule, limit, seconds) for rule in rules])
            lines.append([name, f"{limit / 2**30:.2f}", *map(_mean_milliseconds, rows[-1])])
    how = (
        f"The same on devices with {LIMIT:g} times the peak memory of the first plan of the first column "
        f"above. `graphrl optimize --fuse RULE --seconds {seconds:g}`, ms, means over the seeds. A `*` marks where a "
        "plan does not fit."
    )
    notes = [note for i in (0, 1) for note in _compared("`joint`", f"`{rules[i]}`", [(row[2], row[i]) for row in rows])]
    table = markdown(("workload", "GiB a device", *(f"`{rule}`" for rule in rules)), lines)
    return settings.measurements.table("Where memory is limited", how, table, notes=notes)


def _compared(ours: str, other: str, pairs: Sequence[tuple[Sequence[Figures], Sequence[Figures]]]) -> Iterator[str]:
    """Yields the geometric mean of ratios with its interval, over workloads where all plans fit."""
    fit = [pair for pair in pairs if all(pair) and not any(one.get("excess") for one in itertools.chain(*pair))]
    logs = [float(np.log(_values(mine)).mean() - np.log(_values(theirs)).mean()) for mine, theirs in fit]
    if logs:
        yield f"{ours} against {other}: {ratio_interval(logs)} on {len(logs)} workloads"


def _searches(settings: Settings, workload: str, search: str, seconds: float) -> list[Figures]:
    key = {"workload": workload, "search": search, "seconds": seconds}
    return _of_seeds(settings, key, functools.partial(_searched, workload, search, seconds))


def _plans(settings: Settings, workload: str, rule: str, limit: int, seconds: float) -> list[Figures]:
    key = {"workload": workload, "fuse": rule, "limit": limit, "seconds": seconds}
    return _of_seeds(settings, key, functools.partial(_planned, workload, rule, limit, seconds))


def _of_seeds(settings: Settings, key: Key, run: Callable[[int], Figures]) -> list[Figures]:
    """Returns figures of each seed; empty if one failed."""
    runs = settings.of_seeds(key, run)
    return runs if len(runs) == settings.seeds else []


def _searched(workload: str, search: str, seconds: float, seed: int) -> Figures:
    """Runs a search of `SEARCHES`, or a method on the kernels of flips."""
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
    """Returns the number of devices on which each inlined op is computed: `[k]` int64."""
    members = graph.fusion.members
    pairs = {(op, int(device)) for root, device in zip(members, placement, strict=True) for op in members[root]}
    counts = np.bincount([op for op, _ in pairs], minlength=graph.fusion.problem.num_ops)
    return counts[graph.fusion.inlined]


def _start(graph: ComputationGraph, problem: Problem, *, with_order: bool) -> Plan:
    """Returns the better of two plans: one device, or a list schedule's placement (with its order or the program's)."""
    a = graph.arrays
    placement, order = list_schedule(graph, problem)
    program = a.topological.astype(np.int64)
    plans = [_plan(graph, problem, (np.zeros(a.num_ops, np.int64), program))]
    if not with_order:
        order = order_of_keys(graph, problem, placement, (a.num_ops - 1 - a.rank) / a.num_ops, "urgent")
    plans.append(_plan(graph, problem, (placement, order)))
    return min(plans, key=lambda plan: plan.value)


def _plan(graph: ComputationGraph, problem: Problem, decisions: tuple[np.ndarray, np.ndarray]) -> Plan:
    return Plan.from_order(graph, problem, *decisions, method="search", seconds=0.0, evaluations=1, seed=0)


def _annealed(graph: ComputationGraph, plan: Plan, moves: frozenset[str] | None, seconds: float, seed: int) -> Plan:
    """Returns the best plan of one annealing chain within CPU seconds, by some kinds of moves; None is all."""
    mix = {kind: share if moves is None or kind in moves else 0.0 for kind, share in MIX.items()}
    chain = anneal(graph, plan.problem, plan.decisions(graph), mix, seconds, seed).chain
    return min(plan, _plan(graph, plan.problem, chain.best.plan), key=lambda each: each.value)


def _planned(workload: str, fuse: str, limit: int, seconds: float, seed: int) -> Figures:
    """Plans as `graphrl optimize --fuse` does."""
    problem = machine_of(workload, limit)
    plan = graphrl.optimize(
        problem_of(workload).graph, objective="makespan", devices=problem.devices, transfer="link", latency=LATENCY,
        bandwidth=BANDWIDTH, memory_limit=limit, resident_weights=True, fuse=fuse, chip=CHIP, seconds=seconds,
        seed=seed,
    )  # fmt: skip
    return {"value": plan.value, "excess": plan.excess}


def _mean_milliseconds(runs: Sequence[Figures]) -> str:
    if not runs:
        return "-"
    return f"{1e3 * np.mean(_values(runs)):.2f}" + "*" * any(one.get("excess", 0) > 0 for one in runs)


def _kernels(runs: Sequence[Figures]) -> list[str]:
    """Formats the bound, the number of inlined ops, and of those that are computed on several devices."""
    if not runs:
        return ["-"] * 3
    several = np.mean([one["apart"] for one in runs])
    return [f"{1e3 * runs[0]['bound']:.2f}", f"{runs[0]['inlined']:,}", f"{several:,.0f}"]


def _values(runs: Sequence[Figures]) -> list[float]:
    return [one["value"] for one in runs]
