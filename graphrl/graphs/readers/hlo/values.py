"""Which buffer every value of an XLA computation lies in: names seen through tuples, bitcasts and other views.

A **leaf** is a part of a value that is no tuple. Its **roots** are the tensors that hold it: one, or several for a
token that stands for several things to wait for. A tensor belongs to the instruction that writes it and is called
after it, `name` or `name{i}` or `name{i,j}` for a leaf of a tuple. It may be an alias of a tensor that the instruction
reads: XLA then gives both one buffer, whatever the schedule.
"""

import dataclasses
from collections.abc import Iterator, Mapping

from graphrl.graphs.graph import Tensor
from graphrl.graphs.readers.hlo.module import Computation, HloModule, Instruction
from graphrl.graphs.readers.hlo.shape import Index
from graphrl.graphs.readers.hlo.sharing import in_place_pairs

Leaves = Mapping[Index, tuple[str, ...]]  # roots of each leaf of a value

EXTERNAL = frozenset({"constant", "parameter"})
# Instructions without a buffer or work of their own: whoever reads them reads what they show.
VIEWS = frozenset(str.split("add-dependency after-all bitcast domain get-tuple-element opt-barrier tuple async-update"))
CONTRACTED = EXTERNAL | VIEWS
# The place of the operands in what the start of an asynchronous operation gives: there it merely shows them.
SHOWN = {"async-start": 0, "all-gather-start": 0, "collective-permute-start": 0, "send": 0, "copy-start": 1}
# Where in the start's result the end of an asynchronous operation finds its own.
_RESULT = {
    "async-done": (1,),
    "all-gather-done": (1,),
    "collective-permute-done": (1,),
    "copy-done": (0,),
    "all-reduce-done": (),
    "recv-done": (),
}


def tensor_name(instruction: str, index: Index) -> str:
    """`name`, or `name{i,j}` for a leaf of a tuple."""
    return f"{instruction}{{{','.join(map(str, index))}}}" if index else instruction


@dataclasses.dataclass(eq=False)
class Values:
    """The buffers of one computation.

    Attributes:
      leaves: of every instruction, by its name.
      alias: tensor -> the tensor that its instruction reads and whose buffer it is.
      external: parameters and constants by tensor name; they cost nothing in the computation itself.
      origin: number and leaf of the parameter that an external tensor is; constants are not there.
      waits: of every contracted instruction, the other instructions that have to run before it.
    """

    leaves: dict[str, Leaves] = dataclasses.field(default_factory=dict)
    alias: dict[str, str] = dataclasses.field(default_factory=dict)
    external: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    origin: dict[str, tuple[int, Index]] = dataclasses.field(default_factory=dict)
    waits: dict[str, frozenset[str]] = dataclasses.field(default_factory=dict)

    def buffer(self, tensor: str) -> str:
        """The tensor at the end of the chain of aliases."""
        while tensor in self.alias:
            tensor = self.alias[tensor]
        return tensor


