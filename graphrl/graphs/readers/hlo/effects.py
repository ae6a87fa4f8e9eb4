"""Instructions that read or write what is neither among their operands nor in their results: they run in XLA's order.

A state of random numbers, a queue, a channel to another device, the console: XLA does not say who waits for whom there,
only its schedule does. So each such instruction gets the one before it in the schedule as a control predecessor.
Collectives are not among them: all devices run them in one order, whichever it is.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from graphrl.graphs.readers.hlo.module import Computation, Instruction

_OPCODES = frozenset(str.split("infeed outfeed recv recv-done rng rng-get-and-update-state send send-done"))


def in_order_of_effects(
    computations: Mapping[str, Computation], schedule: Mapping[str, Sequence[str]]
) -> dict[str, Computation]:
    """The computations, callees before their callers, with these control predecessors; what calls a computation with
    effects has them too.
    """
    ordered: dict[str, Computation] = {}
    callees: set[str] = set()  # computations with effects
    for name, computation in computations.items():
        order = schedule.get(name, tuple(computation.by_name))
        instructions = map(computation.by_name.__getitem__, order)
        effects = [i for i in instructions if _has_effects(i) or not callees.isdisjoint(i.called)]
        callees |= {name} if effects else set()
        ordered[name] = _chained(computation, effects)
    return ordered


def _has_effects(i: Instruction) -> bool:
    return i.opcode in _OPCODES or (i.opcode == "custom-call" and i.attributes.custom_call_has_side_effect)


def _chained(computation: Computation, effects: Sequence[Instruction]) -> Computation:
    if len(effects) < 2:
        return computation
    by_name = dict(computation.by_name)
    for before, i in itertools.pairwise(effects):
        predecessors = tuple(dict.fromkeys((*i.control_predecessors, before.name)))
        by_name[i.name] = dataclasses.replace(i, control_predecessors=predecessors)
    return dataclasses.replace(computation, by_name=by_name, root=by_name[computation.root.name])
