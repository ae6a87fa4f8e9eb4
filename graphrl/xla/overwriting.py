"""What is written over the arguments of a program, and who reads them before."""

import collections
import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from graphrl.graphs.readers.hlo.module import HloModule, OutputAlias
from graphrl.graphs.readers.hlo.sharing import in_place_pairs
from graphrl.xla.assignment.buffers import ModuleBuffers, value_at
from graphrl.xla.assignment.dataflow import Dataflow


class WrittenOver(NamedTuple):
    """What is written over arguments of the entry, or of a loop's body (`bodies.as_program`).

    Attributes:
      late: names of those who write over one, and have to wait for those who read it; with these.
      exposed: arguments, each a number and a part, that are written over by what cannot be told to wait.
    """

    late: dict[str, frozenset[str]]
    exposed: frozenset[tuple[int, tuple[int, ...]]]


@functools.lru_cache(maxsize=2)  # for those who ask for one module many times
def written_over(module: HloModule) -> WrittenOver:
    """What writes over an argument: of an entry as `tied` has it; or of a loop, whose body writes what it gives over
    what it was given. Who reads the argument has run before, directly or not; what is added to the module has not.
    """
    entry = module.entry
    written = [(i, pair) for i in entry.instructions for pair in in_place_pairs(module, i)]
    if not written and not module.input_output_aliases:
        return WrittenOver({}, frozenset())
    buffers = ModuleBuffers(module)
    flow = buffers.flow
    reading, nodes = reading_of(flow), flow.node_of[flow.place[entry.name]]
    late: dict[str, set[str]] = collections.defaultdict(set)
    for i, pair in written:
        value = value_at(flow.nodes[nodes[i.operands[pair.operand]]], pair.operand_index)
        maker = flow.nodes[flow.values[value].node]
        if flow.computations[maker.computation] is entry and maker.instruction.opcode == "parameter":
            late[i.name].update(reading[value])
    exposed = []
    for alias in module.input_output_aliases:
        given, result = ends_of(flow, alias)
        maker = flow.nodes[flow.values[result].node]
        if given == result:
            continue
        alone = buffers.buffers[buffers.buffer_of[given]].values == tuple(sorted((given, result)))
        if alone and flow.computations[maker.computation] is entry and maker.instruction.opcode != "parameter":
            late[maker.instruction.name].update(reading[given])
        else:
            exposed.append((alias.parameter, alias.parameter_index))
    return WrittenOver({name: frozenset(readers) - {name} for name, readers in late.items()}, frozenset(exposed))


def reading_of(flow: Dataflow) -> Mapping[int, Sequence[str]]:
    """Names of the instructions of the entry that read each value, wherever they find it: behind views, and in the
    results of loops that hand it on. Once for each operand.
    """
    reading: dict[int, list[str]] = collections.defaultdict(list)
    entry = flow.place[flow.module.entry.name]
    for node in flow.nodes:
        if node.computation == entry:
            for operand in node.operands:
                values = flow.nodes[operand].values
                shown = node.values if node.instruction.opcode == "get-tuple-element" else values
                for value in {*values}.intersection(shown):
                    reading[value].append(node.instruction.name)
    return reading


def ends_of(flow: Dataflow, alias: OutputAlias) -> tuple[int, int]:
    """The values of an argument and of the result that is written over it."""
    entry = flow.module.entry.name
    given, result = flow.nodes[flow.parameter(entry, alias.parameter)], flow.nodes[flow.root(entry)]
    return value_at(given, alias.parameter_index), value_at(result, alias.output_index)
