"""Learning curves of training runs: reading, aggregation over seeds, pictures, and JSON for marl-eval.

Aggregates follow rliable (Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice"):
the mean, or the interquartile mean (IQM, the mean of the middle half of all scores, `scipy.stats.trim_mean`), with 95%
intervals of the percentile bootstrap, stratified by task. The runs of a group have one task, and thus one stratum.
"""

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy import stats

from graphrl.colours import GRID, MARKERS, colour
from graphrl.errors import GraphrlError, ProblemError
from graphrl.files import quote_path, write_atomically
from graphrl.plan.plot import DPI
from graphrl.training.folder import FILE, has_run, read_metrics, read_settings

Aggregate = Literal["mean", "iqm"]

RESAMPLES, LEVEL = 2000, 0.95  # of the bootstrap, as in rliable's curves
VALIDATION = "validation/"  # prefix of metrics on held-out graphs
UPDATES, SECONDS = "updates", "seconds"
_MAX_POINTS = 400  # of a curve; longer ones are averaged over this number of intervals
_MAX_DEPTH = 3  # of runs below a folder
_NO_METRICS = {"step", "seconds", "bucket"}
_SEED = re.compile(r"seed-\d+")
_STATISTICS: dict[str, Callable[..., Any]] = {
    "mean": np.mean,
    "iqm": lambda values, axis: stats.trim_mean(values, 0.25, axis=axis),  # of 5 values: the middle 3
}


class Interval(NamedTuple):
    """An aggregate over runs, with the ends of its 95% interval; equal to it if there is one run. `[...]` each."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Curve(NamedTuple):
    """An aggregated curve: positions on the x axis `[p]`, ascending, and the aggregate at each."""

    x: np.ndarray
    y: Interval


@dataclasses.dataclass(frozen=True)
class LoggedRun:
    """A training run as recorded in its folder; it may be incomplete.

    Attributes:
      folder: its folder.
      config: its settings (`config.as_dict`).
      score: name of the held-out metric that selects the best checkpoint, "" if unknown.
      title: the same with its unit.
      lines: lines of its `metrics.jsonl`.
    """

    folder: Path
    config: Mapping[str, Any]
    score: str
    title: str
    lines: Sequence[Mapping[str, Any]]

    def points(self) -> Iterator[tuple[Mapping[str, float], Mapping[str, float]]]:
        """Yields positions (by name of the x axis, with "step") and metrics (by name) of all lines.

        The metrics of the last update give the positions of a validation.
        """
        trained: Mapping[str, Any] = {}
        for line in self.lines:
            validation = line.get("validation")
            if validation is None:
                trained = line
            values = line if validation is None else {f"{VALIDATION}{name}": v for name, v in validation.items()}
            step = {UPDATES: line["step"], "step": line["step"]}
            yield {**trained, **step}, {name: v for name, v in values.items() if name not in _NO_METRICS}

    def metrics(self) -> list[str]:
        """Returns the names of its metrics."""
        return list(dict.fromkeys(name for _, values in self.points() for name in values))

    def series(self, metric: str, x: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns the positions and the values of a metric, `[p]` float64 each; before the first update, x is 0."""
        found = [
            (position.get(x, 0.0 if position["step"] == 0 else np.nan), values[metric])
            for position, values in self.points()
            if metric in values
        ]
        pairs = np.array(found, np.float64).reshape(-1, 2)
        pairs = pairs[np.isfinite(pairs[:, 0])]
        return pairs[:, 0], pairs[:, 1]


Groups = dict[str, list[LoggedRun]]  # runs that differ in their seeds alone, by a name for the legend


def read_groups(folders: Sequence[str | os.PathLike[str]], names: Sequence[str] = ()) -> Groups:
    """Reads runs; each folder has a run, or runs of several seeds, or such folders, as of `graphrl train --sweep`.

    Args:
      folders: the folders.
      names: names for the groups, in order; without any, the folders' names, with their parents' where necessary.

    Raises:
      GraphrlError: a folder has no run, or a file cannot be read.
      ProblemError: the number of names is wrong, or a name is given twice.
    """
    groups = [group for folder in folders for group in _groups_in(Path(folder))]
    if names and (len(names) != len(groups) or len({*names}) < len(names)):
        raise ProblemError(f"--names has {len(names)} names: must be {len(groups)} different ones")
    places = [place for place, _ in groups]
    labels = list(names) or _short_names(places)
    return {label: [_read_run(run) for run in runs] for label, (_, runs) in zip(labels, groups, strict=True)}


def _groups_in(folder: Path) -> list[tuple[Path, list[Path]]]:
    """Lists the groups of runs in a folder, each with its place."""
    if has_run(folder):
        return [(folder, [folder])]
    groups = _groups_below(folder, _MAX_DEPTH)
    if not groups:
        raise GraphrlError(f"{quote_path(folder)} has no training run: name a folder of graphrl train")
    return groups


