"""A sharding plan as a picture: memory over time against the limit, costs along the nodes, and the dearest of them."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from graphrl.colours import COLOURS, FAINT, GRID, LIMIT, TEXT
from graphrl.plan.plot import DPI, WIDTH, Picture, draw_heading
from graphrl.sharding.plan import ShardingPlan, gap_text
from graphrl.sharding.problem import ShardingProblem
from graphrl.units import byte_unit, format_bytes

BINS = 240  # bars of the costs along the nodes
LISTED = 14  # dearest nodes and edges
NODE, EDGE = COLOURS[4], COLOURS[1]


def plot(problem: ShardingProblem, plan: ShardingPlan) -> Picture:
    """Draws memory over time against the limit, and the costs of nodes and edges."""
    strategies = np.array(plan.strategies, np.int64)
    figure = Picture(figsize=(WIDTH, 8.2), dpi=DPI, layout="constrained")
    memory, along, dearest = figure.subplots(3, 1, height_ratios=[2.6, 2.2, 2.6])
    node, edge = problem.costs(strategies)
    _draw_memory(memory, problem, strategies, plan.limit)
    _draw_along(along, problem, node, edge)
    _draw_dearest(dearest, problem, strategies, node, edge)
    facts = [
        f"cost {plan.cost:,}",
        f"bound {plan.bound:,}",
        gap_text(plan.cost, plan.bound),
        f"{plan.seconds:.0f} s",
        f"{len(node):,} nodes, {len(edge):,} edges",
    ]
    draw_heading(memory, problem.name, plan.method, facts, above=14)
    return figure


def _draw_memory(axes: Axes, problem: ShardingProblem, strategies: np.ndarray, limit: int | None) -> None:
    used, peak = problem.memory(strategies), problem.peak(strategies)
    scale, unit = byte_unit(max(1, limit or peak))
    if len(used) > 1:
        axes.stairs(used[:-1] / scale, problem.times, fill=True, color=NODE, alpha=0.75, linewidth=0)
        axes.set_xlim(problem.times[0], problem.times[-1])
    text = f"peak {format_bytes(peak)}"
    if limit is not None:
        axes.axhline(limit / scale, color=LIMIT, linewidth=1.2)
        text += f", {100 * peak / max(1, limit):.2f}% of the limit (line) of {format_bytes(limit)}"
    axes.set_ylim(0, 1.12 * max(1, peak, limit or 0) / scale)
    _finish(axes, f"memory over time: {text}", unit)
    axes.set_xlabel("time", color=TEXT, fontsize=8.5)


def _draw_along(axes: Axes, problem: ShardingProblem, node: np.ndarray, edge: np.ndarray) -> None:
    """Draws costs of nodes, and of edges at their later node, along the nodes."""
    n = len(node)
    bounds = np.linspace(0, n, min(n, BINS) + 1)
    of_nodes = np.histogram(np.arange(n), bounds, weights=node.astype(float))[0]
    of_edges = np.histogram(problem.edges.max(1, initial=0), bounds, weights=edge.astype(float))[0]
    scale, unit = _unit(float((of_nodes + of_edges).max(initial=0)))
    of_nodes, of_edges = of_nodes / scale, of_edges / scale
    axes.stairs(of_nodes, bounds, fill=True, color=NODE, linewidth=0, label=f"nodes, {int(node.sum()):,}")
    axes.stairs(
        of_nodes + of_edges, bounds, baseline=of_nodes, fill=True, color=EDGE, linewidth=0,
        label=f"edges, {int(edge.sum()):,}",
    )  # fmt: skip
    axes.set_xlim(0, max(1, n))
    axes.set_ylim(0, None)
    axes.set_xlabel("nodes, in the file's order", color=TEXT, fontsize=8.5)
    axes.legend(loc="upper right", frameon=False, fontsize=8)
    _finish(axes, "cost along the nodes; edges at their later node", unit)


def _draw_dearest(
    axes: Axes, problem: ShardingProblem, strategies: np.ndarray, node: np.ndarray, edge: np.ndarray
) -> None:
    """Draws bars of the dearest nodes and edges, with their strategies."""
    cost = np.concatenate([node, edge])
    top = np.argsort(-cost, kind="stable")[:LISTED]
    names = []
    for item in top.tolist():
        if item < len(node):
            names.append(f"node {item}, strategy {strategies[item]}")
        else:
            a, b = problem.edges[item - len(node)].tolist()
            names.append(f"edge {a} - {b}, strategies {strategies[a]} and {strategies[b]}")
    rows = np.arange(len(top))
    scale, unit = _unit(float(cost.max(initial=0)))
    axes.barh(rows, cost[top] / scale, color=np.where(top < len(node), NODE, EDGE), height=0.7)
    axes.set_yticks(rows, names, fontsize=7.5)
    axes.set_ylim(len(top) - 0.4, -0.6)
    axes.set_xlabel(unit, color=TEXT, fontsize=8.5)
    share = cost[top].sum() / max(1, cost.sum())
    _finish(axes, f"dearest nodes and edges, {100 * share:.0f}% of the cost", "")
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=GRID, linewidth=0.7)


def _unit(largest: float) -> tuple[float, str]:
    """Unit of an axis of costs, a power of 1,000, and its label."""
    power = 3 * int(np.log10(max(1.0, largest)) // 3)
    return 10.0**power, f"cost, 1e{power}" if power else "cost"


def _finish(axes: Axes, title: str, unit: str) -> None:
    axes.annotate(
        title, (0, 1), xycoords="axes fraction", xytext=(0, 3), textcoords="offset points", fontsize=9, color=TEXT,
        parse_math=False,
    )  # fmt: skip
    axes.set_ylabel(unit, color=TEXT, fontsize=8.5)
    if unit:
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 4, 5, 10]))
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=FAINT, labelsize=8, length=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
