"""Whether layered graphs are those of appendix A: statistics of ours beside the text's, and of published graphs.

The text is `appendix_a.py`, which draws graphs of its own. Of each graph there is one number a statistic, and two sets
of numbers are compared by the largest distance of their distributions (Kolmogorov-Smirnov). Costs, which are drawn
once for each layer, are compared with the mixture itself.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from graphrl.colours import COLOURS, GREY, WORSE
from graphrl.compare.report import markdown
from graphrl.graphs.datasets.layered import LayeredArrays, layered_arrays
from graphrl.plan.plot import DPI, write_figure
from reproduce.results import Table, bullets, here
from reproduce.topoformer.appendix_a import BYTES, cost_distribution, drawn
from reproduce.topoformer.settings import Settings

HEADINGS = ("ops", "of a graph", "graphrl", "appendix A", "distance", "0.1% limit", "published")
# of random_layered_n{100,250,500,1000} of github.com/haoming-codes/moccasin, ff7ad8b
PUBLISHED: dict[str, dict[int, float]] = {
    "layers": {100: 19, 250: 22, 500: 31, 1000: 49},
    "skip edges": {100: 33, 250: 129, 500: 331, 1000: 813},
    "edges": {500: 2461},
}
_LIMIT = 1.949  # of the Kolmogorov-Smirnov statistic, for one in a thousand by chance
_OURS, _TEXT = COLOURS[0], COLOURS[3]


def layered(settings: Settings) -> Iterator[Table]:
    """One table, a line a statistic and size, and the picture."""
    lines: list[list[str]] = []
    shown = {}
    for ops in settings.layered_sizes:
        ours, text = ours_and_text(ops, settings.graph_seeds)
        shown[ops] = ours, text
        lines += _lines(ops, ours, text)
    write_figure(_figure(shown), settings.out / "layered.png")
    how = (
        f"{settings.graphs} graphs of each kind and size: means, and in brackets the middle 90%. Layers and degrees "
        "leave out the source and the target."
    )
    parts = how, markdown(HEADINGS, lines), bullets([_verdict(lines)])
    yield Table("Layered graphs", here(settings.first), parts)


def ours_and_text(ops: int, seeds: Sequence[int]) -> tuple[list[LayeredArrays], list[LayeredArrays]]:
    """Graphs of the package, and as many of the text's."""
    return [layered_arrays(ops, seed) for seed in seeds], [drawn(ops, np.random.default_rng([ops, s])) for s in seeds]


def _layers(a: LayeredArrays) -> float:
    return float(a.layer[-1]) - 1


def _largest(a: LayeredArrays) -> float:
    return float(np.bincount(a.layer).max())


def _edges(a: LayeredArrays) -> float:
    return float(len(a.source))


def _skips(a: LayeredArrays) -> float:
    return float(np.sum(a.layer[a.target] - a.layer[a.source] > 1))


def _skip_share(a: LayeredArrays) -> float:
    return _skips(a) / _edges(a)


def in_degrees(a: LayeredArrays) -> np.ndarray:
    """Of all ops but the source and the target, `[n - 2]`."""
    return np.bincount(a.target, minlength=len(a.layer))[1:-1]


def out_degrees(a: LayeredArrays) -> np.ndarray:
    """Of all ops but the source and the target, `[n - 2]`."""
    return np.bincount(a.source, minlength=len(a.layer))[1:-1]


