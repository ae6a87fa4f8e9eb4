"""Statistics of the tables: each method's figures by graph and over all graphs, with 95% intervals.

Everything is relative to the best known: the lowest feasible value of a case (a graph under a problem) over all
methods, seeds and budgets of the given rows, and the highest lower bound. Under a memory limit a plan above it counts
as a failure. A method's result on a graph is the mean over its seeds, and its result in the table the mean over graphs,
so all graphs have the same weight; the worst gap is over all runs. Intervals are over seeds or over graphs. A graph is
won or tied by the methods with the lowest mean value over seeds; a method that failed on it with any seed cannot win
it.
"""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from graphrl.compare.runs import Case, Row, below
from graphrl.costs.problem import Problem

TIE = 1e-9  # relative: makespans this close are equal; bytes are compared exactly


class Best(NamedTuple):
    """Best known value and lower bound of a case (a graph under a problem)."""

    value: float  # bytes or seconds; infinite if there is no feasible plan
    bound: float  # bytes or seconds


@dataclasses.dataclass(frozen=True)
class Summary:
    """A method's line in the table. Gaps are fractions (0.05 is 5%), None where no run counts.

    Attributes:
      method: method name with options.
      graphs, runs, failed: number of graphs, runs and failed runs (without a plan, or with one above the memory limit).
      mean_gap, worst_gap: mean and largest gap to the best known value.
      bound_gap: mean gap to the best known bound.
      optimal: share of runs whose value is the best known bound.
      won: share of graphs on which the method is better than every other method of the table.
      won_or_tied: share of graphs on which no other method of the table is better.
      value: geometric mean of the objective over graphs, bytes or seconds; None if a run failed or a value is 0.
      seconds: mean run time over graphs, without failed runs.
      compile_share: share of `seconds` that was spent on compiling.
    """

    method: str
    graphs: int
    runs: int
    failed: int
    mean_gap: float | None
    worst_gap: float | None
    bound_gap: float | None
    optimal: float
    won: float
    won_or_tied: float
    value: float | None
    seconds: float | None
    compile_share: float


def best_known(rows: Iterable[Row]) -> dict[Case, Best]:
    """Finds the best value and bound of every case of the rows."""
    best: dict[Case, Best] = {}
    for row in rows:
        value, bound = best.get(row.case, Best(math.inf, 0.0))
        if row.feasible and row.value is not None:
            value = min(value, row.value)
        best[row.case] = Best(value, max(bound, row.bound or 0.0))
    return best


def contradictions(rows: Iterable[Row]) -> list[Case]:
    """Finds cases with a value below a bound, which means an error in a method or in a bound."""
    return [case for case, best in best_known(rows).items() if below(best.value, best.bound, case[1])]


def gap(value: float, reference: float) -> float:
    """Computes the relative gap of a value above a reference; infinite above a reference of 0."""
    return value / reference - 1 if reference > 0 else 0.0 if value <= 0 else math.inf


def summarise(rows: Sequence[Row], others: Iterable[Row] = ()) -> list[Summary]:
    """Summarises each method of the rows, in their order.

    Args:
      rows: rows of one comparison: every method at one budget, ideally on the same graphs and with the same seeds.
      others: further rows that the best known values and bounds may come from.
    """
    best = best_known([*rows, *others])
    cells = by_method_and_case(rows)
    means = {method: {case: mean_value(group) for case, group in cases.items()} for method, cases in cells.items()}
    return [_summary(method, cells[method], means, best) for method in cells]


def by_method_and_case(rows: Iterable[Row]) -> dict[str, dict[Case, list[Row]]]:
    """Groups rows by method and case: the rows of all seeds, in the given order."""
    cells: dict[str, dict[Case, list[Row]]] = {}
    for row in rows:
        cells.setdefault(row.method, {}).setdefault(row.case, []).append(row)
    return cells


