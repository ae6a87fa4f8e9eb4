"""Buffers of an XLA computation's values, traced through tuples, bitcasts, views and updates in place.

A **leaf** is a part of a value that is not a tuple. Its **roots** are the tensors of its data: one, or several for a
token that waits for several values. A tensor belongs to the instruction that writes it and is named after it, `name` or
`name{i}` or `name{i,j}` for a leaf of a tuple. It may be an alias of a tensor that the instruction reads: XLA then
gives both one buffer in every schedule.

The operands that an instruction may overwrite in place are those of XLA's CPU backend, after
`AliasInfo::GetInPlaceInputOutputPairs` (xla/hlo/analysis/alias_info.cc) and
`HloDataflowAnalysis::CanShareOperandBufferWithUser` (xla/hlo/analysis/hlo_dataflow_analysis.cc); the CPU backend adds
no rules (cpu_compiler.cc uses a plain `AliasInfo`). Rules for devices other than a CPU (tilings, collective permutes,
ragged all-to-all) are left out.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from graphrl.graphs.graph import Tensor
from graphrl.graphs.readers.hlo.module import Computation, HloModule, Instruction
from graphrl.graphs.readers.hlo.proto import Index

# HloInstruction::IsOpElementwise, and the opcodes whose classes override it
_ELEMENTWISE = frozenset(
    {"abs", "acos", "acosh", "add", "and", "asin", "asinh", "atan2", "atanh", "bitcast-convert", "cbrt", "ceil",
     "clamp", "compare", "complex", "constant", "convert", "copy", "cosh", "cosine", "count-leading-zeros", "divide",
     "erf", "exponential", "exponential-minus-one", "floor", "imag", "is-finite", "log", "log-plus-one", "logistic",
     "maximum", "minimum", "multiply", "multiply-high", "negate", "not", "or", "popcnt", "power", "real",
     "reduce-precision", "remainder", "rng", "round-nearest-afz", "round-nearest-even", "rsqrt", "select",
     "shift-left", "shift-right-arithmetic", "shift-right-logical", "sign", "sine", "sinh", "sqrt",
     "stochastic-convert", "subtract", "tan", "tanh", "xor"}
)  # fmt: skip
_IN_PLACE = frozenset({"dynamic-update-slice", "scatter", "all-reduce-start"})
_FIRST_OPERAND = frozenset({"dynamic-update-slice", "scatter", "set-dimension-size"})
_SOLVE = "triangular-solve"
Leaves = Mapping[Index, tuple[str, ...]]  # roots of each leaf of a value
EXTERNAL = frozenset({"constant", "parameter"})
# Instructions without their own buffer or work: their readers read the tensors behind them.
VIEWS = frozenset(str.split("add-dependency after-all bitcast domain get-tuple-element opt-barrier tuple async-update"))
CONTRACTED = EXTERNAL | VIEWS
# Index of the operands in the result of the start of an asynchronous operation, where they are only forwarded.
FORWARDING = {"async-start": 0, "all-gather-start": 0, "collective-permute-start": 0, "send": 0, "copy-start": 1}
# Index of the result of an asynchronous operation's end in the result of its start.
FORWARDED = {
    "async-done": (1,),
    "all-gather-done": (1,),
    "collective-permute-done": (1,),
    "copy-done": (0,),
    "all-reduce-done": (),
    "recv-done": (),
}


class InPlace(NamedTuple):
    """A part of an instruction's output that must use the buffer of one of its operands."""

    operand: int
    operand_index: Index
    output_index: Index


