"""Donated arguments of a program whose schedule was changed.

XLA loses the input-output aliases (which result is written into which argument) when a module returns from its hook
(jaxlib 0.10.2: `HloModule::ReplaceEntryComputation`). `preserve_donation` therefore ties each such result to its
argument by means that XLA keeps: loops work in place anyway, and a fusion that reads the argument is declared to write
over it. XLA then assigns both to one buffer. `mark_donated` marks this in the serialized executable as the buffer of
the donated argument.

`argument_writes` finds the instructions that write over arguments of a program, or of a loop's body, and the readers of
these arguments. Schedules must run the readers first.
"""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from graphrl.errors import GraphError
from graphrl.graphs.readers.hlo.module import Computation, HloModule, Instruction, OutputAlias, parse_module
from graphrl.graphs.readers.hlo.proto import executable_message, in_order, replace
from graphrl.graphs.readers.hlo.values import in_place_pairs, may_share
from graphrl.xla.assignment.buffers import Dataflow, ModuleBuffers, value_at

_MAY, _MUST = 1, 2  # `Kind` of xla/service/hlo.proto

# XLA cannot serialize these: sorts, because of their comparators, and communication with the outside.
_NOT_SERIALIZED = frozenset(("sort", "infeed", "outfeed", "send", "recv", "rng-get-and-update-state"))


class ArgumentWrites(NamedTuple):
    """Writes over arguments of the entry, or of a loop body (`as_program`).

    Attributes:
      readers: name of an instruction that writes over an argument -> names of the argument's readers, which must run
        before it.
      exposed: arguments, each as (number, index of a part), whose writers cannot be given such a dependency.
    """

    readers: dict[str, frozenset[str]]
    exposed: frozenset[tuple[int, tuple[int, ...]]]


@functools.lru_cache(maxsize=2)  # callers ask for one module many times
def argument_writes(module: HloModule) -> ArgumentWrites:
    """Finds the writes over arguments of an entry that `preserve_donation` returned, or of a loop's body.

    A loop's body writes its results over its arguments. In `module`, all readers of an argument run before its writer;
    instructions that are added later must be ordered by the caller.
    """
    entry = module.entry
    writes = [(i, pair) for i in entry.instructions for pair in in_place_pairs(module, i)]
    if not writes and not module.input_output_aliases:
        return ArgumentWrites({}, frozenset())
    buffers = ModuleBuffers(module)
    flow = buffers.flow
    readers_of, nodes = reading_of(flow), flow.node_of[flow.place[entry.name]]
    readers: dict[str, set[str]] = collections.defaultdict(set)
    for i, pair in writes:
        value = value_at(flow.nodes[nodes[i.operands[pair.operand]]], pair.operand_index)
        definition = flow.nodes[flow.values[value].node]
        if flow.computations[definition.computation] is entry and definition.instruction.opcode == "parameter":
            readers[i.name].update(readers_of[value])
    exposed = []
    for alias in module.input_output_aliases:
        argument, result = ends_of(flow, alias)
        definition = flow.nodes[flow.values[result].node]
        if argument == result:
            continue
        alone = buffers.buffers[buffers.buffer_of[argument]].values == tuple(sorted((argument, result)))
        in_entry = flow.computations[definition.computation] is entry
        if alone and in_entry and definition.instruction.opcode != "parameter":
            readers[definition.instruction.name].update(readers_of[argument])
        else:
            exposed.append((alias.parameter, alias.parameter_index))
    return ArgumentWrites({name: frozenset(names) - {name} for name, names in readers.items()}, frozenset(exposed))


@dataclasses.dataclass(frozen=True, eq=False)
class Donation:
    """A module without declared aliases that still writes results into donated arguments; from `preserve_donation`.

    Attributes:
      module: the module without aliases; some fusions of its entry write over an operand.
      aliases: entries of the original `input_output_aliases` whose results still share the argument's buffer.
      lost_bytes: bytes of the results that no longer do.
    """

    module: HloModule
    aliases: tuple[OutputAlias, ...]
    lost_bytes: int


