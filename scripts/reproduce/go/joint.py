"""What deciding fusion, placement and order together gains: the forms of GO's table 3 and figure 6, by searches.

Run times are those of V100s with NVLink between them (`link`); all searches of a table have the same time. Neither asks
for the groups of ops that stand on one device. Figure 6 leaves out what takes too long: GNMT, AmoebaNet, and the larger
of two of a kind.
"""

import functools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

import graphrl
from graphrl.compare.report import markdown, percent
from graphrl.costs.bounds import lower_bound
from graphrl.costs.exact import decode
from graphrl.costs.fusion.fused_graph import KernelGraph, fused_graph
from graphrl.costs.fusion.problem import FusionProblem, fusion_problem
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets.workloads.go import WORKLOADS, load
from graphrl.graphs.graph import ComputationGraph
from graphrl.methods import find_solver
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.fusion.flips import prepare as prepare_flips
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
from reproduce.go import fusing_alone, fusing_together
from reproduce.go.settings import Settings
from reproduce.measurements import Figures
from reproduce.results import Table

CHIP, LATENCY, BANDWIDTH = "v100-fp32", 2e-6, 25e9
RULES = ("none", "single", "xla", "all", "flips", "anneal")
SMALL = (
    "transformer-xl-2", "transformer-xl-4", "transformer-xl-8", "wavenet-2x18", "rnnlm-2", "rnnlm-4", "inception-b32",
)  # fmt: skip
LIMIT = 1.1  # of the peak of a plan without fusion, which knows no limit: what devices hold in the table of memory
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


def table3(settings: Settings) -> Iterator[Table]:
    """Fusion alone: all kernels one after the other on one device."""
    lines, values = list[list[str]](), list[list[float | None]]()
    for name in WORKLOADS if not settings.quick else SMALL[:1]:
        keys = [{"fusion": name, "rule": rule} for rule in RULES]
        row = [settings.measurements.get(key, functools.partial(_fused, name, key["rule"])) for key in keys]
        if figures := [one for one in row if one is not None and all(row)]:
            ours = fusing_alone.by_policy(settings, name, functools.partial(_problem, name))
            values.append([one["value"] if one else None for one in (*figures, *ours)])
            spent = [f"{one['seconds']:.1f}" if one else "-" for one in (*figures[-2:], *ours[-2:])]
            lines.append([name, f"{figures[0]['ops']:,}", *map(_milliseconds, (*figures, *ours)), *spent])
    columns = (*RULES, *fusing_alone.COLUMNS)
    notes = [*_against("xla", columns, values, columns), *_against("flips", columns, values, fusing_alone.COLUMNS)]
    how = (
        "What all kernels take, one after the other on one V100, ms, and CPU seconds of some columns. A "
        "framework's default is `none` (each op a kernel), `single` (what one op reads is computed there) or `xla` "
        "(that, and what is 8 times as large as what it is made from); `flips` inlines one op or takes it out while "
        "that helps, and `anneal` is simulated annealing from there, 2 million flips."
    )
    timed = ("flips", "anneal", *fusing_alone.COLUMNS[-2:])
    headings = ("workload", "ops", *(f"`{column}`" for column in columns), *(f"`{column}`, s" for column in timed))
    table = markdown(headings, lines)
    notes += fusing_alone.notes(settings)
    yield settings.measurements.table("Fusion alone", f"{how} {fusing_alone.HOW}", table, notes=notes)


def figure6(settings: Settings) -> Iterator[Table]:
    """Decisions apart and together, without a memory limit and with one."""
    names, seconds = SMALL if not settings.quick else SMALL[:1], settings.times[-1]
    yield _together(settings, names, seconds)
    yield _limited(settings, names, seconds)


def _against(
    other: str, columns: Sequence[str], rows: Sequence[Sequence[float | None]], compared: Sequence[str]
) -> Iterator[str]:
    """The geometric means of some columns' parts of another, where both were run; rows have all columns."""
    for column in compared:
        pairs = [(row[columns.index(column)], row[columns.index(other)]) for row in rows]
        parts = [ours / theirs for ours, theirs in pairs if ours is not None and theirs is not None]
        if parts and column != other:
            yield f"`{column}` against `{other}`: {percent(_mean(parts) - 1)} on {len(parts)} workloads"


def policies(settings: Settings) -> Iterator[Table]:
    """Figure 6's decisions by GO's policies, on one workload."""
    names = SMALL[:1]  # a column of the others takes many minutes
    runs = [fusing_together.measured(settings, name, functools.partial(_problem, name), _on(name)) for name in names]
    columns = [*fusing_together.RUNS]
    lines = [[name, *map(_milliseconds, row)] for name, row in zip(names, runs, strict=True)]
    notes = [
        f"{column} against {columns[0]}: {percent(one['value'] / row[0]['value'] - 1)} on {name}"
        for name, row in zip(names, runs, strict=True)
        for column, one in zip(columns[1:], row[1:], strict=True)
        if one and row[0]
    ]
    title, table = "Placement, order and fusion by policies", markdown(("workload", *columns), lines)
    yield settings.measurements.table(title, fusing_together.HOW, table, notes=notes)


