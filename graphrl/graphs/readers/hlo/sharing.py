"""Which operands an instruction may overwrite in place, as XLA's CPU backend decides.

After `AliasInfo::GetInPlaceInputOutputPairs` (xla/hlo/analysis/alias_info.cc) and
`HloDataflowAnalysis::CanShareOperandBufferWithUser` (xla/hlo/analysis/hlo_dataflow_analysis.cc); the CPU backend has no
rules of its own (cpu_compiler.cc uses a plain `AliasInfo`). Left out are rules for devices other than a CPU (tilings,
collective permutes, ragged all-to-all).
"""

from collections.abc import Iterator
from typing import NamedTuple

from graphrl.graphs.readers.hlo.module import Computation, HloModule, Instruction
from graphrl.graphs.readers.hlo.shape import Index

# HloInstruction::IsOpElementwise, and the opcodes whose classes say so themselves
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


class InPlace(NamedTuple):
    """One output of an instruction that must lie in the buffer of one of its operands."""

    operand: int
    operand_index: Index
    output_index: Index


def in_place_pairs(module: HloModule, instruction: Instruction) -> tuple[InPlace, ...]:
    """The operands that XLA makes an instruction overwrite, and with which part of its output.

    A copy is inserted before it where that would destroy what somebody else still reads.
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
        count = (count - 1) // 2  # the arrays, the indices, as many updates
    return tuple(InPlace(k, (), () if count == 1 else (k,)) for k in range(count))


def _fusion_pairs(module: HloModule, fusion: Instruction) -> Iterator[InPlace]:
    """Outputs whose last step inside the fusion overwrites something that comes straight from a parameter."""
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


def _source(body: Computation, instruction: Instruction, index: Index) -> tuple[Instruction, Index]:
    """What made the part `index` of an instruction's result, seen through tuples and bitcasts."""
    while instruction.opcode == "tuple" and index:
        instruction, index = body.by_name[instruction.operands[index[0]]], index[1:]
    while instruction.opcode == "get-tuple-element":
        index = (instruction.attributes.tuple_index, *index)
        instruction = body.by_name[instruction.operands[0]]
    while instruction.opcode == "bitcast" and not index:
        instruction = body.by_name[instruction.operands[0]]
    return instruction, index


def may_share(
    module: HloModule,
    computation: Computation,
    user: Instruction,
    operand: int,
    operand_index: Index = (),
    output_index: Index = (),
) -> bool:
    """Whether an instruction may write (a part of) its result over (a part of) one of its operands.

    It says nothing about who else reads the operand: the caller makes sure that nobody reads it afterwards.
    A `call` may not: XLA gives its result the buffer of what its computation makes.

    Args:
      module: of the instruction.
      computation: in which it stands.
      user: the instruction that would write.
      operand: number of the operand that it would write over.
      operand_index: which part of the operand, if that is a tuple.
      output_index: which part of the result, if that is a tuple.
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
        wanted = 1 if user.opcode == _SOLVE else 0
        return [k for k, name in enumerate(user.operands) if name == source.name] == [wanted]
    if user.opcode == "sort":
        if len(computation.users[source.name]) != 1:
            return False
        alone = user.operands.count(source.name) == 1
        return len(user.operands) == 1 or (alone and output_index[0] == first)
    return _is_elementwise(module, computation, user, first)


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


def _flows(module: HloModule, body: Computation, name: str, through_tuples: bool) -> bool:
    """Whether everything computed from `name` in a fusion is computed element by element."""
    seen, todo = {name}, [name]
    while todo:
        operand = todo.pop()
        for user in body.users[operand]:
            if not (through_tuples and user.opcode == "tuple"):
                places = [k for k, other in enumerate(user.operands) if other == operand]
                if not all(_is_elementwise(module, body, user, k) for k in places):
                    return False
            if user.name not in seen:
                seen.add(user.name)
                todo.append(user.name)
    return True


def _is_elementwise(module: HloModule, computation: Computation, instruction: Instruction, operand: int) -> bool:
    """`HloInstruction::IsElementwiseOnOperand`."""
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
