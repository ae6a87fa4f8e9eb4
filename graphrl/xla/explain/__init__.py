"""Why a compiled program needs its memory: `graphrl.explain`.

- here: the entry points, and the forms in which a program is given;
- memory.py: arrays over the program's time, each with its cause and the line that computes it;
- remedies.py: what would help, with predicted savings;
- report.py: the explanation as a table, as data and as a picture.
"""

import itertools
import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from graphrl import files
from graphrl.errors import GraphError, ProblemError
from graphrl.graphs.readers.foreign import DEFAULT_LIMITS, ReadLimits
from graphrl.graphs.readers.hlo.head import is_hlo, is_mlir
from graphrl.graphs.readers.hlo.module import HloModule, parse_module
from graphrl.graphs.readers.hlo.proto import Source
from graphrl.xla.explain.memory import (
    COLLECTIVE,
    COLLECTIVES,
    COPY,
    DONATION,
    HOLES,
    IN_USE,
    KEPT,
    LAYOUT,
    ONE_HOT,
    ORDER,
    PADDING,
    WAITING,
    Array,
    Memory,
    is_backward,
)
from graphrl.xla.explain.remedies import BestOrder, Remedy, best_order, donations, remedies
from graphrl.xla.explain.report import ARGUMENTS, NEEDED, OTHER, RESULTS, UNLISTED, Cause, Explanation, Place
from graphrl.xla.hook import with_source_lines, without_disk_cache
from graphrl.xla.libraries import library_of
from graphrl.xla.topology import GPU_OPTIONS, GPUS, absent_devices, concrete_mesh

_HEAD = 1 << 20  # bytes that are searched for the words of a message
SECONDS = 5.0  # default time of the search for a better order
DONATION_SECONDS = 1.0  # time of the search for each donation's order
_MODULES = ("*after_optimizations.hlo.pb", "*after_optimizations.txt", "*after_optimizations.hlo")  # in XLA's dumps
# XLA's messages: of GPUs "Size: 96.00MiB", of TPUs "Size: 2.00G"; all units are binary.
_AMOUNT = r"([\d.]+)([KMGT]?)i?B?\b"
_MARKS = ("RESOURCE_EXHAUSTED", "Ran out of memory", "Out of memory", "Largest program allocations", "Peak buffers:")
_SIZE, _UNPADDED = re.compile(r"\bSize: " + _AMOUNT), re.compile(r"Unpadded size: " + _AMOUNT)
_NEEDED, _LIMIT = re.compile(r"\bUsed " + _AMOUNT), re.compile(r"\bUsed \S+ of " + _AMOUNT)
_FRAGMENTATION = re.compile(r"temp fragmentation: +" + _AMOUNT + r"|fragmentation \(" + _AMOUNT + r"\)")
_PARTS = tuple(
    re.compile(pattern + _AMOUNT)
    for pattern in (r"parameter allocation: +", r"maybe_live_out allocation: +", r"(?:temp allocation:|HLO temp) +")
)
_FIELD = {"op_name": r'op_name="([^"]*)', "file": r'source_file="([^"]*)', "line": r"source_line=(\d+)"}
_TEMPORARY = re.compile(r"^allocation \d+: size (\d+),.*preallocated-temp", re.MULTILINE)


class Program(NamedTuple):
    """A compiled program to explain.

    Attributes:
      module: the module, scheduled, of one device.
      temp_bytes: XLA's bytes of temporaries; None if unknown.
      limit_bytes: memory of the device; None if unknown.
    """

    module: HloModule
    temp_bytes: int | None = None
    limit_bytes: int | None = None


