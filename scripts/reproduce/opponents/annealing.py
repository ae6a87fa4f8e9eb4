"""Peak memory of layered graphs in equal time: annealing against a compiled yardstick, auto against approximate DP.

The yardstick is that of --yardstick (see `yardstick.py`). "yardstick x 2" is the better of two such runs with different
seeds: what two cores would give it.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from graphrl.compare.report import markdown, percent
from graphrl.compare.runs import Row
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets.families import sample
from graphrl.graphs.graph import ComputationGraph
from reproduce.opponents.settings import Settings
from reproduce.opponents.yardstick import least_peak
from reproduce.results import Table, of_rows

HEADINGS = ("ops", "a run", "graphs", "anneal / yardstick", "anneal / yardstick x 2", "not worse", "better")
DP_HEADINGS = ("ops", "graphs", "auto, mean gap to DP", "at or below DP", "auto", "DP (K = 10,000)")


def annealing(settings: Settings) -> Iterator[Table]:
    """Two tables: at every time against the yardstick (if there is one), and at 10 s against approximate DP."""
    sizes = (30, 40) if settings.quick else (500, 1000)
    sets = {ops: [sample("layered", ops, seed)[0] for seed in settings.graph_seeds] for ops in sizes}
    if settings.yardstick is not None:
        lines, rows = _against_yardstick(settings, sets, settings.yardstick)
        how = (
            "Mean ratios of peaks: below 100% graphrl is better. The yardstick has one core, and so has annealing with "
            "--processes 2 or more on two cores."
        )
        yield Table("Annealing against compiled code", of_rows(rows), (how, markdown(HEADINGS, lines)))
    lines, rows = _against_dp(settings, sets)
    yield Table("auto against approximate dynamic programming", of_rows(rows), [markdown(DP_HEADINGS, lines)])


def _against_yardstick(
    settings: Settings, sets: dict[int, list[ComputationGraph]], source: Path
) -> tuple[list[list[str]], list[Row]]:
    lines, everything = [], []
    for ops, graphs in sets.items():
        for seconds in settings.times:
            rows = settings.at_time(graphs, Problem(), ("anneal",), seconds).rows
            ours = np.array([row.value for row in rows if row.seed == 0], float)
            # two at once, as ctypes lets go of the interpreter: a core each
            with ThreadPoolExecutor(2) as both:
                runs = [list(both.map(partial(least_peak, source, graph, seconds), (1, 2))) for graph in graphs]
            theirs = np.array(runs, float)
            one, two = theirs[:, 0], theirs.min(1)
            lines.append(
                [
                    f"{ops:,}",
                    f"{seconds:g} s",
                    f"{len(graphs)}",
                    f"{100 * np.mean(ours / one):.2f}%",
                    f"{100 * np.mean(ours / two):.2f}%",
                    f"{np.sum(ours <= one)}",
                    f"{np.sum(ours < one)}",
                ]
            )
            everything += rows
    return lines, everything


def _against_dp(settings: Settings, sets: dict[int, list[ComputationGraph]]) -> tuple[list[list[str]], list[Row]]:
    seconds = 0.5 if settings.quick else 10.0
    lines, everything = [], []
    for ops, graphs in sets.items():
        auto = settings.at_time(graphs, Problem(), ("auto",), seconds).rows
        exact = settings.at_time(graphs, Problem(), ("approximate-dp:width=10000",), 600.0).rows
        ours, theirs = (np.array([row.value for row in rows], float) for rows in (auto, exact))
        took = [float(np.mean([row.seconds for row in rows])) for rows in (auto, exact)]
        share = f"{np.sum(ours <= theirs)} of {len(ours)}"
        mean = percent(float(np.mean(ours / theirs - 1)))
        lines.append([f"{ops:,}", f"{len(graphs)}", mean, share, *(f"{s:.1f} s" for s in took)])
        everything += [*auto, *exact]
    return lines, everything
