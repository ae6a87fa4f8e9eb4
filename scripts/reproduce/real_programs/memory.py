"""Sections `memory` and `prediction`: bytes of temporaries of a program under every schedule of the tables.

Figures are XLA's own. Compilations differ from users' only in the effort for fast code (`hook`'s `quick`; `identical`
compares them with full ones). `prediction` compares them with the predictions of `xla.assignment`.
"""

import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from graphrl.compare.report import percent
from graphrl.graphs.readers.hlo.reader import read_hlo
from graphrl.graphs.roofline import DEFAULT_CHIP
from graphrl.optimize import optimize
from graphrl.xla.callback import Scheduler, Unplanned
from graphrl.xla.planning.cache import Places, named_orders, places_of
from graphrl.xla.planning.planner import decide, memory_of
from graphrl.xla.planning.temp_search import temp_bound
from graphrl.xla.settings import Settings as PlanSettings
from reproduce.measurements import Figures, mebibytes, ratio
from reproduce.real_programs.programs import INFERENCE, TRAINING, Settings, Subject, parts
from reproduce.results import Table, markdown

RECOMPUTE = 0.05  # part of the estimated run time
HEURISTICS = (
    "list", "xla-list", "xla-dfs", "xla-postorder", "inductor-lpmf", "inductor-bfs", "inductor-dfs", "depth-first",
    "breadth-first", "alap",
)  # fmt: skip

_MEAN_TARGET = 0.9  # of XLA's memory scheduler, over the training steps
WITHIN = 0.02


class _Row(NamedTuple):
    """A program's row of the table, and its bytes of temporaries as far as they are known."""

    cells: list[str]
    default: int | None
    memory: int | None
    plan: int | None
    recomputed: int | None


def memory(settings: Settings) -> Iterator[Table]:
    """Yields the table of training steps, and one of inference programs."""
    for training in (True, False):
        names = [
            name for name in settings.names_of((*TRAINING, *INFERENCE)) if (parts(name)[1] == "training") == training
        ]
        if names:
            rows = [_row(settings, Subject(name, settings.out)) for name in names]
            yield _table(settings, training, rows)


def _table(settings: Settings, training: bool, rows: Sequence[_Row]) -> Table:
    times = [f"graphrl {seconds:g} s" for seconds in settings.times]
    plain = ["XLA default", "XLA memory", "best heuristic"]
    again = [f"+ {RECOMPUTE:.0%} recomputed", "/ memory"]
    headings = ["program", "ops", *plain, *times, "bound", "/ memory", "/ default", *again]
    title = "Training steps" if training else "Inference"
    how = (
        "XLA's own figures. No order needs less than the bound: live bytes, less all that the buffers of results could "
        "store."
    )
    lines = markdown(headings, [row.cells for row in rows])
    mean = _means(rows, training)
    share = mean.partition(": ")[2].partition(" of ")[0]
    summary = f"{title}: {share} of the temporaries of XLA's memory scheduler (geometric mean)." if mean else ""
    return settings.measurements.table(f"{title}: MiB of temporaries", how, lines, mean, summary=summary)


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


def prediction(settings: Settings) -> Iterator[Table]:
    """Yields a table with a row for each of XLA's schedules and for the longest plan's."""
    errors = {name: list[float]() for name in ("default", "memory", "graphrl")}
    for subject in settings.subjects((*TRAINING, *INFERENCE)):
        plan = of_plan(settings, subject, settings.times[-1])
        schedules = of_xla(settings, subject, "default"), of_xla(settings, subject, "memory"), plan
        for figures, some in zip(schedules, errors.values(), strict=True):
            if figures is not None and figures["temp"]:
                some.append(figures["predicted"] / figures["temp"] - 1)
    errors["all"] = [error for some in errors.values() for error in some]
    lines = [
        [name, f"{len(some)}", *(f"{sum(abs(error) <= limit for error in some)}" for limit in (WITHIN, 0)),
         percent(max(some, key=abs, default=None))]
        for name, some in errors.items()
    ]  # fmt: skip
    table = markdown(["schedules", "compared", f"within {WITHIN:.0%}", "exact", "worst"], lines)
    summary = (
        f"Temporaries predicted without compiling are XLA's figure for {lines[-1][3]} of {lines[-1][1]} schedules."
    )
    yield settings.measurements.table("Predicted temporaries", table, summary=summary)