def explain(
    step: Any,
    *args: Any,
    message: Any = None,
    chip: str | None = None,
    mesh: Mesh | AbstractMesh | None = None,
    seconds: float = SECONDS,
    seed: int = 0,
    limits: ReadLimits = DEFAULT_LIMITS,
) -> Explanation:
    """Explains why a program needs its memory, and what would lower it.

        print(graphrl.explain(train_step, state, batch))
        graphrl.explain(train_step, state, batch, chip="h200").plot("memory.png")

    Nothing runs. The program is compiled, and XLA's assignment of buffers is followed to its peak: which arrays are
    there, which line computes them, and why they are still there. Each remedy has a saving in bytes that is predicted
    by assigning buffers again.

    Args:
      step: a function, with its options if it is from `jax.jit`, `nnx.jit` or `eqx.filter_jit` (donated arguments
        matter here), and jitted as those do if not; or a program that is compiled already: the result of `lower(...)`
        or `lower(...).compile()`, HLO text, or the path of a file with HLO or of a folder that XLA wrote
        (`XLA_FLAGS=--xla_dump_to=FOLDER`; of several programs, the one with the longest HLO). Or XLA's message that
        memory ran out, its exception or a file with it: it lists the largest arrays only, so that there are no
        remedies.
      *args: arguments of the function: arrays or `jax.ShapeDtypeStruct`s, in pytrees, with shardings if several devices
        share the program.
      message: XLA's message that memory ran out when it compiled or ran this program: the text, the exception, or a
        file; if it states the device's memory, the explanation states by how much.
      chip: a GPU that is not here, to compile the function for: a key of `graphrl.xla.topology.GPUS`, such as "h200",
        with the extra `gpu-compile` and JAX_PLATFORMS=cpu in the environment. By default, jax's devices.
      mesh: mesh to which the arguments' shardings refer; by default that of the arguments.
      seconds: time to search for a better order, and at most 1 s for the order of each donation; 0 for none.
      seed: seed of that search.
      limits: limits on time and memory for reading HLO text.

    Returns:
      The explanation: a table by `print`, a picture by `plot`, data by `to_dict`. Bytes are those of one device.

    Raises:
      GraphError: there is no program, or it is not HLO that XLA has scheduled.
      GraphrlError: XLA has no compiler for the chip here, or a file cannot be read.
      ProblemError: arguments for a program that is compiled already; or a number is out of range.
    """
    if not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        raise ProblemError(f"seconds is {seconds!r}: must be a finite number from 0")
    if message is None and (text := _message_in(step)):
        return explain_message(text)
    step = _jax_stage(step)
    is_function = callable(step) and not hasattr(step, "runtime_executable")
    if not is_function and (args or chip is not None or mesh is not None):
        raise ProblemError("arguments, chip and mesh are for a function: this program is compiled already")
    program = _compiled(step, args, chip, mesh) if is_function else read_program(step, limits)
    if message is not None:
        text = _message_in(message)
        if isinstance(message, os.PathLike):
            with files.content(message):  # raises one line if the file cannot be read
                pass
        if not text:
            raise ProblemError("message is not XLA's message that memory ran out: it says RESOURCE_EXHAUSTED")
        program = program._replace(limit_bytes=_stated(_LIMIT, text) or program.limit_bytes)
    return explain_program(program, seconds, seed)


def read_program(source: Any, limits: ReadLimits = DEFAULT_LIMITS) -> Program:
    """Reads a compiled program: a file, a folder of XLA's dumps, HLO text, or an object of jax; see `explain`."""
    if hasattr(source, "compiler_ir"):
        with with_source_lines():
            source = source.compile()
    if hasattr(source, "memory_analysis"):
        memory = source.memory_analysis()
        return Program(parse_module(source), None if memory is None else int(memory.temp_size_in_bytes))
    if isinstance(source, os.PathLike) or (isinstance(source, str) and not _is_program(source)):
        path = Path(source)
        return _dumped(path, limits) if path.is_dir() else Program(_module_in(path, limits))
    return Program(parse_module(source, limits=limits))


