"""Edits of a module's message: computations and instructions are added and removed by name.

`ModuleEditing` and `Editing` change a copy of a message. `Builder` adds the instructions of a backward loop's body that
compute slices of residuals again.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from graphrl.graphs.readers.hlo.module import HloModule, Instruction, parse_module
from graphrl.graphs.readers.hlo.proto import in_order, replace, shape_message
from graphrl.xla.recompute.loops import Expressions, Loops, Reference, Residual, part_names
from graphrl.xla.recompute.residuals import Step

LOCAL_BITS = 32  # low bits of an instruction's id: its own number; above them its computation's id
LOCAL = (1 << LOCAL_BITS) - 1


class Editing:
    """Adds and removes instructions of one computation's protobuf message.

    Attributes:
      message: the computation's message, which is changed.
      by_name: name of an instruction -> its message.
    """

    def __init__(self, message: Any, order: Sequence[str] = ()) -> None:
        """`order` has the names of its instructions in execution order; empty for a fused computation."""
        self.message = message
        self.by_name: dict[str, Any] = {i.name: i for i in message.instructions}
        self._order = list(order)
        self._base = message.id << LOCAL_BITS
        self._next = max((i.id & LOCAL for i in message.instructions), default=-1) + 1
        self._removed: set[int] = set()

    @property
    def root(self) -> Any:
        """The computation's root instruction."""
        return next(i for i in self.by_name.values() if i.id & LOCAL == self.message.root_id & LOCAL)

    def add(self, template: Any, name: str, operands: Iterable[str]) -> Any:
        """Adds a copy of an instruction with other operands, without control predecessors and called computations."""
        i = type(template)()
        i.CopyFrom(template)
        i.name, i.id = name, self._base | self._next
        i.operand_ids[:] = [self.by_name[operand].id for operand in operands]
        i.control_predecessor_ids[:] = []
        i.called_computation_ids[:] = []
        self.by_name[name] = i
        self._next += 1
        return i

    def operands(self, i: Any) -> list[Any]:
        """Returns the operands of an instruction."""
        by_id = {each.id & LOCAL: each for each in self.by_name.values()}
        return [by_id[k & LOCAL] for k in i.operand_ids]

    def users(self, name: str) -> list[Any]:
        """Returns the instructions that read an instruction."""
        number = self.by_name[name].id & LOCAL
        return [i for i in self.by_name.values() if number in [k & LOCAL for k in i.operand_ids]]

    def read_instead(self, old: str, new: str) -> None:
        """Redirects all users of an instruction to another one."""
        number, other = self.by_name[old].id & LOCAL, self.by_name[new].id
        for i in self.users(old):
            i.operand_ids[:] = [other if k & LOCAL == number else k for k in i.operand_ids]

    def remove(self, name: str) -> Any:
        """Removes an instruction that has no users."""
        removed = self.by_name.pop(name)
        self._removed.add(removed.id)
        return removed

    def sweep(self, names: Iterable[str], may_go: Callable[[Any], bool]) -> list[Any]:
        """Removes those of the instructions that have no users, and then operands that only they read.

        Args:
          names: names of the instructions.
          may_go: returns True if an instruction may be removed.

        Returns:
          The removed instructions.
        """
        removed, pending = [], list(names)
        while pending:
            i = self.by_name.get(pending.pop())
            if i is not None and i is not self.root and may_go(i) and not self.users(i.name):
                pending += [each.name for each in self.operands(i)]
                removed.append(self.remove(i.name))
        return removed

    def finish(self) -> list[int]:
        """Writes the instructions to the message.

        Returns:
          Their ids in execution order: new ones come right before their first user.
        """
        old = [self.by_name[name] for name in self._order if name in self.by_name]
        placed = {i.name for i in old}
        order = in_order([*old, *(i for i in self.by_name.values() if i.name not in placed)], self._removed)
        replace(self.message.instructions, in_order(list(self.by_name.values()), self._removed))
        return [i.id for i in order]