@functools.lru_cache(maxsize=2)  # callers ask for one module several times
def preserve_donation(module: HloModule) -> Donation:
    """Changes a module such that results stay in the buffers of donated arguments without aliases, where possible.

    XLA copies an argument that may still be read when it is written over. If all readers can run before the fusion that
    writes over it, the fusion gets control dependencies on them, and the copy is removed. An argument that is no longer
    donated belongs to the caller: an instruction that writes into it, such as a loop, gets a copy.

    Raises:
      GraphError: such an argument is part of a tuple; jax passes none.
    """
    aliases = module.input_output_aliases
    bare = dataclasses.replace(module, input_output_aliases=())
    if not aliases:
        return Donation(bare, (), 0)
    kept: list[OutputAlias] = []
    shared = ModuleBuffers(bare)
    if not any(i.opcode in _NOT_SERIALIZED for c in module.computations.values() for i in c.instructions):
        kept = [alias for alias in aliases if _in_one_buffer(shared, alias)]
        fusions = list(_in_place_fusions(shared, [alias for alias in aliases if alias not in kept]))
        if fusions:
            bare = _declared(bare, fusions)
            shared = ModuleBuffers(bare)
            kept += [fusion.alias for fusion in fusions if _in_one_buffer(shared, fusion.alias)]
    lost_bytes = sum(module.entry.root.shape.at(a.output_index).bytes for a in aliases if a not in kept)
    undonated = _written_into(shared, kept)
    if any(index for _, index in undonated):
        raise GraphError(f"{module.name}: a part of an argument that is no longer donated would be overwritten")
    return Donation(_copied(bare, [number for number, _ in undonated]) if undonated else bare, tuple(kept), lost_bytes)


def mark_donated(serialized: bytes, aliases: Sequence[OutputAlias]) -> bytes:
    """Marks arguments of a serialized executable as donated.

    Args:
      serialized: bytes from `Client.serialize_executable`, for a module whose results share the buffers of these
        arguments.
      aliases: the results and the arguments whose buffers they share.

    Returns:
      The serialized executable that takes over the buffers of donated arguments.

    Raises:
      GraphError: this jaxlib serializes executables in another way.
    """
    head, message = executable_message(serialized)
    executable = message.serialized_executable
    arguments = {(alias.parameter, alias.parameter_index) for alias in aliases}
    changed = 0
    for buffer in executable.buffer_assignment.buffer_allocations:
        place = (buffer.parameter_number, tuple(buffer.parameter_shape_index))
        if buffer.is_entry_computation_parameter and place in arguments:
            buffer.is_parameter_aliased_with_output = True
            changed += 1
    if changed != len(arguments):
        raise GraphError("the format of this jaxlib's serialized executables is unknown")
    entries = executable.hlo_module.hlo_module.input_output_alias.entries
    del entries[:]  # jaxlib 0.11 keeps the aliases: they would be listed twice
    for alias in aliases:
        entries.add(
            output_shape_index=alias.output_index,
            parameter_number=alias.parameter,
            parameter_shape_index=alias.parameter_index,
            kind=_MUST if alias.is_required else _MAY,
        )
    return head + message.SerializeToString()


def reading_of(flow: Dataflow) -> Mapping[int, Sequence[str]]:
    """Maps each value to the names of the entry's instructions that read it, one for each operand.

    Readers through views, and of results of loops that pass the value through, are included.
    """
    reading: dict[int, list[str]] = collections.defaultdict(list)
    entry = flow.place[flow.module.entry.name]
    for node in flow.nodes:
        if node.computation == entry:
            for operand in node.operands:
                values = flow.nodes[operand].values
                read = node.values if node.instruction.opcode == "get-tuple-element" else values
                for value in {*values}.intersection(read):
                    reading[value].append(node.instruction.name)
    return reading


def ends_of(flow: Dataflow, alias: OutputAlias) -> tuple[int, int]:
    """Returns the numbers of two values: of an argument and of the result that is written over it."""
    entry = flow.module.entry.name
    argument, result = flow.nodes[flow.parameter(entry, alias.parameter)], flow.nodes[flow.root(entry)]
    return value_at(argument, alias.parameter_index), value_at(result, alias.output_index)


