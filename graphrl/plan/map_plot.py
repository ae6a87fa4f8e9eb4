"""A memory map as a picture: the contents of every memory at each step, over the latency by op and its bottleneck.

Memories are drawn from the fastest on top to the slowest. Each has the colour of its ops below.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from graphrl.colours import COLOURS, FAINT, GREY, GRID, LIMIT, PALE, TEXT
from graphrl.costs.maps.exact import MapCosts
from graphrl.costs.maps.problem import MapProblem
from graphrl.plan.plot import DPI, WIDTH, Picture, clean, draw_heading
from graphrl.units import byte_unit, format_bytes, time_unit

OUTPUTS_ALPHA, LINE = 0.4, 1.2  # weights are drawn full; the width of a capacity's line
MAX_NAMES = 64  # ops that are named below the last axes; above that some are numbered
MAX_SCALE = 3.0  # times the contents of a memory: a capacity beyond that would flatten the curve


def map_figure(problem: MapProblem, costs: MapCosts, method: str, facts: Sequence[str]) -> Picture:
    """Draws the picture of a memory map; `method` and `facts` are texts of its heading."""
    m = problem.memories
    each, bars = min(1.5, 7.0 / m), 2.2
    figure = Picture(figsize=(WIDTH, 1.7 + each * m + bars), dpi=DPI, layout="constrained")
    axes = figure.subplots(m + 1, 1, sharex=True, height_ratios=[each] * m + [bars])
    for memory in range(m):
        _draw_memory(axes[m - 1 - memory], problem, costs, memory)
    _draw_latency(axes[m], problem, costs)
    _draw_steps(axes[m], problem)
    parts = Patch(color=GREY, label="weights"), Patch(color=GREY, alpha=OUTPUTS_ALPHA, label="outputs")
    _legend(axes[0], "held", [Line2D([], [], color=LIMIT, linewidth=LINE, label="capacity"), *parts[::-1]])
    facts = [*facts, f"chip {clean(problem.chip.name)}", f"{problem.steps:,} ops"]
    draw_heading(axes[0], problem.graph.name, method, facts, above=14)
    return figure


def _draw_memory(axes: Axes, problem: MapProblem, costs: MapCosts, memory: int) -> None:
    """Draws a memory's weights, its outputs stacked on them, and its capacity."""
    chip_memory, colour = problem.chip.memories[memory], _colour(memory)
    held, edges = costs.held_bytes[memory], np.arange(problem.steps + 1)
    weights = int(problem.weight_pages[costs.weights == memory].sum()) * problem.chip.page
    most, capacity = int(held.max(initial=0)), chip_memory.capacity
    near = capacity is not None and 0 < capacity <= MAX_SCALE * max(1, most)
    unit_bytes, unit = byte_unit(max(1, capacity if capacity and near else most))
    axes.stairs(np.full(problem.steps, weights / unit_bytes), edges, fill=True, color=colour, linewidth=0)
    axes.stairs(
        held / unit_bytes, edges, baseline=weights / unit_bytes, fill=True, color=colour, alpha=OUTPUTS_ALPHA,
        linewidth=0,
    )  # fmt: skip
    if capacity is not None and near:
        axes.axhline(capacity / unit_bytes, color=LIMIT, linewidth=LINE, zorder=4)
    top = max(most, capacity if capacity and near else 0) / unit_bytes
    axes.set_ylim(0, 1.12 * top or 1.0)
    _finish(axes, _contents(problem, memory, weights, most), colour, unit)


def _contents(problem: MapProblem, memory: int, weights: int, most: int) -> str:
    """Describes the contents of a memory in words."""
    chip_memory = problem.chip.memories[memory]
    capacity = chip_memory.capacity
    share = f", {100 * most / capacity:.0f}%" if capacity else ""
    limit = "no limit" if capacity is None else f"of {format_bytes(capacity)}{share}"
    return f"{clean(chip_memory.name)}: weights {format_bytes(weights)}, peak {format_bytes(most)} ({limit})"


def _draw_latency(axes: Axes, problem: MapProblem, costs: MapCosts) -> None:
    """Draws the seconds of each step, coloured by its bottleneck: launch, arithmetic or a memory."""
    launch = np.full(problem.steps, problem.chip.launch)
    bound = np.column_stack([launch, problem.compute, costs.memory_seconds]).argmax(1)
    names = ["launch", "compute", *map(clean, problem.chip.names)]
    colours = [PALE, GREY, *(_colour(memory) for memory in range(problem.memories))]
    scale, unit = time_unit(float(costs.step_seconds.max(initial=0.0)))
    for number, (name, colour) in enumerate(zip(names, colours, strict=True)):
        own = np.where(bound == number, costs.step_seconds, 0.0)
        if own.any():
            label = f"{name}, {100 * own.sum() / costs.latency:.1f}% of all"
            axes.stairs(own / scale, np.arange(problem.steps + 1), fill=True, color=colour, linewidth=0, label=label)
    axes.set_ylim(0, None)
    _legend(axes, "bound by", axes.get_legend_handles_labels()[0])
    _finish(axes, "latency of each op", TEXT, unit)


def _draw_steps(axes: Axes, problem: MapProblem) -> None:
    """Labels the ops by name if there is room, else by number."""
    axes.set_xlim(0, max(1, problem.steps))
    if problem.steps <= MAX_NAMES:
        names = [clean(problem.graph.ops[op].name, 22) for op in problem.order]
        axes.set_xticks(np.arange(problem.steps) + 0.5, names, rotation=90, fontsize=6.5, color=FAINT, parse_math=False)
    else:
        axes.set_xlabel("ops, in the order in which they run", color=TEXT)


def _colour(memory: int) -> str:
    return COLOURS[memory % (len(COLOURS) - 1)]  # the last one is the arithmetic's grey


def _legend(axes: Axes, title: str, handles: Sequence[Artist]) -> None:
    axes.legend(
        handles=handles, title=title, title_fontsize=8, alignment="left", loc="upper left", bbox_to_anchor=(1.0, 1.05),
        frameon=False, fontsize=8, handlelength=1.2,
    )  # fmt: skip


def _finish(axes: Axes, label: str, colour: str, unit: str) -> None:
    axes.annotate(
        label, (0, 1), xycoords="axes fraction", xytext=(0, 3), textcoords="offset points", fontsize=8.5, color=colour,
        parse_math=False,
    )  # fmt: skip
    axes.set_ylabel(unit, color=TEXT, fontsize=8.5)
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 4, 5, 10]))
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=TEXT, labelsize=8)
    axes.tick_params(axis="x", length=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
