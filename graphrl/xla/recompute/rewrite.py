"""Modules in which instructions are computed again: the edited `HloModuleProto`.

A clone stands right behind its original, so that operands stay before their users, and calls its own copy of the
original's fused computation, since XLA wants one caller for each. Nothing else is touched.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphrl.errors import PlanError
from graphrl.graphs.readers.hlo.module import HloModule, parse_module
from graphrl.graphs.readers.hlo.proto import in_order, replace
from graphrl.xla.donation import written_over
from graphrl.xla.recompute.candidates import Clone

LOCAL_BITS = 32  # an instruction's id is that of its computation, and its own in these bits
LOCAL = (1 << LOCAL_BITS) - 1


def rewritten(module: HloModule, clones: Sequence[Clone]) -> HloModule:
    """The module with the clones in it, each scheduled right before the first instruction that reads it.

    Args:
      module: scheduled.
      clones: of its entry computation, which may be one that a loop runs (`bodies.as_program`).

    Returns:
      Another module, whose donated parameters are those of `module`; this stays as it is.

    Raises:
      PlanError: a clone's original or one of its users is missing, or a user does not read the original.
    """
    editor = _Editor(module, clones, written_over(module).late)
    editor.add(_scheduled(module, clones))
    changed = parse_module(editor.message.SerializeToString(), module.name)
    entry = changed.computations[module.entry.name]
    schedule = {**module.schedule, entry.name: changed.order(entry)}
    aliases = module.input_output_aliases
    return dataclasses.replace(changed, name=module.name, entry=entry, schedule=schedule, input_output_aliases=aliases)


class _Editor:
    """A copy of a module's message that clones are put into."""

    def __init__(self, module: HloModule, clones: Sequence[Clone], late: Mapping[str, frozenset[str]]) -> None:
        """Args: `late` is what writes over arguments, and waits for those who read them: for clones of these too, and
        for their originals, which it may have waited for only as it read them.
        """
        self.late = late
        self.name = module.name
        self.clones = clones
        self.message = type(module.message)()
        self.message.CopyFrom(module.message)
        self.fusions = FusionCopies(self.message)
        (self.entry,) = (c for c in self.message.computations if c.name == module.entry.name)

    def add(self, order: Sequence[str]) -> None:
        """Adds the clones, and the schedule of the entry computation."""
        instructions = {i.name: i for i in self.entry.instructions}
        base, used = self._entry_base(), max(i.id & LOCAL for i in self.entry.instructions)
        clones: dict[str, list[Any]] = {}
        for k, clone in enumerate(self.clones):
            original = instructions.get(clone.original)
            if original is None or clone.name in instructions:
                raise PlanError(f"{self.name}: clone {clone.name!r} of {clone.original!r}: no such instruction")
            again = type(original)()
            again.CopyFrom(original)
            again.name, again.id = clone.name, base | (used + 1 + k)
            called = original.called_computation_ids
            again.called_computation_ids[:] = [self.fusions.copied(c, clone.name) for c in called]
            clones.setdefault(clone.original, []).append(again)
        by_name = instructions | {i.name: i for group in clones.values() for i in group}
        self._rewire(by_name)
        for name, readers in self.late.items():
            again = [clone for clone in self.clones if clone.original in readers]
            waits = [by_name[each].id for clone in again for each in (clone.original, clone.name)]
            late = by_name[name]
            late.control_predecessor_ids[:] = dict.fromkeys([*late.control_predecessor_ids, *waits])
        ids = {name: i.id for name, i in by_name.items()}
        replace(self.entry.instructions, _behind(self.entry.instructions, clones, lambda i: i.name))
        replace(self.message.computations, _behind(self.message.computations, self.fusions.copies, lambda c: c.id))
        for scheduled in self.message.schedule.sequences:
            if scheduled.key == self.entry.id:
                numbers = {i.id: i for i in by_name.values()}
                ordered = in_order([numbers[ids[name]] for name in order])
                scheduled.value.instruction_ids[:] = [i.id for i in ordered]

    def _rewire(self, by_name: Mapping[str, Any]) -> None:
        for clone in self.clones:
            old, new = by_name[clone.original].id, by_name[clone.name].id
            for name in clone.users:
                user = by_name.get(name)
                if user is None or old not in user.operand_ids:
                    raise PlanError(f"{self.name}: clone {clone.name!r}: {name!r} does not read {clone.original!r}")
                user.operand_ids[:] = [new if k == old else k for k in user.operand_ids]

    def _entry_base(self) -> int:
        return (self.entry.instructions[0].id >> LOCAL_BITS) << LOCAL_BITS


class FusionCopies:
    """Copies of what fusions compute: XLA wants one caller for each.

    Attributes:
      copies: the copied computations by the id of their original.
    """

    def __init__(self, message: Any) -> None:
        """Args: the module's message."""
        self.copies: dict[int, list[Any]] = {}
        self._computations = {c.id: c for c in message.computations}
        self._next = max(self._computations) + 1

    def new_id(self) -> int:
        """The id of one more computation."""
        self._next += 1
        return self._next - 1

    def copied(self, number: int, suffix: str) -> int:
        """The id of a copy of a fused computation, with those that it fuses in turn; of any other one, its own id:
        several may apply one function.
        """
        original = self._computations[number]
        if not original.is_fusion_computation:
            return number
        copy = type(original)()
        copy.CopyFrom(original)
        copy.id = self.new_id()
        base = copy.id << LOCAL_BITS
        copy.name, copy.root_id = f"{original.name}.{suffix}", base | (original.root_id & LOCAL)
        for i in copy.instructions:
            i.name, i.id = f"{i.name}.{suffix}", base | (i.id & LOCAL)
            i.operand_ids[:] = [base | (k & LOCAL) for k in i.operand_ids]
            i.control_predecessor_ids[:] = [base | (k & LOCAL) for k in i.control_predecessor_ids]
            i.called_computation_ids[:] = [self.copied(c, suffix) for c in i.called_computation_ids]
        self.copies.setdefault(number, []).append(copy)
        return copy.id


def _behind(items: Sequence[Any], additions: Mapping[Any, list[Any]], key: Any) -> list[Any]:
    """All items, each followed by the additions of its key."""
    return [each for item in items for each in (item, *additions.get(key(item), ()))]


def _scheduled(module: HloModule, clones: Sequence[Clone]) -> tuple[str, ...]:
    """The module's own schedule with every clone right before the first instruction that reads it."""
    read: dict[str, list[Clone]] = {}
    for clone in clones:
        for user in clone.users:
            read.setdefault(user, []).append(clone)
    placed: set[str] = set()

    def before(name: str) -> Iterator[str]:
        for clone in read.get(name, ()):
            if clone.name not in placed:
                placed.add(clone.name)
                yield from before(clone.name)
                yield clone.name

    return tuple(each for name in module.order(module.entry) for each in (*before(name), name))