def _together(settings: Settings, names: Sequence[str], seconds: float) -> Table:
    columns = [*SEARCHES, *(settings.methods or ())]
    rows = [[_search(settings, name, column, seconds) for column in columns] for name in names]
    lines = [
        [name, *map(_milliseconds, row), *_kernels(row[columns.index(ALL)])]
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
        "simulated annealing in each cell, seed 0. Where fusion is not decided it is that of the rule `xla`, where the "
        "order is not, it is the program's; all begin at a list schedule, or at one device if that is better. "
        "Fusion that is decided is that of `flips`, and one after the other is "
        "fusion, then placement, then order. Methods of other names decide placement and order of the kernels "
        "of `flips`. The bound is of these kernels; the last columns say how many ops they inline, and how many "
        "of these the plan of all three computes on several devices."
    )
    table = markdown(("workload", *columns, "bound", "inlined", "on several devices"), lines)
    return settings.measurements.table("Placement, order and fusion", how, table, notes=notes)


def _limited(settings: Settings, names: Sequence[str], seconds: float) -> Table:
    rules = ("none", "flips", "joint")
    lines, rows = list[list[str]](), list[list[Figures | None]]()
    for name in names:
        if free := _search(settings, name, UNFUSED, seconds):
            limit = int(LIMIT * free["peak"])
            keys = [{"workload": name, "fuse": rule, "limit": limit, "seconds": seconds} for rule in rules]
            plans = [functools.partial(_planned, name, rule, limit, seconds) for rule in rules]
            rows.append([settings.measurements.get(*each) for each in zip(keys, plans, strict=True)])
            lines.append([name, f"{limit / 2**30:.2f}", *map(_milliseconds, rows[-1])])
    how = (
        f"The same where devices hold {LIMIT:g} times what the fullest needs in the plan of the first column above. "
        f"`graphrl optimize --fuse RULE --seconds {seconds:g}`, ms. A `*` marks a plan that does not fit."
    )
    notes = [note for i in (0, 1) for note in _compared("`joint`", f"`{rules[i]}`", [(row[2], row[i]) for row in rows])]
    table = markdown(("workload", "GiB a device", *(f"`{rule}`" for rule in rules)), lines)
    return settings.measurements.table("Where memory is limited", how, table, notes=notes)


def _compared(ours: str, other: str, pairs: Sequence[tuple[Figures | None, Figures | None]]) -> Iterator[str]:
    """The geometric mean of ratios, where both plans fit."""
    both = [(a["value"], b["value"]) for a, b in pairs if a and b and not a.get("excess") and not b.get("excess")]
    if both:
        mean = percent(_mean([a / b for a, b in both]) - 1)
        yield f"{ours} against {other}: {mean} on {len(both)} workloads"


def _search(settings: Settings, workload: str, search: str, seconds: float) -> Figures | None:
    key = {"workload": workload, "search": search, "seconds": seconds}
    return settings.measurements.get(key, functools.partial(_searched, workload, search, seconds))


@functools.lru_cache(maxsize=1)
def _problem(name: str) -> FusionProblem:
    return fusion_problem(load(name, CHIP).graph, CHIP)


def _on(name: str, limit: int | None = None) -> Problem:
    return Problem("makespan", WORKLOADS[name].devices, "link", LATENCY, BANDWIDTH, limit, resident_weights=True)


def _fused(name: str, rule: str) -> Figures:
    prepare_flips()
    problem, began = _problem(name), time.thread_time()
    return {"ops": problem.num_ops, "value": fuse_by(rule, problem).seconds, "seconds": time.thread_time() - began}


def _searched(workload: str, search: str, seconds: float) -> Figures:
    """A search by its name in `SEARCHES`, or a method on the kernels of flips."""
    problem = _on(workload)
    graph = fused_graph(fuse_by(SEARCHES[search].rule if search in SEARCHES else "flips", _problem(workload)))
    if search in SEARCHES:
        plan = _start(graph, problem, with_order=SEARCHES[search].steps == [None])
        for moves in SEARCHES[search].steps:
            plan = _annealed(graph, plan, moves, seconds / len(SEARCHES[search].steps))
    else:
        plan = find_solver(search)(Task(graph, problem, Budget(seconds=seconds)))
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


def _annealed(graph: ComputationGraph, plan: Plan, moves: frozenset[str] | None, seconds: float) -> Plan:
    """The best plan that one chain meets in some CPU seconds, by moves of some kinds; None is all."""
    problem = plan.problem
    mix: Mapping[str, float] = {kind: share if moves is None or kind in moves else 0.0 for kind, share in MIX.items()}
    prepare_with_lists(problem)
    start = plan.decisions(graph)
    chain = start_chain(graph, problem, start, np.random.SeedSequence(0))
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


def _planned(workload: str, fuse: str, limit: int, seconds: float) -> Figures:
    problem = _on(workload, limit)
    plan = graphrl.optimize(
        _problem(workload).graph, objective="makespan", devices=problem.devices, transfer="link", latency=LATENCY,
        bandwidth=BANDWIDTH, memory_limit=limit, resident_weights=True, fuse=fuse, chip=CHIP, seconds=seconds,
    )  # fmt: skip
    return {"value": plan.value, "excess": plan.excess}


def _milliseconds(figures: Figures | None) -> str:
    return "-" if figures is None else f"{1e3 * figures['value']:.2f}" + "*" * (figures.get("excess", 0) > 0)


def _kernels(figures: Figures | None) -> list[str]:
    """Bound, inlined ops, and those that are computed on several devices."""
    if figures is None:
        return ["-"] * 3
    return [f"{1e3 * figures['bound']:.2f}", f"{figures['inlined']:,}", f"{figures['apart']:,}"]


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))
