"""From a gradient to what is chosen within a user's limit, and what that costs."""

import time
from typing import NamedTuple

import numpy as np

from graphrl.solvers.budgets.auto import find_solver
from graphrl.solvers.budgets.choice import Choice, Price, Pricing, untouched
from graphrl.solvers.budgets.found import Found
from graphrl.solvers.budgets.goal import Goal
from graphrl.units import format_bytes
from graphrl.xla.checkpoint.explain import reported_values
from graphrl.xla.checkpoint.origins import Explained
from graphrl.xla.checkpoint.report import CheckpointReport, Figures
from graphrl.xla.checkpoint.settings import Settings, UnmetError

LEAST = 0.3  # part of the seconds that is left for the search, whatever came before it took
POINTS = 400  # of a timeline


class Searched(NamedTuple):
    """A choice, and a report on it."""

    choice: Choice
    report: CheckpointReport


def search(name: str, explained: Explained, pricing: Pricing, settings: Settings, begin: float) -> Searched:
    """The best choice that a solver finds within the limit.

    Args:
      name: of what the gradient is of.
      explained: the gradient.
      pricing: of it.
      settings: what is asked.
      begin: when the work on it began, by `time.monotonic`: that counts in the seconds.

    Raises:
      UnmetError: the budget cannot be met; one line says the least that can.
    """
    goal = settings.goal(pricing)
    left = max(LEAST * settings.seconds, settings.seconds - (time.monotonic() - begin))
    found = find_solver(settings.method)(pricing, goal, seed=settings.seed, seconds=left)
    if goal.excess(pricing, found.price) > 1e-6:
        raise UnmetError(_unmet(settings, goal, pricing, found.price))
    return Searched(found.choice, _report(name, explained, found, pricing, goal, settings, begin))


def _unmet(settings: Settings, goal: Goal, pricing: Pricing, least: Price) -> str:
    """What to say of a limit that cannot be met."""
    plain = pricing.plain
    if goal.kept is not None:
        part = least.kept / max(plain.kept, 1.0)
        return (
            f"budget is {settings.budget}: the least found is {part:.3f} of the {format_bytes(plain.kept)} kept by jax"
        )
    if goal.slowdown is not None:
        return f"slowdown is {settings.slowdown}: the least found is {goal.slowdown_of(pricing, least):.3f}"
    outside = pricing.gradient.argument_bytes + pricing.gradient.result_bytes
    return (
        f"budget is {settings.budget}: the least found is {format_bytes(outside + least.peak)} "
        f"({outside + least.peak:,.0f} bytes), of which arguments, results and gradients are {format_bytes(outside)}"
    )


def _report(
    name: str, explained: Explained, found: Found, pricing: Pricing, goal: Goal, settings: Settings, begin: float
) -> CheckpointReport:
    gradient = explained.gradient
    passes = gradient.levels[0].forward_seconds + gradient.levels[0].backward_seconds
    figures, timelines = [], []
    for each in (untouched(gradient), found.choice):
        price = pricing(each)
        forward, backward = pricing.timeline()
        timelines.append((_thinned(forward), _thinned(backward)))
        step = (passes + pricing.plain.seconds) * (1.0 + goal.slowdown_of(pricing, price))
        figures.append(Figures(price.kept, price.moved, price.peak, step))
    of_bytes = goal.slowdown is not None
    return CheckpointReport(
        function=name,
        chip=settings.figures.name,
        plain=figures[0],
        planned=figures[1],
        argument_bytes=gradient.argument_bytes,
        result_bytes=gradient.result_bytes,
        segments=sum(int(cut.again.sum()) for cut in found.choice),
        values=reported_values(explained, found.choice, pricing),
        timelines=tuple(timelines),
        search_seconds=time.monotonic() - begin,
        least_seconds=None if found.bound is None or of_bytes else passes + found.bound,
        least_kept_bytes=found.bound if of_bytes else None,
    )


def _thinned(line: np.ndarray) -> tuple[float, ...]:
    """A line of at most so many points, the largest of each stretch."""
    if len(line) <= POINTS:
        return tuple(line.tolist())
    return tuple(float(part.max()) for part in np.array_split(line, POINTS))