class ValueReader:
    """Reads the values of a module's computations, each once."""

    def __init__(self, module: HloModule) -> None:
        self.module = module
        self._donated = {(alias.parameter, alias.parameter_index) for alias in module.input_output_aliases}
        self._values: dict[str, Values] = {}

    def of(self, computation: Computation) -> Values:
        """The values of a computation."""
        if computation.name not in self._values:
            self._values[computation.name] = self._read(computation)
        return self._values[computation.name]

    def _read(self, computation: Computation) -> Values:
        values = Values()
        for name in self.module.order(computation):
            i = computation.by_name[name]
            operands = [values.leaves[operand] for operand in i.operands]
            if i.opcode in CONTRACTED:
                values.waits[name] = _waits(i, values.waits)
            if i.opcode in EXTERNAL:
                self._add_external(i, values)
            leaves = _shown(i, operands) if i.opcode in VIEWS else _own(i, operands)
            values.leaves[name] = leaves
            if i.opcode not in CONTRACTED:
                values.alias.update(self._aliases(computation, i, operands, values))
        return values

    def _add_external(self, i: Instruction, values: Values) -> None:
        for index, leaf in i.shape.leaves:
            name = tensor_name(i.name, index)
            values.external[name] = Tensor(name, self.module.device_bytes(leaf))
            if i.opcode == "parameter":
                values.origin[name] = (i.attributes.parameter_number, index)

    def _aliases(
        self, computation: Computation, i: Instruction, operands: list[Leaves], values: Values
    ) -> Iterator[tuple[str, str]]:
        """The tensors of an instruction that lie in a buffer that it reads."""
        for index, source, overwritten in self._shared(i, operands):
            if len(source) != 1 or i.shape.at(index).dtype == "token":
                continue
            if not overwritten or self._may_overwrite(computation, values.buffer(source[0]), values):
                yield tensor_name(i.name, index), source[0]

    def _may_overwrite(self, computation: Computation, buffer: str, values: Values) -> bool:
        """Whether XLA writes into a buffer without copying it first: not a constant or what the caller owns."""
        if buffer not in values.external:
            return True
        if buffer not in values.origin:
            return False
        return computation is not self.module.entry or values.origin[buffer] in self._donated

    def _shared(self, i: Instruction, operands: list[Leaves]) -> Iterator[tuple[Index, tuple[str, ...], bool]]:
        """Leaves of the result that share a buffer: with which roots, and whether those are written over."""
        if i.opcode == "while":
            body = self.module.computations[i.called[0]]
            passed = self._passed(body)
            for index, roots in operands[0].items():
                yield index, roots, passed.get(index) != (0, index, False)
        elif i.opcode == "call":
            for index, (number, at, overwritten) in self._passed(self.module.computations[i.called[0]]).items():
                yield index, operands[number][at], overwritten
        elif i.opcode in _RESULT:
            for index, _ in i.shape.leaves:
                at = (*_RESULT[i.opcode], *index)
                if at in operands[0]:
                    yield index, operands[0][at], False
        else:
            for pair in in_place_pairs(self.module, i):
                yield pair.output_index, operands[pair.operand].get(pair.operand_index, ()), True

    def _passed(self, computation: Computation) -> dict[Index, tuple[int, Index, bool]]:
        """Leaves of a computation's result that lie in the buffers of parameters: number and leaf of each, and whether
        something was written over it.
        """
        values = self.of(computation)
        sources = {}
        for index, roots in values.leaves[computation.root.name].items():
            buffer = values.buffer(roots[0]) if len(roots) == 1 else ""
            if buffer in values.origin:
                sources[index] = (*values.origin[buffer], buffer != roots[0])
        return sources


def _waits(i: Instruction, waits: Mapping[str, frozenset[str]]) -> frozenset[str]:
    before = [waits.get(name, frozenset((name,))) for name in (*i.operands, *i.control_predecessors)]
    return before[0] if len(before) == 1 else frozenset().union(*before)


def _own(i: Instruction, operands: list[Leaves]) -> Leaves:
    """Leaves of an instruction that writes tensors of its own; of an asynchronous start, beside the operands shown."""
    leaves: dict[Index, tuple[str, ...]] = {index: (tensor_name(i.name, index),) for index, _ in i.shape.leaves}
    if i.opcode in SHOWN:
        place = SHOWN[i.opcode]
        shown = {(place, *index): roots for index, roots in operands[0].items()}
        if i.opcode == "async-start" or len(operands) > 1:
            shown = {(place, k, *index): roots for k, o in enumerate(operands) for index, roots in o.items()}
        leaves |= {index: roots for index, roots in shown.items() if index in leaves}
    return leaves


def _shown(i: Instruction, operands: list[Leaves]) -> Leaves:
    """Leaves of a view."""
    if i.opcode == "tuple":
        return {(k, *index): roots for k, operand in enumerate(operands) for index, roots in operand.items()}
    if i.opcode == "get-tuple-element":
        place = i.attributes.tuple_index
        return {index[1:]: roots for index, roots in operands[0].items() if index[0] == place}
    if i.opcode == "after-all":
        return {(): tuple(dict.fromkeys(root for operand in operands for root in operand[()]))}
    return operands[0]
