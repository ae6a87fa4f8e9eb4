"""Modules in which values are computed again: the edited `HloModuleProto`.

`insert_clones` adds clones. In the list of instructions a clone comes right behind its original, so that operands stay
before their users. It calls its own copy of the original's fused computation, since XLA requires one caller for each.
`without_residuals` removes residuals of loops. All else stays as it is.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from graphrl.errors import PlanError
from graphrl.graphs.readers.hlo.module import HloModule, parse_module
from graphrl.graphs.readers.hlo.proto import in_order, replace
from graphrl.xla.donation import argument_writes
from graphrl.xla.recompute.candidates import Clone, RunTimes, is_repeatable
from graphrl.xla.recompute.edit import LOCAL, LOCAL_BITS, Builder, Editing, FusionCopies, ModuleEditing, without_parts
from graphrl.xla.recompute.loops import Expressions, Loops, Reading, Residual, part_names
from graphrl.xla.recompute.residuals import Dropped, Recipes, named

_VIEWS = ("bitcast", "constant", "get-tuple-element")


def insert_clones(module: HloModule, clones: Sequence[Clone]) -> HloModule:
    """Adds clones to a module, each scheduled right before the first instruction that reads it.

    Args:
      module: the scheduled module.
      clones: clones in its entry computation, which may be a loop body (`as_program`).

    Returns:
      A new module with the donated parameters of `module`, which is not changed.

    Raises:
      PlanError: a clone's original or one of its users is missing, or a user does not read the original.
    """
    editor = _CloneEditor(module, clones, argument_writes(module).readers)
    editor.add(_scheduled(module, clones))
    changed = parse_module(editor.message.SerializeToString(), module.name)
    entry = changed.computations[module.entry.name]
    schedule = {**module.schedule, entry.name: changed.order(entry)}
    aliases = module.input_output_aliases
    return dataclasses.replace(changed, name=module.name, entry=entry, schedule=schedule, input_output_aliases=aliases)


class _CloneEditor:
    """Inserts clones into a copy of a module's message."""

    def __init__(self, module: HloModule, clones: Sequence[Clone], readers: Mapping[str, frozenset[str]]) -> None:
        """`readers`: name of an instruction that writes over an argument -> names of the argument's readers.

        The writer must also wait for clones of these readers, and gets explicit dependencies on their originals: it may
        have waited for an original only because it read it.
        """
        self.readers = readers
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
            copy = type(original)()
            copy.CopyFrom(original)
            copy.name, copy.id = clone.name, base | (used + 1 + k)
            called = original.called_computation_ids
            copy.called_computation_ids[:] = [self.fusions.copied(c, clone.name) for c in called]
            clones.setdefault(clone.original, []).append(copy)
        by_name = instructions | {i.name: i for group in clones.values() for i in group}
        self._rewire(by_name)
        for name, readers in self.readers.items():
            affected = [clone for clone in self.clones if clone.original in readers]
            waits = [by_name[each].id for clone in affected for each in (clone.original, clone.name)]
            writer = by_name[name]
            writer.control_predecessor_ids[:] = dict.fromkeys([*writer.control_predecessor_ids, *waits])
        ids = {name: i.id for name, i in by_name.items()}
        replace(self.entry.instructions, _interleave(self.entry.instructions, clones, lambda i: i.name))
        replace(self.message.computations, _interleave(self.message.computations, self.fusions.copies, lambda c: c.id))
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


def _interleave(items: Sequence[Any], additions: Mapping[Any, list[Any]], key: Any) -> list[Any]:
    """Returns all items, each followed by the additions for its key."""
    return [each for item in items for each in (item, *additions.get(key(item), ()))]