class _InPlaceFusion(NamedTuple):
    """A fusion that can write over an argument.

    Attributes:
      alias: the alias that it preserves.
      writer: name of the fusion.
      operand: index of the operand that is the argument.
      part: index of the part of its result that is written over the argument.
      copy: name of the copy of the argument that it reads now, or "".
      readers: names of all other instructions that read the argument or the copy: they must run first.
    """

    alias: OutputAlias
    writer: str
    operand: int
    part: tuple[int, ...]
    copy: str
    readers: tuple[str, ...]


def _written_into(buffers: ModuleBuffers, donated: Sequence[OutputAlias]) -> list[tuple[int, tuple[int, ...]]]:
    """Returns arguments, each as (number, index of a part), that are written into although not in `donated`."""
    flow, entry = buffers.flow, buffers.module.entry
    ours = {(alias.parameter, alias.parameter_index) for alias in donated}
    nodes = [flow.nodes[flow.parameter(entry.name, number)] for number in range(len(entry.parameters))]
    return [
        (number, index)
        for number, node in enumerate(nodes)
        for value, (index, _) in zip(node.values, node.parts, strict=True)
        if (number, index) not in ours and not buffers.is_alone(value)
    ]


def _in_one_buffer(buffers: ModuleBuffers, alias: OutputAlias) -> bool:
    argument, result = ends_of(buffers.flow, alias)
    return argument != result and bool(buffers.buffer_of[argument] == buffers.buffer_of[result])


def _in_place_fusions(buffers: ModuleBuffers, aliases: Sequence[OutputAlias]) -> Iterator[_InPlaceFusion]:
    module, flow, used = buffers.module, buffers.flow, set()
    entry = module.entry
    successors, reading = _Successors(entry), reading_of(flow)
    for alias in aliases:
        writer, index = _maker(module, alias.output_index)
        argument = entry.parameters[alias.parameter]
        operand, copy = _operand(entry, writer, argument)
        if alias.parameter_index or operand is None or (writer.name, operand) in used:
            continue
        if not may_share(module, entry, writer, operand, (), index):
            continue
        values = [
            flow.nodes[flow.node_of[flow.place[entry.name]][name]].values[0] for name in (argument.name, copy) if name
        ]
        if not all(map(buffers.is_alone, values)) or any(
            p.output_index == index for p in in_place_pairs(module, writer)
        ):
            continue
        reads = list(itertools.chain.from_iterable(reading[value] for value in values))
        readers = {*reads} - {writer.name, copy}
        if reads.count(writer.name) == 1 and readers.isdisjoint(successors.of(writer.name)):
            used.add((writer.name, operand))
            successors.add(writer.name, readers)
            yield _InPlaceFusion(
                alias, writer.name, operand, index, copy, tuple(i.name for i in entry.instructions if i.name in readers)
            )


def _operand(entry: Computation, writer: Instruction, argument: Instruction) -> tuple[int | None, str]:
    """Returns the index of the fusion's operand that is the argument or a copy of it (or None), and the copy's name."""
    if writer.opcode != "fusion":
        return None, ""
    for k, name in enumerate(writer.operands):
        i = entry.by_name[name]
        if i is argument:
            return k, ""
        if i.opcode == "copy" and i.operands == (argument.name,) and i.shape == argument.shape:
            return k, name
    return None, ""


class _Successors:
    """Finds transitive successors of a computation's instructions; dependencies can be added."""

    def __init__(self, computation: Computation) -> None:
        self._after: dict[str, list[str]] = {name: [] for name in computation.by_name}
        for i in computation.instructions:
            for name in (*i.operands, *i.control_predecessors):
                self._after[name].append(i.name)

    def add(self, name: str, before: Iterable[str]) -> None:
        """Adds dependencies: all instructions in `before` must run before instruction `name`."""
        for other in before:
            self._after[other].append(name)

    def of(self, name: str) -> set[str]:
        """Returns the names of the instruction and of all that can only run after it."""
        todo, visited = [name], {name}
        while todo:
            for other in self._after[todo.pop()]:
                if other not in visited:
                    visited.add(other)
                    todo.append(other)
        return visited