def in_place_pairs(module: HloModule, instruction: Instruction) -> tuple[InPlace, ...]:
    """Lists the operands that XLA makes an instruction overwrite, each with a part of the instruction's output.

    XLA inserts a copy first if the update would destroy a value with later readers.
    """
    declared = tuple(
        InPlace(a.operand_index, tuple(a.operand_shape_index), tuple(a.output_shape_index))
        for a in instruction.attributes.output_operand_aliasing
    )
    if instruction.opcode == "fusion":
        return tuple(_fusion_pairs(module, instruction)) + declared
    if instruction.opcode == "set-dimension-size":
        return (InPlace(0, (), ()),)
    if instruction.opcode not in _IN_PLACE:
        return declared
    count = len(instruction.operands)
    if instruction.opcode == "dynamic-update-slice":
        count = 1
    elif instruction.opcode == "scatter":
        count = (count - 1) // 2  # operands: the arrays, the indices, one update for each array
    return tuple(InPlace(k, (), () if count == 1 else (k,)) for k in range(count))


def may_share(
    module: HloModule,
    computation: Computation,
    user: Instruction,
    operand: int,
    operand_index: Index = (),
    output_index: Index = (),
) -> bool:
    """True if an instruction may write (a part of) its result over (a part of) one of its operands.

    Other readers of the operand are not considered: the caller must ensure that none reads it afterwards. A `call` may
    not: XLA gives its result the buffer of its computation's result.

    Args:
      module: module of the instruction.
      computation: computation of the instruction.
      user: the instruction that would write.
      operand: index of the operand that it would overwrite.
      operand_index: part of the operand, if that is a tuple.
      output_index: part of the result, if that is a tuple.
    """
    source = computation.by_name[user.operands[operand]]
    if source.opcode == "constant":
        return False
    if source.shape.at(operand_index) != user.shape.at(output_index):  # layouts too
        return False
    for pair in in_place_pairs(module, user):
        same = user.operands[pair.operand] == source.name and pair.operand_index == operand_index
        if same and pair.output_index == output_index:
            return True
    first = user.operands.index(source.name)
    if user.opcode == "fusion":
        return _fusion_may_share(module, computation, user, first)
    if user.opcode in ("while", "conditional"):
        return True
    if user.opcode in _FIRST_OPERAND or user.opcode == _SOLVE:
        place = 1 if user.opcode == _SOLVE else 0
        return [k for k, name in enumerate(user.operands) if name == source.name] == [place]
    if user.opcode == "sort":
        if len(computation.users[source.name]) != 1:
            return False
        is_only_use = user.operands.count(source.name) == 1
        return len(user.operands) == 1 or (is_only_use and output_index[0] == first)
    return _is_elementwise(module, computation, user, first)


def tensor_name(instruction: str, index: Index) -> str:
    """Returns the name of an instruction's tensor: `name`, or `name{i,j}` for a leaf of a tuple."""
    return f"{instruction}{{{','.join(map(str, index))}}}" if index else instruction


@dataclasses.dataclass(eq=False)
class Values:
    """The tensors of one computation and their buffers; names are explained in the module.

    Attributes:
      leaves: leaves of every instruction's value and their roots, by instruction name.
      alias: for each tensor that shares a buffer, the tensor that its instruction reads and whose buffer it occupies.
      external: parameters and constants by tensor name; they cost nothing in the computation itself.
      origin: parameter number and leaf of each external tensor that is not a constant.
      waits: for every contracted instruction (not an op), the other instructions that must run before it.
    """

    leaves: dict[str, Leaves] = dataclasses.field(default_factory=dict)
    alias: dict[str, str] = dataclasses.field(default_factory=dict)
    external: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    origin: dict[str, tuple[int, Index]] = dataclasses.field(default_factory=dict)
    waits: dict[str, frozenset[str]] = dataclasses.field(default_factory=dict)

    def buffer(self, tensor: str) -> str:
        """Follows the chain of aliases from a tensor; returns the tensor that owns the buffer."""
        while tensor in self.alias:
            tensor = self.alias[tensor]
        return tensor


