"""What deciding fusion, placement and order together gains: the forms of GO's table 3 and figure 6, by searches.

Run times are those of V100s with NVLink between them (`link`); all searches of a table have the same time. Neither asks
for the groups of ops that stand on one device. Figure 6 leaves out what takes too long: GNMT, AmoebaNet, and the larger
of two of a kind.
"""

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import numpy as np

from graphrl.compare.report import markdown, percent
from graphrl.solvers.fusion.flips import prepare as prepare_flips
from graphrl.solvers.fusion.rules import fuse_by
from reproduce.go import fusing_alone, fusing_together
from reproduce.go.joint_searches import ALL, SEARCHES, UNFUSED, machine_of, planned, problem_of, searched
from reproduce.go.settings import Settings
from reproduce.go.unseen import interval
from reproduce.measurements import Figures, Key
from reproduce.results import Table

RULES = ("none", "single", "xla", "all", "flips", "anneal")
SMALL = (
    "transformer-xl-2", "transformer-xl-4", "transformer-xl-8", "wavenet-2x18", "rnnlm-2", "rnnlm-4", "inception-b32",
)  # fmt: skip
LIMIT = 1.1  # of the peak of a plan without fusion, which knows no limit: what devices hold in the table of memory


def table3(settings: Settings) -> Iterator[Table]:
    """Fusion alone: all kernels one after the other on one device."""
    lines, values = list[list[str]](), list[list[float | None]]()
    for name in settings.workloads:
        keys = [{"fusion": name, "rule": rule} for rule in RULES]
        row = [settings.measurements.get(key, functools.partial(_fused, name, key["rule"])) for key in keys]
        if figures := [one for one in row if one is not None and all(row)]:
            ours = fusing_alone.by_policy(settings, name, functools.partial(problem_of, name))
            values.append([one["value"] if one else None for one in (*figures, *ours)])
            spent = [f"{one['seconds']:.1f}" if one else "-" for one in (*figures[-2:], *ours[-2:])]
            lines.append([name, f"{figures[0]['ops']:,}", *map(_milliseconds, (*figures, *ours)), *spent])
    columns = (*RULES, *fusing_alone.COLUMNS)
    notes = [*_against("xla", columns, values, columns), *_against("flips", columns, values, fusing_alone.COLUMNS)]
    how = (
        "What all kernels take, one after the other on one V100, ms, and CPU seconds of some columns. A "
        "framework's default is `none` (each op a kernel), `single` (what one op reads is computed there) or `xla` "
        "(that, and what is 8 times as large as what it is made from); `flips` inlines one op or takes it out while "
        "that helps, and `anneal` is simulated annealing from there, 2 million flips."
    )
    timed = ("flips", "anneal", *fusing_alone.COLUMNS[-2:])
    headings = ("workload", "ops", *(f"`{column}`" for column in columns), *(f"`{column}`, s" for column in timed))
    table = markdown(headings, lines)
    notes += fusing_alone.notes(settings)
    yield settings.measurements.table("Fusion alone", f"{how} {fusing_alone.HOW}", table, notes=notes)


def figure6(settings: Settings) -> Iterator[Table]:
    """Decisions apart and together, without a memory limit and with one."""
    names, seconds = SMALL if not settings.quick else SMALL[:1], settings.times[-1]
    yield _together(settings, names, seconds)
    yield _limited(settings, names, seconds)


def _against(
    other: str, columns: Sequence[str], rows: Sequence[Sequence[float | None]], compared: Sequence[str]
) -> Iterator[str]:
    """The geometric means of some columns' parts of another, where both were run; rows have all columns."""
    for column in compared:
        pairs = [(row[columns.index(column)], row[columns.index(other)]) for row in rows]
        parts = [ours / theirs for ours, theirs in pairs if ours is not None and theirs is not None]
        if parts and column != other:
            yield f"`{column}` against `{other}`: {percent(_mean(parts) - 1)} on {len(parts)} workloads"


def policies(settings: Settings) -> Iterator[Table]:
    """Figure 6's decisions by GO's policies, on one workload."""
    names = SMALL[:1]  # a column of the others takes many minutes
    runs = [
        fusing_together.measured(settings, name, functools.partial(problem_of, name), machine_of(name))
        for name in names
    ]
    columns = [*fusing_together.RUNS]
    lines = [[name, *map(_milliseconds, row)] for name, row in zip(names, runs, strict=True)]
    notes = [
        f"{column} against {columns[0]}: {percent(one['value'] / row[0]['value'] - 1)} on {name}"
        for name, row in zip(names, runs, strict=True)
        for column, one in zip(columns[1:], row[1:], strict=True)
        if one and row[0]
    ]
    title, table = "Placement, order and fusion by policies", markdown(("workload", *columns), lines)
    yield settings.measurements.table(title, fusing_together.HOW, table, notes=notes)