# what there is one number of in a graph
STATISTICS: dict[str, Callable[[LayeredArrays], float]] = {
    "layers": _layers,
    "ops of the largest layer": _largest,
    "edges": _edges,
    "skip edges": _skips,
    "share of skip edges": _skip_share,
    "largest in-degree": lambda a: float(in_degrees(a).max()),
    "largest out-degree": lambda a: float(out_degrees(a).max()),
    "deviation of in-degrees": lambda a: float(in_degrees(a).std()),
    "deviation of out-degrees": lambda a: float(out_degrees(a).std()),
}
COSTS: dict[str, Callable[[LayeredArrays], np.ndarray]] = {
    "output cost m": lambda a: a.output_bytes,
    "parameter cost p": lambda a: a.parameter_bytes,
}


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference between the shares of two samples up to any value."""
    values = np.concatenate([a, b])
    shares = [np.searchsorted(np.sort(some), values, side="right") / len(some) for some in (a, b)]
    return float(np.abs(shares[0] - shares[1]).max())


def limit(a: int, b: float = math.inf) -> float:
    """What the distance of two samples of such sizes (inf: a distribution) exceeds once in a thousand times."""
    return _LIMIT * math.sqrt(1 / a + 1 / b)


def layer_costs(graphs: Sequence[LayeredArrays], of: Callable[[LayeredArrays], np.ndarray]) -> np.ndarray:
    """The costs as they were drawn, one a layer."""
    return np.concatenate([of(a)[np.unique(a.layer, return_index=True)[1]] for a in graphs]) / BYTES


def cost_distance(costs: np.ndarray) -> float:
    """The largest difference between the shares of costs up to any value and those of eq. (16)."""
    ordered = np.sort(costs)
    shares = np.arange(len(ordered) + 1) / len(ordered)
    wanted = cost_distribution(ordered)
    return float(max(np.abs(shares[1:] - wanted).max(), np.abs(shares[:-1] - wanted).max()))


def _lines(ops: int, ours: Sequence[LayeredArrays], text: Sequence[LayeredArrays]) -> Iterator[list[str]]:
    for name, of in STATISTICS.items():
        a, b = (np.array([of(graph) for graph in graphs]) for graphs in (ours, text))
        published = PUBLISHED.get(name, {}).get(ops)
        reference = "" if published is None else f"{published:,.0f}"
        yield [f"{ops:,}", name, _span(a), _span(b), f"{distance(a, b):.3f}", f"{limit(len(a), len(b)):.3f}", reference]
    for name, costs_of in COSTS.items():
        a, b = (layer_costs(graphs, costs_of) for graphs in (ours, text))
        yield [f"{ops:,}", name, _span(a), _span(b), f"{cost_distance(a):.3f}", f"{limit(len(a)):.3f}", ""]


def _verdict(lines: Sequence[Sequence[str]]) -> str:
    """How many of the distances are above their limits."""
    places = HEADINGS.index("distance"), HEADINGS.index("0.1% limit")
    over = [f"{line[1]} at {line[0]} ops" for line in lines if float(line[places[0]]) > float(line[places[1]])]
    return f"{len(over)} of {len(lines)} distances are above their limits{': ' if over else ''}{', '.join(over)}"


def _span(values: np.ndarray) -> str:
    digits = 3 if values.mean() < 1 else 2 if values.mean() < 10 else 1
    mean, low, high = (f"{value:,.{digits}f}" for value in (values.mean(), *np.quantile(values, (0.05, 0.95))))
    return f"{mean} ({low} to {high})"


def _figure(shown: dict[int, tuple[list[LayeredArrays], list[LayeredArrays]]]) -> Figure:
    """A line a size; filled are ours, drawn are the text's, dotted is a published graph."""
    columns: dict[str, Callable[[LayeredArrays], np.ndarray]] = {
        "layers": lambda a: np.array([_layers(a)]),
        "ops of a layer": lambda a: np.bincount(a.layer)[1:-1],
        "in-degree": in_degrees,
        "out-degree": out_degrees,
        "share of skip edges [%]": lambda a: np.array([100 * _skip_share(a)]),
        "output cost of a layer": lambda a: layer_costs([a], COSTS["output cost m"]),
    }
    figure = Figure(figsize=(15, 2.5 * len(shown) + 0.3), dpi=DPI, layout="constrained")
    panels = figure.subplots(len(shown), len(columns), squeeze=False)
    for line, (ops, both) in zip(panels, shown.items(), strict=True):
        for axes, (name, of) in zip(line, columns.items(), strict=True):
            _panel(axes, *(np.concatenate([of(graph) for graph in graphs]) for graphs in both))
            axes.set_xlabel(name, fontsize=9)
            if (published := PUBLISHED.get(name, {}).get(ops)) is not None:
                axes.axvline(published, color=WORSE, linestyle=":", label="published")
        line[0].set_ylabel(f"{ops:,} ops", fontsize=9)
    x = np.linspace(0.001, 8, 200)
    for axes in panels[:, -1]:
        axes.plot((x[1:] + x[:-1]) / 2, np.diff(cost_distribution(x)) / np.diff(x), color=GREY, label="eq. (16)")
    panels[0, 0].legend(frameon=False, fontsize=7)
    return figure


def _panel(axes: Axes, ours: np.ndarray, text: np.ndarray) -> None:
    """Two histograms with the same bins, as densities; the top permille is left out."""
    values = np.concatenate([ours, text])
    top = float(np.quantile(values, 0.999))
    whole = bool(np.all(values == np.round(values)))
    bins = 30 if len(ours) > 1000 else 12
    step = float(top - values.min()) / bins or 1.0
    step = max(1.0, round(step)) if whole else step
    edges = np.arange(values.min() - (0.5 if whole else 0.0), top + 1.5 * step, step)
    places = edges.tolist()
    axes.hist(ours, bins=places, density=True, color=_OURS, alpha=0.45, label="graphrl")
    axes.hist(text, bins=places, density=True, histtype="step", color=_TEXT, linewidth=1.4, label="appendix A")
    axes.set_yticks([])
    axes.tick_params(labelsize=8)
