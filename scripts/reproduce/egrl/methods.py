"""EGRL against other methods on memory maps (figure 4's form), and differences between the maps (figures 6 and 7).

All methods have the paper's evaluations. Further rows show the effect of more time, and of EGRL's settings. Maps are
compared with the compiler's: moves of tensors between memories, and neighbours that share a memory.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from graphrl.colours import COLOURS, GREY, GRID, LIMIT, TEXT
from graphrl.compare.report import markdown, percent
from graphrl.compare.table import estimate
from graphrl.costs.maps.problem import MapProblem
from graphrl.plan.plot import DPI, Picture, write_figure
from reproduce.egrl.settings import CHIP, Entrant, Runs, Settings, at_evaluations, in_time, problem_of, runs_of
from reproduce.measurements import Figures
from reproduce.results import Table

HEADINGS = ("method", "budget", "runs", "latency, us", "speed-up", "to best known", "to bound", "gap closed", "seconds")
HOW = (
    "Means, and for the speed-up over the compiler's own map and the gap to the best known ± is half of a 95% interval "
    "of the mean (Student's t). Gap closed is the share of the way from the compiler's latency to the bound. Seconds "
    "are medians, since JAX compiles in the first run. A run has one core."
)
POINTS = 200
PARTS = 16, 8, 4, 2, 1  # of the evaluations
RULES = ("all-slowest", "compiler", "benefit", "greedy-dp")
SEARCHES = ("random", "local-search", "anneal", "brkga")
EGRL = ("egrl", "egrl:variant=ea", "egrl:variant=pg")
TIMED = ("anneal", "cp-sat")
UNET = "egrl:encoder=unet,width=32"
PORTFOLIO = "egrl:endless=true,discounts=0.9+0.99+0.997+0.9995"  # CERL's; a bandit's values have no discount
ABLATIONS = (
    "egrl:migrate_every=0", "egrl:boltzmann=0.2", "egrl:boltzmann=1", "egrl:endless=true", PORTFOLIO,
    "egrl:reward=valid", UNET,
)  # fmt: skip
PROGRESS = "Progress (`anneal` and `local-search` report it every 1,000 evaluations):"
EVOLUTION = (
    "egrl:variant=ea", "egrl:variant=ea,boltzmann=0.2", "egrl:variant=ea,boltzmann=0.5", "egrl:variant=ea,boltzmann=1",
    "egrl:variant=ea,boltzmann=0.2,temperature=0.3", "egrl:variant=ea,boltzmann=0.2,temperature=0.03",
    "egrl:variant=ea,boltzmann=1,temperature=0.03", "egrl:variant=ea,strength=0.02", "egrl:variant=ea,strength=0.1",
    "egrl:variant=ea,operators=code", "egrl:variant=ea,reward=valid", f"{UNET},variant=ea",
)  # fmt: skip
COUNTED = ("compiler", "egrl", "egrl:variant=ea", "anneal")
MAPS_TIMED = ("cp-sat",)
KINDS = ("weights", "outputs")
NEAR_HEADINGS = (
    "method", "latency, us", "other than compiler's", "than another run's", *(f"{kind} together" for kind in KINDS)
)  # fmt: skip
NEIGHBOURS = (
    "Shares of tensors (weights or outputs of an op) in another memory than in the compiler's map, and than in the map "
    "of another run of the method; and of pairs of tensors of a kind that are next to each other in the order of ops, "
    "the share in one memory. Means over runs."
)
MOVES = (
    "Tensors of each of the compiler's memories by their memory in a method's fastest map: their number, and their "
    "share of the bytes."
)


def methods(settings: Settings) -> Iterator[Table]:
    """Yields figure 4's results: a table and a picture for each workload."""
    for workload in settings.workloads:
        timed, counted = in_time(settings, TIMED), at_evaluations(settings, (*RULES, *SEARCHES, *EGRL))
        runs = runs_of(settings, workload, [*timed, *counted])
        write_figure(_curves_figure(runs, settings), settings.out / f"curves-{workload}.png")
        by_evaluations = markdown(*_curves_lines(runs, settings))
        yield _table(settings, runs, PROGRESS, by_evaluations)


def ablations(settings: Settings) -> Iterator[Table]:
    """Yields a table of EGRL's ablations for each workload."""
    yield from _egrl_tables(settings, ("egrl", "egrl:variant=ea", *ABLATIONS))


def evolution(settings: Settings) -> Iterator[Table]:
    """Yields a table for each workload of evolution alone with other chromosomes and mutations."""
    yield from _egrl_tables(settings, EVOLUTION)


