"""Candidates of recomputation: instructions that may be computed again, their clones, and their run times.

- `repeatable`: the ops that XLA may compute twice.
- `Routes`: the views between instructions and the tensors that they read, and so the instructions that may read a clone
  in place of the original.
- `Clone`: an instruction that is computed once more. `numbered` and `named` convert clones to numbers for the disk and
  back. Searches choose among a graph's ops; `wire_clones` adds clones of the views through which they are read.
- `RunTimes`: estimated run times of instructions on two modest CPU cores. Only ratios matter: the share of a program's
  run time that clones take. `roofline` assumes one rate for all arithmetic, which is wrong on CPUs: matrix products use
  the vector units fully, a transcendental function costs XLA about 20 additions, a transposition waits for memory. The
  rates are round figures from a profile of EfficientNetB0's training step on two cores of a cloud machine: 6.6 s
  estimated, 7.5 s measured; its loops 0.8 s and 0.75 s.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from graphrl.errors import PlanError
from graphrl.graphs.readers.hlo.module import Computation, HloModule, Instruction
from graphrl.graphs.readers.hlo.reader import HloProgram
from graphrl.graphs.readers.hlo.values import CONTRACTED, ValueReader, in_place_pairs, tensor_name
from graphrl.graphs.readers.hlo.work import CALLERS, Flops, bytes_moved, trip_count
from graphrl.xla.donation import ArgumentWrites, argument_writes

# Element-wise ops and ops that move elements; the same input gives the same bits. Opcodes that are missing here may be
# deterministic too, but are slow or rare.
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
# Expensive, except if the value is large and its contraction is short, as in a convolution on few channels.
_EXPENSIVE = frozenset(("convolution", "dot", "reduce", "reduce-window"))
_KINDS = ("kLoop", "kCustom", "kOutput")  # kinds of fusions; on the CPU, library calls are kCustom
# These cannot be redirected to a clone: they pass buffers through and write into them.
_FIXED_READERS = frozenset(("async-start", "conditional", "while"))
_SINGLE_VIEWS = frozenset(("bitcast", "get-tuple-element"))
_LAUNCH = 2e-6  # seconds for each instruction
_BYTES = 10e9  # bytes per second
_PRODUCTS = 40e9  # FLOP/s of products and convolutions
_SIMPLE = 4e9  # other operations per second
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


def repeatable(program: HloProgram, *, expensive: bool = False) -> list[bool]:
    """Returns for each op of the program's graph whether XLA may compute it twice: deterministic, one output, cheap.

    With `expensive`, expensive ops may be computed twice too: products, convolutions and reductions, alone and fused.
    """
    writes = argument_writes(program.module)
    readers, shared = writes.readers, _shared_buffers(program, writes)
    by_name = program.module.entry.by_name
    kept = set(program.graph.outputs)
    waited = {name for op in program.graph.ops for name in op.after if name not in readers.get(op.name, ())}
    return [
        len(op.outputs) == 1
        and op.outputs[0].bytes > 0
        and op.outputs[0].name not in kept
        and not op.after
        and op.name not in waited
        and not shared & {op.outputs[0].name, *op.inputs}
        and is_repeatable(program.module, by_name[op.name], expensive)
        for op in program.graph.ops
    ]


def _shared_buffers(program: HloProgram, writes: ArgumentWrites) -> set[str]:
    """Returns the tensors in buffers that may be written into later, so that a late reader may find other contents.

    Some of them are not aliases in the graph, because XLA would copy first. But XLA inserts its copies before clones
    are added.

    Args:
      program: the module with its graph.
      writes: writes over arguments; late writers wait for the arguments' readers, clones included (`rewrite.py`).
    """
    module, entry = program.module, program.module.entry
    shared = {tensor_name(entry.parameters[number].name, index) for number, index in writes.exposed}
    values = ValueReader(module).of(entry)
    leaves = values.leaves
    for i in entry.instructions:
        if i.opcode in CALLERS:
            shared |= {root for operand in i.operands for roots in leaves[operand].values() for root in roots}
        elif i.opcode not in CONTRACTED:
            waits_for = values.external if i.name in writes.readers else ()
            for pair in in_place_pairs(module, i):
                roots = leaves[i.operands[pair.operand]].get(pair.operand_index, ())
                shared.update(root for root in roots if root not in waits_for)
    for op in program.graph.ops:
        for tensor in op.outputs:
            shared |= {tensor.name, tensor.alias} if tensor.alias is not None else set()
    return shared


def is_repeatable(module: HloModule, i: Instruction, expensive: bool) -> bool:
    """True if an instruction, with all that it fuses, is cheap and returns the same bits when computed again.

    With `expensive`, products, convolutions and reductions are accepted too.
    """
    if i.control_predecessors or i.attributes.output_operand_aliasing:
        return False
    if i.opcode == "fusion":
        opcodes = {inner.opcode for inner in module.computations[i.called[0]].instructions}
        if expensive:
            return i.attributes.fusion_kind in _KINDS and opcodes <= _INSIDE | _EXPENSIVE
        return i.attributes.fusion_kind == "kLoop" and opcodes <= _INSIDE
    return i.opcode in CHEAP or (expensive and i.opcode in _EXPENSIVE)


class Routes:
    """Finds the paths from instructions to the tensors that they read, directly or through views."""

    def __init__(self, program: HloProgram) -> None:
        self._entry = program.module.entry

    def may_read_clone(self, reader: str, origin: str) -> bool:
        """True if the instruction `reader` can be rewired to read a clone of the instruction `origin`."""
        return self.views(reader, origin) is not None

    def views(self, reader: str, origin: str) -> list[tuple[str, ...]] | None:
        """Finds the views between a reader and an instruction with one result, the origin.

        Args:
          reader, origin: names of the two instructions.

        Returns:
          For each operand that is a view of the origin, the views in between, the one next to the origin first; () for
          the origin itself. None if a view also shows other tensors, the reader cannot be rewired, or there is no path.
        """
        instruction = self._entry.by_name[reader]
        if instruction.opcode in _FIXED_READERS:
            return None
        paths = []
        for operand in dict.fromkeys(instruction.operands):
            path: list[str] = []
            name = operand
            while name != origin:
                view = self._entry.by_name[name]
                if view.opcode not in CONTRACTED or not view.operands:
                    break
                if view.opcode not in _SINGLE_VIEWS or view.control_predecessors:
                    if self._shows(name, origin):
                        return None
                    break
                path.append(name)
                name = view.operands[0]
            if name == origin:
                paths.append(tuple(reversed(path)))
        return paths or None

    def _shows(self, name: str, origin: str) -> bool:
        """True if `origin` is among the instructions that a view shows."""
        pending, visited = [name], {name}
        while pending:
            view = self._entry.by_name[pending.pop()]
            if view.name == origin:
                return True
            if view.opcode in CONTRACTED:
                pending += [o for o in view.operands if o not in visited]
                visited.update(view.operands)
        return False


@dataclasses.dataclass(frozen=True)
class Clone:
    """An instruction of the entry computation that is computed once more.

    A clone has its original's operands, unless it is itself among the users of another clone.

    Attributes:
      name: name of the clone; unique in the module.
      original: name of the original instruction, which is not a clone itself.
      users: names of the instructions, and of clones, that read the clone in place of the original.
    """

    name: str
    original: str
    users: tuple[str, ...]


ClonesByName = Mapping[str, Sequence[Clone]]  # name of a computation -> its clones; others may be absent


def numbered(module: HloModule, clones: Sequence[Clone]) -> Numbered:
    """Converts clones to numbers, since names differ between processes.

    Numbers are indices in `module.entry.instructions`; the k-th clone has the k-th number after those.
    """
    number = numbers(module, clones)
    return tuple((number[c.original], tuple(number[user] for user in c.users)) for c in clones)


def numbers(module: HloModule, clones: Sequence[Clone]) -> dict[str, int]:
    """Returns a table: name of an instruction of the entry computation, or of a clone -> its number."""
    return {name: k for k, name in enumerate((*module.entry.by_name, *(clone.name for clone in clones)))}


def named(module: HloModule, clones: Numbered) -> tuple[Clone, ...]:
    """Converts numbers to clones: the inverse of `numbered`.

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
    """Returns a new name for one clone of each of the originals, in this order."""
    mark = "again"
    while any(f".{mark}" in name for name in module.entry.by_name):
        mark += "n"
    return [f"{original}.{mark}{k}" for k, original in enumerate(originals)]


