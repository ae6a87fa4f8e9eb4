"""Values of a module and the buffers that they share, whatever the schedule.

`Dataflow` lists the values that a module computes, with their positions and readers: `HloDataflowAnalysis` in SSA form,
after xla/hlo/analysis/hlo_dataflow_analysis.cc and xla/service/hlo_value.cc. One instruction defines a value; its
positions are that instruction, bitcasts and tuples of its result, and parameters of computations that are called with
it. If several values can reach a position (around a loop, behind a conditional), a phi replaces them, which is a
separate value unless all are the same one.

`ModuleBuffers` joins values that must share a buffer in every schedule: `HloAliasAnalysis`, after
xla/hlo/analysis/hlo_alias_analysis.cc.

Deviations: a computation that several `call`s share is followed from the first of them.
"""

import dataclasses
import itertools
from collections.abc import Callable, Container, Iterator, Sequence

import numpy as np

from graphrl.graphs.readers.hlo.module import Computation, HloModule, Instruction
from graphrl.graphs.readers.hlo.proto import Index, Shape
from graphrl.graphs.readers.hlo.values import FORWARDED, FORWARDING, in_place_pairs, may_share

_SEQUENTIAL = ("call", "while", "conditional")  # they run other computations; the rest work on single elements
_VIEWS = ("bitcast", "add-dependency", "domain", "opt-barrier", "async-update")
_NO_VALUES = frozenset({*_SEQUENTIAL, *_VIEWS, *FORWARDED, "get-tuple-element"})
_TABLE_ONLY = ("tuple", "copy")  # these define only a table of pointers; the leaves come from the operands


@dataclasses.dataclass(slots=True)
class Value:
    """An array, or a tuple's table of pointers, that an instruction defines.

    Attributes:
      node: index in `Dataflow.nodes` of the instruction.
      part: number of the part of the instruction's result, in the order of `parts`.
      bytes: size of the value.
      is_table: True for a tuple's table of pointers.
    """

    node: int
    part: int
    bytes: int
    is_table: bool


@dataclasses.dataclass(slots=True)
class Node:
    """An instruction of a computation that runs in sequence, and the values of its result.

    Attributes:
      instruction: the instruction.
      computation: index of its computation in `Dataflow.computations`.
      operands: indices of its operands in `Dataflow.nodes`.
      parts: index and shape of every part of the result.
      values: for every part, the number of its value in `Dataflow.values`.
    """

    instruction: Instruction
    computation: int
    operands: tuple[int, ...]
    parts: tuple[tuple[Index, Shape], ...]
    values: tuple[int, ...] = ()


def parts(shape: Shape, index: Index = ()) -> tuple[tuple[Index, Shape], ...]:
    """Returns index and shape of a shape and of all parts within it, a tuple before its elements."""
    inner = (part for k, element in enumerate(shape.elements) for part in parts(element, (*index, k)))
    return ((index, shape), *inner)


def _is_operand(part: tuple[Index, Shape], place: int) -> bool:
    """True for an operand among the parts of an asynchronous start's result; the tuple of several operands is new."""
    index, shape = part
    return index[:1] == (place,) and not shape.is_tuple


