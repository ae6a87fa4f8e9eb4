"""XLA modules as plain objects: shapes, instructions, computations, the schedule. `reader.py` converts them to graphs.

A module is given as a serialized `HloModuleProto` (or `HloProto`), as HLO text, or as a live object of jax. Text goes
through jaxlib's own parser, in a separate process (`foreign.py`), so that every module becomes a proto with exact
shapes, ids and schedule.

The fingerprint of a module does not depend on the place, time and names of its compilation.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from graphrl.errors import GraphError
from graphrl.graphs.readers.foreign import DEFAULT_LIMITS, Foreign, ReadLimits
from graphrl.graphs.readers.hlo.head import FROM_MLIR, is_mlir, is_text, with_header
from graphrl.graphs.readers.hlo.proto import HOST, Shape, Shapes, Sources, module_message, stack_frames_in

# They run other computations; those of all other opcodes process single elements.
_SEQUENTIAL = ("call", "conditional", "while")
_EFFECTS = frozenset(str.split("infeed outfeed recv recv-done rng rng-get-and-update-state send send-done"))
_LOCAL = 0xFFFFFFFF  # an instruction's id inside its computation; the higher bits are the id of the computation
# Differences between two compilations of one program, and fields that do not matter to a schedule: names, source lines,
# values of constants, ids, and maps (protobuf writes them in any order).
_LEFT_OUT = (
    "name",
    "metadata",
    "literal",
    "id",
    "operand_ids",
    "control_predecessor_ids",
    "called_computation_ids",
    "frontend_attributes",
    "statistics_viz",
    "original_value",
)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """One instruction.

    Attributes:
      name: unique in its computation.
      opcode: as in HLO text: "fusion", "get-tuple-element", ...
      shape: shape of its result.
      operands: names of instructions of the same computation, in order; one may appear several times.
      control_predecessors: names of instructions of the same computation that must run before it: those that XLA names
        and, for an instruction with effects, the previous one with effects in the schedule.
      called: names of the computations that it calls: the body of a fusion, reduce or call; body and condition of a
        while (in this order); the branches of a conditional.
      is_root: True if its result is the computation's.
      attributes: the `HloInstructionProto` itself, for everything that only some opcodes have: the fields of
        "Instruction" in `proto.py`, e.g. `attributes.dimensions`, `attributes.fusion_kind` ("kLoop", ...),
        `attributes.dot_dimension_numbers.lhs_contracting_dimensions`, `attributes.backend_config` (bytes).
    """

    name: str
    opcode: str
    shape: Shape
    operands: tuple[str, ...]
    control_predecessors: tuple[str, ...]
    called: tuple[str, ...]
    is_root: bool
    attributes: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Computation:
    """A function of a module: its instructions by name, each after its operands; the module's schedule orders them."""

    name: str
    is_fusion: bool
    on_host: bool  # runs on the host, where all of its values are
    by_name: Mapping[str, Instruction]
    root: Instruction

    @functools.cached_property
    def instructions(self) -> tuple[Instruction, ...]:
        """All instructions; their indices are the same for modules of one fingerprint, for every schedule."""
        return tuple(self.by_name.values())

    @functools.cached_property
    def parameters(self) -> tuple[Instruction, ...]:
        """The parameters by number."""
        parameters = [i for i in self.instructions if i.opcode == "parameter"]
        return tuple(sorted(parameters, key=lambda i: i.attributes.parameter_number))

    @functools.cached_property
    def users(self) -> Mapping[str, tuple[Instruction, ...]]:
        """The distinct instructions that read each instruction, by its name."""
        users: dict[str, dict[str, Instruction]] = {name: {} for name in self.by_name}
        for instruction in self.instructions:
            for operand in instruction.operands:
                users[operand][instruction.name] = instruction
        return {name: tuple(readers.values()) for name, readers in users.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class OutputAlias:
    """A leaf of the entry's result that XLA may (must, if required) write into the buffer of a donated parameter."""

    output_index: tuple[int, ...]
    parameter: int
    parameter_index: tuple[int, ...]
    is_required: bool


@dataclasses.dataclass(frozen=True, eq=False)
class HloModule:
    """An HLO module.

    Attributes:
      name: XLA's name for it, e.g. "jit_step".
      entry: the computation that runs.
      computations: all computations by name, callees before their callers.
      schedule: names of the instructions in the order in which they run, by computation; empty if unscheduled. Fusions
        have none.
      input_output_aliases: parts of the result that are written into donated parameters.
      is_tpu: True if a layout has tiles, which XLA writes for TPUs only.
      message: the `HloModuleProto` that the module was read from.
    """

    name: str
    entry: Computation
    computations: Mapping[str, Computation]
    schedule: Mapping[str, tuple[str, ...]]
    input_output_aliases: tuple[OutputAlias, ...]
    is_tpu: bool
    message: Any

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 (64 hexadecimal digits) of the program.

        It is the same for every schedule, name, source line, literal and process. Instructions correspond by their
        indices in `Computation.instructions`, not by their names.
        """

        return fingerprint(self)

    @functools.cached_property
    def sequential(self) -> tuple[Computation, ...]:
        """The computations that run instruction by instruction, callees before their callers.

        These are the entry and the computations that `call`, `conditional` and `while` run from there. Their indices
        are the same for modules of one fingerprint.
        """
        computations: dict[str, Computation] = {}

        def visit(computation: Computation) -> None:
            for instruction in computation.instructions:
                if instruction.opcode in _SEQUENTIAL:
                    for name in instruction.called:
                        if name not in computations:
                            visit(self.computations[name])
            computations[computation.name] = computation

        visit(self.entry)
        return tuple(computations.values())

    def with_orders(self, orders: Mapping[str, Sequence[str]]) -> "HloModule":
        """Returns a copy of the module with new orders for the named computations; `message` keeps the old ones."""
        schedule = {**self.schedule, **{name: tuple(order) for name, order in orders.items()}}
        return dataclasses.replace(self, schedule=schedule)

    def device_bytes(self, leaf: Shape) -> int:
        """Returns the bytes that a leaf's buffer takes in the device's main memory.

        They are 0 in the host's memory, S(5), and in a TPU's other memories: VMEM, S(1), and those of higher numbers.
        On a GPU, S(1), for collectives, and S(2), for temporaries, are parts of the main memory.
        """
        is_other_memory = leaf.memory_space > 0 if self.is_tpu else leaf.memory_space == HOST
        return 0 if is_other_memory else leaf.bytes

    @functools.cached_property
    def sources(self) -> Sources:
        """Origins of instructions in the user's code, by `Instruction.attributes.metadata`."""
        return Sources(self.message)

    def order(self, computation: Computation) -> tuple[str, ...]:
        """Returns the names of a computation's instructions in scheduled order; as written if it has no schedule."""
        return self.schedule.get(computation.name, tuple(computation.by_name))


def parse_module(data: Any, source: str = "HLO", *, limits: ReadLimits = DEFAULT_LIMITS) -> HloModule:
    """Reads an HLO module in any of its forms.

    Args:
      data: serialized `HloModuleProto` or `HloProto` (bytes), HLO text (str or bytes), or a live module: jaxlib's
        `HloModule`, or the result of jax's `lower(...).compile()`.
      source: name for error messages.
      limits: limits on time and memory for XLA's text parser.

    Raises:
      GraphError: one line, if `data` is broken, truncated, not HLO, unreadable with this jaxlib, or exceeds the limits.
    """
    try:
        return _module(module_message(_serialized(data, limits)))
    except GraphError as error:
        raise GraphError(f"{source}: {error}") from None


def as_program(module: HloModule, computation: Computation) -> HloModule:
    """Returns the module with another of its computations as entry, to plan that like a program.

    The arguments of the computation belong to its caller. A loop body writes its results over its arguments:
    `input_output_aliases` of the returned module declares that.
    """
    if computation is module.entry:
        return module
    runs = [i for c in module.sequential for i in c.instructions if computation.name in i.called]
    aliases: tuple[OutputAlias, ...] = ()
    if any(i.opcode == "while" and i.called[0] == computation.name for i in runs):
        aliases = tuple(OutputAlias(at, 0, at, True) for at, _ in computation.root.shape.leaves)
    return dataclasses.replace(module, entry=computation, input_output_aliases=aliases)


def put_back(module: HloModule, program: HloModule) -> HloModule:
    """Restores the entry of a module after changes; the inverse of `as_program`.

    Args:
      module: the original module.
      program: the result of `as_program`, changed.
    """
    entry = program.computations[module.entry.name]
    return dataclasses.replace(program, entry=entry, input_output_aliases=module.input_output_aliases)


def fingerprint(module: HloModule) -> str:
    """Computes the SHA-256 of a module's program, in hexadecimal.

    Each computation is hashed from its instructions in their order, with operands by index and called computations by
    their own hashes. The donated parameters are added.
    """
    digests: dict[str, bytes] = {}
    for computation in module.computations.values():
        digests[computation.name] = _digest(computation, digests)
    whole = hashlib.sha256(digests[module.entry.name])
    aliases = module.message.input_output_alias.entries
    whole.update(b"".join(sorted(e.SerializeToString(deterministic=True) for e in aliases)))
    return whole.hexdigest()


def _module(message: Any) -> HloModule:
    shapes = Shapes()
    names = {c.id: c.name for c in message.computations}
    computations: dict[str, Computation] = {}
    for computation in message.computations:
        if computation.name in computations:
            raise GraphError(f"broken HLO: two computations are called {computation.name!r}")
        computations[computation.name] = _computation(computation, names, computations, shapes)
    entry = computations.get(names.get(message.entry_computation_id, message.entry_computation_name))
    if entry is None:
        raise GraphError(f"broken HLO: the entry computation {message.entry_computation_name!r} is missing")
    aliases = tuple(
        OutputAlias(tuple(e.output_shape_index), e.parameter_number, tuple(e.parameter_shape_index), e.kind == 2)
        for e in message.input_output_alias.entries
    )
    schedule = {names[c.id]: c for c in message.computations}
    schedules = {}
    for sequence in message.schedule.sequences:
        if sequence.key not in names:
            raise GraphError(f"broken HLO: a schedule for the computation of id {sequence.key}, which is missing")
        computation = computations[names[sequence.key]]
        schedules[computation.name] = _schedule(computation, schedule[computation.name], sequence.value.instruction_ids)
    computations = _in_order_of_effects(computations, schedules)
    is_tpu = any(leaf.tiles for shape in shapes.values() for _, leaf in shape.leaves)
    return HloModule(message.name, computations[entry.name], computations, schedules, aliases, is_tpu, message)


def _serialized(data: Any, limits: ReadLimits) -> bytes:
    if isinstance(data, str):
        return _from_text(data, limits)
    if hasattr(data, "compiler_ir"):
        raise GraphError(f"{type(data).__name__}: must be compiled, as lowered.compile() does")
    if hasattr(data, "runtime_executable"):
        data = data.runtime_executable()
    if hasattr(data, "hlo_modules"):
        data = data.hlo_modules()[0]
    if hasattr(data, "as_serialized_hlo_module_proto"):
        return data.as_serialized_hlo_module_proto()
    try:
        content = bytes(memoryview(data))
    except TypeError:
        if is_mlir(str(data).encode()):  # the result of lowered.compiler_ir()
            raise GraphError(FROM_MLIR) from None
        raise GraphError(f"{type(data).__name__}: must be HLO text, a serialized HloModuleProto or a module") from None
    if is_mlir(content):
        raise GraphError(FROM_MLIR)
    if not is_text(content):
        return content
    try:
        return _from_text(content.decode(), limits)
    except UnicodeDecodeError:
        raise GraphError("broken HLO text: it is not UTF-8") from None


def _digest(computation: Computation, digests: dict[str, bytes]) -> bytes:
    place = {name: k for k, name in enumerate(computation.by_name)}
    whole = hashlib.sha256()
    for i in computation.instructions:
        kept = type(i.attributes)()
        kept.CopyFrom(i.attributes)
        for field in _LEFT_OUT:
            kept.ClearField(field)
        kept.backend_config = _canonical(i.attributes.backend_config)
        links = ([place[name] for name in i.operands], sorted([place[name] for name in i.control_predecessors]))
        own = kept.SerializeToString(deterministic=True)
        whole.update(f"{len(own)} {links} {i.is_root}".encode())
        whole.update(own)
        for called in i.called:
            whole.update(digests[called])
    return whole.digest()


def _computation(
    message: Any, names: Mapping[int, str], computations: Mapping[str, Computation], shapes: Shapes
) -> Any:
    where = f"broken HLO: computation {message.name!r}"
    by_id: dict[int, str] = {}  # of the instructions read so far: operands come before their users
    instructions: dict[str, Instruction] = {}
    root = message.root_id & _LOCAL
    try:
        for i in message.instructions:
            called = tuple([names[c] for c in i.called_computation_ids])
            if not computations.keys() >= set(called):
                raise GraphError(f"{where}: {i.name!r} calls a computation that does not precede it")
            instructions[i.name] = Instruction(
                i.name,
                i.opcode,
                shapes[i.shape],
                tuple([by_id[k & _LOCAL] for k in i.operand_ids]),
                tuple([by_id[k & _LOCAL] for k in i.control_predecessor_ids]),
                called,
                i.id & _LOCAL == root,
                i,
            )
            by_id[i.id & _LOCAL] = i.name
    except KeyError as error:
        raise GraphError(f"{where}: {i.name!r} refers to the id {error}, which does not precede it") from None
    if root not in by_id:
        raise GraphError(f"{where}: its root is missing")
    if not len(instructions) == len(by_id) == len(message.instructions):
        raise GraphError(f"{where}: two of its instructions have one name or id")
    is_fusion, on_host = message.is_fusion_computation, message.execution_thread == "host"
    return Computation(message.name, is_fusion, on_host, instructions, instructions[by_id[root]])


def _schedule(computation: Computation, message: Any, ids: Any) -> tuple[str, ...]:
    by_id = {i.id & _LOCAL: i.name for i in message.instructions}
    order = tuple([by_id.get(k & _LOCAL, "") for k in ids])
    place = {name: k for k, name in enumerate(order)}
    if len(order) != len(by_id) or place.keys() != computation.by_name.keys():
        raise GraphError(f"broken HLO: the schedule of {computation.name!r} is not an order of its instructions")
    for name, k in place.items():
        instruction = computation.by_name[name]
        if any(place[p] >= k for p in (*instruction.operands, *instruction.control_predecessors)):
            raise GraphError(f"broken HLO: the schedule of {computation.name!r} has {name!r} before what it waits for")
    return order


def _in_order_of_effects(
    computations: Mapping[str, Computation], schedule: Mapping[str, Sequence[str]]
) -> dict[str, Computation]:
    """Adds control predecessors that keep effects in XLA's order; returns the computations, callees before callers.

    An instruction has effects if it reads or writes something outside its operands and results: a state of random
    numbers, a queue, a channel to another device, the console. Only XLA's schedule orders these. Each therefore gets
    the previous one as a control predecessor, as does an instruction that calls a computation with effects. Collectives
    are not among them: their order may be any that is the same on all devices.
    """
    ordered: dict[str, Computation] = {}
    callees: set[str] = set()  # computations with effects
    for name, computation in computations.items():
        order = schedule.get(name, tuple(computation.by_name))
        instructions = map(computation.by_name.__getitem__, order)
        effects = [i for i in instructions if _has_effects(i) or not callees.isdisjoint(i.called)]
        callees |= {name} if effects else set()
        ordered[name] = _chained(computation, effects)
    return ordered


def _from_text(text: str, limits: ReadLimits) -> bytes:
    content = text.removeprefix("\ufeff").encode(errors="replace")
    if is_mlir(content):
        raise GraphError(FROM_MLIR)
    with Foreign(limits) as foreign:
        return foreign.call("hlo_proto", with_header(content)) + stack_frames_in(content)


@functools.lru_cache(1024)
def _canonical(config: bytes) -> bytes:
    """Sorts the keys of a JSON configuration, which XLA writes in unspecified order; other text stays unchanged."""
    try:
        return json.dumps(json.loads(config), sort_keys=True).encode()
    except ValueError:
        return config


def _has_effects(i: Instruction) -> bool:
    return i.opcode in _EFFECTS or (i.opcode == "custom-call" and i.attributes.custom_call_has_side_effect)


def _chained(computation: Computation, effects: Sequence[Instruction]) -> Computation:
    if len(effects) < 2:
        return computation
    by_name = dict(computation.by_name)
    for before, i in itertools.pairwise(effects):
        predecessors = tuple(dict.fromkeys((*i.control_predecessors, before.name)))
        by_name[i.name] = dataclasses.replace(i, control_predecessors=predecessors)
    return dataclasses.replace(computation, by_name=by_name, root=by_name[computation.root.name])
