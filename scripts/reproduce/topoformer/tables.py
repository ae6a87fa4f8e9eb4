"""Tables 1 and 2: every method on unseen layered graphs by size, and on real programs by size."""

import sys
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from graphrl.compare.pictures import quality_figure
from graphrl.compare.table import Estimate, estimate, improvements
from graphrl.graphs.datasets import zoo
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan.plot import write_figure
from reproduce.contest import Contest
from reproduce.results import Table, bullets, markdown, of_rows
from reproduce.topoformer.settings import DECODED, DP, FAST, PROBLEM, RANDOM, Settings

HEADINGS = ("method", "gap from approx. DP", "paper", "against random 100", "seconds", "graphs", "failed")
# table 1: gap from approximate DP with K = 100,000, percent, by ops
PAPER: dict[str, dict[int, float]] = {
    DP: {500: 0.0, 1000: 0.0, 2000: 0.0},
    "dfs-dp": {500: 5.76, 1000: 3.84, 2000: 2.40},
    RANDOM: {500: 6.86, 1000: 2.62, 2000: 0.31},
    "depth first": {500: 12.9, 1000: 7.1, 2000: 3.57},
    "breadth first": {500: 20.94, 1000: 11.31, 2000: 6.42},
    "greedy": {500: 4.32, 1000: 0.48, 2000: -1.47},
    "sample": {500: 3.49, 1000: 0.03, 2000: -1.68},
    "beam": {500: 3.21, 1000: 0.08, 2000: -1.66},
}
STRATA = ((200, 500), (500, 700), (700, 1000), (1000, 2000), (2000, 4000))  # ops; the paper has the first three
TRAIN_OPS = 1_000  # most of a program that a policy is trained on


class Score(NamedTuple):
    """Scores of a method over graphs, with 95% intervals; fractions but `seconds`.

    Attributes:
      gap: gap from approximate DP, on graphs that have it.
      random: gap from the best of 100 random orders.
      seconds: wall-clock time, without compilation.
      graphs, compared: number of graphs of the method; number of these with approximate DP.
      failed: number of runs without a plan.
    """

    gap: Estimate
    random: Estimate
    seconds: Estimate
    graphs: int
    compared: int
    failed: int


def table1(settings: Settings) -> Iterator[Table]:
    """Yields a table and a picture for each size."""
    for ops in settings.sizes:
        title = f"Layered graphs of {ops:,} ops"
        print(title, file=sys.stderr, flush=True)
        entrants = [*settings.classical(), *settings.learned()]
        contest = settings.on_layered(ops, entrants)
        by_label = scores(contest)
        paper = {label: f"{gaps[ops]:.2f}%" for label, gaps in PAPER.items() if ops in gaps}
        write_figure(quality_figure(contest.rows, contest.others), settings.out / f"table1-{ops}.png")
        how = f"{settings.graphs} unseen graphs; {_reference(settings)}"
        yield _table(title, how, contest, by_label, paper)


def real(settings: Settings) -> Iterator[Table]:
    """Yields a table for each stratum of sizes with programs in the test split."""
    entrants = [*settings.classical(), *settings.learned()]
    if settings.train_real:
        trained = settings.trained("real", real_data(settings.quick))
        entrants += settings.decoded(trained, " (trained on programs)")
    for (least, most), graphs in programs(settings).items():
        title = f"Programs of {least:,} to {most:,} ops"
        print(title, file=sys.stderr, flush=True)
        contest = settings.contest(graphs, PROBLEM, entrants)
        by_label = scores(contest)
        many = f"{len(graphs)} compiled training program{'s' * (len(graphs) > 1)} (HLO)"
        how = f"{many} of families that no policy has seen; {_reference(settings)}"
        yield _table(title, how, contest, by_label, {})


def programs(settings: Settings) -> dict[tuple[int, int], list[ComputationGraph]]:
    """Returns programs of the test split by stratum, without empty strata."""
    entries = sorted((entry.ops, entry.name) for entry in zoo.select("hlo/training/test-split"))
    if settings.quick:
        entries = entries[:1]
    by_stratum = {}
    for least, most in STRATA:
        names = [name for ops, name in entries if least <= ops < min(most, settings.most_ops + 1)]
        if names:
            by_stratum[least, most] = [zoo.load(name).graph for name in names]
    return by_stratum