class Dataflow:
    """The values that a module computes, and the instructions that define and use them.

    Attributes:
      module: the module.
      computations: those that run in sequence (the entry and those that `call`, `while` and `conditional` run), callees
        first.
      place: name of a computation -> its index in `computations`.
      nodes: their instructions in XLA's numbering: in the order of `computations`, operands before users.
      node_of: for each computation, a table: name of an instruction -> its index in `nodes`.
      values: the values in XLA's numbering, which breaks ties between equal buffers; phis last. Some phis are unused.
    """

    def __init__(self, module: HloModule) -> None:
        self.module = module
        names = {c.name for c in module.sequential}
        self.computations = tuple(c for c in module.computations.values() if c.name in names)
        self.place = {c.name: k for k, c in enumerate(self.computations)}
        self.nodes: list[Node] = []
        self.node_of: list[dict[str, int]] = []
        self.values: list[Value] = []
        self._inputs: dict[int, list[int]] = {}  # phi -> values that it replaces
        known_parts: dict[Shape, tuple[tuple[Index, Shape], ...]] = {}
        for k, computation in enumerate(self.computations):
            places: dict[str, int] = {}
            for i in computation.instructions:
                places[i.name] = len(self.nodes)
                pieces = known_parts.get(i.shape) or known_parts.setdefault(i.shape, parts(i.shape))
                self.nodes.append(Node(i, k, tuple([places[o] for o in i.operands]), pieces))
            self.node_of.append(places)
        self._written = [self._defined_values(k) for k in range(len(self.nodes))]
        self._follow(module.entry, ())
        self._simplify_phis()

    def root(self, computation: str) -> int:
        """Returns the index in `nodes` of a computation's root."""
        return self.node_of[self.place[computation]][self.module.computations[computation].root.name]

    def parameter(self, computation: str, number: int = 0) -> int:
        """Returns the index in `nodes` of a computation's parameter."""
        return self.node_of[self.place[computation]][self.module.computations[computation].parameters[number].name]

    def _new(self, node: int, part: int) -> int:
        shape = self.nodes[node].parts[part][1]
        self.values.append(Value(node, part, shape.bytes, shape.is_tuple))
        return len(self.values) - 1

    def _defined_values(self, k: int) -> tuple[int, ...]:
        node = self.nodes[k]
        opcode = node.instruction.opcode
        if opcode in _NO_VALUES:
            return ()
        if opcode == "parameter" and self.computations[node.computation] is not self.module.entry:
            return ()
        count = 1 if opcode in _TABLE_ONLY else len(node.parts)
        forwarded = FORWARDING.get(opcode)  # the place of the operands in the result of an asynchronous start
        own = (part for part in range(count) if forwarded is None or not _is_operand(node.parts[part], forwarded))
        return tuple(self._new(k, part) for part in own)

    def _follow(self, computation: Computation, arguments: Sequence[tuple[int, ...]]) -> int:
        """Finds the values of all instructions of a computation; returns the index of its root in `nodes`."""
        places = self.node_of[self.place[computation.name]]
        for instruction in computation.instructions:
            k = places[instruction.name]
            node = self.nodes[k]
            node.values = self._values(k, node, arguments)
        return places[computation.root.name]

    def _values(self, k: int, node: Node, arguments: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        opcode, read = node.instruction.opcode, [self.nodes[o].values for o in node.operands]
        written = self._written[k]
        if opcode == "parameter":
            return written or arguments[node.instruction.attributes.parameter_number]
        if opcode in _VIEWS:
            return read[0]
        if opcode == "tuple":
            return (*written, *itertools.chain.from_iterable(read))
        if opcode == "copy":
            return written + read[0][1:]
        if opcode == "get-tuple-element":
            first = (node.instruction.attributes.tuple_index,)
            source = self.nodes[node.operands[0]].parts
            return tuple([v for v, (index, _) in zip(read[0], source, strict=True) if index[:1] == first])
        if opcode in FORWARDING:
            new, operands = iter(written), itertools.chain.from_iterable(read)
            place = FORWARDING[opcode]
            return tuple([next(operands if _is_operand(part, place) else new) for part in node.parts])
        if opcode in FORWARDED:
            place_of_result, source = FORWARDED[opcode], self.nodes[node.operands[0]].parts
            size = len(place_of_result)
            pairs = zip(read[0], source, strict=True)
            return tuple([v for v, (index, _) in pairs if index[:size] == place_of_result])
        if opcode == "while":
            return self._loop(k, node, read[0])
        if opcode in ("call", "conditional"):
            return self._branches(k, node, read)
        return written

    def _branches(self, k: int, node: Node, read: list[tuple[int, ...]]) -> tuple[int, ...]:
        results = []
        for number, name in enumerate(node.instruction.called):
            callee = self.module.computations[name]
            if not self.nodes[self.root(name)].values:  # the first call of this callee
                self._follow(callee, read if node.instruction.opcode == "call" else read[number + 1 :])
            results.append(self.nodes[self.root(name)].values)
        return results[0] if len(results) == 1 else self._phis(k, *results)

    def _loop(self, k: int, node: Node, start: tuple[int, ...]) -> tuple[int, ...]:
        body, condition = node.instruction.called
        entries = {name: self._phis(self.parameter(name), start) for name in (body, condition)}
        result = self._phis(k, start)
        carried = self.nodes[self._follow(self.module.computations[body], (entries[body],))].values
        self._follow(self.module.computations[condition], (entries[condition],))
        for phis in (*entries.values(), result):
            for phi, value in zip(phis, carried, strict=True):
                self._inputs[phi].append(value)
        return result

    def _phis(self, node: int, *inputs: tuple[int, ...]) -> tuple[int, ...]:
        phis = []
        for part, values in enumerate(zip(*inputs, strict=True)):
            phis.append(self._new(node, part))
            self._inputs[phis[-1]] = list(values)
        return tuple(phis)

    def _simplify_phis(self) -> None:
        """Replaces every phi that only one value can reach by this value (`PhiGraph::Optimize`)."""
        becomes: dict[int, int] = {}

        def final(value: int) -> int:
            while value in becomes:
                value = becomes[value]
            return value

        changed = True
        while changed:
            changed = False
            for phi in self._inputs:
                if phi not in becomes:
                    sources, group = self._sources(phi, final)
                    if len(sources) == 1:
                        becomes.update(dict.fromkeys(group, *sources))
                        changed = True
        if becomes:
            for node in self.nodes:
                node.values = tuple([final(v) for v in node.values])

    def _sources(self, phi: int, final: Callable[[int], int]) -> tuple[set[int], set[int]]:
        """Returns the values that can reach a phi through connected phis (it stops at two), and these phis.

        If its own inputs are only itself and one other value, that is the result, even if it is a phi.
        """
        direct = {final(v) for v in self._inputs[phi]} - {phi}
        if len(direct) == 1:
            return direct, {phi}
        group, pending = {phi}, [phi]
        sources: set[int] = set()
        while pending and len(sources) < 2:
            for value in map(final, self._inputs[pending.pop()]):
                if value not in self._inputs:
                    sources.add(value)
                elif value not in group:
                    group.add(value)
                    pending.append(value)
        return sources, group


_TRANSPARENT = ("get-tuple-element", "copy")  # these read only the table of pointers of a tuple
_NOT_READERS = ("tuple", "domain")


@dataclasses.dataclass(slots=True)
class Buffer:
    """Values that share memory in every schedule.

    Attributes:
      values: numbers of the values, ascending.
      bytes: size of the largest of them.
      kind: "constant", "parameter", "table" (a tuple's pointers) or "array".
      donated: True for a parameter that an output overwrites.
      lives_out: True if one of its values is in the program's result.
    """

    values: tuple[int, ...]
    bytes: int
    kind: str
    donated: bool
    lives_out: bool


class ModuleBuffers:
    """The buffers of a module's V values, and their properties that do not depend on the schedule.

    Attributes:
      flow: the values.
      buffers: the buffers in the order in which XLA assigns them: the largest first, then those with results of the
        program, then in order of the program.
      buffer_of: `[V]`: index in `buffers` of each value's buffer; -1 for unused phis.
      owner, times: `[K]`: events at which values must exist: value `owner[k]` is defined, is at a position, or is read
        at time `times[k]`; sorted by owner. With N nodes and C computations, times 0 to N - 1 are indices of
        instructions in `flow.nodes`, N to N + C - 1 starts of computations, and N + C to N + 2C - 1 their ends.
      starts, ends: time of the first computation's start (N) and end (N + C).
    """

    def __init__(self, module: HloModule) -> None:
        self.module = module
        self.flow = Dataflow(module)
        flow = self.flow
        self.used = np.zeros(len(flow.values), bool)
        self.used[[v for node in flow.nodes for v in node.values]] = True
        self.starts, self.ends = len(flow.nodes), len(flow.nodes) + len(flow.computations)
        self.donated = {(a.parameter, a.parameter_index): a.output_index for a in module.input_output_aliases}
        self.buffers = self._buffers()
        self.buffer_of = np.full(len(flow.values), -1)
        for k, buffer in enumerate(self.buffers):
            self.buffer_of[list(buffer.values)] = k
        pairs = np.array(sorted(set(self._reads())), dtype=np.int64).reshape(-1, 2)
        self.owner, self.times = pairs[:, 0], pairs[:, 1]
        self._overwritable: dict[tuple[int, int], bool] = {}
        self._positions: list[list[int]] | None = None

    def start_time(self, value: int) -> int:
        """Returns the time (see `times`) from which a value exists."""
        node = self.flow.nodes[self.flow.values[value].node]
        if node.instruction.opcode == "parameter":
            return self.starts + node.computation
        return self.flow.values[value].node

    def is_alone(self, value: int) -> bool:
        """True if no other value shares a value's buffer."""
        return len(self.buffers[self.buffer_of[value]].values) == 1

    def positions(self, value: int) -> list[int]:
        """Returns the indices in `flow.nodes` of a value's positions, that of its definition first."""
        if self._positions is None:
            positions: list[list[int]] = [[value.node] for value in self.flow.values]
            for k, node in enumerate(self.flow.nodes):
                for v in node.values:
                    if self.flow.values[v].node != k:
                        positions[v].append(k)
            self._positions = positions
        return self._positions[value]

    def overwritable(self, value: int, among: Container[int]) -> int | None:
        """Returns the first operand that the instruction which defines `value` may overwrite with it, or None.

        Args:
          value: the value to write; if others share its buffer, the result is None.
          among: values that nothing needs afterwards.
        """
        if not self.is_alone(value):
            return None
        node = self.flow.nodes[self.flow.values[value].node]
        for operand in node.operands:
            source = self.flow.nodes[operand].values[0]
            if source in among and self.is_alone(source):
                if (value, source) not in self._overwritable:
                    self._overwritable[value, source] = self.may_overwrite(value, source, self.flow.values[source].node)
                if self._overwritable[value, source]:
                    return source
        return None

    def may_overwrite(self, value: int, other: int, at: int) -> bool:
        """True if the instruction that defines `value` may overwrite `other` with it.

        Args:
          value: the value to write.
          other: the value to overwrite, at node `at`.
          at: index in `flow.nodes` of the operand through which the instruction reads `other`.
        """
        origin = self.flow.values[value]
        node, source = self.flow.nodes[origin.node], self.flow.nodes[at]
        if at not in node.operands or node.instruction.opcode == "copy":
            return False
        computation = self.flow.computations[node.computation]
        index = source.parts[source.values.index(other)][0]
        return may_share(
            self.module, computation, node.instruction, node.operands.index(at), index, node.parts[origin.part][0]
        )

    def _reads(self) -> Iterator[tuple[int, int]]:
        """Yields (value, time) for each event at which a value must exist: its positions and its readers."""
        roots = {self.flow.root(c.name): k for k, c in enumerate(self.flow.computations)}
        for k, node in enumerate(self.flow.nodes):
            time = self.ends + roots[k] if k in roots else k  # a result stays until the computation ends
            for value in node.values:
                yield value, time
            reader = self._reader(k, node)
            if reader is None or node.instruction.opcode in _NOT_READERS:
                continue
            for operand in node.operands:
                values = self.flow.nodes[operand].values
                for value in values[:1] if node.instruction.opcode in _TRANSPARENT else values:
                    yield value, reader

    def _reader(self, k: int, node: Node) -> int | None:
        """Returns the time at which an instruction reads its operands; None for a call: its computation reads them."""
        if node.instruction.opcode == "call":
            return None
        return self.flow.parameter(node.instruction.called[0]) if node.instruction.opcode == "while" else k

    def _buffers(self) -> list[Buffer]:
        above = list(range(len(self.flow.values)))

        def top(value: int) -> int:
            while above[value] != value:
                above[value] = value = above[above[value]]
            return value

        for first, second in self._aliases():
            a, b = sorted((top(first), top(second)))
            above[b] = a
        groups: dict[int, list[int]] = {}
        for value in np.flatnonzero(self.used):
            groups.setdefault(top(int(value)), []).append(int(value))
        living_out = set(self.flow.nodes[self.flow.root(self.module.entry.name)].values)
        buffers = [self._buffer(tuple(values), living_out) for values in groups.values()]
        return sorted(buffers, key=lambda b: (-b.bytes, not b.lives_out, self._place(b), b.values))

    def _place(self, buffer: Buffer) -> tuple[int, int]:
        """Returns a sort key of a buffer's first defining node: callers before callees, then index in `flow.nodes`."""
        nodes = [self.flow.values[v].node for v in buffer.values]
        return min((-self.flow.nodes[k].computation, k) for k in nodes)

    def _buffer(self, values: tuple[int, ...], living_out: set[int]) -> Buffer:
        definitions = [self.flow.nodes[self.flow.values[v].node] for v in values]
        entry = self.flow.place[self.module.entry.name]
        kind, donated = "array", False
        for value, node in zip(values, definitions, strict=True):
            if node.instruction.opcode == "constant":
                kind = "constant"
            elif node.instruction.opcode == "parameter" and node.computation == entry:
                index = node.parts[self.flow.values[value].part][0]
                kind, donated = "parameter", (node.instruction.attributes.parameter_number, index) in self.donated
            else:
                continue
            break
        if kind == "array" and any(self.flow.values[v].is_table for v in values):
            kind = "table"
        size = max(self.flow.values[v].bytes for v in values)
        return Buffer(values, size, kind, donated, not living_out.isdisjoint(values))

    def _aliases(self) -> Iterator[tuple[int, int]]:
        flow = self.flow
        for (parameter, index), output in self.donated.items():
            entry, result = flow.parameter(self.module.entry.name, parameter), flow.root(self.module.entry.name)
            yield value_at(flow.nodes[entry], index), value_at(flow.nodes[result], output)
        for node in flow.nodes:
            opcode = node.instruction.opcode
            around: tuple[int, ...] = ()
            if opcode == "while":
                body, condition = node.instruction.called
                around = (node.operands[0], flow.parameter(body), flow.parameter(condition), flow.root(body))
            elif opcode == "conditional":
                around = tuple(flow.root(name) for name in node.instruction.called)
            else:
                for pair in in_place_pairs(self.module, node.instruction):
                    operand = flow.nodes[node.operands[pair.operand]]
                    yield value_at(operand, pair.operand_index), value_at(node, pair.output_index)
            for other in around:
                yield from zip(flow.nodes[other].values, node.values, strict=True)


def value_at(node: Node, index: tuple[int, ...]) -> int:
    """Returns the number of the value at an index in a node's result."""
    return next(v for v, (at, _) in zip(node.values, node.parts, strict=True) if at == index)
