"""Conversion of the computations that a module runs in sequence to separate programs, and back."""

import dataclasses
import math
from collections.abc import Mapping

from graphrl.graphs.readers.hlo.module import Computation, HloModule, OutputAlias
from graphrl.graphs.readers.hlo.work import known_trips


def as_program(module: HloModule, computation: Computation) -> HloModule:
    """A module whose entry is another of its computations.

    The program's arguments belong to its caller. The body of a loop writes its results over its arguments, which
    `input_output_aliases` of the program declares.
    """
    if computation is module.entry:
        return module
    runs = [i for c in module.sequential for i in c.instructions if computation.name in i.called]
    aliases: tuple[OutputAlias, ...] = ()
    if any(i.opcode == "while" and i.called[0] == computation.name for i in runs):
        aliases = tuple(OutputAlias(at, 0, at, True) for at, _ in computation.root.shape.leaves)
    return dataclasses.replace(module, entry=computation, input_output_aliases=aliases)


def put_back(module: HloModule, program: HloModule) -> HloModule:
    """The module with changed computations.

    Args:
      module: the original.
      program: the result of `as_program`, changed.
    """
    entry = program.computations[module.entry.name]
    return dataclasses.replace(program, entry=entry, input_output_aliases=module.input_output_aliases)


def runs_of(module: HloModule) -> Mapping[str, float]:
    """Number of runs of each of `HloModule.sequential` in one run of the module, by name.

    A loop's body counts as at least one run, and as infinitely many if XLA does not know the trips. Every branch of a
    conditional counts as run.
    """
    runs = {c.name: 0.0 for c in module.sequential} | {module.entry.name: 1.0}
    for computation in reversed(module.sequential):
        for i in computation.instructions:
            for name in {*i.called}.intersection(runs):
                trips = known_trips(i) if i.opcode == "while" else 1
                runs[name] += runs[computation.name] * (math.inf if trips is None else max(1, trips))
    return runs