def real_data(quick: bool) -> list[str]:
    """Returns settings of `graphrl train` that name the training programs: other families than the tested ones."""
    sets = {}
    for name, words in (("train", "train-split"), ("validation", "valid-split")):
        entries = sorted((entry.ops, entry.name) for entry in zoo.select(f"hlo/training/{words}"))
        names = [name for ops, name in entries if ops <= TRAIN_OPS]
        sets[name] = ",".join(zoo.PREFIX + program for program in names[: 2 if quick else None])
    batching = ("data.graphs=2", "data.buckets=2")  # equal to the number of programs for validation, two
    return [*(f"data.{name}={text}" for name, text in sets.items()), "data.fresh=false", "data.augment=true", *batching]


def _table(title: str, how: str, contest: Contest, by_label: dict[str, Score], paper: dict[str, str]) -> Table:
    lines = [_cells(label, one, paper.get(label, "")) for label, one in by_label.items()]
    notes = bullets([*_verdicts(contest, by_label), *contest.faults()])
    how = f"{how} Means over graphs with 95% intervals; seconds without compiling."
    decoded = [f"`{label}` {by_label[label].random.percent(True)}" for label in DECODED if label in by_label]
    summary = f"{title}, against the best of 100 random orders: {', '.join(decoded)}." if decoded else ""
    return Table(title, of_rows(contest.rows), (how, markdown(HEADINGS, lines), notes), summary)


def _reference(settings: Settings) -> str:
    return f"approximate DP keeps K = {settings.width:,} sets, and slow methods get at most {settings.few} graphs."


def _cells(label: str, one: Score, paper: str) -> list[str]:
    graphs = f"{one.graphs}" if one.compared == one.graphs else f"{one.graphs} ({one.compared} with DP)"
    failed = f"{one.failed}" if one.failed else ""
    return [label, one.gap.percent(True), paper, one.random.percent(True), seconds_text(one.seconds), graphs, failed]


def _verdicts(contest: Contest, by_label: dict[str, Score]) -> Iterator[str]:
    """Compares graph by graph: greedy and the best fast method, sample, beam and greedy, topoformer+ and anneal."""
    fast = [label for label in FAST if label in by_label]
    if "greedy" in by_label and fast:
        best = min(fast, key=lambda label: by_label[label].random.mean)
        yield from verdict(contest, "greedy", best)
    for label in list(DECODED)[1:]:
        yield from verdict(contest, label, "greedy")
    for label in by_label:
        if label.startswith("topoformer+ "):
            yield from verdict(contest, label, label.replace("topoformer+", "anneal"))


def scores(contest: Contest) -> dict[str, Score]:
    """Computes the scores of every label."""
    return {label: _score(contest, label) for label in contest.by_label}


def gaps(contest: Contest, label: str, reference: str) -> list[float]:
    """Computes a method's relative gap to another on each graph, from means over seeds; skips graphs without both."""
    rows = [*contest.by_label.get(label, ()), *(contest.by_label.get(reference, ()) if label != reference else ())]
    return [-gain for gain in improvements(rows, label, reference)]


def spread(contest: Contest, label: str) -> str:
    """Formats the least and largest mean gap from approximate DP over seeds; "" for one seed."""
    rows, reference = contest.by_label[label], contest.by_label[DP]
    seeds = sorted({row.seed for row in rows})
    means = [
        float(np.mean(some))
        for seed in seeds
        if (some := gaps(Contest({label: [row for row in rows if row.seed == seed], DP: reference}, []), label, DP))
    ]
    return f"{100 * min(means):+.2f}% to {100 * max(means):+.2f}%" if len(means) > 1 else ""


def verdict(contest: Contest, label: str, reference: str) -> Iterator[str]:
    """Yields the line that compares a method with another, graph by graph."""
    if values := gaps(contest, label, reference):
        yield (
            f"{label} against {reference}: {estimate(values).percent(True)} on the mean of {len(values)} graphs, "
            f"lower on {100 * np.mean([value < 0 for value in values]):.0f}% of them"
        )


def seconds_text(one: Estimate) -> str:
    """Formats seconds for a table."""
    if np.isnan(one.mean):
        return "-"
    return f"{one.mean:.3g}" + ("" if one.half is None else f" ± {one.half:.1g}")


def _score(contest: Contest, label: str) -> Score:
    rows = contest.by_label[label]
    from_dp = gaps(contest, label, DP)
    return Score(
        gap=Estimate(0.0, None) if label == DP else estimate(from_dp),
        random=Estimate(0.0, None) if label == RANDOM else estimate(gaps(contest, label, RANDOM)),
        seconds=estimate([row.seconds - row.compile_seconds for row in rows if row.feasible]),
        graphs=len({row.fingerprint for row in rows}),
        compared=len(from_dp),
        failed=sum(not row.feasible for row in rows),
    )
