"""The table of one workload: how fast each method's maps are, and how far from the best known and from the bound."""

from collections.abc import Sequence

import numpy as np
from scipy import stats

from graphrl.compare.report import markdown, percent
from reproduce.egrl.runs import Entrant, Runs
from reproduce.egrl.settings import Settings
from reproduce.measurements import Figures
from reproduce.results import Table

HEADINGS = ("method", "budget", "runs", "latency, us", "speed-up", "to best known", "to bound", "gap closed", "seconds")
HOW = (
    "Means, and for the speed-up over the compiler's own map and the gap to the best known ± is half of a 95% interval "
    "of the mean (Student's t). Gap closed is the share of the way from the compiler's latency to the bound. Seconds "
    "are medians, since JAX compiles in the first run. A run has one core."
)


def table_of(settings: Settings, runs: Runs, *more: str) -> Table:
    """A line for each entrant, and more Markdown below."""
    lines = [_line(entrant, some, runs) for entrant, some in runs.by_entrant.items()]
    bound = f"bound {1e6 * runs.bound:.1f} us." if runs.bound else "no bound."
    text = f"Best known {1e6 * runs.best:.1f} us, {bound} {HOW}"
    title = f"{runs.workload} on {settings.chip}"
    table = settings.measurements.table(title, text, markdown(HEADINGS, lines), *more)
    most = max((entrant.runs for entrant in runs.by_entrant), default=1)
    return table._replace(origin=table.origin._replace(seeds=frozenset(range(most))))


def interval(values: np.ndarray) -> float:
    """Half of the 95% interval of the mean; nan for a single value."""
    count = len(values)
    return float(stats.t.ppf(0.975, count - 1) * values.std(ddof=1) / np.sqrt(count)) if count > 1 else float("nan")


def _line(entrant: Entrant, some: Sequence[Figures], runs: Runs) -> list[str]:
    latency, seconds = (np.array([run[key] for run in some]) for key in ("latency", "seconds"))
    compiler = some[0]["compiler_latency"]
    speedup, gap, mean = compiler / latency, latency / runs.best - 1, float(latency.mean())
    room = compiler - runs.bound if runs.bound else 0.0
    return [
        entrant.method,
        entrant.budget,
        f"{len(some)}",
        f"{1e6 * mean:.1f}",
        _spread(f"{speedup.mean():.3f}", f"{interval(speedup):.3f}", len(some)),
        _spread(percent(float(gap.mean())), percent(interval(gap)), len(some)),
        percent(mean / runs.bound - 1 if runs.bound else None),
        f"{100 * (compiler - mean) / room:.0f}%" if room > 0 else "-",
        f"{np.median(seconds):.3g}",
    ]


def _spread(mean: str, half: str, count: int) -> str:
    return f"{mean} ± {half}" if count > 1 else mean
