"""Temporary memory of training steps and inference programs, and the targets."""

import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from graphrl.compare.report import markdown
from reproduce.real_programs.names import INFERENCE, TRAINING, parts
from reproduce.real_programs.settings import MIB, Settings, mebibytes, ratio
from reproduce.real_programs.subject import Subject
from reproduce.real_programs.temporaries import (
    RECOMPUTE,
    bytes_of,
    of_bound,
    of_heuristics,
    of_plan,
    of_recomputation,
    of_xla,
)
from reproduce.results import Table, bullets

# program: MiB of temporaries, and whether as much is enough or it must be less
TARGETS = {
    "efficientnetb0/training/b8": (560, True),
    "mobilenetv2/training/b8": (220, True),
    "nasnetmobile/inference/b16": (50, True),
    "inceptionv3/training/b8": (505, False),
}
_MEAN_TARGET = 0.9  # of XLA's memory scheduler, over the training steps


def memory(settings: Settings) -> Iterator[Table]:
    """A table of training steps, one of inference programs, and the targets."""
    by_name: dict[str, _Row] = {}
    for training in (True, False):
        names = [
            name for name in settings.names_of((*TRAINING, *INFERENCE)) if (parts(name)[1] == "training") == training
        ]
        if names:
            rows = {name: _row(settings, Subject(name, settings.out)) for name in names}
            by_name |= rows
            table = _table(settings, training, list(rows.values()))
            yield table
    notes = [_target(name, by_name[name]) for name in TARGETS if name in by_name]
    if notes:
        yield table._replace(title="Targets", parts=[bullets(notes)])


class _Row(NamedTuple):
    """A program's line, and bytes of temporaries where they are known."""

    cells: list[str]
    default: int | None
    memory: int | None
    plan: int | None
    recomputed: int | None


def _table(settings: Settings, training: bool, rows: Sequence[_Row]) -> Table:
    times = [f"graphrl {seconds:g} s" for seconds in settings.times]
    plain = ["XLA default", "XLA memory", "best heuristic"]
    again = [f"+ {RECOMPUTE:.0%} recomputed", "/ memory"]
    headings = ["program", "ops", *plain, *times, "bound", "/ memory", "/ default", *again]
    title = "Training steps" if training else "Inference"
    figures = "Predicted, not compiled." if settings.cheap else "XLA's own figures."
    how = f"{figures} No order needs less than the bound: live bytes, less all that the buffers of results could hold."
    lines = markdown(headings, [row.cells for row in rows])
    return settings.measurements.table(f"{title}: MiB of temporaries", how, lines, _means(rows, training))


def _row(settings: Settings, subject: Subject) -> _Row:
    xla = [of_xla(settings, subject, scheduler) for scheduler in ("default", "memory")]
    heuristic = of_heuristics(settings, subject)
    plans = [of_plan(settings, subject, seconds) for seconds in settings.times]
    bound = of_bound(settings, subject, settings.times[-1]) if plans[-1] else None
    again = of_recomputation(settings, subject, settings.times[0])
    default, less, best = (bytes_of(figures) for figures in (*xla, plans[-1]))
    cells = [
        subject.name,
        f"{xla[0]['ops']:,}" if xla[0] else "-",
        mebibytes(default),
        mebibytes(less),
        mebibytes(bytes_of(heuristic)) + (f" ({heuristic['found_by']})" if heuristic else ""),
        *(mebibytes(bytes_of(plan)) for plan in plans),
        mebibytes(bound["bound"] if bound else None),
        *(_ratio(best, whole) for whole in (less, default)),
        mebibytes(bytes_of(again)),
        _ratio(bytes_of(again), less),
    ]
    return _Row(cells, default, less, best, bytes_of(again))


def _ratio(part: int | None, whole: int | None) -> str:
    return ratio(part / whole if part is not None and whole else None)


def _means(rows: Sequence[_Row], training: bool) -> str:
    to_memory = [row.plan / row.memory for row in rows if row.plan and row.memory]
    to_default = [row.plan / row.default for row in rows if row.plan and row.default]
    if not to_memory or not to_default:
        return ""
    mean, above = statistics.geometric_mean(to_memory), sum(quotient > 1 for quotient in to_memory)
    verdict = "met" if mean <= _MEAN_TARGET and not above else "**not met**"
    target = f" (target: at most {ratio(_MEAN_TARGET)}, never above: {verdict})" if training else ""
    again = [row.recomputed / row.memory for row in rows if row.recomputed and row.memory]
    recomputed = f"; with recomputation {ratio(statistics.geometric_mean(again))}" if again else ""
    return (
        f"Geometric means: {ratio(mean)} of XLA's memory scheduler, {ratio(statistics.geometric_mean(to_default))} of "
        f"its default; above the memory scheduler on {above} of {len(to_memory)}{target}{recomputed}."
    )


def _target(name: str, row: _Row) -> str:
    limit, equal = TARGETS[name]
    met = row.plan is not None and (row.plan <= limit * MIB if equal else row.plan < limit * MIB)
    words = "at most" if equal else "below"
    more = "" if row.recomputed is None else f" ({mebibytes(row.recomputed)} recomputed)"
    return f"{name}: {mebibytes(row.plan)} MiB{more}, target {words} {limit}: {'met' if met else '**not met**'}"