def wire_clones(
    program: HloProgram, routes: Routes, clones: list[tuple[int, frozenset[int]]]
) -> tuple[list[str], tuple[Clone, ...]]:
    """Converts clones of graph ops to clones of instructions, with clones of the views through which they are read.

    Args:
      program: the module with its graph of n ops.
      routes: routes of the program.
      clones: for each clone, its op and the nodes that read it. Nodes 0 to n - 1 are ops, the k-th clone is node n + k.

    Returns:
      For every node, the name of its instruction; and all clones: those of the ops first, then those of views.
    """
    ops = [op.name for op in program.graph.ops]
    originals = ops + [ops[op] for op, _ in clones]
    users: list[dict[str, None]] = [{} for _ in clones]
    views: dict[tuple[int, str], int] = {}  # (clone, view) -> number of the view's clone
    view_users: list[dict[str, None]] = []
    paths = [
        (k, node, path)
        for k, (op, readers) in enumerate(clones)
        for node in sorted(readers)
        for path in routes.views(originals[node], ops[op]) or ()
    ]
    for k, _, path in paths:
        for view in path:
            if (k, view) not in views:
                views[k, view] = len(view_users)
                view_users.append({})
    names = clone_names(program.module, [*originals[len(ops) :], *(view for _, view in views)])
    node_names = ops + names[: len(clones)]
    view_names = names[len(clones) :]
    for k, node, path in paths:
        reads = users[k]
        for view in path:
            number = views[k, view]
            reads[view_names[number]] = None
            reads = view_users[number]
        reads[node_names[node]] = None
    copies = [Clone(names[k], ops[op], tuple(users[k])) for k, (op, _) in enumerate(clones)]
    copies += [Clone(view_names[number], view, tuple(view_users[number])) for (_, view), number in views.items()]
    return node_names, tuple(copies)


