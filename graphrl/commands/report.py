"""A plan's figures, for people (a table) and for machines (one JSON object)."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from graphrl.files import shown
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan import Plan
from graphrl.plan.inlining import Inlining
from graphrl.units import format_bytes, format_objective, format_seconds

_MAX_DEVICES = 8  # whose peaks and loads are listed one by one


def summary(plan: Plan) -> dict[str, Any]:
    """The plan's file without placement and order, with bound and gap: bytes, seconds, null where not finite."""
    problem = plan.problem
    return {
        "graph": plan.graph,
        "method": plan.method,
        "objective": problem.objective,
        "value": _finite(plan.value),
        "bound": _bound(plan),
        "gap": _finite(plan.gap),
        "feasible": plan.excess == 0,
        "makespan": _finite(plan.makespan),
        "peak_memory": list(plan.peak_memory),
        "seconds": plan.seconds,
        "evaluations": plan.evaluations,
        "seed": plan.seed,
        "model": {
            "devices": problem.devices,
            "transfer": problem.transfer,
            "latency": problem.latency,
            "bandwidth": _finite(problem.bandwidth),
            "resident_weights": problem.resident_weights,
            "memory_limit": problem.memory_limit,
            "cpus": problem.cpus,
        },
        "fusion": None if plan.inlining is None else _fusion(plan, plan.inlining),
    }


def _fusion(plan: Plan, inlining: Inlining) -> dict[str, Any]:
    return {"kernels": len(plan.placement), "inlined": len(inlining.inlined), "chip": inlining.chip.name}


def plan_table(plan: Plan, graph: ComputationGraph, *, interrupted: bool, written: list[str]) -> None:
    """Prints the plan's figures to standard output."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    title = f"{plan.graph} · {len(graph.ops):,} ops, {graph.arrays.num_tensors:,} tensors"
    table = Table(show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(plan, graph):
        table.add_row(escape(name), escape(value))
    if interrupted:
        table.add_row("interrupted", "this is the best plan until then")
    if written:
        table.add_row("written", escape("\n".join(shown(path) for path in written)))
    console = Console(highlight=False)
    console.print(escape(title), style="bold", soft_wrap=True)  # a table would break its title to its own width
    console.print(table)


def _rows(plan: Plan, graph: ComputationGraph) -> list[tuple[str, str]]:
    problem = plan.problem
    name = problem.objective.replace("_", " ")
    exact = f" ({plan.value:,} bytes)" if problem.objective == "peak_memory" and plan.value >= 1024 else ""
    rows = [(name, format_objective(problem.objective, plan.value) + exact)]
    if plan.bound is not None:
        gap = (
            ""
            if plan.gap is None or plan.excess
            else f": gap {100 * plan.gap:.1f}%"
            if plan.gap > 1e-9
            else ": optimal"
        )
        rows.append(("lower bound", format_objective(problem.objective, plan.bound) + gap))
    if problem.objective != "makespan":
        rows.append(("makespan", format_seconds(plan.makespan)))
    if problem.objective == "max_load":
        loads = plan.check(graph).loads
        rows.append(("load per device", _listed(loads, format_seconds)))
    transfers = len(plan.order) - len(plan.placement)
    if problem.devices > 1:
        rows.append(("transfers", f"{transfers:,}, model {problem.transfer}"))
    if problem.devices > 1 or problem.objective != "peak_memory":
        rows.append(
            ("peak per device" if problem.devices > 1 else "peak memory", _listed(plan.peak_memory, format_bytes))
        )
    if problem.memory_limit is not None:
        fits = "kept" if plan.excess == 0 else f"exceeded by {format_bytes(plan.excess)}"
        rows.append(("memory limit", f"{format_bytes(problem.memory_limit)}: {fits}"))
    if plan.inlining is not None:
        kernels, inlined = len(plan.placement), len(plan.inlining.inlined)
        rows.append(("kernels", f"{kernels:,}, which compute {inlined:,} more ops; times of {plan.inlining.chip.name}"))
    rows.append(("method", f"{plan.method}, seed {plan.seed}"))
    rate = plan.evaluations / plan.seconds if plan.seconds > 0 else 0
    per_second = f" ({rate:,.0f} a second)" if plan.evaluations > 1 else ""
    rows.append(("evaluations", f"{plan.evaluations:,} in {format_seconds(plan.seconds)}{per_second}"))
    return rows


def _listed(values: Sequence[float], text: Callable[[float], str]) -> str:
    """One for each device, or the least and the largest of many."""
    shown = values if len(values) <= _MAX_DEVICES else (min(values), max(values))
    return (", " if shown is values else " to ").join(map(text, shown))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _bound(plan: Plan) -> float | None:
    """The bound; bytes as an integer, like the value."""
    if plan.bound is not None and plan.problem.objective == "peak_memory":
        return int(plan.bound)
    return _finite(plan.bound)
