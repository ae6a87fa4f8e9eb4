"""Bytes of temporaries of a program under every schedule that the tables show.

Figures are XLA's own, from compilations that differ from users' only in the effort for fast code (`hook`'s `quick`;
`identical` holds them against full ones), beside what `xla.assignment` predicts; with --cheap they are predictions.
"""

from graphrl.errors import GraphrlError
from graphrl.graphs.readers.hlo.reader import read_hlo
from graphrl.graphs.roofline import DEFAULT_CHIP
from graphrl.optimize import optimize
from graphrl.solvers.base import Budget, Task
from graphrl.xla.callback import Scheduler, Unplanned
from graphrl.xla.planning.cache import Places, named_orders, places_of
from graphrl.xla.planning.planner import decide, memory_of
from graphrl.xla.planning.temp_search import least_temp, order_of, temp_bound
from graphrl.xla.settings import PROBLEM
from graphrl.xla.settings import Settings as PlanSettings
from reproduce.measurements import Figures
from reproduce.real_programs.settings import Settings
from reproduce.real_programs.subject import Subject

RECOMPUTE = 0.05  # part of the estimated run time
HEURISTICS = (
    "list", "xla-list", "xla-dfs", "xla-postorder", "inductor-lpmf", "inductor-bfs", "inductor-dfs", "depth-first",
    "breadth-first", "alap",
)  # fmt: skip


def of_xla(settings: Settings, subject: Subject, scheduler: Scheduler) -> Figures | None:
    """Under one of XLA's schedulers: `ops`, `instructions`, `predicted`, `temp`."""

    def measure() -> Figures:
        order = subject.order(scheduler)
        figures = _figures(settings, subject, scheduler, order)
        return figures | {"ops": len(subject.hlo.graph.ops), "instructions": len(order[-1])}

    return settings.measurements.get(_key(settings, subject, scheduler), measure)


def of_heuristics(settings: Settings, subject: Subject) -> Figures | None:
    """Under the best of `HEURISTICS` by prediction: `found_by`, `predicted`, `temp`, `all` (predictions by method)."""

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
        return {"found_by": best, "all": predictions, **_figures(settings, subject, places, places)}

    return settings.measurements.get(_key(settings, subject, "heuristic"), measure)


def of_recomputation(settings: Settings, subject: Subject, seconds: float) -> Figures | None:
    """Under graphrl's plan that may spend `RECOMPUTE` of the run time on values that are computed again: `temp`,
    `recomputed` (part of the estimated run time), `clones`, `seconds` in all. Only compiled.
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
    return None if settings.cheap else settings.measurements.get(_key(settings, subject, name), measure)


def of_plan(settings: Settings, subject: Subject, seconds: float) -> Figures | None:
    """Under graphrl's plan: `found_by`, `predicted`, `temp`, `seconds` in all; its order is kept
    (`planned_order`). What a user of `graphrl.compile(seconds=...)` gets, without what earlier plans found.
    """

    def measure() -> Figures:
        return (_predicted_plan if settings.cheap else _compiled_plan)(subject, seconds)

    return settings.measurements.get(_key(settings, subject, _plan_name(seconds)), measure)


def of_bound(settings: Settings, subject: Subject, seconds: float) -> Figures | None:
    """What no order needs less than: `bound` (`search.temp_bound`), found with the help of a plan's order."""

    def measure() -> Figures:
        module = subject.module("default")
        orders = named_orders(module, planned_order(subject, seconds))
        return {"bound": temp_bound(read_hlo(module, chip=DEFAULT_CHIP), orders[module.entry.name])}

    return settings.measurements.get(_key(settings, subject, "bound"), measure)


def planned_order(subject: Subject, seconds: float) -> Places:
    """The order of a plan that `of_plan` made."""
    return subject.kept_order(_plan_name(seconds))


def _plan_name(seconds: float) -> str:
    return f"graphrl-{seconds:g}s"


def _key(settings: Settings, subject: Subject, schedule: str) -> dict[str, object]:
    return {"what": "predicted" if settings.cheap else "temporaries", "program": subject.name, "schedule": schedule}


def _figures(settings: Settings, subject: Subject, schedule: Scheduler | Places, order: Places) -> Figures:
    temp = None if settings.cheap else memory_of(subject.compiled(schedule, quick=True))[0]
    return {"predicted": subject.predicted(order), "temp": temp}


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


def _predicted_plan(subject: Subject, seconds: float) -> Figures:
    """The same without compiling: the best by prediction."""
    hlo, module = subject.hlo, subject.module("default")
    starts = [order_of(hlo, named_orders(module, subject.order("memory"))[module.entry.name])]
    plan = least_temp(Task(hlo.graph, PROBLEM, Budget(None, seconds)), hlo, subject.predict, starts)
    sequence = hlo.sequence(plan.decisions(hlo.graph)[1])
    subject.keep_order(_plan_name(seconds), places_of(module.with_orders({module.entry.name: sequence})))
    return {
        "found_by": plan.method,
        "predicted": subject.predict(sequence),
        "temp": None,
        "seconds": plan.seconds,
    }


def bytes_of(figures: Figures | None) -> int | None:
    """XLA's figure, or the prediction that stands for it."""
    if figures is None:
        return None
    number = figures["predicted"] if figures["temp"] is None else figures["temp"]
    if not isinstance(number, int):
        raise GraphrlError(f"temporaries of {number!r} bytes: the file of measurements is broken")
    return number