class ValueReader:
    """Reads the values of a module's computations, each computation once."""

    def __init__(self, module: HloModule) -> None:
        self.module = module
        self._donated = {(alias.parameter, alias.parameter_index) for alias in module.input_output_aliases}
        self._values: dict[str, Values] = {}

    def of(self, computation: Computation) -> Values:
        """Reads the values of a computation, or returns them if they were read before."""
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
            leaves = _viewed(i, operands) if i.opcode in VIEWS else _own(i, operands)
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
        """Yields (tensor, source) for an instruction's tensors that are in the buffer of a tensor that it reads."""
        for index, source, overwritten in self._shared(i, operands):
            if len(source) != 1 or i.shape.at(index).dtype == "token":
                continue
            if not overwritten or self._may_overwrite(computation, values.buffer(source[0]), values):
                yield tensor_name(i.name, index), source[0]

    def _may_overwrite(self, computation: Computation, buffer: str, values: Values) -> bool:
        """True if XLA writes into a buffer without copying it first: not a constant, and not owned by the caller."""
        if buffer not in values.external:
            return True
        if buffer not in values.origin:
            return False
        return computation is not self.module.entry or values.origin[buffer] in self._donated

    def _shared(self, i: Instruction, operands: list[Leaves]) -> Iterator[tuple[Index, tuple[str, ...], bool]]:
        """Yields (index, roots of the buffer, True if these are overwritten) for result leaves that share a buffer."""
        if i.opcode == "while":
            body = self.module.computations[i.called[0]]
            passed = self._passed(body)
            for index, roots in operands[0].items():
                yield index, roots, passed.get(index) != (0, index, False)
        elif i.opcode == "call":
            for index, (number, at, overwritten) in self._passed(self.module.computations[i.called[0]]).items():
                yield index, operands[number][at], overwritten
        elif i.opcode in FORWARDED:
            for index, _ in i.shape.leaves:
                at = (*FORWARDED[i.opcode], *index)
                if at in operands[0]:
                    yield index, operands[0][at], False
        else:
            for pair in in_place_pairs(self.module, i):
                yield pair.output_index, operands[pair.operand].get(pair.operand_index, ()), True

    def _passed(self, computation: Computation) -> dict[Index, tuple[int, Index, bool]]:
        """Finds the leaves of a computation's result that are in the buffers of its parameters.

        Returns:
          For each such leaf, parameter number, leaf of the parameter, and True if it is overwritten.
        """
        values = self.of(computation)
        sources = {}
        for index, roots in values.leaves[computation.root.name].items():
            buffer = values.buffer(roots[0]) if len(roots) == 1 else ""
            if buffer in values.origin:
                sources[index] = (*values.origin[buffer], buffer != roots[0])
        return sources


def _fusion_pairs(module: HloModule, fusion: Instruction) -> Iterator[InPlace]:
    """Yields the outputs whose last step inside the fusion overwrites a value that comes directly from a parameter."""
    body = module.computations[fusion.called[0]]
    for leaf, _ in fusion.shape.leaves:
        source, index = _source(body, body.root, leaf)
        origin = None
        for pair in in_place_pairs(module, source):
            if pair.output_index != index:
                continue
            origin, at = _source(body, body.by_name[source.operands[pair.operand]], pair.operand_index)
            if origin.opcode == "fusion":
                for inner in in_place_pairs(module, origin):
                    if inner.output_index == at:
                        origin, at = _source(body, body.by_name[origin.operands[inner.operand]], inner.operand_index)
                        break
        if origin is not None and origin.opcode == "parameter":
            yield InPlace(origin.attributes.parameter_number, at, leaf)


def _fusion_may_share(module: HloModule, computation: Computation, fusion: Instruction, operand: int) -> bool:
    body = module.computations[fusion.called[0]]
    kind = fusion.attributes.fusion_kind
    if kind in ("kLoop", "kInput"):
        return _flows(module, body, body.parameters[operand].name, through_tuples=True)
    if kind == "kOutput" and body.root.opcode == "add":
        opcodes = [body.by_name[name].opcode for name in body.root.operands]
        products = [k for k, opcode in enumerate(opcodes) if opcode in ("dot", "convolution")]
        uses = [
            (user, k)
            for user in body.users[body.parameters[operand].name]
            for k, name in enumerate(user.operands)
            if name == body.parameters[operand].name
        ]
        if not products or len(uses) != 1:
            return False
        return uses[0][0] is body.root and uses[0][1] == (1 if products[0] == 0 else 0)
    return _is_elementwise(module, computation, fusion, operand)


