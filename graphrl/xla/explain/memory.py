"""Memory of a compiled program over its time: which arrays are there, where they come from, and why.

`Memory` follows XLA's buffer assignment (`graphrl/xla/assignment`) under the module's own schedule. Times are
instructions of the schedule; those of a loop's body come once, before the loop's own. An array that several
instructions write in place, such as the state of a loop, is one array.

The cause of an array depends on the instruction that writes it and on its readers:

- jax marks instructions of the backward pass by `transpose(` in their op names, so an array that a forward instruction
  writes and a backward one reads is kept for the backward pass;
- copies, broadcasts and one-hot arrays are recognised by the instructions of the computation that writes them;
- of the rest, arrays that the running instruction reads or writes are in use, the others wait for their readers.
"""

import collections
import dataclasses
import functools
from collections.abc import Container, Iterable, Iterator, Sequence
from types import MappingProxyType

import numpy as np

from graphrl.graphs.readers.hlo.module import Computation, HloModule, Instruction
from graphrl.graphs.readers.hlo.proto import Shape, Source
from graphrl.xla.assignment import Assignment, Schedule, TempPredictor
from graphrl.xla.assignment.buffers import Node

KEPT, ONE_HOT, LAYOUT, COPY, BROADCAST, COLLECTIVE, LIBRARY, LOOP, IN_USE, WAITING = (
    "backward", "one-hot", "layout", "copy", "fusion", "collective", "library", "loop", "in-use", "waiting",
)  # fmt: skip
ORDER, HOLES, PADDING, DONATION = "order", "fragmentation", "padding", "donation"
CAUSES = {
    KEPT: "kept for the backward pass",
    ONE_HOT: "one-hot arrays",
    LAYOUT: "transposed copies (change of layout)",
    COPY: "copies of equal layout",
    BROADCAST: "broadcasts and conversions that are not fused with their readers",
    COLLECTIVE: "results of collectives",
    LIBRARY: "workspace of library kernels",
    LOOP: "state of loops",
    IN_USE: "operands and results of the running instruction",
    WAITING: "waiting for their readers",
    ORDER: "order: waiting, but not in the best order found",
    HOLES: "fragmentation: holes between buffers",
    PADDING: "padding",
    DONATION: "results that could be in donated arguments",
}
COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-", "reduce-scatter", "ragged-all-to-all")
_ENTRY_POINTS = ("parameter", "while", "conditional", "call")  # values here are phis or arguments
_MOVES = frozenset(str.split("parameter bitcast reshape convert copy transpose"))
_CHEAP = _MOVES | frozenset(
    str.split(
        "abs add and broadcast compare constant divide exponential iota log maximum minimum multiply negate not or "
        "select subtract tanh"
    )
)
_FILLING = frozenset(str.split("bitcast broadcast constant copy get-tuple-element iota parameter tuple"))
_INTEGERS = ("s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64")
_NOT_READERS = frozenset(str.split("tuple get-tuple-element bitcast while conditional call parameter opt-barrier"))
LEAST_EXPANSION = {ONE_HOT: 4, BROADCAST: 2}  # least size of a result relative to its operands


@dataclasses.dataclass(frozen=True, slots=True)
class Array:
    """An array in the heap.

    Attributes:
      buffer: its index in `ModuleBuffers.buffers`.
      bytes: size of its block.
      padding: bytes of it that are padding of tiles.
      first, last: times of its life, both included.
      writer: the instruction that computes its content.
      source: origin of that instruction.
      shape: its shape.
      cause: a key of `CAUSES`; IN_USE stands for arrays that are in use or waiting, depending on the time.
    """

    buffer: int
    bytes: int
    padding: int
    first: int
    last: int
    writer: Instruction
    source: Source
    shape: Shape
    cause: str