def maps(settings: Settings) -> Iterator[Table]:
    """Yields two tables for each workload: neighbours in one memory, and moves against the compiler's map."""
    for workload in settings.workloads:
        entrants = [*at_evaluations(settings, COUNTED), *in_time(settings, MAPS_TIMED)[-1:]]
        runs, problem = runs_of(settings, workload, entrants), problem_of(workload)
        by_method = _maps(runs)
        if by_method[0].method != "compiler":
            continue
        both = zip(by_method, _latencies(runs), strict=True)
        lines = [_map_line(problem, by_method[0], one, latency) for one, latency in both]
        near = markdown(NEAR_HEADINGS, lines)
        names = problem.chip.names
        moved = markdown(
            ("method", "tensors", "compiler's memory", *(f"in {name}" for name in names)),
            [line for one in by_method[1:] for line in _moves(problem, by_method[0], one)],
        )
        method, _, other, *_ = lines[-1]
        summary = f"On {workload} the map of {method} has {other} of the tensors in another memory than the compiler's."
        yield settings.measurements.table(f"{workload} on {CHIP}", NEIGHBOURS, near, MOVES, moved, summary=summary)


def _curves_figure(runs: Runs, settings: Settings) -> Figure:
    """Draws latency against evaluations for each method with a curve, the compiler's latency, and the bound."""
    figure = Picture(figsize=(9.0, 5.2), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    at = np.unique(np.linspace(1, settings.evaluations, POINTS).astype(int))
    for colour, (entrant, some) in zip(itertools.cycle(COLOURS), _counted(runs).items(), strict=False):
        columns = 1e6 * np.array([sampled(run, at) for run in some]).T
        each = [estimate(column.tolist()) for column in columns]
        mean, half = np.array([(one.mean, one.half or 0.0) for one in each]).T
        axes.plot(at, mean, color=colour, linewidth=1.5, label=f"{entrant.method} ({len(some)})")
        axes.fill_between(at, mean - half, mean + half, color=colour, alpha=0.18, linewidth=0)
    compiler = 1e6 * next(iter(runs.by_entrant.values()))[0]["compiler_latency"]
    axes.axhline(compiler, color=GREY, linestyle="--", linewidth=1.1, label="compiler")
    low = 1e6 * (runs.bound or runs.best)
    axes.axhline(low, color=LIMIT, linestyle="--", linewidth=1.1, label="bound" if runs.bound else "best known")
    axes.set_ylim(low - 0.05 * (compiler - low), compiler + 0.25 * (compiler - low))
    axes.set_xlim(0, settings.evaluations)
    axes.set_xlabel("evaluations", color=TEXT)
    axes.set_ylabel("latency, us", color=TEXT)
    axes.set_title(f"{runs.workload} on {CHIP}: means and 95% intervals (runs)", loc="left", color=TEXT)
    axes.grid(color=GRID, linewidth=0.7)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure


def _curves_lines(runs: Runs, settings: Settings) -> tuple[list[str], list[list[str]]]:
    """Returns the headings and rows: mean latencies after parts of the evaluations, of the methods with a curve."""
    at = np.array([max(1, settings.evaluations // part) for part in PARTS])
    lines = []
    for entrant, some in _counted(runs).items():
        latencies = 1e6 * np.mean([sampled(run, at) for run in some], axis=0)
        lines.append([entrant.method, *(f"{latency:.1f}" for latency in latencies)])
    return ["latency, us, after evaluations", *(f"{count:,}" for count in at)], lines


def _table(settings: Settings, runs: Runs, *more: str) -> Table:
    """Returns a table with a row for each entrant, and more Markdown below."""
    lines = [_line(entrant, some, runs) for entrant, some in runs.by_entrant.items()]
    bound = f"bound {1e6 * runs.bound:.1f} us." if runs.bound else "no bound."
    text = f"Best known {1e6 * runs.best:.1f} us, {bound} {HOW}"
    title = f"{runs.workload} on {CHIP}"
    fastest = min(lines, key=lambda line: float(line[3]), default=["no method"] * 5)
    egrl = [f"; {line[0]}'s {line[4]} times" for line in lines if line[0].startswith("egrl")][:1]
    summary = f"The fastest map, {fastest[0]}'s, is {fastest[4]} times as fast as the compiler's{''.join(egrl)}."
    table = settings.measurements.table(title, text, markdown(HEADINGS, lines), *more, summary=summary)
    most = max((entrant.runs for entrant in runs.by_entrant), default=1)
    return table._replace(origin=table.origin._replace(seeds=frozenset(range(most))))


def _egrl_tables(settings: Settings, names: tuple[str, ...]) -> Iterator[Table]:
    """Yields tables of EGRL's variants, with CP-SAT's runs for the bound."""
    for workload in settings.workloads:
        entrants = [*in_time(settings, ("cp-sat",))[-1:], *at_evaluations(settings, names)]
        yield _table(settings, runs_of(settings, workload, entrants))


class Maps(NamedTuple):
    """The r maps of one method on a problem of n steps, the fastest first."""

    method: str
    memories: np.ndarray  # [r, 2, n] int64, of weights and of outputs


def _maps(runs: Runs) -> list[Maps]:
    """Maps of each method."""
    every = []
    for entrant, some in runs.by_entrant.items():
        ranked = sorted(some, key=lambda run: run["latency"])
        every.append(Maps(entrant.method, np.array([[run["weights"], run["outputs"]] for run in ranked])))
    return every


def _map_line(problem: MapProblem, compiler: Maps, one: Maps, latency: float) -> list[str]:
    mask = np.stack([problem.has_weights, problem.has_outputs])
    from_compiler = [(each != compiler.memories[0])[mask].mean() for each in one.memories]
    pairs = [(a != b)[mask].mean() for i, a in enumerate(one.memories) for b in one.memories[:i]]
    shares = [np.mean([together(problem, each, kind) for each in one.memories]) for kind in range(2)]
    between = f"{100 * np.mean(pairs):.0f}%" if pairs else "-"
    return [
        one.method,
        f"{1e6 * latency:.1f}",
        f"{100 * np.mean(from_compiler):.0f}%",
        between,
        *(f"{100 * share:.0f}%" for share in shares),
    ]


def _latencies(runs: Runs) -> list[float]:
    return [float(np.mean([run["latency"] for run in some])) for some in runs.by_entrant.values()]


def _moves(problem: MapProblem, compiler: Maps, one: Maps) -> Iterator[list[str]]:
    """Yields a row for each kind and memory from which something could move."""
    for kind, name in enumerate(KINDS):
        count, size = transitions(problem, compiler.memories[0], one.memories[0], kind)
        for memory in np.flatnonzero(count.sum(1)):
            total = max(1, int(size[memory].sum()))
            cells = (f"{n} ({100 * part / total:.0f}%)" for n, part in zip(count[memory], size[memory], strict=True))
            yield [one.method, name, problem.chip.names[memory], *cells]


def _counted(runs: Runs) -> dict[Entrant, list[Figures]]:
    """Returns entrants with a curve over evaluations."""
    return {
        entrant: some for entrant, some in runs.by_entrant.items() if entrant.evaluations and len(some[0]["curve"]) > 1
    }


def sampled(run: Figures, at: np.ndarray) -> np.ndarray:
    """Returns the best latency after `at` evaluations `[...]`, not counting the one of the compiler's map.

    Before the first entry of the curve it is that entry's latency.
    """
    evaluations, latency = np.array(run["curve"]).T
    place: np.ndarray = np.searchsorted(evaluations, at + 1, side="right") - 1
    return latency[np.maximum(place, 0)]


def _line(entrant: Entrant, some: Sequence[Figures], runs: Runs) -> list[str]:
    latency, seconds = (np.array([run[key] for run in some]) for key in ("latency", "seconds"))
    compiler, mean = some[0]["compiler_latency"], float(latency.mean())
    speedup, room = estimate((compiler / latency).tolist()), compiler - runs.bound if runs.bound else 0.0
    return [
        entrant.method,
        entrant.budget,
        f"{len(some)}",
        f"{1e6 * mean:.1f}",
        f"{speedup.mean:.3f}" + ("" if speedup.half is None else f" ± {speedup.half:.3f}"),
        estimate((latency / runs.best - 1).tolist()).percent(),
        percent(mean / runs.bound - 1 if runs.bound else None),
        f"{100 * (compiler - mean) / room:.0f}%" if room > 0 else "-",
        f"{np.median(seconds):.3g}",
    ]


def together(problem: MapProblem, memories: np.ndarray, kind: int) -> float:
    """Returns the share of neighbours of one kind that are in one memory; `memories` is `[2, n]`."""
    row = memories[kind][(problem.has_weights, problem.has_outputs)[kind]]
    return float((row[1:] == row[:-1]).mean())


def transitions(problem: MapProblem, before: np.ndarray, after: np.ndarray, kind: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns tensors and bytes of one kind that move from memory to memory: `[M, M]` int64 each.

    Args:
      before, after: `[2, n]` memories of weights and of outputs, by step.
      kind: 0 for weights, 1 for outputs.
    """
    mask = (problem.has_weights, problem.has_outputs)[kind]
    size = (problem.weight_bytes, problem.output_bytes)[kind]
    count, moved = (np.zeros((problem.memories, problem.memories), np.int64) for _ in range(2))
    pairs = before[kind][mask], after[kind][mask]
    np.add.at(count, pairs, 1)
    np.add.at(moved, pairs, size[mask])
    return count, moved