def _groups_below(folder: Path, depth: int) -> list[tuple[Path, list[Path]]]:
    parts = [path for path in sorted(folder.glob("*"), key=_natural) if path.is_dir() and depth > 0]
    runs = [path for path in parts if has_run(path)]
    seeds = [path for path in runs if _SEED.fullmatch(path.name)]
    groups = [(folder, seeds)] if seeds else []
    for path in parts:
        if path not in seeds:
            groups += [(path, [path])] if path in runs else _groups_below(path, depth - 1)
    return groups


def _natural(path: Path) -> list[Any]:
    """Key that sorts seed-2 before seed-10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]


def _short_names(places: Sequence[Path]) -> list[str]:
    """Returns the shortest endings of the paths that all differ, with the same number of parts each."""
    parts = [Path(os.path.abspath(place)).parts for place in places]
    for count in range(1, max(map(len, parts))):
        names = ["/".join(part[-count:]) for part in parts]
        if len({*names}) == len(names):
            return names
    raise ProblemError("the same folder is given twice: name each once")


def _read_run(folder: Path) -> LoggedRun:
    settings = read_settings(folder)
    lines = read_metrics(folder) if (folder / FILE).is_file() else []
    return LoggedRun(folder, settings.config, settings.score, settings.score_title, lines)


def default_metric(groups: Groups) -> str:
    """Returns the metric that selects the best checkpoint of all runs.

    Raises:
      ProblemError: the runs have different ones, or do not state it.
    """
    scores = {run.score for runs in groups.values() for run in runs}
    if len(scores) > 1 or scores == {""}:
        raise ProblemError(f"the runs have no common score: choose a --metric: {_known_metrics(groups)}")
    return f"{VALIDATION}{scores.pop()}"


def title_of(groups: Groups, metric: str) -> str:
    """Returns the name of a metric with its unit, if the runs state one."""
    titles = {f"{VALIDATION}{run.score}": f"{VALIDATION}{run.title}" for runs in groups.values() for run in runs}
    return titles.get(metric, metric)


def curves_of(groups: Groups, metric: str, *, x: str = UPDATES, aggregate: Aggregate = "mean") -> dict[str, Curve]:
    """Aggregates a metric over the runs of each group.

    Where some runs of a group have ended, or not yet come so far, the aggregate is over the others.

    Args:
      groups: see `read_groups`.
      metric: name of a training metric, or "validation/" and that of a metric on held-out graphs.
      x: "updates", "seconds", or a training metric such as "env_steps".
      aggregate: "mean" or "iqm".

    Raises:
      ProblemError: a group has no values of the metric at positions of x.
    """
    curves = {}
    for name, runs in groups.items():
        if not any(metric in run.metrics() for run in runs):
            raise ProblemError(f"{name} has no metric {metric[:60]!r}: {_known_metrics({name: runs})}")
        series = [pair for pair in (run.series(metric, x) for run in runs) if len(pair[0])]
        if not series or not any(x in position for run in runs for position, _ in run.points()):
            raise ProblemError(f"{name} does not record {x[:60]!r}: choose updates or seconds")
        if any((np.diff(positions) < 0).any() for positions, _ in series):
            raise ProblemError(f"{x[:60]} also decreases in {name}: choose updates or seconds")
        curves[name] = _aggregated(series, aggregate)
    return curves


def _known_metrics(groups: Groups) -> str:
    known = dict.fromkeys(name for runs in groups.values() for run in runs for name in run.metrics())
    return f"known are {', '.join(known)}" if known else "the runs have no metrics yet"


def _aggregated(series: Sequence[tuple[np.ndarray, np.ndarray]], aggregate: Aggregate) -> Curve:
    x, values = _on_grid(series)
    present = np.isfinite(values)
    parts = [np.empty(len(x)) for _ in Interval._fields]
    for pattern in np.unique(present, axis=1).T:  # positions that the same runs have reached
        places = (present == pattern[:, None]).all(0)
        for part, numbers in zip(parts, interval(values[pattern][:, places], aggregate), strict=True):
            part[places] = numbers
    return Curve(x, Interval(*parts))


def _on_grid(series: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Interpolates curves linearly at the positions of all of them: returns positions `[p]` and values `[runs, p]`, NaN
    outside a curve.
    """
    grid = np.unique(np.concatenate([x for x, _ in series]))
    if len(grid) > _MAX_POINTS:
        edges = np.linspace(grid[0], grid[-1], _MAX_POINTS + 1)
        series = [_binned(x, y, edges) for x, y in series]
        grid = np.unique(np.concatenate([x for x, _ in series]))
    return grid, np.stack([np.interp(grid, x, y, left=np.nan, right=np.nan) for x, y in series])