def _scheduled(module: HloModule, clones: Sequence[Clone]) -> tuple[str, ...]:
    """Returns the module's own schedule with every clone right before the first instruction that reads it."""
    clones_of: dict[str, list[Clone]] = {}
    for clone in clones:
        for user in clone.users:
            clones_of.setdefault(user, []).append(clone)
    placed: set[str] = set()

    def before(name: str) -> Iterator[str]:
        for clone in clones_of.get(name, ()):
            if clone.name not in placed:
                placed.add(clone.name)
                yield from before(clone.name)
                yield clone.name

    return tuple(each for name in module.order(module.entry) for each in (*before(name), name))


def without_residuals(module: HloModule, dropped: Dropped) -> HloModule:
    """Removes residuals from a module: backward loops compute them again.

    Each slice is computed right before the first instruction that reads it.

    Args:
      module: the scheduled module.
      dropped: residuals of its pairs of loops, as in `residuals.numbered`.

    Raises:
      PlanError: it has no such residuals, or they cannot be computed again.
    """
    if not dropped:
        return module
    editor = _LoopEditor(module)
    for loops, residuals in named(module, dropped).items():
        editor.recompute(loops, residuals)
    editor.shrink()
    return editor.editing.finish()


class _LoopEditor:
    def __init__(self, module: HloModule) -> None:
        self._module, self._costs = module, RunTimes(module)
        self.editing = ModuleEditing(module)
        self._parts: dict[tuple[str, str], set[int]] = {}  # (caller, loop) -> tuple indices no longer carried

    def recompute(self, loops: Loops, residuals: Sequence[Residual]) -> None:
        """Makes a backward loop compute residuals again."""
        kept = [residual for residual in loops.residuals if residual not in residuals]
        recipes = Recipes(loops, kept, self._costs)
        wanted = [recipes.of(residual) for residual in residuals]
        readings = {residual: loops.readings(residual) for residual in residuals}
        builder = Builder(self.editing, loops)
        for number in recipes.needed(wanted):
            builder.build(number, recipes.steps[number])
        for residual, number in zip(residuals, wanted, strict=True):
            for reading in readings[residual]:
                self._redirect(loops.backward_body, reading, residual, builder.names[number])
            self._parts.setdefault((loops.caller.name, loops.forward.name), set()).add(residual.place)
            self._parts.setdefault((loops.caller.name, loops.backward.name), set()).add(residual.argument)
            self._remove(loops.forward_body.computation.name, residual.writer)

    def shrink(self) -> None:
        """Removes dropped residuals from the tuples that loops carry, and instructions that only computed them."""
        initial = {key: self._shrink_given(*key, places) for key, places in self._parts.items()}
        for (caller, loop), places in self._parts.items():
            self._shrink(caller, loop, places)
        for (caller, _), names in initial.items():
            self._drop(caller, names)

    def _redirect(self, backward: Expressions, reading: Reading, residual: Residual, slice_: str) -> None:
        """Redirects an instruction that slices a residual to a slice that is already computed."""
        body = self.editing.edited(backward.computation.name)
        i = body.by_name[reading.reader]
        if i.opcode == "dynamic-slice":
            _make_bitcast(i, body.by_name[slice_].id)
            return
        inside = self.editing.edited(backward.inside(reading.reader).name)
        source = inside.root
        while source.opcode == "bitcast":
            (source,) = inside.operands(source)
        if source.name in reading.slices:
            self.editing.unused.update(i.called_computation_ids)
            _make_bitcast(i, body.by_name[slice_].id)
            return
        array = inside.operands(inside.by_name[reading.slices[0]])[0]
        array.shape = inside.by_name[reading.slices[0]].shape
        for name in reading.slices:
            inside.read_instead(name, array.name)
        inside.sweep(reading.slices, lambda each: each.opcode != "parameter")
        i.operand_ids[array.parameter_number] = body.by_name[slice_].id
        _forget_parameters(inside, i)

    def _remove(self, computation: str, writer: str) -> None:
        """Removes the instruction that writes a residual, and the operands that only it read."""
        editing = self.editing.edited(computation)
        read = [i.name for i in editing.operands(editing.by_name[writer])]
        self.editing.unused.update(editing.remove(writer).called_computation_ids)
        self._drop(computation, read)

    def _drop(self, computation: str, names: Iterable[str]) -> None:
        """Removes instructions without users, and operands that only they read, if they have no side effects."""
        original = self._module.computations[computation].by_name

        def may_go(i: Any) -> bool:
            is_known = i.name in original
            return i.opcode in _VIEWS or (is_known and is_repeatable(self._module, original[i.name], expensive=True))

        for i in self.editing.edited(computation).sweep(names, may_go):
            called = i.called_computation_ids
            self.editing.unused.update(k for k in called if self._module.computations[self.editing.names[k]].is_fusion)

    def _shrink_given(self, caller: str, loop: str, places: set[int]) -> list[str]:
        """Removes parts from a loop's initial values; returns their names."""
        outside = self.editing.edited(caller)
        (given,) = outside.operands(outside.by_name[loop])
        initial = [i.name for k, i in enumerate(outside.operands(given)) if k in places]
        _shrink_tuple(given, places)
        return initial

    def _shrink(self, caller: str, loop: str, places: set[int]) -> None:
        """Removes parts from the tuple that a loop carries and returns."""
        message = self.editing.edited(caller).by_name[loop]
        body, condition = (self.editing.names[k] for k in message.called_computation_ids)
        _shrink_tuple(self.editing.edited(body).root, places)
        for name in (body, condition):
            parameter = self._module.computations[name].parameters[0].name
            inside = self.editing.edited(name).by_name[parameter]
            inside.shape = without_parts(inside.shape, places)
            self._renumber(name, parameter, places)
        message.shape = without_parts(message.shape, places)
        _renumber_counter(message, places)
        self._renumber(caller, loop, places)

    def _renumber(self, computation: str, source: str, places: set[int]) -> None:
        """Renumbers the parts that are read from a tuple, after some places are removed."""
        editing = self.editing.edited(computation)
        for place, name in part_names(self._module.computations[computation], source):
            if name in editing.by_name:
                if place in places:
                    editing.remove(name)
                else:
                    editing.by_name[name].tuple_index = place - sum(each < place for each in places)


