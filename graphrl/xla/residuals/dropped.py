"""Which residuals are no longer kept, by number for the disk."""

from collections.abc import Mapping, Sequence

from graphrl.errors import PlanError
from graphrl.graphs.readers.hlo.module import HloModule
from graphrl.xla.residuals.loops import Loops, Residual, loops_of

Dropped = tuple[tuple[int, int, int, tuple[int, ...]], ...]


def numbered(module: HloModule, dropped: Mapping[Loops, Sequence[Residual]]) -> Dropped:
    """Residuals without names, which differ from process to process: of each pair of loops the place of its caller in
    `module.sequential`, those of the loops in the caller's instructions, and those of the residuals.
    """
    sequential = [c.name for c in module.sequential]
    pairs = []
    for loops, residuals in dropped.items():
        names = tuple(loops.caller.by_name)
        at = sequential.index(loops.caller.name), names.index(loops.forward.name), names.index(loops.backward.name)
        pairs.append((*at, tuple(sorted(residual.place for residual in residuals))))
    return tuple(pairs)


def named(module: HloModule, dropped: Dropped) -> dict[Loops, list[Residual]]:
    """What `numbered` was given.

    Raises:
      PlanError: the module has no such loops, or not these residuals.
    """
    pairs = {numbered(module, {loops: ()})[0][:3]: loops for loops in loops_of(module)}
    residuals = {}
    for *at, places in dropped:
        loops = pairs.get((at[0], at[1], at[2]))
        own = {} if loops is None else {one.place: one for one in loops.residuals if loops.readings(one)}
        if loops is None or not own.keys() >= set(places):
            raise PlanError(f"{module.name}: the plan drops residuals that its loops do not have")
        residuals[loops] = [own[place] for place in places]
    return residuals