def _maker(module: HloModule, index: tuple[int, ...]) -> tuple[Instruction, tuple[int, ...]]:
    """Finds the instruction that computes a part of the entry's result; also returns the part's index in its result."""
    by_name, i = module.entry.by_name, module.entry.root
    while True:
        if i.opcode == "tuple" and index:
            i, index = by_name[i.operands[index[0]]], index[1:]
        elif i.opcode == "get-tuple-element":
            i, index = by_name[i.operands[0]], (i.attributes.tuple_index, *index)
        else:
            return i, index


def _declared(module: HloModule, fusions: Sequence[_InPlaceFusion]) -> HloModule:
    """Declares in a copy of the module that fusions write over arguments."""
    message, entry = _message_of(module)
    instructions = {i.name: i for i in entry.instructions}
    for fusion in fusions:
        writer = instructions[fusion.writer]
        writer.output_operand_aliasing.add(operand_index=fusion.operand, output_shape_index=fusion.part)
        waits = [instructions[name].id for name in fusion.readers]
        if fusion.copy:
            copy = instructions[fusion.copy]
            for i in entry.instructions:
                i.operand_ids[:] = [copy.operand_ids[0] if k == copy.id else k for k in i.operand_ids]
            waits += copy.control_predecessor_ids
        writer.control_predecessor_ids[:] = dict.fromkeys([*writer.control_predecessor_ids, *waits])
    removed = {instructions[fusion.copy].id: instructions[fusion.copy] for fusion in fusions if fusion.copy}
    kept = in_order([i for i in entry.instructions if i.id not in removed], removed)
    by_id = {i.id: i for i in kept}
    sequence = [by_id[number] for number in _scheduled(message, entry) if number in by_id]
    return _with_entry(module, message, entry, kept, in_order(sequence, removed))


def _copied(module: HloModule, numbers: Iterable[int]) -> HloModule:
    """Adds copies of the given arguments to a module, and makes all instructions read the copies instead."""
    message, entry = _message_of(module)
    instructions, sequence = list(entry.instructions), list(_scheduled(message, entry))
    first = max(i.id for i in instructions) + 1
    for number, id_ in zip(numbers, itertools.count(first)):
        argument = next(i for i in instructions if i.opcode == "parameter" and i.parameter_number == number)
        for i in instructions:
            i.operand_ids[:] = [id_ if k == argument.id else k for k in i.operand_ids]
        copy = type(argument)(name=f"{argument.name}.copied", opcode="copy", shape=argument.shape, id=id_)
        copy.operand_ids.append(argument.id)
        instructions.append(copy)
        sequence.append(id_)
    by_id = {i.id: i for i in instructions}
    return _with_entry(module, message, entry, in_order(instructions), in_order([by_id[k] for k in sequence]))


def _message_of(module: HloModule) -> tuple[Any, Any]:
    """Copies a module's message; returns the copy and its entry computation."""
    message = type(module.message)()
    message.CopyFrom(module.message)
    return message, next(c for c in message.computations if c.id == message.entry_computation_id)


def _scheduled(message: Any, entry: Any) -> Any:
    return next(s.value.instruction_ids for s in message.schedule.sequences if s.key == entry.id)


def _with_entry(
    module: HloModule, message: Any, entry: Any, instructions: Iterable[Any], sequence: Iterable[Any]
) -> HloModule:
    """Replaces the instructions of a module's entry, to run in the order of `sequence`; the result has no aliases."""
    _scheduled(message, entry)[:] = [i.id for i in sequence]
    replace(entry.instructions, instructions)
    changed = parse_module(message.SerializeToString(), module.name)
    schedule = {**module.schedule, changed.entry.name: changed.order(changed.entry)}
    return dataclasses.replace(changed, name=module.name, schedule=schedule, input_output_aliases=())
