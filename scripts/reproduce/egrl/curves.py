"""How methods come down to their last latency, evaluation by evaluation: means of runs with intervals."""

import numpy as np
from matplotlib.figure import Figure

from graphrl.colours import COLOURS, GREY, GRID, LIMIT, TEXT
from graphrl.plan.plot import DPI, Picture
from reproduce.egrl.runs import Runs
from reproduce.egrl.settings import Settings
from reproduce.egrl.tables import interval
from reproduce.measurements import Figures

POINTS = 200
PARTS = 16, 8, 4, 2, 1  # of the evaluations


def curves_figure(runs: Runs, settings: Settings) -> Figure:
    """Latency against evaluations, a line for each method that has them; the compiler's and the bound."""
    figure = Picture(figsize=(9.0, 5.2), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    at = np.unique(np.linspace(1, settings.evaluations, POINTS).astype(int))
    counted = [(one, some) for one, some in runs.by_entrant.items() if one.evaluations and len(some[0]["curve"]) > 1]
    for number, (entrant, some) in enumerate(counted):
        latencies = 1e6 * np.array([_sampled(run, at) for run in some])
        mean, colour = latencies.mean(0), COLOURS[number % len(COLOURS)]
        axes.plot(at, mean, color=colour, linewidth=1.5, label=f"{entrant.method} ({len(some)})")
        if len(some) > 1:
            half = np.array([interval(column) for column in latencies.T])
            axes.fill_between(at, mean - half, mean + half, color=colour, alpha=0.18, linewidth=0)
    compiler = 1e6 * next(iter(runs.by_entrant.values()))[0]["compiler_latency"]
    axes.axhline(compiler, color=GREY, linestyle="--", linewidth=1.1, label="compiler")
    low = 1e6 * (runs.bound or runs.best)
    axes.axhline(low, color=LIMIT, linestyle="--", linewidth=1.1, label="bound" if runs.bound else "best known")
    axes.set_ylim(low - 0.05 * (compiler - low), compiler + 0.25 * (compiler - low))
    axes.set_xlim(0, settings.evaluations)
    axes.set_xlabel("evaluations", color=TEXT)
    axes.set_ylabel("latency, us", color=TEXT)
    axes.set_title(f"{runs.workload} on {settings.chip}: means and 95% intervals (runs)", loc="left", color=TEXT)
    axes.grid(color=GRID, linewidth=0.7)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure


def curves_lines(runs: Runs, settings: Settings) -> tuple[list[str], list[list[str]]]:
    """Headings and lines of a table: mean latencies after parts of the evaluations, of the methods with a curve."""
    at = np.array([max(1, settings.evaluations // part) for part in PARTS])
    lines = []
    for entrant, some in runs.by_entrant.items():
        if entrant.evaluations and len(some[0]["curve"]) > 1:
            latencies = 1e6 * np.mean([_sampled(run, at) for run in some], axis=0)
            lines.append([entrant.method, *(f"{latency:.1f}" for latency in latencies)])
    return ["latency, us, after evaluations", *(f"{count:,}" for count in at)], lines


def _sampled(run: Figures, at: np.ndarray) -> np.ndarray:
    """The best latency after so many evaluations `[...]` beside one of the compiler's map; before the first, that."""
    evaluations, latency = np.array(run["curve"]).T
    place: np.ndarray = np.searchsorted(evaluations, at + 1, side="right") - 1
    return latency[np.maximum(place, 0)]
