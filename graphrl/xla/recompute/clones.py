"""Which instructions of a program are computed again, by name and, for the disk, by number.

Searches choose among a graph's ops; what is read through views needs the views again too (`wired`).
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from graphrl.errors import PlanError
from graphrl.graphs.readers.hlo.module import HloModule
from graphrl.graphs.readers.hlo.reader import HloProgram
from graphrl.xla.recompute.candidates import Routes

Numbered = tuple[tuple[int, tuple[int, ...]], ...]  # (original, users) of each clone


@dataclasses.dataclass(frozen=True)
class Clone:
    """An instruction of the entry computation computed once more.

    A clone reads what its original reads, unless it is itself among the users of another clone.

    Attributes:
      name: of the clone; no other instruction of the module has it.
      original: name of the instruction; no clone.
      users: names of the instructions, and of clones, that read the clone in place of the original.
    """

    name: str
    original: str
    users: tuple[str, ...]


ClonesByName = Mapping[str, Sequence[Clone]]  # of computations, those that have any


def numbered(module: HloModule, clones: Sequence[Clone]) -> Numbered:
    """The clones without names, which differ from process to process: places in `module.entry.instructions`; the k-th
    clone has the k-th number after those.
    """
    number = numbers(module, clones)
    return tuple((number[c.original], tuple(number[user] for user in c.users)) for c in clones)


def numbers(module: HloModule, clones: Sequence[Clone]) -> dict[str, int]:
    """The number of every instruction of the entry computation and of every clone, by name."""
    return {name: k for k, name in enumerate((*module.entry.by_name, *(clone.name for clone in clones)))}


def named(module: HloModule, clones: Numbered) -> tuple[Clone, ...]:
    """What `numbered` was given, with the names that this process has.

    Raises:
      PlanError: a number is out of range.
    """
    names = list(module.entry.by_name)
    originals = [original for original, _ in clones]
    if not all(0 <= original < len(names) for original in originals):
        raise PlanError(f"{module.name}: a clone of an instruction beyond the {len(names)} of the entry computation")
    names += clone_names(module, [names[original] for original in originals])
    if not all(0 <= user < len(names) for _, users in clones for user in users):
        raise PlanError(f"{module.name}: a clone is read by an instruction beyond the {len(names)} there are")
    first = len(module.entry.by_name)
    return tuple(
        Clone(names[first + k], names[original], tuple(names[user] for user in users))
        for k, (original, users) in enumerate(clones)
    )


def clone_names(module: HloModule, originals: Iterable[str]) -> list[str]:
    """A name for one clone of each of the originals, in this order."""
    mark = "again"
    while any(f".{mark}" in name for name in module.entry.by_name):
        mark += "n"
    return [f"{original}.{mark}{k}" for k, original in enumerate(originals)]


def wired(
    program: HloProgram, routes: Routes, clones: list[tuple[int, frozenset[int]]]
) -> tuple[list[str], tuple[Clone, ...]]:
    """Instructions for clones of ops.

    Args:
      program: of n ops.
      clones: the op of each and the nodes that read it; the k-th is node n + k.

    Returns:
      The instruction of every node, and all clones: those of the ops first, then those of views.
    """
    ops = [op.name for op in program.graph.ops]
    originals = ops + [ops[op] for op, _ in clones]
    users: list[dict[str, None]] = [{} for _ in clones]
    views: dict[tuple[int, str], int] = {}  # of which clone, of which view -> its number among the views
    view_users: list[dict[str, None]] = []
    ways = [
        (k, node, way)
        for k, (op, readers) in enumerate(clones)
        for node in sorted(readers)
        for way in routes.views(originals[node], ops[op]) or ()
    ]
    for k, _, way in ways:
        for view in way:
            if (k, view) not in views:
                views[k, view] = len(view_users)
                view_users.append({})
    names = clone_names(program.module, [*originals[len(ops) :], *(view for _, view in views)])
    node_names = ops + names[: len(clones)]
    view_names = names[len(clones) :]
    for k, node, way in ways:
        reads = users[k]
        for view in way:
            number = views[k, view]
            reads[view_names[number]] = None
            reads = view_users[number]
        reads[node_names[node]] = None
    copies = [Clone(names[k], ops[op], tuple(users[k])) for k, (op, _) in enumerate(clones)]
    copies += [Clone(view_names[number], view, tuple(view_users[number])) for (_, view), number in views.items()]
    return node_names, tuple(copies)