def improvements(rows: Sequence[Row], method: str, baseline: str) -> list[float]:
    """Computes a method's relative improvement over the baseline on each graph; negative where it is worse.

    Values are means over seeds. Graphs on which either method has failed are left out.
    """
    cells = by_method_and_case(rows)
    of_method, of_baseline = cells.get(method, {}), cells.get(baseline, {})
    pairs = [(mean_value(group), mean_value(of_baseline.get(case, []))) for case, group in of_method.items()]
    return [-gap(value, base) for value, base in pairs if math.isfinite(value) and math.isfinite(base)]


def mean_value(rows: Sequence[Row]) -> float:
    """Averages the values of one method on one graph; infinite if there are no rows or any failed."""
    values = [row.value for row in rows if row.feasible and row.value is not None]
    return mean(values) if values and len(values) == len(rows) else math.inf


def _summary(
    method: str, cases: dict[Case, list[Row]], means: dict[str, dict[Case, float]], best: dict[Case, Best]
) -> Summary:
    good = {case: group for case, rows in cases.items() if (group := [row for row in rows if row.feasible])}
    rows = [row for group in good.values() for row in group]
    to_best = [[gap(row.value or 0, best[case].value) for row in group] for case, group in good.items()]
    to_bound = [mean([gap(row.value or 0, best[case].bound) for row in group]) for case, group in good.items()]
    others = [values for name, values in means.items() if name != method]
    ranks = [
        _rank(value, [values.get(case, math.inf) for values in others], case[1])
        for case, value in means[method].items()
    ]
    runs = sum(map(len, cases.values()))
    seconds = [mean([row.seconds for row in group]) for group in good.values()]
    total = sum(row.seconds for row in rows)
    return Summary(
        method=method,
        graphs=len(cases),
        runs=runs,
        failed=runs - len(rows),
        mean_gap=mean([mean(gaps) for gaps in to_best]) if rows else None,
        worst_gap=max(max(gaps) for gaps in to_best) if rows else None,
        bound_gap=mean(to_bound) if rows else None,
        optimal=sum(_is_equal(row.value or 0, best[row.case].bound, row.problem) for row in rows) / runs,
        won=ranks.count("won") / len(cases),
        won_or_tied=(len(ranks) - ranks.count("lost")) / len(cases),
        value=_geometric(list(means[method].values())),
        seconds=mean(seconds) if rows else None,
        compile_share=sum(row.compile_seconds for row in rows) / total if total > 0 else 0.0,
    )


def _rank(value: float, others: Sequence[float], problem: Problem) -> str:
    """Classifies a value as "won" (the lowest alone), "tied" (with another) or "lost"."""
    lowest = min(others, default=math.inf)
    if math.isinf(value) or (value > lowest and not _is_equal(value, lowest, problem)):
        return "lost"
    return "tied" if _is_equal(value, lowest, problem) else "won"


def _is_equal(a: float, b: float, problem: Problem) -> bool:
    return math.isclose(a, b, rel_tol=0.0 if problem.objective == "peak_memory" else TIE)


def mean(values: Sequence[float]) -> float:
    """Computes the mean, exactly the same for every order of the values."""
    return math.fsum(values) / len(values)


def _geometric(values: Sequence[float]) -> float | None:
    if not all(0 < value < math.inf for value in values):
        return None
    return math.exp(mean([math.log(value) for value in values]))


class Estimate(NamedTuple):
    """A mean, and half the width of its 95% interval, which is None for a single value."""

    mean: float
    half: float | None

    def percent(self, sign: bool = False) -> str:
        """Formats the estimate, a fraction, in percent for a table."""
        if math.isnan(self.mean):
            return "-"
        text = f"{100 * self.mean:{'+' if sign else ''}.2f}%"
        return text if self.half is None else f"{text} ± {100 * self.half:.2f}"


def estimate(values: Sequence[float]) -> Estimate:
    """Estimates the mean of one value per seed or graph, with Student's t interval; NaN without values."""
    from scipy.stats import t  # takes a second to import, so only where it is needed

    if not values:
        return Estimate(math.nan, None)
    center, degrees = mean(values), len(values) - 1
    if degrees == 0:
        return Estimate(center, None)
    return Estimate(center, float(t.ppf(0.975, degrees)) * statistics.stdev(values) / math.sqrt(len(values)))