class ModuleEditing:
    """Edits a copy of a module's protobuf message; the original is not changed.

    Attributes:
      original: the original module.
      names: id of a computation -> its name.
      unused: ids of computations to remove.
    """

    def __init__(self, module: HloModule) -> None:
        self.original = module
        self._message = type(module.message)()
        self._message.CopyFrom(module.message)
        self._fusions = FusionCopies(self._message)
        self._messages = {c.name: c for c in self._message.computations}
        self.names = {c.id: c.name for c in self._message.computations}
        self.unused: set[int] = set()
        self._editing: dict[str, Editing] = {}
        self._added: dict[str, list[Any]] = {}  # name of a computation -> new fused computations that it calls
        self._count, self._mark = 0, "ahead"
        while any(f".{self._mark}" in name for c in module.sequential for name in c.by_name):
            self._mark += "n"

    def edited(self, name: str) -> Editing:
        """Returns the editing of a computation, created at the first request."""
        if name not in self._editing:
            computation = self.original.computations[name]
            self._editing[name] = Editing(self._messages[name], self.original.order(computation))
        return self._editing[name]

    def fresh(self, name: str) -> str:
        """Returns a new name for an instruction or a computation."""
        self._count += 1
        return f"{name}.{self._mark}{self._count}"

    def copies_of(self, i: Instruction, caller: str, name: str) -> list[int]:
        """Copies the fused computations that an instruction calls, for an instruction of another computation.

        Returns:
          The ids of the copies.
        """
        self._fusions.copies.clear()
        ids = [self._fusions.copied(k, name) for k in i.attributes.called_computation_ids]
        copies = [copy for each in self._fusions.copies.values() for copy in each]
        self._added.setdefault(caller, []).extend(sorted(copies, key=lambda copy: -copy.id))  # callees first
        return ids

    def new_fusion(self, caller: str, name: str) -> Editing:
        """Adds a new, empty computation for a fusion."""
        message = type(self._message.computations[0])(name=name, id=self._fusions.new_id(), is_fusion_computation=True)
        self._added.setdefault(caller, []).append(message)
        self._editing[name] = Editing(message)
        return self._editing[name]

    def finish(self) -> HloModule:
        """Returns the edited module."""
        orders = {editing.message.id: editing.finish() for editing in self._editing.values()}
        for scheduled in self._message.schedule.sequences:
            if scheduled.key in orders:
                scheduled.value.instruction_ids[:] = orders[scheduled.key]
        computations: list[Any] = []
        for computation in self._message.computations:
            computations += self._added.get(computation.name, ())
            if computation.id not in self.unused:
                computations.append(computation)
        replace(self._message.computations, computations)
        changed = parse_module(self._message.SerializeToString(), self.original.name)
        old = self.original
        schedule = {name: order for name, order in old.schedule.items() if name in changed.computations}
        schedule |= {name: changed.schedule[name] for name in self._editing if name in changed.schedule}
        entry, aliases = changed.computations[old.entry.name], old.input_output_aliases
        return dataclasses.replace(changed, name=old.name, entry=entry, schedule=schedule, input_output_aliases=aliases)


def without_parts(shape: bytes, places: Iterable[int]) -> bytes:
    """Removes parts from a tuple's serialized shape."""
    message = shape_message(shape)
    for place in sorted(places, reverse=True):
        del message.tuple_shapes[place]
    return bytes(message.SerializeToString())


