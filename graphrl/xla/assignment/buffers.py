"""Which values must lie in one buffer, whatever the schedule: `HloAliasAnalysis` of XLA.

After xla/hlo/analysis/hlo_alias_analysis.cc.
"""

import dataclasses
from collections.abc import Container, Iterator

import numpy as np

from graphrl.graphs.readers.hlo.module import HloModule
from graphrl.graphs.readers.hlo.sharing import in_place_pairs, may_share
from graphrl.xla.assignment.dataflow import Dataflow, Node

_TRANSPARENT = ("get-tuple-element", "copy")  # these read the table of pointers of a tuple only
_BLIND = ("tuple", "domain")


@dataclasses.dataclass(slots=True)
class Buffer:
    """Attributes:
    values: in increasing order.
    bytes: of the largest of them.
    kind: "constant", "parameter", "table" (a tuple's pointers) or "array".
    donated: whether it is a parameter that an output overwrites.
    lives_out: whether the program's result holds one of its values.
    """

    values: tuple[int, ...]
    bytes: int
    kind: str
    donated: bool
    lives_out: bool


class ModuleBuffers:
    """The buffers of a module, and everything about them that no schedule changes.

    Attributes:
      flow: the values.
      buffers: sorted as XLA hands them out: the largest first, then those that live out, then in order of the program.
      buffer_of: place in `buffers` by value; -1 for a phi that is not used. [V]
      times: what is read at the time of a value's making or later: time `times[k]` of value `owner[k]`; sorted by
        owner. A time is the place of an instruction in `flow.nodes`; that of the end of a computation stands `C` and
        more behind the last of them, that of its start before. [K]
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
        self._may: dict[tuple[int, int], bool] = {}
        self._positions: list[list[int]] | None = None

    def start_time(self, value: int) -> int:
        """The time (see `times`) from which a value is there."""
        node = self.flow.nodes[self.flow.values[value].node]
        if node.instruction.opcode == "parameter":
            return self.starts + node.computation
        return self.flow.values[value].node

    def is_alone(self, value: int) -> bool:
        """Whether a value has its buffer for itself."""
        return len(self.buffers[self.buffer_of[value]].values) == 1

    def positions(self, value: int) -> list[int]:
        """Places in `flow.nodes` where a value is found, that of its making first."""
        if self._positions is None:
            positions: list[list[int]] = [[value.node] for value in self.flow.values]
            for k, node in enumerate(self.flow.nodes):
                for v in node.values:
                    if self.flow.values[v].node != k:
                        positions[v].append(k)
            self._positions = positions
        return self._positions[value]

    def overwritable(self, value: int, among: Container[int]) -> int | None:
        """The first value of a direct operand that the instruction that makes `value` may write it over.

        Args:
          value: to be written; if others share its buffer, it is written over nothing.
          among: values that nothing needs afterwards.
        """
        if not self.is_alone(value):
            return None
        node = self.flow.nodes[self.flow.values[value].node]
        for operand in node.operands:
            source = self.flow.nodes[operand].values[0]
            if source in among and self.is_alone(source):
                if (value, source) not in self._may:
                    self._may[value, source] = self.may_overwrite(value, source, self.flow.values[source].node)
                if self._may[value, source]:
                    return source
        return None

    def may_overwrite(self, value: int, other: int, at: int) -> bool:
        """Whether the instruction that makes `value` may write it over `other`, which it reads under the name of the
        instruction in place `at`.
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
        """(value, time) of everything that keeps a value: where it is made or found, and what reads it."""
        roots = {self.flow.root(c.name): k for k, c in enumerate(self.flow.computations)}
        for k, node in enumerate(self.flow.nodes):
            time = self.ends + roots[k] if k in roots else k  # a result stays until the computation ends
            for value in node.values:
                yield value, time
            reader = self._reader(k, node)
            if reader is None or node.instruction.opcode in _BLIND:
                continue
            for operand in node.operands:
                values = self.flow.nodes[operand].values
                for value in values[:1] if node.instruction.opcode in _TRANSPARENT else values:
                    yield value, reader

    def _reader(self, k: int, node: Node) -> int | None:
        """The time at which an instruction reads its operands: a call reads nothing, its computation does."""
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
        """Where a buffer's first value is made: in callers before what they call."""
        nodes = [self.flow.values[v].node for v in buffer.values]
        return min((-self.flow.nodes[k].computation, k) for k in nodes)

    def _buffer(self, values: tuple[int, ...], living_out: set[int]) -> Buffer:
        makers = [self.flow.nodes[self.flow.values[v].node] for v in values]
        entry = self.flow.place[self.module.entry.name]
        kind, donated = "array", False
        for value, node in zip(values, makers, strict=True):
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
    """The value of a part of a node's result."""
    return next(v for v, (at, _) in zip(node.values, node.parts, strict=True) if at == index)