def _binned(x: np.ndarray, y: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Averages a curve's values in intervals of x: returns their middles and means, without empty intervals."""
    bins = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, len(edges) - 2)
    counts, sums = np.bincount(bins, minlength=len(edges) - 1), np.bincount(bins, y, len(edges) - 1)
    filled = counts > 0
    return ((edges[1:] + edges[:-1]) / 2)[filled], sums[filled] / counts[filled]


def interval(values: np.ndarray, aggregate: Aggregate = "mean") -> Interval:
    """Aggregates over runs, with the 95% interval of the percentile bootstrap; the same values give the same interval.

    Args:
      values: `[runs, ...]` float64.
      aggregate: "mean" or "iqm".
    """
    statistic = _STATISTICS[aggregate]
    value = np.asarray(statistic(values, axis=0))
    if len(values) == 1:
        return Interval(value, value, value)
    random = np.random.default_rng(0)
    result = stats.bootstrap(
        (values,), statistic, n_resamples=RESAMPLES, confidence_level=LEVEL, method="percentile", random_state=random
    )
    return Interval(value, *result.confidence_interval)


def curves_figure(
    curves: Mapping[str, Curve], groups: Groups, metric: str, *, x: str = UPDATES, aggregate: Aggregate = "mean"
) -> Figure:
    """Draws a line per group, with its interval as a band; arguments as of `curves_of`."""
    figure = Figure(figsize=(8, 5), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    for number, (name, curve) in enumerate(curves.items()):
        shade, count = colour(number), len(groups[name])
        label = f"{name} ({count} seeds)" if count > 1 else name
        few = MARKERS[number % len(MARKERS)] if len(curve.x) <= 50 else ""
        axes.plot(curve.x, curve.y.value, color=shade, linewidth=1.5, marker=few, markersize=4, label=_plain(label))
        if count > 1:
            axes.fill_between(curve.x, curve.y.low, curve.y.high, color=shade, alpha=0.2, linewidth=0)
    axes.set_xlabel(_plain(x.replace("_", " ")))
    axes.xaxis.set_major_locator(MaxNLocator(integer=x == UPDATES))
    axes.set_ylabel(_plain(title_of(groups, metric)))
    if any(len(runs) > 1 for runs in groups.values()):
        words = {"mean": "mean", "iqm": "interquartile mean"}[aggregate]
        axes.set_title(f"{words} over seeds, 95% bootstrap interval", fontsize=10, loc="left")
    axes.grid(True, color=GRID, linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    return figure


def _plain(text: str) -> str:
    """Escapes text so that matplotlib does not read it as a formula."""
    return text.replace("$", r"\$")


def marl_eval_data(groups: Groups, metric: str) -> dict[str, Any]:
    """Converts a metric of all runs to the raw data of marl-eval (Gorsane et al. 2022): environment, task, algorithm,
    run, step, metric.

    The task is the objective and the held-out graphs; the algorithm a group's name. A step has "step_count" (updates),
    "elapsed_time" (seconds of training) and a list with one value. "absolute_metrics" has the value at the validation
    with the best score, which the best checkpoint has, or the last value where there is no score.
    """
    tasks: dict[str, Any] = {}
    for name, runs in groups.items():
        for run in runs:
            algorithms = tasks.setdefault(_task(run), {})
            algorithms.setdefault(name, {})[f"seed_{run.config['seed']}"] = _marl_eval_run(run, metric)
    return {"graphrl": tasks}


def _task(run: LoggedRun) -> str:
    """Names the problem that a run is evaluated on."""
    problem = run.config["agent"].get("problem", {})
    return " ".join([*filter(None, [problem.get("objective")]), ",".join(run.config["data"]["validation"])])


def _marl_eval_run(run: LoggedRun, metric: str) -> dict[str, Any]:
    rows = [(position, values) for position, values in run.points() if metric in values]
    steps: dict[str, Any] = {}
    for number, (position, values) in enumerate(rows):
        where = {"step_count": position["step"], "elapsed_time": position.get(SECONDS, 0.0)}
        steps[f"step_{number}"] = {**where, metric: [values[metric]]}
    if rows:
        _, best = max(reversed(rows), key=lambda row: row[1].get(f"{VALIDATION}{run.score}", 0.0))
        steps["absolute_metrics"] = {metric: [best[metric]]}
    return steps


def write_marl_eval(groups: Groups, metric: str, path: str | os.PathLike[str]) -> None:
    """Writes `marl_eval_data` as JSON, atomically.

    Raises:
      GraphrlError: the file cannot be written.
    """
    data = marl_eval_data(groups, metric)
    write_atomically(path, lambda file: json.dump(data, file, indent=1, allow_nan=False))