class RunTimes:
    """Estimates run times of a module's instructions, in seconds."""

    def __init__(self, module: HloModule) -> None:
        self._module = module
        self._flops = Flops(module)
        self._runs: dict[str, float] = {}  # computation -> seconds
        self._seconds: dict[tuple[str, str], float] = {}  # (computation, instruction) -> seconds

    def of(self, i: Instruction, computation: Computation | None = None) -> float:
        """Returns the run time of an instruction of a computation (by default of the entry), in seconds."""
        computation = computation or self._module.entry
        key = computation.name, i.name
        if key not in self._seconds:
            self._seconds[key] = self._of(computation, i)
        return self._seconds[key]

    def of_moving(self, size: int) -> float:
        """Returns the seconds to read and write `size` bytes."""
        return _LAUNCH + 2 * size / _BYTES

    def of_computation(self, name: str) -> float:
        """Returns the seconds of one run of a computation."""
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
        """Counts the elements of slow operations, and the FLOPs of products, including fused ones."""
        if i.opcode == "fusion":
            body = self._module.computations[i.called[0]]
            parts = [self._inside(body, inner) for inner in body.instructions]
            return sum(slow for slow, _ in parts), sum(products for _, products in parts)
        slow = i.shape.size if i.opcode in _SLOW_OPCODES else 0
        return slow, self._flops.of(computation, i) if i.opcode in _PRODUCT_OPCODES else 0
