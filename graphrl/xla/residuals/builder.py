"""Instructions of a backward loop's body that compute slices of residuals again."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from graphrl.graphs.readers.hlo.proto import shape_message
from graphrl.xla.residuals.edit import Editing, ModuleEditing
from graphrl.xla.residuals.expressions import Expressions, Reference
from graphrl.xla.residuals.loops import Loops, Residual, part_names
from graphrl.xla.residuals.recipes import Step


class Builder:
    """Instructions of a backward loop's body for steps.

    Attributes:
      names: by the steps' numbers.
    """

    def __init__(self, editing: ModuleEditing, loops: Loops) -> None:
        self._editing, self._loops = editing, loops
        self._caller = loops.behind.computation.name
        self._body = editing.edited(self._caller)
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
            name = self._editing.fresh(i.name)
            copies = self._editing.copies_of(i, self._caller, name)
            self._body.add(i.attributes, name, operands).called_computation_ids[:] = copies
            self.names[number] = name
        else:
            self.names[number] = self._part(step.what, step.cuts, operands)  # type: ignore[arg-type]

    def _undone(self, reference: Reference, operand: str) -> str:
        """What a bitcast or a copy was given, from what it gave."""
        ahead = self._loops.ahead
        i = ahead.instruction(reference)
        name = self._editing.fresh(i.name)
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
        name = self._editing.fresh(array)
        fused = self._editing.new_fusion(self._caller, name)
        for k, operand in enumerate((array, index)):
            template = self._body.by_name[operand]
            fused.add(_parameter(template, k), f"{name}.{k}", ())
        # XLA clamps an index where the slice is the whole: all dimensions but one.
        dims = shape_message(shape).dimensions
        template = type(self._body.root)(opcode="dynamic-slice", shape=shape, dynamic_slice_sizes=dims)
        root = fused.add(template, f"{name}.slice", (f"{name}.0", *[f"{name}.1"] * len(dims)))
        return self._calling(fused, root, (array, index))

    @functools.cached_property
    def _index(self) -> str:
        """The name of the number of the forward loop's trip whose slices the backward loop reads: the index that it
        reads them at, moved into the residual as XLA does it where it is outside, by slicing the numbers of all trips.
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
        """The name of the index at which the backward loop reads slices; computed once more only where it is inside
        of a fusion, since what it is computed from may be written over by then.
        """
        behind, index = self._loops.behind, self._loops.index
        assert index is not None  # who reads residuals reads them there
        scope, name = index
        if not scope:
            return name
        fusion, inside = behind.computation.by_name[scope], behind.inside(scope)
        cuts = {p.name: o for p, o in zip(inside.parameters, fusion.operands, strict=True)}
        return cuts[name] if name in cuts else self._fusion(behind, index, cuts)

    def _fusion(self, expressions: Expressions, reference: Reference, cuts: Mapping[str, str]) -> str:
        """A fusion that computes what another one does up to an instruction.

        Args: `cuts`: by the names of instructions inside of the other: what is read in their place.
        """
        scope, end = reference
        inside, name = expressions.inside(scope), self._editing.fresh(scope)
        fused = self._editing.new_fusion(self._caller, name)
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


def _vector(scalar: bytes, size: int) -> bytes:
    """The shape of so many of what a shape is of."""
    shape = shape_message(scalar)
    shape.dimensions[:], shape.is_dynamic_dimension[:], shape.layout.minor_to_major[:] = [size], [False], [0]
    return bytes(shape.SerializeToString())