def explain_message(text: str) -> Explanation:
    """Explains XLA's message that memory ran out, of a GPU ("Peak buffers") or a TPU ("Largest program allocations").

    Raises:
      GraphError: the message lists no arrays.
    """
    listed = [_listed(part) for part in text.split("=====") if _SIZE.search(part)]
    if not listed:
        raise GraphError("the message lists no arrays: give the program's module, of XLA_FLAGS=--xla_dump_to=FOLDER")
    groups: dict[tuple[str, str, int], list[Place]] = defaultdict(list)
    sizes: dict[str, int] = defaultdict(int)
    for place, padding in listed:
        groups[place.cause, place.source.file, place.source.line].append(place)
        sizes[place.cause] += place.bytes - padding
        sizes[PADDING] += padding
    places = (group[0]._replace(bytes=sum(p.bytes for p in group), arrays=len(group)) for group in groups.values())
    stated, results, temp = (_stated(pattern, text) for pattern in _PARTS)
    sizes[ARGUMENTS] = max(stated, sizes[ARGUMENTS])
    temp = max(temp or _stated(_NEEDED, text), sum(sizes.values()) - sizes[ARGUMENTS])
    sizes |= {RESULTS: results, HOLES: _stated(_FRAGMENTATION, text)}
    sizes[UNLISTED] = max(0, sizes[ARGUMENTS] + results + temp - sum(sizes.values()))
    return Explanation(
        program="the program of the message",
        argument_bytes=sizes[ARGUMENTS],
        result_bytes=results,
        temp_bytes=temp,
        is_measured=True,
        predicted_bytes=temp,
        live_bytes=temp - sizes[HOLES],
        bound_bytes=0,
        best_bytes=temp,
        causes=_sorted_causes(sizes),
        places=tuple(sorted(places, key=lambda place: -place.bytes)),
        remedies=(),
        peak=Source(),
        timeline={},
        peak_time=0,
        backward_time=None,
        limit_bytes=_stated(_LIMIT, text) or None,
    )


def explain_program(program: Program, seconds: float = SECONDS, seed: int = 0) -> Explanation:
    """Explains a compiled program; see `explain`.

    Raises:
      GraphError: XLA has not scheduled the module.
    """
    module = program.module
    if module.entry.name not in module.schedule:
        fault = "it has no schedule: must be a module as XLA compiled it, of compiled.as_text() or a dump's"
        raise GraphError(f"{module.name}: {fault} *after_optimizations.txt")
    memory = Memory(module)
    best, donating = best_order(memory, seconds, seed), donations(memory, min(seconds, DONATION_SECONDS), seed)
    temp = memory.assignment.temp_bytes if program.temp_bytes is None else program.temp_bytes
    arguments = sum(module.device_bytes(leaf) for p in module.entry.parameters for _, leaf in p.shape.leaves)
    written = {alias.output_index for alias in module.input_output_aliases}
    root = module.entry.root.shape
    results = sum(module.device_bytes(leaf) for at, leaf in root.leaves if at not in written)
    results += root.bytes if root.is_tuple else 0  # its table of pointers
    return Explanation(
        program=module.name,
        argument_bytes=arguments,
        result_bytes=results,
        temp_bytes=temp,
        is_measured=program.temp_bytes is not None,
        predicted_bytes=memory.assignment.temp_bytes,
        live_bytes=int(memory.live[memory.peak]),
        bound_bytes=best.bound,
        best_bytes=best.temp_bytes,
        causes=_causes(memory, donating, best, arguments, results, temp),
        places=tuple(_places(memory)),
        remedies=tuple(remedies(memory, donating, best, arguments + results + temp)),
        peak=memory.source(memory.running[memory.peak]),
        timeline=memory.by_cause(),
        peak_time=memory.peak,
        backward_time=memory.backward_time,
        limit_bytes=program.limit_bytes,
    )


def _causes(
    memory: Memory, donating: Sequence[Remedy], best: BestOrder, arguments: int, results: int, temp: int
) -> tuple[Cause, ...]:
    """Returns the parts of the program's total."""
    sizes: dict[str, int] = defaultdict(int)
    for array in memory.at(memory.peak):
        sizes[PADDING] += array.padding
        sizes[memory.cause_at(array, memory.peak)] += array.bytes - array.padding
    live = int(memory.live[memory.peak])
    sizes[ORDER] = max(0, min(sizes[WAITING], live - best.live_bytes, memory.assignment.temp_bytes - best.temp_bytes))
    sizes[WAITING] -= sizes[ORDER]
    sizes[HOLES] = memory.assignment.temp_bytes - live
    sizes[OTHER] = temp - memory.assignment.temp_bytes
    sizes[DONATION] = max([0, *(min(results, remedy.saves) for remedy in donating)])
    sizes |= {ARGUMENTS: arguments, RESULTS: results - sizes[DONATION]}
    return _sorted_causes(sizes)


