"""Which instructions may be computed again, and which may read a clone in place of the original."""

from graphrl.graphs.readers.hlo.module import HloModule, Instruction
from graphrl.graphs.readers.hlo.reader import HloProgram
from graphrl.graphs.readers.hlo.sharing import in_place_pairs
from graphrl.graphs.readers.hlo.values import CONTRACTED, ValueReader, tensor_name
from graphrl.graphs.readers.hlo.work import CALLERS
from graphrl.xla.overwriting import WrittenOver, written_over

# Element by element, or moving elements; the same input gives the same bits. What is missing here may be deterministic
# too, but is slow or rare.
CHEAP = frozenset(
    str.split(
        """
        abs add and bitcast-convert broadcast ceil clamp compare complex concatenate convert copy cosine divide
        dynamic-slice erf exponential exponential-minus-one floor imag iota is-finite log log-plus-one logistic maximum
        minimum multiply negate not or pad popcnt power real remainder reshape reverse round-nearest-afz
        round-nearest-even rsqrt select shift-left shift-right-arithmetic shift-right-logical sign sine slice sqrt
        subtract tan tanh transpose xor
        """
    )
)
_INSIDE = CHEAP | CONTRACTED | {"gather", "map", "reduce", "reduce-precision", "reduce-window", "fusion"}
# Not cheap at all, except where the value is large and its products are thin, as of a convolution on few channels.
_DEAR = frozenset(("convolution", "dot", "reduce", "reduce-window"))
_KINDS = ("kLoop", "kCustom", "kOutput")  # of fusions; on the CPU, what a library computes is kCustom
# A reader must be told in place of what it reads; these carry buffers through and write into them.
_FIXED_READERS = frozenset(("async-start", "conditional", "while"))
_SINGLE_VIEWS = frozenset(("bitcast", "get-tuple-element"))


def repeatable(program: HloProgram, *, dear: bool = False) -> list[bool]:
    """For every op of the program's graph, whether XLA may compute it twice: deterministic, of one array, and cheap;
    or, with `dear`, whatever it costs: products, convolutions and reductions, alone and fused.
    """
    over = written_over(program.module)
    late, shared = over.late, _shared_buffers(program, over)
    by_name = program.module.entry.by_name
    kept = set(program.graph.outputs)
    waited = {name for op in program.graph.ops for name in op.after if name not in late.get(op.name, ())}
    return [
        len(op.outputs) == 1
        and op.outputs[0].bytes > 0
        and op.outputs[0].name not in kept
        and not op.after
        and op.name not in waited
        and not shared & {op.outputs[0].name, *op.inputs}
        and is_of_class(program.module, by_name[op.name], dear)
        for op in program.graph.ops
    ]


def _shared_buffers(program: HloProgram, over: WrittenOver) -> set[str]:
    """Tensors in buffers that something may write into later: what is read there late may be something else. Some are
    no aliases in the graph, where XLA would copy first; but it has made its copies before there were clones.

    Args:
      over: what is written over arguments; who does it late waits for those who read them, clones too (`rewrite.py`).
    """
    module, entry = program.module, program.module.entry
    shared = {tensor_name(entry.parameters[number].name, index) for number, index in over.exposed}
    values = ValueReader(module).of(entry)
    leaves = values.leaves
    for i in entry.instructions:
        if i.opcode in CALLERS:
            shared |= {root for operand in i.operands for roots in leaves[operand].values() for root in roots}
        elif i.opcode not in CONTRACTED:
            waits_for = values.external if i.name in over.late else ()
            for pair in in_place_pairs(module, i):
                roots = leaves[i.operands[pair.operand]].get(pair.operand_index, ())
                shared.update(root for root in roots if root not in waits_for)
    for op in program.graph.ops:
        for tensor in op.outputs:
            shared |= {tensor.name, tensor.alias} if tensor.alias is not None else set()
    return shared


def is_of_class(module: HloModule, i: Instruction, dear: bool) -> bool:
    """Whether an instruction, with all that it fuses, may be computed again for the same bits: what is cheap, or what
    is `dear`, too.
    """
    if i.control_predecessors or i.attributes.output_operand_aliasing:
        return False
    if i.opcode == "fusion":
        opcodes = {inner.opcode for inner in module.computations[i.called[0]].instructions}
        if dear:
            return i.attributes.fusion_kind in _KINDS and opcodes <= _INSIDE | _DEAR
        return i.attributes.fusion_kind == "kLoop" and opcodes <= _INSIDE
    return i.opcode in CHEAP or (dear and i.opcode in _DEAR)


class Routes:
    """How instructions come to the tensors that they read: directly, or through views."""

    def __init__(self, program: HloProgram) -> None:
        self._entry = program.module.entry

    def may_read_clone(self, reader: str, origin: str) -> bool:
        """Whether an instruction can be told to read a clone of the origin."""
        return self.views(reader, origin) is not None

    def views(self, reader: str, origin: str) -> list[tuple[str, ...]] | None:
        """The ways from a reader to an instruction whose only result it reads.

        Args:
          reader, origin: names of instructions.

        Returns:
          For each operand that shows the origin, the views in between, the one next to the origin first; () where it is
          the origin itself. None if a view shows other things too, or the reader cannot be rewired.
        """
        instruction = self._entry.by_name[reader]
        if instruction.opcode in _FIXED_READERS:
            return None
        ways = []
        for operand in dict.fromkeys(instruction.operands):
            way: list[str] = []
            name = operand
            while name != origin:
                view = self._entry.by_name[name]
                if view.opcode not in CONTRACTED or not view.operands:
                    break
                if view.opcode not in _SINGLE_VIEWS or view.control_predecessors:
                    if self._shows(name, origin):
                        return None
                    break
                way.append(name)
                name = view.operands[0]
            if name == origin:
                ways.append(tuple(reversed(way)))
        return ways or None

    def _shows(self, name: str, origin: str) -> bool:
        """Whether a view shows an instruction, among others."""
        todo, seen = [name], {name}
        while todo:
            view = self._entry.by_name[todo.pop()]
            if view.name == origin:
                return True
            if view.opcode in CONTRACTED:
                todo += [o for o in view.operands if o not in seen]
                seen.update(view.operands)
        return False