def of_xla(settings: Settings, subject: Subject, scheduler: Scheduler) -> Figures | None:
    """Measures a program under one of XLA's schedulers: `ops`, `instructions`, `predicted`, `temp`."""

    def measure() -> Figures:
        order = subject.order(scheduler)
        figures = _of_schedule(subject, scheduler, order)
        return figures | {"ops": len(subject.hlo.graph.ops), "instructions": len(order[-1])}

    return settings.measurements.get(_key(subject, scheduler), measure)


def of_heuristics(settings: Settings, subject: Subject) -> Figures | None:
    """Measures the best of `HEURISTICS` by prediction: `found_by`, `predicted`, `temp`, `all` (predicted bytes)."""

    def measure() -> Figures:
        by_method = {}
        for method in HEURISTICS:
            _, order = optimize(subject.hlo.graph, method=method).decisions(subject.hlo.graph)
            sequence = subject.hlo.sequence(order)
            by_method[method] = (subject.predict(sequence), sequence)
        best = min(by_method, key=lambda method: by_method[method][0])
        module = subject.module("default")
        places = places_of(module.with_orders({module.entry.name: by_method[best][1]}))
        predictions = {method: predicted for method, (predicted, _) in by_method.items()}
        return {"found_by": best, "all": predictions, **_of_schedule(subject, places, places)}

    return settings.measurements.get(_key(subject, "heuristic"), measure)


def of_recomputation(settings: Settings, subject: Subject, seconds: float) -> Figures | None:
    """Measures graphrl's plan with recomputation for at most `RECOMPUTE` of the run time.

    Figures are `temp`, `recomputed` (part of the estimated run time), `clones`, and total `seconds`. Only compiled.
    """

    def measure() -> Figures:
        plan_settings = PlanSettings(seconds=seconds, cache=False, recompute=RECOMPUTE)
        decision = decide(subject.lowered, Unplanned(subject.module("default")), plan_settings, None)
        return {
            "temp": decision.graphrl_bytes if decision.is_planned else decision.xla_bytes,
            "recomputed": decision.recomputed,
            "clones": sum(map(len, decision.clones)),
            "seconds": decision.search_seconds,
        }

    name = f"{_plan_name(seconds)}-recompute-{RECOMPUTE:g}"
    return settings.measurements.get(_key(subject, name), measure)


def of_plan(settings: Settings, subject: Subject, seconds: float) -> Figures | None:
    """Measures graphrl's plan: `found_by`, `predicted`, `temp`, total `seconds`.

    The plan is that of `graphrl.compile(seconds=...)` without cached plans. Its order is kept (`planned_order`).
    """
    return settings.measurements.get(_key(subject, _plan_name(seconds)), lambda: _compiled_plan(subject, seconds))


def of_bound(settings: Settings, subject: Subject, seconds: float) -> Figures | None:
    """Computes a lower bound over all orders, `bound` (`temp_search.temp_bound`), with a plan's order."""

    def measure() -> Figures:
        module = subject.module("default")
        orders = named_orders(module, planned_order(subject, seconds))
        return {"bound": temp_bound(read_hlo(module, chip=DEFAULT_CHIP), orders[module.entry.name])}

    return settings.measurements.get(_key(subject, "bound"), measure)


def planned_order(subject: Subject, seconds: float) -> Places:
    """Returns the order of a plan that `of_plan` made."""
    return subject.kept_order(_plan_name(seconds))


def bytes_of(figures: Figures | None) -> int | None:
    """Returns the bytes of temporaries by XLA's figure, None if the measurement failed."""
    return None if figures is None else int(figures["temp"])


def _plan_name(seconds: float) -> str:
    return f"graphrl-{seconds:g}s"


def _key(subject: Subject, schedule: str) -> dict[str, object]:
    return {"what": "temporaries", "program": subject.name, "schedule": schedule}


def _of_schedule(subject: Subject, schedule: Scheduler | Places, order: Places) -> Figures:
    return {"predicted": subject.predicted(order), "temp": memory_of(subject.compiled(schedule, quick=True))[0]}


def _compiled_plan(subject: Subject, seconds: float) -> Figures:
    module = subject.module("default")
    decision = decide(subject.lowered, Unplanned(module), PlanSettings(seconds=seconds, cache=False), None)
    order = decision.orders or subject.order(decision.scheduler)
    subject.keep_order(_plan_name(seconds), order)
    return {
        "found_by": decision.found_by or "XLA",
        "predicted": subject.predicted(order),
        "temp": memory_of(subject.compiled(order, quick=True))[0],
        "seconds": decision.search_seconds,
    }
