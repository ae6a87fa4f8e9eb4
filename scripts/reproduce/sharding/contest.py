"""Section `contest`: cost of each instance against the teams' best, XLA's auto-sharder, and lower bounds."""

import statistics
from collections.abc import Iterator

from graphrl.compare.report import markdown
from reproduce.measurements import Figures
from reproduce.results import Table
from reproduce.sharding.settings import RESULTS, Settings

HEADINGS = (
    "instance", "nodes", "reduced to", "limit, s", "best team", "cost", "cost / best team", "points", "XLA / best team",
    "our bound / best team", "published", "gap to our bound", "peak / limit",
)  # fmt: skip


def contest(settings: Settings) -> Iterator[Table]:
    """Yields the table with a row for each instance; costs are means over the seeds."""
    lines, points, better, xla = [], [], 0, 0
    for name in settings.instances:
        runs = [settings.run(name, "all", seed) for seed in range(settings.seeds)]
        done = [run for run in runs if run is not None]
        if len(done) < len(runs):  # no plan: no points
            points.append(0.0)
            continue
        result, cost = RESULTS[name], statistics.fmean(run["cost"] for run in done)
        least = min(result.best, *(run["cost"] for run in done))
        points.append(statistics.fmean(least / run["cost"] for run in done))
        better += cost < result.best
        xla += result.xla is not None and cost < result.xla * result.best
        lines.append(_line(settings, name, done, cost, points[-1]))
    total, solved = sum(points), sum(RESULTS[name].xla is not None for name in settings.instances)
    summary = (
        f"{total:.3f} points of {len(points)}, below every team's cost on {better} instances, and below XLA's "
        f"auto-sharder on {xla} of the {solved} that it solved."
    )
    how = (
        "Points are the contest's: the least cost, of any team or of any of our seeds, over the cost; mean over the "
        "seeds, as are costs. Bounds are exact; the published ones are of the winners' experiments. XLA: Google's "
        "auto-sharder, as published by the winners."
    )
    yield settings.measurements.table(
        "Contest", how, markdown(list(HEADINGS), lines), notes=_notes(settings), summary=summary
    )


def _line(settings: Settings, name: str, runs: list[Figures], cost: float, points: float) -> list[str]:
    result, bound = RESULTS[name], max(run["bound"] for run in runs)
    return [
        name, f"{runs[0]['nodes']:,}", f"{runs[0]['reduced_nodes']:,}", f"{60 * result.minutes * settings.share:g}",
        f"{result.best:,}", f"{cost:,.0f}", f"{cost / result.best:.4f}", f"{points:.4f}",
        "-" if result.xla is None else f"{result.xla:.3f}",
        f"{bound / result.best:.4f}", f"{result.bound:.3f}", f"{100 * (cost / bound - 1):.2f}%",
        f"{max(run['peak'] for run in runs):.4f}",
    ]  # fmt: skip


def _notes(settings: Settings) -> list[str]:
    notes = []
    if settings.processor_time:
        notes.append("one thread, the limit in seconds of processor time: on a machine that others used")
    if settings.share != 1:
        notes.append(f"time limits are {settings.share:.3g} of the contest's")
    return notes