class Memory:
    """Arrays of a module in its heap of temporaries, over time.

    Attributes:
      module: the module.
      predictor: its buffers.
      assignment: memory under its own schedule.
      arrays: the arrays.
      live: `[T] int64`, bytes of arrays at each time.
      peak: time of the largest of them, the first.
    """

    def __init__(self, module: HloModule) -> None:
        self.module, self.predictor = module, TempPredictor(module)
        self.off_device = frozenset(self._off_device())
        self.assignment = self.assign()
        self.arrays = tuple(self._arrays(self.assignment))
        self.live = self.over_time(self.arrays)
        self.peak = int(self.live.argmax())

    def assign(self, schedule: Schedule = MappingProxyType({}), without: Iterable[int] = ()) -> Assignment:
        """Assigns the device's memory as `TempPredictor.assign`."""
        return self.predictor.assign(schedule, self.off_device.union(without))

    def live_peak(self, assignment: Assignment) -> int:
        """Returns the largest sum of live arrays under an assignment, in bytes."""
        return int(self.over_time(tuple(self._spans(assignment)), assignment.ranges.stop).max(initial=0))

    def over_time(self, arrays: "Sequence[Array | _Span]", stop: int | None = None) -> np.ndarray:
        """Sums arrays at each time: `[T] int64` bytes."""
        change = np.zeros((self.assignment.ranges.stop if stop is None else stop) + 2, np.int64)
        for array in arrays:
            change[array.first] += array.bytes
            change[array.last + 1] -= array.bytes
        return change.cumsum()[:-1]

    def at(self, time: int) -> list[Array]:
        """Returns the arrays at a time, the largest first."""
        return sorted((a for a in self.arrays if a.first <= time <= a.last), key=lambda a: (-a.bytes, a.first))

    def cause_at(self, array: Array, time: int) -> str:
        """Returns the cause of an array at a time: a key of `CAUSES`."""
        if array.cause != IN_USE:
            return array.cause
        return IN_USE if time in self._uses[array.buffer] else WAITING

    def by_cause(self) -> dict[str, np.ndarray]:
        """Returns the bytes of each cause at each time, `[T] int64`."""
        groups: dict[str, list[Array]] = collections.defaultdict(list)
        for array in self.arrays:
            groups[array.cause].append(array)
        result = {cause: self.over_time(arrays) for cause, arrays in groups.items() if cause != IN_USE}
        used = np.zeros_like(self.live)
        for array in groups[IN_USE]:
            times = [time for time in self._uses[array.buffer] if array.first <= time <= array.last]
            used[times] += array.bytes
        return {**result, IN_USE: used, WAITING: self.over_time(groups[IN_USE]) - used}

    @functools.cached_property
    def running(self) -> dict[int, Node]:
        """The instruction at each time."""
        flow, time = self.predictor.buffers.flow, self.assignment.ranges.time
        return {int(time[k]): node for k, node in enumerate(flow.nodes)}

    @functools.cached_property
    def backward_time(self) -> int | None:
        """Time at which the backward pass begins; None without one.

        XLA may run single instructions of either pass within the other. This is the time that leaves the fewest on the
        wrong side, without those that only write constants.
        """
        computing = [
            (time, is_backward(name))
            for time, node in sorted(self.running.items())
            if "jvp(" in (name := self.module.sources[node.instruction.attributes.metadata].op_name)
            and not _opcodes(self.module, node.instruction) <= _FILLING
        ]
        backward = np.array([which for _, which in computing], bool)
        if not backward.any():
            return None
        wrong = np.append(0, np.cumsum(backward)) + np.append(np.cumsum(~backward[::-1])[::-1], 0)
        return computing[int(wrong[:-1].argmin())][0]

    @functools.cached_property
    def writers(self) -> dict[int, tuple[Node, ...]]:
        """For each buffer, the nodes that compute (a part of) its content; those of loops' bodies last."""
        flow, writers = self.predictor.buffers.flow, {}
        for k, buffer in enumerate(self.predictor.buffers.buffers):
            nodes = {flow.values[v].node: flow.nodes[flow.values[v].node] for v in buffer.values}
            computing = [node for node in nodes.values() if node.instruction.opcode not in _ENTRY_POINTS]
            entry = flow.place[self.module.entry.name]
            writers[k] = tuple(sorted(computing, key=lambda node: (node.computation != entry, _computes(node))))
        return writers

    @functools.cached_property
    def readers(self) -> dict[int, tuple[Node, ...]]:
        """For each buffer, the nodes that read it, without those that write into it."""
        buffers = self.predictor.buffers
        flow, readers = buffers.flow, collections.defaultdict[int, dict[int, Node]](dict)
        own = {k: {id(node) for node in nodes} for k, nodes in self.writers.items()}
        for number, node in enumerate(flow.nodes):
            if node.instruction.opcode not in _NOT_READERS:
                for operand in node.operands:
                    for value in flow.nodes[operand].values[:1]:
                        k = int(buffers.buffer_of[value])
                        if id(node) not in own[k]:
                            readers[k][number] = node
        return {k: tuple(nodes.values()) for k, nodes in readers.items()}

    def source(self, node: Node) -> Source:
        """Returns the origin of an instruction; of one that stacks slices, that of the slice."""
        computation = self.predictor.buffers.flow.computations[node.computation]
        return _Origin(self.module, computation).of(node.instruction)

    @functools.cached_property
    def _uses(self) -> dict[int, set[int]]:
        buffers, time = self.predictor.buffers, self.assignment.ranges.time
        uses: dict[int, set[int]] = collections.defaultdict(set)
        for value, event in zip(buffers.owner.tolist(), buffers.times.tolist(), strict=True):
            if event < buffers.starts:
                uses[int(buffers.buffer_of[value])].add(int(time[event]))
        return uses

    def _off_device(self) -> Iterator[int]:
        """Yields buffers that are not in the device's main memory."""
        flow = self.predictor.buffers.flow
        for k, buffer in enumerate(self.predictor.buffers.buffers):
            value = flow.values[buffer.values[0]]
            shape = flow.nodes[value.node].parts[value.part][1]
            if not shape.is_tuple and shape.bytes and not self.module.device_bytes(shape):
                yield k

    def _spans(self, assignment: Assignment) -> Iterator["_Span"]:
        """Yields the life of each buffer in each block; where one takes over a block, the earlier one ends before."""
        start, end = assignment.ranges.start, assignment.ranges.end
        for block in assignment.blocks:
            spans: list[_Span] = []
            for v in sorted(block.values, key=lambda v: (start[v], end[v], v)):
                buffer, first, last = int(self.predictor.buffers.buffer_of[v]), int(start[v]), int(end[v])
                if spans and spans[-1].buffer == buffer and first <= spans[-1].last + 1:
                    spans[-1].last = max(spans[-1].last, last)
                    continue
                if spans:
                    spans[-1].last = min(spans[-1].last, first - 1)
                spans.append(_Span(buffer, block.bytes, first, last))
            yield from (span for span in spans if span.first <= span.last)

    def _arrays(self, assignment: Assignment) -> Iterator[Array]:
        flow = self.predictor.buffers.flow
        for span in self._spans(assignment):
            if not self.writers[span.buffer]:
                continue
            node = self.writers[span.buffer][-1]
            values = self.predictor.buffers.buffers[span.buffer].values
            value = max((flow.values[v] for v in values), key=lambda v: v.bytes)
            shape = flow.nodes[value.node].parts[value.part][1]
            padding = max(0, shape.bytes - shape.unpadded_bytes) if shape.tiles else self._padded(node)
            cause = self._cause(span.buffer, node, value.part)
            source = self.source(node)
            yield Array(span.buffer, span.bytes, padding, span.first, span.last, node.instruction, source, shape, cause)

    def _padded(self, node: Node) -> int:
        """Returns the bytes that an instruction adds to its operand if all that it does is to pad it."""
        i = node.instruction
        opcodes = _opcodes(self.module, i)
        if "pad" not in opcodes or not opcodes <= _MOVES | {"pad", "constant"}:
            return 0
        by_name = self.predictor.buffers.flow.computations[node.computation].by_name
        return max(0, i.shape.leaf_bytes - max(by_name[name].shape.leaf_bytes for name in i.operands))

    def _cause(self, buffer: int, node: Node, part: int) -> str:
        i = node.instruction
        if i.opcode.startswith(COLLECTIVES) or any(_has_collective(self.module, name) for name in i.called):
            return COLLECTIVE
        if i.opcode == "custom-call" and len(node.parts) > 2 and part and node.parts[part][1].dtype in ("s8", "u8"):
            return LIBRARY
        computation = self.predictor.buffers.flow.computations[node.computation]
        if kind := _written_by(self.module, computation, i):
            return kind
        writers = [self.source(each).op_name for each in self.writers[buffer]]
        readers = [self.source(each).op_name for each in self.readers.get(buffer, ())]
        if not any(map(is_backward, writers)) and any(map(is_backward, readers)):
            return KEPT
        entry = self.predictor.buffers.flow.place[self.module.entry.name]
        return LOOP if len(writers) > 1 and node.computation != entry else IN_USE