def _make_bitcast(i: Any, operand: int) -> None:
    """Turns an instruction, in place, into a bitcast of the result of another one (id `operand`)."""
    kept = type(i)(name=i.name, opcode="bitcast", shape=i.shape, id=i.id, operand_ids=[operand])
    kept.control_predecessor_ids[:] = i.control_predecessor_ids
    i.CopyFrom(kept)


def _forget_parameters(inside: Editing, fusion: Any) -> None:
    """Removes parameters of a fusion that are not read inside of it."""
    parameters = {i.parameter_number: i for i in inside.by_name.values() if i.opcode == "parameter"}
    used = [k for k in sorted(parameters) if inside.users(parameters[k].name) or parameters[k] is inside.root]
    for k in parameters.keys() - used:
        inside.remove(parameters[k].name)
    for number, k in enumerate(used):
        parameters[k].parameter_number = number
    fusion.operand_ids[:] = [fusion.operand_ids[k] for k in used]


def _shrink_tuple(i: Any, places: set[int]) -> None:
    """Removes parts from a tuple instruction."""
    i.operand_ids[:] = [k for place, k in enumerate(i.operand_ids) if place not in places]
    i.shape = without_parts(i.shape, places)
    i.ClearField("original_value")


def _renumber_counter(loop: Any, places: set[int]) -> None:
    """Renumbers the induction variable in a loop's configuration, after some places are removed."""
    config = json.loads(loop.backend_config or b"{}")
    counter = config.get("known_induction_variable")
    if counter is not None:
        place = int(counter["tuple_index"])
        counter["tuple_index"] = str(place - sum(each < place for each in places))
        loop.backend_config = json.dumps(config).encode()
    loop.ClearField("original_value")
