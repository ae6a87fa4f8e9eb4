"""From a traced function to a plan and its report, in memory and on disk."""

import dataclasses
import hashlib
import re
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from graphrl.documents import read_document, write_document
from graphrl.errors import GraphrlError, ProblemError
from graphrl.files import cache_folder
from graphrl.solvers.budgets.auto import find_solver
from graphrl.solvers.budgets.choice import Choice, Price, Pricing, untouched
from graphrl.solvers.budgets.goal import Goal
from graphrl.solvers.budgets.timed import search_timed
from graphrl.units import format_bytes
from graphrl.xla.checkpoint.decide import plan_of
from graphrl.xla.checkpoint.explain import reported_values
from graphrl.xla.checkpoint.gradient import NamedGradient, gradient_of
from graphrl.xla.checkpoint.plan import CheckpointPlan
from graphrl.xla.checkpoint.program import Program
from graphrl.xla.checkpoint.report import CheckpointReport, Figures
from graphrl.xla.checkpoint.rewrite import fits
from graphrl.xla.checkpoint.settings import Settings
from graphrl.xla.checkpoint.timed import TracedSeconds

FORMAT = "graphrl-checkpoint"
VERSION = 2  # rises when a search finds better plans, so that older ones are not kept
LEAST = 0.3  # part of the seconds that is left for the search, whatever tracing took
POINTS = 400  # of a timeline


@dataclasses.dataclass(frozen=True)
class Planned:
    """A plan and what it costs.

    Attributes:
      fingerprint: of the program and of all that was asked.
      plan: for the function.
      report: about it.
    """

    fingerprint: str
    plan: CheckpointPlan
    report: CheckpointReport


def planned(name: str, fingerprint: str, program: Program, wanted: Sequence[bool], settings: Settings) -> Planned:
    """The plan for a program: what an earlier search with these settings found, or else what one finds now.

    Args:
      name: of the function.
      fingerprint: see `fingerprint_of`.
      program: that is differentiated.
      wanted: of each argument, whether it is differentiated by.
      settings: what is asked.

    Raises:
      ProblemError: the budget cannot be met; one line says the least that can.
    """
    path = cache_folder("checkpoints") / f"{fingerprint}.json"
    if settings.cache:
        try:
            found = read_document(path, Planned, FORMAT, VERSION)
            if found.fingerprint == fingerprint and fits(program, found.plan):
                report = dataclasses.replace(found.report, function=name, from_cache=True)
                return dataclasses.replace(found, report=report)
        except GraphrlError:
            pass
    found = _search(name, fingerprint, program, wanted, settings)
    if settings.cache:
        _keep(path, found)
    return found


def _search(name: str, fingerprint: str, program: Program, wanted: Sequence[bool], settings: Settings) -> Planned:
    begin = time.monotonic()
    try:
        named = gradient_of(program, wanted, settings.figures)
    # as jax says of loops without a fixed length and of references: forward passes may have them
    except (NotImplementedError, ValueError, AttributeError):
        wanted = [False] * len(wanted)
        named = gradient_of(program, wanted, settings.figures)
    pricing, traced = Pricing(named.gradient), TracedSeconds(program, wanted, settings.figures)
    goal = settings.goal(pricing)
    left = max(LEAST * settings.seconds, settings.seconds - (time.monotonic() - begin))
    solver = find_solver(settings.method)

    def slowdown(choice: Choice) -> float:
        return traced.slowdown(plan_of(named, choice, pricing))

    if goal.slowdown is None:
        best = solver(pricing, goal, seed=settings.seed, seconds=left)
    else:
        best = search_timed(solver, pricing, goal, slowdown, seed=settings.seed, seconds=left)
    if goal.slowdown is None and goal.excess(pricing, best.price) > 1e-6:
        raise ProblemError(_unmet(settings, goal, pricing, best.price))
    plan = plan_of(named, best.choice, pricing)
    seconds = traced.plain, traced(plan)
    report = _report(name, named, best.choice, pricing, seconds, settings, time.monotonic() - begin)
    return Planned(fingerprint, plan, report)


def _unmet(settings: Settings, goal: Goal, pricing: Pricing, least: Price) -> str:
    """What to say of a limit that cannot be met."""
    plain = pricing.plain
    if goal.kept is not None:
        part = least.kept / max(plain.kept, 1.0)
        return (
            f"budget is {settings.budget}: the least found is {part:.3f} of the {format_bytes(plain.kept)} kept by jax"
        )
    outside = pricing.gradient.argument_bytes + pricing.gradient.result_bytes
    return (
        f"budget is {settings.budget}: the least found is {format_bytes(outside + least.peak)} "
        f"({outside + least.peak:,.0f} bytes), of which arguments, results and gradients are {format_bytes(outside)}"
    )


def _report(
    name: str,
    named: NamedGradient,
    choice: Choice,
    pricing: Pricing,
    step: tuple[float, float],
    settings: Settings,
    seconds: float,
) -> CheckpointReport:
    gradient, plain = named.gradient, untouched(named.gradient)
    figures, timelines = [], []
    for each, time_of in zip((plain, choice), step, strict=True):
        price = pricing(each)
        forward, backward = pricing.timeline()
        timelines.append((_thinned(forward), _thinned(backward)))
        figures.append(Figures(price.kept, price.moved, price.peak, time_of))
    return CheckpointReport(
        function=name,
        chip=settings.figures.name,
        plain=figures[0],
        planned=figures[1],
        argument_bytes=gradient.argument_bytes,
        result_bytes=gradient.result_bytes,
        segments=sum(int(cut.again.sum()) for cut in choice),
        values=reported_values(named, choice, pricing),
        timelines=tuple(timelines),
        search_seconds=seconds,
    )


def _thinned(line: np.ndarray) -> tuple[float, ...]:
    """A line of at most so many points, the largest of each stretch."""
    if len(line) <= POINTS:
        return tuple(line.tolist())
    return tuple(float(part.max()) for part in np.array_split(line, POINTS))


def fingerprint_of(program: Program, wanted: Sequence[bool], settings: Settings) -> str:
    """32 hexadecimal digits of a program's equations and of what is asked."""
    text = re.sub(r"0x[0-9a-f]+|Var\(id=\d+\)", "", str(program.closed.jaxpr))
    asked = [
        settings.budget,
        settings.slowdown,
        settings.offload,
        settings.method,
        float(settings.seconds),
        settings.seed,
    ]
    whole = repr((text, list(wanted), asked, dataclasses.astuple(settings.figures)))
    return hashlib.sha256(whole.encode()).hexdigest()[:32]


def _keep(path: Path, found: Planned) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_document(path, found, FORMAT, VERSION)
    except (OSError, GraphrlError) as error:
        warnings.warn(f"graphrl: the plan is not kept for the next process: {error}", stacklevel=2)
