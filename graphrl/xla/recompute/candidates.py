"""Candidates of recomputation: instructions that may be computed again, their clones, and their run times.

- `repeatable`: the ops that XLA may compute twice.
- `Routes`: the views between instructions and the tensors that they read, and so the instructions that may read a clone
  in place of the original.
- `Clone`: an instruction that is computed again, by name and, for the disk, by number (`numbered`, `named`). Searches
  choose among a graph's ops; `wired` adds clones of the views through which they are read.
- `RunTimes`: estimated seconds of instructions on one modest pair of CPU cores. Only ratios count: the part of a
  program's run time that is spent again. `roofline` has all arithmetic run at one rate, which on CPUs it does not:
  matrix products use the vector units fully, a transcendental function takes XLA some twenty additions, a transposition
  waits for memory. The rates are round figures from a profile of EfficientNetB0's training step on two cores of a cloud
  machine: 6.6 s estimated, 7.5 s measured, the loops among it 0.8 s and 0.75 s.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from graphrl.errors import PlanError
from graphrl.graphs.readers.hlo.module import Computation, HloModule, Instruction
from graphrl.graphs.readers.hlo.reader import HloProgram
from graphrl.graphs.readers.hlo.values import CONTRACTED, ValueReader, in_place_pairs, tensor_name
from graphrl.graphs.readers.hlo.work import CALLERS, Flops, bytes_moved, trip_count
from graphrl.xla.donation import WrittenOver, written_over

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
_LAUNCH = 2e-6  # seconds
_BYTES = 10e9  # a second
_PRODUCTS = 40e9  # FLOP/s of products and convolutions
_SIMPLE = 4e9  # other operations a second
_SLOW = 4e-9  # seconds for each element of a transcendental or a transposition
_SLOW_OPCODES = frozenset(
    str.split(
        """
        atan2 cbrt cosine divide erf exponential exponential-minus-one log log-plus-one logistic power remainder rsqrt
        sine sqrt tan tanh transpose
        """
    )
)
_PRODUCT_OPCODES = frozenset(("convolution", "custom-call", "dot"))
Numbered = tuple[tuple[int, tuple[int, ...]], ...]  # (original, users) of each clone


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


ClonesByName = Mapping[str, Sequence[Clone]]  # of computations, those that have any


def numbered(module: HloModule, clones: Sequence[Clone]) -> Numbered:
    """The clones without names, which differ from process to process: places in `module.entry.instructions`; the k-th
    clone has the k-th number after those.
    """
    number = numbers(module, clones)
    return tuple((number[c.original], tuple(number[user] for user in c.users)) for c in clones)


def numbers(module: HloModule, clones: Sequence[Clone]) -> dict[str, int]:
    """The number of every instruction of the entry computation and of every clone, by name."""
    return {name: k for k, name in enumerate((*module.entry.by_name, *(clone.name for clone in clones)))}


def named(module: HloModule, clones: Numbered) -> tuple[Clone, ...]:
    """What `numbered` was given, with the names that this process has.

    Raises:
      PlanError: a number is out of range.
    """
    names = list(module.entry.by_name)
    originals = [original for original, _ in clones]
    if not all(0 <= original < len(names) for original in originals):
        raise PlanError(f"{module.name}: a clone of an instruction beyond the {len(names)} of the entry computation")
    names += clone_names(module, [names[original] for original in originals])
    if not all(0 <= user < len(names) for _, users in clones for user in users):
        raise PlanError(f"{module.name}: a clone is read by an instruction beyond the {len(names)} there are")
    first = len(module.entry.by_name)
    return tuple(
        Clone(names[first + k], names[original], tuple(names[user] for user in users))
        for k, (original, users) in enumerate(clones)
    )


def clone_names(module: HloModule, originals: Iterable[str]) -> list[str]:
    """A name for one clone of each of the originals, in this order."""
    mark = "again"
    while any(f".{mark}" in name for name in module.entry.by_name):
        mark += "n"
    return [f"{original}.{mark}{k}" for k, original in enumerate(originals)]


def wired(
    program: HloProgram, routes: Routes, clones: list[tuple[int, frozenset[int]]]
) -> tuple[list[str], tuple[Clone, ...]]:
    """Instructions for clones of ops.

    Args:
      program: of n ops.
      clones: the op of each and the nodes that read it; the k-th is node n + k.

    Returns:
      The instruction of every node, and all clones: those of the ops first, then those of views.
    """
    ops = [op.name for op in program.graph.ops]
    originals = ops + [ops[op] for op, _ in clones]
    users: list[dict[str, None]] = [{} for _ in clones]
    views: dict[tuple[int, str], int] = {}  # of which clone, of which view -> its number among the views
    view_users: list[dict[str, None]] = []
    ways = [
        (k, node, way)
        for k, (op, readers) in enumerate(clones)
        for node in sorted(readers)
        for way in routes.views(originals[node], ops[op]) or ()
    ]
    for k, _, way in ways:
        for view in way:
            if (k, view) not in views:
                views[k, view] = len(view_users)
                view_users.append({})
    names = clone_names(program.module, [*originals[len(ops) :], *(view for _, view in views)])
    node_names = ops + names[: len(clones)]
    view_names = names[len(clones) :]
    for k, node, way in ways:
        reads = users[k]
        for view in way:
            number = views[k, view]
            reads[view_names[number]] = None
            reads = view_users[number]
        reads[node_names[node]] = None
    copies = [Clone(names[k], ops[op], tuple(users[k])) for k, (op, _) in enumerate(clones)]
    copies += [Clone(view_names[number], view, tuple(view_users[number])) for (_, view), number in views.items()]
    return node_names, tuple(copies)


class RunTimes:
    """Seconds that instructions of a module take."""

    def __init__(self, module: HloModule) -> None:
        self._module = module
        self._flops = Flops(module)
        self._runs: dict[str, float] = {}  # by computation
        self._seconds: dict[tuple[str, str], float] = {}  # by computation and instruction

    def of(self, i: Instruction, computation: Computation | None = None) -> float:
        """Seconds of one instruction of a computation, by default of the entry."""
        computation = computation or self._module.entry
        key = computation.name, i.name
        if key not in self._seconds:
            self._seconds[key] = self._of(computation, i)
        return self._seconds[key]

    def of_moving(self, size: int) -> float:
        """Seconds of reading and writing so many bytes."""
        return _LAUNCH + 2 * size / _BYTES

    def of_computation(self, name: str) -> float:
        """Seconds of one run of a computation."""
        if name not in self._runs:
            computation = self._module.computations[name]
            instructions = (i for i in computation.instructions if i.opcode not in CONTRACTED)
            self._runs[name] = sum(self._of(computation, i) for i in instructions)
        return self._runs[name]

    def _of(self, computation: Computation, i: Instruction) -> float:
        if i.opcode in CALLERS:
            seconds = [self.of_computation(name) for name in i.called]
            if i.opcode == "conditional":
                return max(seconds)
            return sum(seconds) * (trip_count(i) if i.opcode == "while" else 1)
        slow, products = self._inside(computation, i)
        simple = 0 if products else self._flops.of(computation, i)
        moved = bytes_moved(self._module, computation, i)
        return _LAUNCH + moved / _BYTES + simple / _SIMPLE + products / _PRODUCTS + slow * _SLOW

    def _inside(self, computation: Computation, i: Instruction) -> tuple[int, int]:
        """Elements of slow operations, and FLOPs of products, with what is fused."""
        if i.opcode == "fusion":
            body = self._module.computations[i.called[0]]
            parts = [self._inside(body, inner) for inner in body.instructions]
            return sum(slow for slow, _ in parts), sum(products for _, products in parts)
        slow = i.shape.size if i.opcode in _SLOW_OPCODES else 0
        return slow, self._flops.of(computation, i) if i.opcode in _PRODUCT_OPCODES else 0