@dataclasses.dataclass(slots=True)
class _Span:
    buffer: int
    bytes: int
    first: int
    last: int


def is_backward(op_name: str) -> bool:
    """True for an instruction of the backward pass, by jax's name for it; recomputed values are among them."""
    return "transpose(" in op_name or "rematted_computation" in op_name


class _Origin:
    """Finds origins of instructions of a computation that runs in sequence."""

    def __init__(self, module: HloModule, computation: Computation) -> None:
        self.module, self.computation = module, computation

    def of(self, i: Instruction) -> Source:
        own = self._own(i)
        slice_ = self._slice(i)
        return slice_ if slice_.line and own.line else own

    def _own(self, i: Instruction, depth: int = 3) -> Source:
        source = self._named(i)
        if source.line or i.opcode == "parameter" or not depth:
            return source
        for name in i.operands:  # copies that XLA inserts have no origin of their own
            operand = self._own(self.computation.by_name[name], depth - 1)
            if operand.line:
                return operand._replace(op_name=source.op_name or operand.op_name)
        return source

    def _named(self, i: Instruction) -> Source:
        source = self.module.sources[i.attributes.metadata]
        if source.line or i.opcode != "fusion":
            return source
        sources = (self.module.sources[each.attributes.metadata] for each in inside(self.module, i)[::-1])
        found = next((each for each in sources if each.line), source)
        return found._replace(op_name=source.op_name or found.op_name)

    def _slice(self, i: Instruction) -> Source:
        """Returns the origin of the slice that an instruction writes into a stack; empty if it writes none."""
        scope = self.computation
        if i.opcode == "fusion":
            scope = self.module.computations[i.called[0]]
            inner = _behind(scope, scope.root, _MOVES)
            return self._update(scope, inner, i) if inner.opcode == "dynamic-update-slice" else Source()
        return self._update(scope, i, None) if i.opcode == "dynamic-update-slice" else Source()

    def _update(self, scope: Computation, i: Instruction, fusion: Instruction | None) -> Source:
        update = _behind(scope, scope.by_name[i.operands[1]], _MOVES | {"broadcast", "get-tuple-element"})
        if update.opcode == "parameter" and fusion is not None:
            outer = self.computation.by_name[fusion.operands[update.attributes.parameter_number]]
            return self._named(_behind(self.computation, outer, _MOVES | {"broadcast", "get-tuple-element"}))
        return self._named(update)