def _together(settings: Settings, names: Sequence[str], seconds: float) -> Table:
    columns = [*SEARCHES, *(settings.methods or ())]
    rows = [[_searches(settings, name, column, seconds) for column in columns] for name in names]
    lines = [
        [name, *map(_mean_milliseconds, row), *_kernels(row[columns.index(ALL)])]
        for name, row in zip(names, rows, strict=True)
    ]
    notes = [
        note
        for place, column in enumerate(columns)
        if column != ALL
        for note in _compared(ALL, column, [(row[columns.index(ALL)], row[place]) for row in rows])
    ]
    how = (
        f"Run time in ms on table 2's number of V100s, `link`, NVLink, no memory limit; {seconds:g} CPU seconds of "
        f"simulated annealing for each of {settings.seeds} seeds, means. Where fusion is not decided it is that of the "
        "rule `xla`, where the order is not, it is the program's; all begin at a list schedule, or at one device if "
        "that is better. Fusion that is decided is that of `flips`, and one after the other is "
        "fusion, then placement, then order. Methods of other names decide placement and order of the kernels "
        "of `flips`. The bound is of these kernels; the last columns say how many ops they inline, and how many "
        "of these the plan of all three computes on several devices."
    )
    table = markdown(("workload", *columns, "bound", "inlined", "on several devices"), lines)
    return settings.measurements.table("Placement, order and fusion", how, table, notes=notes)


def _limited(settings: Settings, names: Sequence[str], seconds: float) -> Table:
    rules = ("none", "flips", "joint")
    lines, rows = list[list[str]](), list[list[list[Figures]]]()
    for name in names:
        if free := _searches(settings, name, UNFUSED, seconds):
            limit = int(LIMIT * free[0]["peak"])
            rows.append([_plans(settings, name, rule, limit, seconds) for rule in rules])
            lines.append([name, f"{limit / 2**30:.2f}", *map(_mean_milliseconds, rows[-1])])
    how = (
        f"The same where devices hold {LIMIT:g} times what the fullest needs in the first plan of the first column "
        f"above. `graphrl optimize --fuse RULE --seconds {seconds:g}`, ms, means over the seeds. A `*` marks where a "
        "plan does not fit."
    )
    notes = [note for i in (0, 1) for note in _compared("`joint`", f"`{rules[i]}`", [(row[2], row[i]) for row in rows])]
    table = markdown(("workload", "GiB a device", *(f"`{rule}`" for rule in rules)), lines)
    return settings.measurements.table("Where memory is limited", how, table, notes=notes)


def _compared(ours: str, other: str, pairs: Sequence[tuple[Sequence[Figures], Sequence[Figures]]]) -> Iterator[str]:
    """The geometric mean of ratios, where all plans fit, and where 95% of the means lie if workloads are resampled."""
    both = [pair for pair in pairs if all(pair) and not any(one.get("excess") for one in chain(*pair))]
    if both:
        ratios = np.array([_mean_log(mine) - _mean_log(theirs) for mine, theirs in both])
        logs = (float(ratios.mean()), *interval(ratios, np.arange(len(ratios))))
        mean, low, high = (percent(math.expm1(log)) for log in logs)
        yield f"{ours} against {other}: {mean} [{low}, {high}] on {len(both)} workloads"


def _mean_log(runs: Sequence[Figures]) -> float:
    return float(np.mean([math.log(one["value"]) for one in runs]))


def _searches(settings: Settings, workload: str, search: str, seconds: float) -> list[Figures]:
    """Of each seed; none if one failed."""
    key = {"workload": workload, "search": search, "seconds": seconds}
    return _of_seeds(settings, key, functools.partial(searched, workload, search, seconds))


def _plans(settings: Settings, workload: str, rule: str, limit: int, seconds: float) -> list[Figures]:
    """Of each seed; none if one failed."""
    key = {"workload": workload, "fuse": rule, "limit": limit, "seconds": seconds}
    return _of_seeds(settings, key, functools.partial(planned, workload, rule, limit, seconds))


def _of_seeds(settings: Settings, key: Key, run: Callable[[int], Figures]) -> list[Figures]:
    runs = settings.measurements.get_all(
        [({**key, "seed": seed}, functools.partial(run, seed)) for seed in range(settings.seeds)]
    )
    return [one for one in runs if one] if all(runs) else []


def _fused(name: str, rule: str) -> Figures:
    prepare_flips()
    problem, began = problem_of(name), time.thread_time()
    return {"ops": problem.num_ops, "value": fuse_by(rule, problem).seconds, "seconds": time.thread_time() - began}


def _milliseconds(figures: Figures | None) -> str:
    return "-" if figures is None else f"{1e3 * figures['value']:.2f}" + "*" * (figures.get("excess", 0) > 0)


def _mean_milliseconds(runs: Sequence[Figures]) -> str:
    if not runs:
        return "-"
    return f"{1e3 * np.mean([one['value'] for one in runs]):.2f}" + "*" * any(one.get("excess", 0) > 0 for one in runs)


def _kernels(runs: Sequence[Figures]) -> list[str]:
    """Bound, inlined ops, and those that are computed on several devices."""
    if not runs:
        return ["-"] * 3
    apart = np.mean([one["apart"] for one in runs])
    return [f"{1e3 * runs[0]['bound']:.2f}", f"{runs[0]['inlined']:,}", f"{apart:,.0f}"]


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))
