"""Which instructions of a program are computed again, by name and, for the disk, by number."""

import dataclasses
from collections.abc import Iterable, Sequence

from graphrl.errors import PlanError
from graphrl.graphs.readers.hlo_module import HloModule

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


def numbered(module: HloModule, clones: Sequence[Clone]) -> Numbered:
    """The clones without names, which differ from process to process: places in `module.entry.instructions`; the k-th
    clone has the k-th number after those.
    """
    number = numbers(module, clones)
    return tuple((number[c.original], tuple(number[user] for user in c.users)) for c in clones)


def numbers(module: HloModule, clones: Sequence[Clone]) -> dict[str, int]:
    """The number of every instruction of the entry computation and of every clone, by name."""
    return {name: k for k, name in enumerate((*module.entry.by_name, *(clone.name for clone in clones)))}


def named(module: HloModule, found: Numbered) -> tuple[Clone, ...]:
    """What `numbered` was given, with the names that this process has.

    Raises:
      PlanError: a number is out of range.
    """
    names = list(module.entry.by_name)
    originals = [original for original, _ in found]
    if not all(0 <= original < len(names) for original in originals):
        raise PlanError(f"{module.name}: a clone of an instruction beyond the {len(names)} of the entry computation")
    names += clone_names(module, [names[original] for original in originals])
    if not all(0 <= user < len(names) for _, users in found for user in users):
        raise PlanError(f"{module.name}: a clone is read by an instruction beyond the {len(names)} there are")
    first = len(module.entry.by_name)
    return tuple(
        Clone(names[first + k], names[original], tuple(names[user] for user in users))
        for k, (original, users) in enumerate(found)
    )


def clone_names(module: HloModule, originals: Iterable[str]) -> list[str]:
    """A name for one clone of each of the originals, in this order."""
    mark = "again"
    while any(f".{mark}" in name for name in module.entry.by_name):
        mark += "n"
    return [f"{original}.{mark}{k}" for k, original in enumerate(originals)]
