"""Modules whose loops keep fewer residuals: the edited `HloModuleProto`."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from graphrl.graphs.readers.hlo.module import HloModule, Instruction, parse_module
from graphrl.graphs.readers.hlo.proto import replace, shape_message
from graphrl.xla.recompute.candidates import is_of_class
from graphrl.xla.recompute.cost import RunTimes
from graphrl.xla.recompute.rewrite import FusionCopies
from graphrl.xla.residuals.edit import Editing, without_parts
from graphrl.xla.residuals.expressions import Expressions, Reference
from graphrl.xla.residuals.loops import Dropped, Loops, Reading, Residual, named, part_names
from graphrl.xla.residuals.recipes import Recipes, Step

_VIEWS = ("bitcast", "constant", "get-tuple-element")


def without_residuals(module: HloModule, dropped: Dropped) -> HloModule:
    """The module in which loops keep some residuals no longer, and backward loops compute them again, each slice right
    before the first instruction that reads it.

    Args:
      module: scheduled.
      dropped: residuals of its pairs of loops.

    Raises:
      PlanError: it has no such residuals, or they cannot be computed again.
    """
    if not dropped:
        return module
    editor = _Editor(module)
    for loops, residuals in named(module, dropped).items():
        editor.recompute(loops, residuals)
    editor.shrink()
    return editor.module()


class _Editor:
    def __init__(self, module: HloModule) -> None:
        self._module = module
        self._message = type(module.message)()
        self._message.CopyFrom(module.message)
        self._fusions = FusionCopies(self._message)
        self._messages = {c.name: c for c in self._message.computations}
        self._names = {c.id: c.name for c in self._message.computations}
        self._editing: dict[str, Editing] = {}
        self._made: dict[str, list[Any]] = {}  # by the computation whose fusions they are
        self._unused: set[int] = set()  # ids of computations
        self._parts: dict[tuple[str, str], set[int]] = {}  # of (caller, loop): places that it carries no longer
        self._costs, self._count = RunTimes(module), 0
        self._mark = "ahead"
        while any(f".{self._mark}" in name for c in module.sequential for name in c.by_name):
            self._mark += "n"

    def recompute(self, loops: Loops, residuals: Sequence[Residual]) -> None:
        """Has a backward loop compute residuals again."""
        kept = [residual for residual in loops.residuals if residual not in residuals]
        recipes = Recipes(loops, kept, self._costs)
        wanted = [recipes.of(residual) for residual in residuals]
        readings = {residual: loops.readings(residual) for residual in residuals}
        builder = _Builder(self, loops)
        for number in recipes.needed(wanted):
            builder.build(number, recipes.steps[number])
        for residual, number in zip(residuals, wanted, strict=True):
            for reading in readings[residual]:
                self._redirect(loops.behind, reading, residual, builder.names[number])
            self._parts.setdefault((loops.caller.name, loops.forward.name), set()).add(residual.place)
            self._parts.setdefault((loops.caller.name, loops.backward.name), set()).add(residual.given)
            self._remove(loops.ahead.computation.name, residual.writer)

    def shrink(self) -> None:
        """Takes what is kept no longer out of what loops carry, and what only made that."""
        begun = {key: self._shrink_given(*key, places) for key, places in self._parts.items()}
        for (caller, loop), places in self._parts.items():
            self._shrink(caller, loop, places)
        for (caller, _), names in begun.items():
            self._drop(caller, names)

    def module(self) -> HloModule:
        """What became of the module."""
        orders = {editing.message.id: editing.finish() for editing in self._editing.values()}
        for scheduled in self._message.schedule.sequences:
            if scheduled.key in orders:
                scheduled.value.instruction_ids[:] = orders[scheduled.key]
        computations: list[Any] = []
        for computation in self._message.computations:
            computations += self._made.get(computation.name, ())
            if computation.id not in self._unused:
                computations.append(computation)
        replace(self._message.computations, computations)
        changed = parse_module(self._message.SerializeToString(), self._module.name)
        old = self._module
        schedule = {name: order for name, order in old.schedule.items() if name in changed.computations}
        schedule |= {name: changed.schedule[name] for name in self._editing if name in changed.schedule}
        entry, aliases = changed.computations[old.entry.name], old.input_output_aliases
        return dataclasses.replace(changed, name=old.name, entry=entry, schedule=schedule, input_output_aliases=aliases)

    def edited(self, name: str) -> Editing:
        """A computation that is changed."""
        if name not in self._editing:
            computation = self._module.computations[name]
            self._editing[name] = Editing(self._messages[name], self._module.order(computation))
        return self._editing[name]

    def fresh(self, name: str) -> str:
        """A name for an instruction or a computation."""
        self._count += 1
        return f"{name}.{self._mark}{self._count}"

    def copies_of(self, i: Instruction, caller: str, name: str) -> list[int]:
        """Ids of copies of what an instruction calls, for another one in another computation."""
        self._fusions.copies.clear()
        ids = [self._fusions.copied(k, name) for k in i.attributes.called_computation_ids]
        copies = [copy for each in self._fusions.copies.values() for copy in each]
        self._made.setdefault(caller, []).extend(sorted(copies, key=lambda copy: -copy.id))  # what is called first
        return ids

    def new_fusion(self, caller: str, name: str) -> Editing:
        """A computation for a fusion, without instructions."""
        message = type(self._message.computations[0])(name=name, id=self._fusions.new_id(), is_fusion_computation=True)
        self._made.setdefault(caller, []).append(message)
        self._editing[name] = Editing(message)
        return self._editing[name]

    def _redirect(self, behind: Expressions, reading: Reading, residual: Residual, slice_: str) -> None:
        """Has an instruction read a slice that is there, in place of slicing a residual."""
        body = self.edited(behind.computation.name)
        i = body.by_name[reading.reader]
        if i.opcode == "dynamic-slice":
            _make_bitcast(i, body.by_name[slice_].id)
            return
        inside = self.edited(behind.inside(reading.reader).name)
        shown = inside.root
        while shown.opcode == "bitcast":
            (shown,) = inside.operands(shown)
        if shown.name in reading.slices:
            self._unused.update(i.called_computation_ids)
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
        """Takes out what writes a residual, and what only it read."""
        editing = self.edited(computation)
        read = [i.name for i in editing.operands(editing.by_name[writer])]
        self._unused.update(editing.remove(writer).called_computation_ids)
        self._drop(computation, read)

    def _drop(self, computation: str, names: Iterable[str]) -> None:
        """Takes out instructions that nobody reads, and what only they read, where that does nothing else."""
        original = self._module.computations[computation].by_name

        def may_go(i: Any) -> bool:
            return i.opcode in _VIEWS or (i.name in original and is_of_class(self._module, original[i.name], dear=True))

        for i in self.edited(computation).sweep(names, may_go):
            called = i.called_computation_ids
            self._unused.update(k for k in called if self._module.computations[self._names[k]].is_fusion)

    def _shrink_given(self, caller: str, loop: str, places: set[int]) -> list[str]:
        """Leaves parts out of what a loop begins with; their names."""
        outside = self.edited(caller)
        (given,) = outside.operands(outside.by_name[loop])
        begun = [i.name for k, i in enumerate(outside.operands(given)) if k in places]
        _shrink_tuple(given, places)
        return begun

    def _shrink(self, caller: str, loop: str, places: set[int]) -> None:
        """Leaves parts out of what a loop carries and gives."""
        message = self.edited(caller).by_name[loop]
        body, condition = (self._names[k] for k in message.called_computation_ids)
        _shrink_tuple(self.edited(body).root, places)
        for name in (body, condition):
            parameter = self._module.computations[name].parameters[0].name
            inside = self.edited(name).by_name[parameter]
            inside.shape = without_parts(inside.shape, places)
            self._renumber(name, parameter, places)
        message.shape = without_parts(message.shape, places)
        _renumber_counter(message, places)
        self._renumber(caller, loop, places)

    def _renumber(self, computation: str, source: str, places: set[int]) -> None:
        """Gives the parts that are taken of a tuple their places without some others."""
        editing = self.edited(computation)
        for place, name in part_names(self._module.computations[computation], source):
            if name in editing.by_name:
                if place in places:
                    editing.remove(name)
                else:
                    editing.by_name[name].tuple_index = place - sum(each < place for each in places)


class _Builder:
    """Instructions of a backward loop's body for steps.

    Attributes:
      names: by the steps' numbers.
    """

    def __init__(self, editor: _Editor, loops: Loops) -> None:
        assert loops.index is not None  # who reads residuals reads them there
        self._editor, self._loops = editor, loops
        self._caller = loops.behind.computation.name
        self._body = editor.edited(self._caller)
        self._index = self._read_at(loops.index)
        self._given = dict(part_names(loops.behind.computation))
        self.names: dict[int, str] = {}

    def build(self, number: int, step: Step) -> None:
        """Adds what a step needs."""
        operands = [self.names[each] for each in step.operands]
        if step.kind == "given":
            assert isinstance(step.what, int)
            self.names[number] = self._given[step.what]
        elif step.kind == "index":
            self.names[number] = self._index
        elif step.kind == "slice":
            assert isinstance(step.what, Residual)
            self.names[number] = self._slice(step.what)
        elif step.kind == "undo":
            self.names[number] = self._undone(step.what, operands[0])  # type: ignore[arg-type]
        elif step.kind == "clone":
            i = self._loops.ahead.instruction(step.what)  # type: ignore[arg-type]
            name = self._editor.fresh(i.name)
            copies = self._editor.copies_of(i, self._caller, name)
            self._body.add(i.attributes, name, operands).called_computation_ids[:] = copies
            self.names[number] = name
        else:
            self.names[number] = self._part(step.what, step.cuts, operands)  # type: ignore[arg-type]

    def _undone(self, reference: Reference, operand: str) -> str:
        """What a bitcast or a copy was given, from what it gave."""
        ahead = self._loops.ahead
        i = ahead.instruction(reference)
        name = self._editor.fresh(i.name)
        undone = self._body.add(i.attributes, name, [operand])
        undone.shape = ahead.instruction(ahead.operands(reference)[0]).attributes.shape
        return name

    def _part(self, reference: Reference, cuts: Sequence[str], operands: Sequence[str]) -> str:
        """What a fusion of the forward loop computes up to an instruction."""
        return self._fusion(self._loops.ahead, reference, dict(zip(cuts, operands, strict=True)))

    def _slice(self, residual: Residual) -> str:
        """The slice of a residual that the backward loop reads in this trip."""
        shape = self._loops.ahead.instruction(residual.update).attributes.shape
        array, index = self._given[residual.given], self._index
        name = self._editor.fresh(array)
        fused = self._editor.new_fusion(self._caller, name)
        for k, operand in enumerate((array, index)):
            template = self._body.by_name[operand]
            fused.add(_parameter(template, k), f"{name}.{k}", ())
        # XLA clamps an index where the slice is the whole: all dimensions but one.
        dims = shape_message(shape).dimensions
        template = type(self._body.root)(opcode="dynamic-slice", shape=shape, dynamic_slice_sizes=dims)
        root = fused.add(template, f"{name}.slice", (f"{name}.0", *[f"{name}.1"] * len(dims)))
        return self._calling(fused, root, (array, index))

    def _read_at(self, index: Reference) -> str:
        """The name of the index of the slices that the backward loop reads."""
        behind = self._loops.behind
        index = behind.origin(index)
        if not index[0]:
            return index[1]
        fusion = behind.computation.by_name[index[0]]
        inside = behind.inside(index[0])
        return self._fusion(behind, index, {p.name: o for p, o in zip(inside.parameters, fusion.operands, strict=True)})

    def _fusion(self, expressions: Expressions, reference: Reference, cuts: Mapping[str, str]) -> str:
        """A fusion that computes what another one does up to an instruction.

        Args: `cuts`: by the names of instructions inside of the other: what is read in their place.
        """
        scope, end = reference
        inside, name = expressions.inside(scope), self._editor.fresh(scope)
        fused = self._editor.new_fusion(self._caller, name)
        read: list[str] = []
        copies: dict[str, str] = {}

        def copy(original: str) -> str:
            if original not in copies:
                i, again = inside.by_name[original], f"{original}.{name}"  # XLA wants every name once in a module
                if original in cuts:
                    fused.add(_parameter(i.attributes, len(read)), again, ())
                    read.append(cuts[original])
                else:
                    fused.add(i.attributes, again, [copy(operand) for operand in i.operands])
                copies[original] = again
            return copies[original]

        return self._calling(fused, fused.by_name[copy(end)], read)

    def _calling(self, fused: Editing, root: Any, operands: Sequence[str]) -> str:
        """The name of a fusion, which is that of what it computes."""
        fused.message.root_id = root.id
        name = fused.message.name
        template = type(root)(opcode="fusion", fusion_kind="kLoop", shape=root.shape)
        self._body.add(template, name, operands).called_computation_ids[:] = [fused.message.id]
        return str(name)


def _parameter(like: Any, number: int) -> Any:
    """A parameter of the shape of an instruction."""
    return type(like)(opcode="parameter", shape=like.shape, parameter_number=number)


def _make_bitcast(i: Any, operand: int) -> None:
    """Turns an instruction into a view of another one's result."""
    kept = type(i)(name=i.name, opcode="bitcast", shape=i.shape, id=i.id, operand_ids=[operand])
    kept.control_predecessor_ids[:] = i.control_predecessor_ids
    i.CopyFrom(kept)