def _is_elementwise(module: HloModule, computation: Computation, instruction: Instruction, operand: int) -> bool:
    """True if an instruction is element-wise in an operand, as XLA's `HloInstruction::IsElementwiseOnOperand`."""
    if instruction.opcode == "fusion":
        body = module.computations[instruction.called[0]]
        return _flows(module, body, body.parameters[operand].name, through_tuples=False)
    if instruction.opcode == "dynamic-update-slice":
        return operand == 0
    if instruction.opcode == "map":
        dimensions = tuple(instruction.attributes.dimensions)
        return dimensions in ((), tuple(range(len(instruction.shape.dims))))
    if instruction.opcode == "bitcast-convert":
        return computation.by_name[instruction.operands[0]].shape.dims == instruction.shape.dims
    return instruction.opcode in _ELEMENTWISE


def _waits(i: Instruction, waits: Mapping[str, frozenset[str]]) -> frozenset[str]:
    before = [waits.get(name, frozenset((name,))) for name in (*i.operands, *i.control_predecessors)]
    return before[0] if len(before) == 1 else frozenset().union(*before)


def _viewed(i: Instruction, operands: list[Leaves]) -> Leaves:
    """Returns the leaves of a view's value, whose roots are those of its operands."""
    if i.opcode == "tuple":
        return {(k, *index): roots for k, operand in enumerate(operands) for index, roots in operand.items()}
    if i.opcode == "get-tuple-element":
        place = i.attributes.tuple_index
        return {index[1:]: roots for index, roots in operands[0].items() if index[0] == place}
    if i.opcode == "after-all":
        return {(): tuple(dict.fromkeys(root for operand in operands for root in operand[()]))}
    return operands[0]


def _own(i: Instruction, operands: list[Leaves]) -> Leaves:
    """Returns the leaves of an instruction that writes tensors; an asynchronous start also forwards its operands."""
    leaves: dict[Index, tuple[str, ...]] = {index: (tensor_name(i.name, index),) for index, _ in i.shape.leaves}
    if i.opcode in FORWARDING:
        place = FORWARDING[i.opcode]
        forwarded = {(place, *index): roots for index, roots in operands[0].items()}
        if i.opcode == "async-start" or len(operands) > 1:
            forwarded = {(place, k, *index): roots for k, o in enumerate(operands) for index, roots in o.items()}
        leaves |= {index: roots for index, roots in forwarded.items() if index in leaves}
    return leaves


def _source(body: Computation, instruction: Instruction, index: Index) -> tuple[Instruction, Index]:
    """Finds the producer of the part `index` of an instruction's result, looking through tuples and bitcasts."""
    while instruction.opcode == "tuple" and index:
        instruction, index = body.by_name[instruction.operands[index[0]]], index[1:]
    while instruction.opcode == "get-tuple-element":
        index = (instruction.attributes.tuple_index, *index)
        instruction = body.by_name[instruction.operands[0]]
    while instruction.opcode == "bitcast" and not index:
        instruction = body.by_name[instruction.operands[0]]
    return instruction, index


def _flows(module: HloModule, body: Computation, name: str, through_tuples: bool) -> bool:
    """True if everything computed from `name` in a fusion is computed element by element."""
    visited, pending = {name}, [name]
    while pending:
        operand = pending.pop()
        for user in body.users[operand]:
            if not (through_tuples and user.opcode == "tuple"):
                places = [k for k, other in enumerate(user.operands) if other == operand]
                if not all(_is_elementwise(module, body, user, k) for k in places):
                    return False
            if user.name not in visited:
                visited.add(user.name)
                pending.append(user.name)
    return True
