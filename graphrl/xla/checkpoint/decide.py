"""From a solver's choice to a plan in the program's terms."""

import numpy as np

from graphrl.solvers.budgets.choice import Choice, Pricing
from graphrl.solvers.budgets.level import Level
from graphrl.solvers.budgets.work import KEPT, MOVED
from graphrl.xla.checkpoint.gradient import NamedGradient
from graphrl.xla.checkpoint.plan import CheckpointPlan, Region
from graphrl.xla.checkpoint.program import Program, variables


def plan_of(named: NamedGradient, choice: Choice, pricing: Pricing) -> CheckpointPlan:
    """What a choice means for the function."""
    pricing(choice)  # decides what is kept because something else is not
    return _plan(named, choice, pricing, 0)


def _plan(named: NamedGradient, choice: Choice, pricing: Pricing, number: int) -> CheckpointPlan:
    level, names, cut = named.gradient.levels[number], named.names[number], choice[number]
    stored, sent = pricing.stored(number), pricing.sent(number)
    unrolled = named.gradient.is_unrolled(number, cut.stretch)
    regions = []
    for segment in np.flatnonzero(cut.again & (not unrolled)).tolist():
        places = np.flatnonzero(cut.segment == segment)
        values = range(level.first[places[0]], level.first[places[-1] + 1])
        kept, moved = (
            tuple(name for v in values if stored[v] == what and (name := names[v]) is not None)
            for what in (KEPT, MOVED)
        )
        moves = [v for v in values if stored[v] == MOVED and names[v] is not None] if number == 0 else []
        ends = tuple(int(level.place[sent[v]]) for v in moves)
        regions.append(Region(int(places[0]), int(places[-1]) + 1, kept, moved, ends))
    bodies = {loop.place: _plan(named, choice, pricing, inner) for inner, loop in named.gradient.loops[number].items()}
    copied = _copied(named.programs[number], level, named.carried[number])
    planned = {place: plan for place, plan in bodies.items() if not plan.is_plain}
    return CheckpointPlan(tuple(regions), copied, planned, cut.stretch, unrolled)


def _copied(program: Program, level: Level, carried: range) -> tuple[int, ...]:
    """Places all of whose values are free, and of views of nothing but arguments and such values."""
    jaxpr = program.closed.jaxpr
    outside = {*jaxpr.constvars, *(var for number, var in enumerate(jaxpr.invars) if number not in carried)}
    copied: list[int] = []
    for place, eqn in enumerate(program.equations):
        values = slice(level.first[place], level.first[place + 1])
        follows = all(var in outside for var in variables(eqn.invars))
        if follows and not eqn.effects and bool(level.free[values].all()):
            copied.append(place)
            outside |= set(eqn.outvars)
    return tuple(copied)
