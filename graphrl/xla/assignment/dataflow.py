"""Which values a module computes, where each can be found and what reads it: `HloDataflowAnalysis` in SSA form.

After xla/hlo/analysis/hlo_dataflow_analysis.cc and xla/service/hlo_value.cc. A value is made by one instruction and is
found under other names too: behind bitcasts and tuples, inside the computations that are called with it. Where several
can arrive (around a loop, behind a conditional) stands a value of its own, a phi, unless all are the same one.

Deviations: a computation that several `call`s share is followed from the first of them; asynchronous instructions are
taken for ordinary ones that make all their results.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

from graphrl.graphs.readers.hlo.module import Computation, HloModule, Instruction
from graphrl.graphs.readers.hlo.shape import Index, Shape

_SEQUENTIAL = ("call", "while", "conditional")  # they run other computations; the rest work on single elements
_FORWARDING = ("bitcast", "add-dependency", "domain", "opt-barrier")
_MAKING_NOTHING = frozenset({*_SEQUENTIAL, *_FORWARDING, "get-tuple-element"})
_MAKING_THE_TABLE = ("tuple", "copy")  # of pointers; the leaves come from the operands


@dataclasses.dataclass(slots=True)
class Value:
    """Attributes:
    node: place of the instruction that makes it in `Dataflow.nodes`.
    part: which part of that result, in the order of `parts`.
    bytes: its size.
    is_table: whether it is a tuple's table of pointers.
    """

    node: int
    part: int
    bytes: int
    is_table: bool


@dataclasses.dataclass(slots=True)
class Node:
    """An instruction of a computation that runs in sequence, and what is known about its results.

    Attributes:
      instruction: itself.
      computation: place of its computation in `Dataflow.computations`.
      operands: places in `Dataflow.nodes`.
      parts: index and shape of every part of the result.
      values: for every part, the value found there.
    """

    instruction: Instruction
    computation: int
    operands: tuple[int, ...]
    parts: tuple[tuple[Index, Shape], ...]
    values: tuple[int, ...] = ()


def parts(shape: Shape, index: Index = ()) -> tuple[tuple[Index, Shape], ...]:
    """Index and shape of a shape and of everything in it, a tuple before its elements."""
    inner = (part for k, element in enumerate(shape.elements) for part in parts(element, (*index, k)))
    return ((index, shape), *inner)


class Dataflow:
    """The values of a module.

    Attributes:
      module: the module.
      computations: those that run in sequence (the entry and what `call`, `while` and `conditional` run), callees
        first.
      nodes: their instructions, in XLA's numbering: that of `computations`, operands before users.
      node_of: place in `nodes` by computation's place and name.
      values: in XLA's numbering, which breaks ties between equal buffers; phis last. Some phis are unused.
    """

    def __init__(self, module: HloModule) -> None:
        self.module = module
        names = {c.name for c in module.sequential}
        self.computations = tuple(c for c in module.computations.values() if c.name in names)
        self.place = {c.name: k for k, c in enumerate(self.computations)}
        self.nodes: list[Node] = []
        self.node_of: list[dict[str, int]] = []
        self.values: list[Value] = []
        self._inputs: dict[int, list[int]] = {}  # of every phi
        seen: dict[Shape, tuple[tuple[Index, Shape], ...]] = {}
        for k, computation in enumerate(self.computations):
            places: dict[str, int] = {}
            for i in computation.instructions:
                places[i.name] = len(self.nodes)
                pieces = seen.get(i.shape) or seen.setdefault(i.shape, parts(i.shape))
                self.nodes.append(Node(i, k, tuple([places[o] for o in i.operands]), pieces))
            self.node_of.append(places)
        self._written = [self._made_by(k) for k in range(len(self.nodes))]
        self._follow(module.entry, ())
        self._settle()

    def root(self, computation: str) -> int:
        """Place in `nodes` of a computation's root."""
        return self.node_of[self.place[computation]][self.module.computations[computation].root.name]

    def parameter(self, computation: str, number: int = 0) -> int:
        """Place in `nodes` of a computation's parameter."""
        return self.node_of[self.place[computation]][self.module.computations[computation].parameters[number].name]

    def _new(self, node: int, part: int) -> int:
        shape = self.nodes[node].parts[part][1]
        self.values.append(Value(node, part, shape.bytes, shape.is_tuple))
        return len(self.values) - 1

    def _made_by(self, k: int) -> tuple[int, ...]:
        node = self.nodes[k]
        opcode = node.instruction.opcode
        if opcode in _MAKING_NOTHING:
            return ()
        if opcode == "parameter" and self.computations[node.computation] is not self.module.entry:
            return ()
        count = 1 if opcode in _MAKING_THE_TABLE else len(node.parts)
        return tuple(self._new(k, part) for part in range(count))

    def _follow(self, computation: Computation, arguments: Sequence[tuple[int, ...]]) -> int:
        """Finds the values of all instructions of a computation; its root's place."""
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
        if opcode in _FORWARDING:
            return read[0]
        if opcode == "tuple":
            return (*written, *itertools.chain.from_iterable(read))
        if opcode == "copy":
            return written + read[0][1:]
        if opcode == "get-tuple-element":
            first = (node.instruction.attributes.tuple_index,)
            source = self.nodes[node.operands[0]].parts
            return tuple([v for v, (index, _) in zip(read[0], source, strict=True) if index[:1] == first])
        if opcode == "while":
            return self._loop(k, node, read[0])
        if opcode in ("call", "conditional"):
            return self._branches(k, node, read)
        return written

    def _branches(self, k: int, node: Node, read: list[tuple[int, ...]]) -> tuple[int, ...]:
        results = []
        for number, name in enumerate(node.instruction.called):
            callee = self.module.computations[name]
            if not self.nodes[self.root(name)].values:  # the first call of it
                self._follow(callee, read if node.instruction.opcode == "call" else read[number + 1 :])
            results.append(self.nodes[self.root(name)].values)
        return results[0] if len(results) == 1 else self._phis(k, *results)

    def _loop(self, k: int, node: Node, start: tuple[int, ...]) -> tuple[int, ...]:
        body, condition = node.instruction.called
        entries = {name: self._phis(self.parameter(name), start) for name in (body, condition)}
        result = self._phis(k, start)
        again = self.nodes[self._follow(self.module.computations[body], (entries[body],))].values
        self._follow(self.module.computations[condition], (entries[condition],))
        for phis in (*entries.values(), result):
            for phi, value in zip(phis, again, strict=True):
                self._inputs[phi].append(value)
        return result

    def _phis(self, node: int, *inputs: tuple[int, ...]) -> tuple[int, ...]:
        phis = []
        for part, values in enumerate(zip(*inputs, strict=True)):
            phis.append(self._new(node, part))
            self._inputs[phis[-1]] = list(values)
        return tuple(phis)

    def _settle(self) -> None:
        """Puts the one value that can arrive in the place of every phi with only one (`PhiGraph::Optimize`)."""
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
        """What the phis hold that a phi hangs together with, two values at most, and these phis.

        If its own inputs are one value beside itself, that is what it holds, even if it is a phi.
        """
        direct = {final(v) for v in self._inputs[phi]} - {phi}
        if len(direct) == 1:
            return direct, {phi}
        group, todo = {phi}, [phi]
        sources: set[int] = set()
        while todo and len(sources) < 2:
            for value in map(final, self._inputs[todo.pop()]):
                if value not in self._inputs:
                    sources.add(value)
                elif value not in group:
                    group.add(value)
                    todo.append(value)
        return sources, group
