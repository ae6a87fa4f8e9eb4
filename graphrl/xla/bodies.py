"""Conversion of the computations that a module runs in sequence to separate programs, and back."""

import dataclasses
import math
from collections.abc import Mapping

from graphrl.graphs.readers.hlo.module import Computation, HloModule, OutputAlias
from graphrl.graphs.readers.hlo.work import known_trips


def as_program(module: HloModule, computation: Computation) -> HloModule:
    """Returns the module with another of its computations as entry, to plan that like a program.

    The arguments of the computation belong to its caller. A loop body writes its results over its arguments:
    `input_output_aliases` of the returned module declares that.
    """
    if computation is module.entry:
        return module
    runs = [i for c in module.sequential for i in c.instructions if computation.name in i.called]
    aliases: tuple[OutputAlias, ...] = ()
    if any(i.opcode == "while" and i.called[0] == computation.name for i in runs):
        aliases = tuple(OutputAlias(at, 0, at, True) for at, _ in computation.root.shape.leaves)
    return dataclasses.replace(module, entry=computation, input_output_aliases=aliases)


def put_back(module: HloModule, program: HloModule) -> HloModule:
    """Restores the entry of a module after changes; the inverse of `as_program`.

    Args:
      module: the original module.
      program: the result of `as_program`, changed.
    """
    entry = program.computations[module.entry.name]
    return dataclasses.replace(program, entry=entry, input_output_aliases=module.input_output_aliases)


def runs_of(module: HloModule) -> Mapping[str, float]:
    """Counts how often one run of the module runs each computation in `HloModule.sequential`; keys are their names.

    A loop body counts at least once, and infinitely often if XLA does not know the number of trips. Every branch of a
    conditional counts as run.
    """
    runs = {c.name: 0.0 for c in module.sequential} | {module.entry.name: 1.0}
    for computation in reversed(module.sequential):
        for i in computation.instructions:
            for name in {*i.called}.intersection(runs):
                trips = known_trips(i) if i.opcode == "while" else 1
                runs[name] += runs[computation.name] * (math.inf if trips is None else max(1, trips))
    return runs