def _sorted_causes(sizes: Mapping[str, int]) -> tuple[Cause, ...]:
    """Sorts causes: those that can be avoided first, the largest first."""
    causes = (Cause(key, size) for key, size in sizes.items() if size)
    return tuple(sorted(causes, key=lambda cause: (cause.key in NEEDED, -cause.bytes)))


def _places(memory: Memory) -> list[Place]:
    groups: dict[tuple[str, int, str], list[Array]] = defaultdict(list)
    for array in memory.at(memory.peak):
        cause = memory.cause_at(array, memory.peak)
        groups[array.source.file, array.source.line, cause].append(array)
    places = []
    for (_, _, cause), arrays in groups.items():
        shape = arrays[0].shape
        text = f"{shape.dtype}[{','.join(map(str, shape.dims))}]"
        places.append(Place(arrays[0].source, cause, sum(a.bytes for a in arrays), len(arrays), text))
    return sorted(places, key=lambda place: -place.bytes)


def _compiled(
    step: Callable[..., Any], args: tuple[Any, ...], chip: str | None, mesh: Mesh | AbstractMesh | None
) -> Program:
    kind = None if hasattr(step, "lower") else library_of(args)
    if kind is not None:  # jax.jit alone would drop what the step writes to a module of NNX
        library = kind(step, {})
        with library.encoded(args, {}) as (encoded, _):
            return _compiled(jax.jit(library.pure), encoded, chip, mesh)
    jitted: Any = step if hasattr(step, "lower") else jax.jit(step)
    if chip is None and not isinstance(mesh, AbstractMesh):
        return read_program(_jax_stage(jitted.lower(*args)))
    if not hasattr(jitted, "trace"):
        raise ProblemError("chip and an abstract mesh are for a function of arrays or the result of jax.jit")
    shapes = _placed(args, chip, mesh)
    traced = jitted.trace(*shapes)
    device = next(iter(jax.tree.leaves(shapes)[0].sharding.device_set))
    if device in jax.devices():
        return read_program(traced.lower())
    with without_disk_cache():  # which reads programs for devices that are here only
        compiled = traced.lower(lowering_platforms=("cuda",)).compile(compiler_options=GPU_OPTIONS)
    return read_program(compiled)._replace(limit_bytes=GPUS[str(chip)][1])


def _jax_stage(step: Any) -> Any:
    """Returns the `jax.stages` object within what Equinox lowers or compiles; anything else as it is."""
    inner = [getattr(step, name, None) for name in ("lowered", "compiled")]
    return next((each for each in inner if isinstance(each, jax.stages.Lowered | jax.stages.Compiled)), step)


def _placed(args: Any, chip: str | None, mesh: Mesh | AbstractMesh | None) -> Any:
    """Returns the shapes of arguments, with shardings over devices to compile for."""
    given = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(args)]
    if not given:
        raise ProblemError("a function without arguments is compiled for the devices that are here: leave out chip")
    mesh = mesh or next((s.mesh for s in given if isinstance(s, NamedSharding) and s.mesh.size > 1), None)
    if mesh is None:
        one = SingleDeviceSharding(absent_devices(str(chip), 1)[0])
        return jax.tree.map(lambda x: _shape(x, one), args)
    abstract = mesh.abstract_mesh if isinstance(mesh, Mesh) and chip is not None else mesh
    devices = concrete_mesh(abstract, chip)

    def place(leaf: Any) -> jax.ShapeDtypeStruct:
        sharding = getattr(leaf, "sharding", None)
        spec = sharding.spec if isinstance(sharding, NamedSharding) else PartitionSpec()
        return _shape(leaf, NamedSharding(devices, spec))

    return jax.tree.map(place, args)


