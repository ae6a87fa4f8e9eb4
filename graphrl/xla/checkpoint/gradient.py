"""From a program to what there is to decide about its gradient: arrays for `graphrl.solvers.budgets`."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.export import is_symbolic_dim

from graphrl.graphs.readers.jaxpr.loops import scan_operands
from graphrl.graphs.roofline import Chip
from graphrl.solvers.budgets.level import Gradient, Level, Loop
from graphrl.solvers.budgets.stretches import stretches_of
from graphrl.xla.checkpoint.derivative import Derivative, derivative, differentiable
from graphrl.xla.checkpoint.levels import LevelBuilder
from graphrl.xla.checkpoint.origins import Origin, line_of
from graphrl.xla.checkpoint.plan import Name
from graphrl.xla.checkpoint.program import Program

UNROLLED, EQUATIONS = 8, 1_000  # steps of a stretch at most that stand one after the other, and equations of all


class NamedGradient(NamedTuple):
    """A program's gradient, with what links its arrays to the program.

    Attributes:
      gradient: what a solver decides about.
      programs: of each level.
      names: of each level's values; None where there is none.
      carried: of each level, arguments that a loop carries from step to step.
      traced: the gradient as jax traces it by itself, but for names; None where there are loops.
    """

    gradient: Gradient
    programs: tuple[Program, ...]
    names: tuple[tuple[Name | None, ...], ...]
    carried: tuple[range, ...]
    traced: Any

    def origin(self, number: int, value: int) -> Origin | None:
        """What a value of a level is to the user; None where it has no name."""
        name = self.names[number][value]
        if name is None:
            return None
        eqn = self.programs[number].equations[name[0]]
        return Origin((*self._around(number), name[0]), eqn.outvars[name[1]].aval.str_short(), line_of(eqn))

    def _around(self, number: int) -> tuple[int, ...]:
        """Places of the loops around a level, from the function inwards."""
        for outer, loops in enumerate(self.gradient.loops):
            if number in loops:
                return (*self._around(outer), loops[number].place)
        return ()


class _Built(NamedTuple):
    program: Program
    level: Level
    loops: dict[int, Loop]
    names: tuple[Name | None, ...]
    carried: range
    begin_bytes: float


def gradient_of(program: Program, wanted: Sequence[bool], chip: Chip) -> NamedGradient:
    """The gradient of a function by the arguments that are `wanted`, and of its loops' bodies by all they have."""
    built: list[_Built] = []
    own = _build(built, program, wanted, chip, range(0), 0)
    levels, loops = tuple(each.level for each in built), tuple(each.loops for each in built)
    return NamedGradient(
        Gradient(levels, loops, sum(own.outside[: len(program.closed.in_avals)]), own.result_bytes),
        tuple(each.program for each in built),
        tuple(each.names for each in built),
        tuple(each.carried for each in built),
        None if program.bodies else own.traced,
    )


def _build(
    built: list[_Built], program: Program, wanted: Sequence[bool], chip: Chip, carried: range, trips: int
) -> Derivative:
    """Appends a program's level, then those of the loops in it; returns its derivative."""
    own = derivative(program, wanted, chip)
    scans = {place: len(program.equations[place].outvars) for place in program.bodies}
    builder = LevelBuilder(own, chip, carried, scans)
    apart = [bool(eqn.effects) or (place in builder.loops and not trips) for place, eqn in enumerate(program.equations)]
    level, loops, number = builder.level(trips, np.array(apart, bool)), dict[int, Loop](), len(built)
    names = tuple(own.names.get(value) for value in builder.values)
    built.append(_Built(program, level, loops, names, carried, builder.begin_bytes))
    forward, backward = level.forward_seconds, level.backward_seconds
    for place, loop in sorted(builder.loops.items()):
        body, params = program.bodies[place], program.equations[place].params
        steps, is_known = program.trips(place), not is_symbolic_dim(params["length"])
        constants, carries = scan_operands(params)
        carry = range(constants, constants + carries)
        smooth = [differentiable(aval) for aval in body.closed.in_avals]
        inner = len(built)
        _build(built, body, smooth, chip, carry, steps)
        loops[inner] = loop._replace(
            begin_bytes=built[inner].begin_bytes,
            stretches=stretches_of(steps) if is_known and not program.equations[place].effects else (1,),
            unrolled=min(UNROLLED, EQUATIONS // max(1, len(body.equations))),
        )
        seconds = steps * built[inner].level.forward_seconds
        level.seconds[[*loop.outputs, *loop.kept]] = seconds
        forward += seconds
        level.kernel_seconds[loop.kernel] = steps * built[inner].level.backward_seconds
        backward += steps * built[inner].level.backward_seconds
    built[number] = built[number]._replace(level=level._replace(forward_seconds=forward, backward_seconds=backward))
    return own