class Builder:
    """Adds instructions to a backward loop's body, one for each step.

    Attributes:
      names: number of a step -> name of the instruction that computes it.
    """

    def __init__(self, editing: ModuleEditing, loops: Loops) -> None:
        self._editing, self._loops = editing, loops
        self._caller = loops.backward_body.computation.name
        self._body = editing.edited(self._caller)
        self._arguments = dict(part_names(loops.backward_body.computation))
        self.names: dict[int, str] = {}

    def build(self, number: int, step: Step) -> None:
        """Adds the instructions of a step."""
        operands = [self.names[each] for each in step.operands]
        if step.kind == "given":
            assert isinstance(step.what, int)
            self.names[number] = self._arguments[step.what]
        elif step.kind == "index":
            self.names[number] = self._index
        elif step.kind == "slice":
            assert isinstance(step.what, Residual)
            self.names[number] = self._slice(step.what)
        elif step.kind == "undo":
            self.names[number] = self._undone(step.what, operands[0])  # type: ignore[arg-type]
        elif step.kind == "clone":
            i = self._loops.forward_body.instruction(step.what)  # type: ignore[arg-type]
            name = self._editing.fresh(i.name)
            copies = self._editing.copies_of(i, self._caller, name)
            self._body.add(i.attributes, name, operands).called_computation_ids[:] = copies
            self.names[number] = name
        else:
            self.names[number] = self._part(step.what, step.cuts, operands)  # type: ignore[arg-type]

    def _undone(self, reference: Reference, operand: str) -> str:
        """Adds the inverse of a bitcast or a copy, which gives its operand from its result; returns the name."""
        forward = self._loops.forward_body
        i = forward.instruction(reference)
        name = self._editing.fresh(i.name)
        undone = self._body.add(i.attributes, name, [operand])
        undone.shape = forward.instruction(forward.operands(reference)[0]).attributes.shape
        return name

    def _part(self, reference: Reference, cuts: Sequence[str], operands: Sequence[str]) -> str:
        """Adds a fusion that computes a fusion of the forward loop up to an instruction; returns its name."""
        return self._fusion(self._loops.forward_body, reference, dict(zip(cuts, operands, strict=True)))

    def _slice(self, residual: Residual) -> str:
        """Adds the slice of a residual that the backward loop reads in this trip; returns its name."""
        shape = self._loops.forward_body.instruction(residual.update).attributes.shape
        array, index = self._arguments[residual.argument], self._index
        name = self._editing.fresh(array)
        fused = self._editing.new_fusion(self._caller, name)
        for k, operand in enumerate((array, index)):
            template = self._body.by_name[operand]
            fused.add(_parameter(template, k), f"{name}.{k}", ())
        # One index serves all dimensions: XLA clamps it to 0 where the slice is the whole, in all but one.
        dims = shape_message(shape).dimensions
        template = type(self._body.root)(opcode="dynamic-slice", shape=shape, dynamic_slice_sizes=dims)
        root = fused.add(template, f"{name}.slice", (f"{name}.0", *[f"{name}.1"] * len(dims)))
        return self._calling(fused, root, (array, index))

    @functools.cached_property
    def _index(self) -> str:
        """Name of the instruction that computes which trip of the forward loop wrote the slices that are read now.

        It is the index at which the backward loop reads them, clamped into the residual as XLA clamps it: by slicing
        an iota of the numbers of all trips.
        """
        number = self._read_at
        name = self._editing.fresh(number)
        fused = self._editing.new_fusion(self._caller, name)
        index = self._body.by_name[number]
        fused.add(_parameter(index, 0), f"{name}.0", ())
        whole, one = (_vector(index.shape, size) for size in (self._loops.trips or 1, 1))
        fused.add(type(index)(opcode="iota", shape=whole, dimensions=[0]), f"{name}.iota", ())
        slicing = type(index)(opcode="dynamic-slice", shape=one, dynamic_slice_sizes=[1])
        fused.add(slicing, f"{name}.slice", (f"{name}.iota", f"{name}.0"))
        root = fused.add(type(index)(opcode="bitcast", shape=index.shape), f"{name}.bitcast", (f"{name}.slice",))
        return self._calling(fused, root, (number,))

    @property
    def _read_at(self) -> str:
        """Name of the index at which the backward loop reads slices.

        It is computed once more only if it is inside of a fusion: its operands may be written over later.
        """
        backward, index = self._loops.backward_body, self._loops.index
        assert index is not None  # loops with readings have an index
        scope, name = index
        if not scope:
            return name
        fusion, inside = backward.computation.by_name[scope], backward.inside(scope)
        cuts = {p.name: o for p, o in zip(inside.parameters, fusion.operands, strict=True)}
        return cuts[name] if name in cuts else self._fusion(backward, index, cuts)

    def _fusion(self, expressions: Expressions, reference: Reference, cuts: Mapping[str, str]) -> str:
        """Adds a fusion that computes another fusion up to an instruction; returns its name.

        Args:
          expressions: expressions of the computation that has the other fusion.
          reference: the instruction inside of the other fusion.
          cuts: name of an instruction inside of the other fusion -> name of the operand to read in its place.
        """
        scope, end = reference
        inside, name = expressions.inside(scope), self._editing.fresh(scope)
        fused = self._editing.new_fusion(self._caller, name)
        read: list[str] = []
        copies: dict[str, str] = {}

        def copy(original: str) -> str:
            if original not in copies:
                i, copied = inside.by_name[original], f"{original}.{name}"  # names are unique in a module
                if original in cuts:
                    fused.add(_parameter(i.attributes, len(read)), copied, ())
                    read.append(cuts[original])
                else:
                    fused.add(i.attributes, copied, [copy(operand) for operand in i.operands])
                copies[original] = copied
            return copies[original]

        return self._calling(fused, fused.by_name[copy(end)], read)

    def _calling(self, fused: Editing, root: Any, operands: Sequence[str]) -> str:
        """Adds the call of a fused computation; returns its name, which is also the computation's."""
        fused.message.root_id = root.id
        name = fused.message.name
        template = type(root)(opcode="fusion", fusion_kind="kLoop", shape=root.shape)
        self._body.add(template, name, operands).called_computation_ids[:] = [fused.message.id]
        return str(name)


def _parameter(like: Any, number: int) -> Any:
    """Creates a parameter instruction with another instruction's shape."""
    return type(like)(opcode="parameter", shape=like.shape, parameter_number=number)


def _vector(scalar: bytes, size: int) -> bytes:
    """Returns the serialized shape of a vector with `size` elements of a scalar's type."""
    shape = shape_message(scalar)
    shape.dimensions[:], shape.is_dynamic_dimension[:], shape.layout.minor_to_major[:] = [size], [False], [0]
    return bytes(shape.SerializeToString())


class FusionCopies:
    """Copies fused computations, since XLA requires that each has only one caller.

    Attributes:
      copies: id of an original computation -> its copies.
    """

    def __init__(self, message: Any) -> None:
        """`message`: the module's protobuf message, in which the originals are."""
        self.copies: dict[int, list[Any]] = {}
        self._computations = {c.id: c for c in message.computations}
        self._next = max(self._computations) + 1

    def new_id(self) -> int:
        """Returns an id for a new computation."""
        self._next += 1
        return self._next - 1

    def copied(self, number: int, suffix: str) -> int:
        """Copies a fused computation, with those that it fuses in turn.

        Returns:
          The id of the copy; for a computation that is not fused, its own id: several instructions may call it.
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