def _forget_parameters(inside: Editing, fusion: Any) -> None:
    """Takes what nobody reads inside of a fusion from its parameters."""
    parameters = {i.parameter_number: i for i in inside.by_name.values() if i.opcode == "parameter"}
    used = [k for k in sorted(parameters) if inside.users(parameters[k].name) or parameters[k] is inside.root]
    for k in parameters.keys() - used:
        inside.remove(parameters[k].name)
    for number, k in enumerate(used):
        parameters[k].parameter_number = number
    fusion.operand_ids[:] = [fusion.operand_ids[k] for k in used]


def _shrink_tuple(i: Any, places: set[int]) -> None:
    """Leaves parts out of a tuple that an instruction makes."""
    i.operand_ids[:] = [k for place, k in enumerate(i.operand_ids) if place not in places]
    i.shape = without_parts(i.shape, places)
    i.ClearField("original_value")


def _renumber_counter(loop: Any, places: set[int]) -> None:
    """Gives the counter that a loop's configuration names its place without some others."""
    config = json.loads(loop.backend_config or b"{}")
    counter = config.get("known_induction_variable")
    if counter is not None:
        place = int(counter["tuple_index"])
        counter["tuple_index"] = str(place - sum(each < place for each in places))
        loop.backend_config = json.dumps(config).encode()
    loop.ClearField("original_value")