def _behind(computation: Computation, i: Instruction, through: Container[str]) -> Instruction:
    """Follows first operands through instructions of these opcodes."""
    while i.opcode in through and i.operands:
        i = computation.by_name[i.operands[0]]
    return i


def _computes(node: Node) -> bool:
    """False for a copy or a broadcast, which only starts the content of an array that others write into."""
    return node.instruction.opcode not in ("copy", "broadcast", "constant")


def inside(module: HloModule, i: Instruction) -> Sequence[Instruction]:
    """Returns the instructions inside a fusion; of other instructions, the instruction itself."""
    return module.computations[i.called[0]].instructions if i.opcode == "fusion" else (i,)


def _opcodes(module: HloModule, i: Instruction) -> set[str]:
    """Returns the opcodes of an instruction; of a fusion, those of the instructions inside."""
    return {each.opcode for each in inside(module, i)}


def _has_collective(module: HloModule, name: str) -> bool:
    return any(i.opcode.startswith(COLLECTIVES) for i in module.computations[name].instructions)


def _written_by(module: HloModule, computation: Computation, i: Instruction) -> str:
    """Returns the cause of an array that follows from the instruction that writes it; "" if none does."""
    scope = module.computations[i.called[0]] if i.opcode == "fusion" else computation
    opcodes = _opcodes(module, i)
    operands = [computation.by_name[name].shape for name in dict.fromkeys(i.operands)]
    read, size = sum(shape.leaf_bytes for shape in operands), i.shape.leaf_bytes
    if opcodes <= _MOVES and not i.shape.is_tuple and size == read:
        moved = any(_changes_layout(scope, each) for each in inside(module, i))
        if moved or opcodes & {"copy", "transpose"}:
            return LAYOUT if moved else COPY
    if opcodes <= _CHEAP:
        is_one_hot = {"compare", "iota"} <= opcodes or "one_hot" in module.sources[i.attributes.metadata].op_name
        if is_one_hot and size >= LEAST_EXPANSION[ONE_HOT] * read and any(s.dtype in _INTEGERS for s in operands):
            return ONE_HOT
        if size >= LEAST_EXPANSION[BROADCAST] * read:
            return BROADCAST
    return ""


def _changes_layout(computation: Computation, i: Instruction) -> bool:
    if i.opcode == "transpose":
        return True
    return i.opcode == "copy" and computation.by_name[i.operands[0]].shape.layout != i.shape.layout
