"""Cases that a changed schedule could spoil: whether `graphrl.jit` shows what `jax.jit` does."""

from collections.abc import Iterator, Mapping

from graphrl.compare.report import markdown
from reproduce.measurements import Figures
from reproduce.real_programs.cases.compiler import differences
from reproduce.real_programs.cases.randomness import ALONE
from reproduce.real_programs.cases.run import CASES, DEVICES, KINDS, Observer
from reproduce.real_programs.settings import Settings
from reproduce.results import Table, bullets

SECONDS = 0.5  # of a search: what counts here is that the order is another one, not how good it is
QUICK = ("ordered debug callbacks", "cholesky", "states of training")


def same_results(settings: Settings) -> Iterator[Table]:
    """One table, a line a kind of cases, and the cases by name."""
    names = settings.chosen(tuple(CASES), QUICK)
    observer = Observer()
    try:
        by_name = {name: _figures(settings, observer, name) for name in names}
    finally:
        observer.close()
    kinds = {kind: {name: by_name[name] for name in cases if name in by_name} for kind, cases in KINDS.items()}
    kinds = {kind: measured for kind, measured in kinds.items() if measured}
    headings = ["kind", "cases", "wrong", "programs", "in graphrl's order", "donation lost", "wrong ones"]
    how = (
        "A case is some programs and all that a user sees of them: results to the bit with types and shardings, "
        "effects and their order, errors, warnings, which arguments are deleted. It runs by `jax.jit` and by "
        f"`graphrl.jit` with seconds={SECONDS:g}, on {DEVICES} devices of the host. It is wrong if these differ while "
        "`jax.jit` shows the same twice, or if one fails. Effects that jax leaves unordered may come in any order. "
        "Donation is lost where an argument is kept that `jax.jit` deletes, which the plan's bytes hold."
    )
    lines = [[kind, *_cells(measured)] for kind, measured in kinds.items()]
    if len(kinds) > 1:
        lines.append(["all", *_cells(by_name)])
    cases = [f"{kind}: {', '.join(measured)}" for kind, measured in kinds.items()]
    whole = {name: figures for name, figures in by_name.items() if figures is not None}
    notes = [
        *(f"`jax.jit` differs from itself: {name}" for name, figures in whole.items() if not figures["steady"]),
        *(f"donation lost: {name}" for name, figures in whole.items() if figures["lost"]),
    ]
    yield settings.measurements.table("The same results", how, markdown(headings, lines), bullets(cases), notes=notes)


def _figures(settings: Settings, observer: Observer, name: str) -> Figures | None:
    key = {"what": "same results", "case": name, "seconds": f"{SECONDS:g}"}
    return settings.measurements.get(key, lambda: _measure(observer, name))


def _measure(observer: Observer, name: str) -> Figures:
    theirs, ours = (observer.observe(name, by, SECONDS, alone=name in ALONE) for by in ("jax", "graphrl"))
    lost, others = differences(theirs["lines"], ours["lines"])
    steady = not others or theirs == observer.observe(name, "jax", SECONDS, alone=name in ALONE)
    programs = {key: ours[key] for key in ("programs", "planned")}
    return {"same": not others, "steady": steady, "lost": bool(lost), "differences": [*others, *lost], **programs}


def _cells(measured: Mapping[str, Figures | None]) -> list[str]:
    whole = [figures for figures in measured.values() if figures is not None]
    wrong = [name for name, each in measured.items() if each is None or (each["steady"] and not each["same"])]
    counts = [sum(figures[key] for figures in whole) for key in ("programs", "planned", "lost")]
    return [str(len(measured)), str(len(wrong)), *map(str, counts), ", ".join(wrong) or "none"]