def _shape(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jax.numpy.shape(leaf), jax.dtypes.result_type(leaf), sharding=sharding)


def _dumped(folder: Path, limits: ReadLimits) -> Program:
    """Reads the largest program of a folder that XLA wrote, with XLA's figure from its buffer assignment."""
    paths = list(itertools.chain.from_iterable(folder.glob(pattern) for pattern in _MODULES))
    if not paths:
        fault = "no module: must have *after_optimizations.txt or .hlo.pb, as XLA_FLAGS=--xla_dump_to=FOLDER writes"
        raise GraphError(f"{files.quote_path(folder)}: {fault}")
    largest = max(paths, key=lambda path: path.stat().st_size)
    stem = largest.name.partition("after_optimizations")[0] + "after_optimizations"
    program = Program(_module_in(largest, limits))
    assignment = folder / f"{stem}-buffer-assignment.txt"
    if not assignment.exists():
        return program
    sizes = map(int, _TEMPORARY.findall(assignment.read_text(encoding="utf-8", errors="replace")))
    return program._replace(temp_bytes=sum(sizes))


def _message_in(source: Any) -> str:
    """Returns XLA's message that memory ran out, of a text, an exception or a file; "" if it is none."""
    if not isinstance(source, str | os.PathLike | BaseException) or (isinstance(source, str) and _is_program(source)):
        return ""
    text = str(source)
    if "\n" not in text and os.path.isfile(text):
        with files.content(text) as data:
            head = data[:_HEAD]
            if is_hlo(head) or not any(mark.encode() in head for mark in _MARKS):
                return ""
            text = data[:].decode(errors="replace")
    return text if any(mark in text for mark in _MARKS) else ""


def _is_program(text: str) -> bool:
    """True for the text of a program, of XLA or of an earlier stage; False for a path or a message."""
    head = text.encode()
    return is_hlo(head) or is_mlir(head)


def _listed(part: str) -> tuple[Place, int]:
    """Parses an array that a message lists; also returns the bytes of its padding."""
    values = {name: (re.search(pattern, part) or ("", ""))[1] for name, pattern in _FIELD.items()}
    source = Source(values["op_name"], values["file"], int(values["line"] or 0))
    shape = re.search(r"(?:Shape|Subshape): ([a-z]\w*\[[\d,]*\])", part)
    label = re.search(r"XLA [Ll]abel: %?(?:[\w.-]+ = (?:\S+ )?)?([\w-]+)", part)
    size = _stated(_SIZE, part)
    unpadded = _stated(_UNPADDED, part) if _UNPADDED.search(part) else size
    is_argument = "Parameter" in part.replace("Allocation type: HLO temp", "")
    cause = ARGUMENTS if is_argument else _cause_of(source.op_name, label[1] if label else "")
    return Place(source, cause, size, 1, shape[1] if shape else ""), max(0, size - unpadded)


def _cause_of(op_name: str, opcode: str) -> str:
    """Returns the cause of an array by its names alone."""
    if opcode.startswith(COLLECTIVES):
        return COLLECTIVE
    if "one_hot" in op_name:
        return ONE_HOT
    if opcode in ("copy", "transpose"):
        return LAYOUT if opcode == "transpose" else COPY
    return KEPT if "jvp(" in op_name and not is_backward(op_name) else IN_USE


def _stated(pattern: re.Pattern[str], text: str) -> int:
    """Returns the bytes that a message states after a pattern; 0 if it does not."""
    match = pattern.search(text)
    if match is None:
        return 0
    number, unit = [group for group in match.groups() if group is not None]
    return int(float(number) * 1024 ** " KMGT".index(unit or " "))


def _module_in(path: Path, limits: ReadLimits) -> HloModule:
    source = files.quote_path(path)
    with files.content(path, max_unpacked=limits.memory) as data:
        if not len(data):
            raise GraphError(f"{source}: the file is empty: must have a compiled module")
        return parse_module(data[:], source, limits=limits)
