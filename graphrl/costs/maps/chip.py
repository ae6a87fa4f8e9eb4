"""Chips with several memories: checked figures, known chips with their sources, and chip files.

`find_chip` takes a name or a file of format "graphrl-chip", version 1.

msgspec is imported when a file is read, so training without files does not need it.
"""

import dataclasses
import functools
import itertools
import json
import math
import os
from typing import Any

from graphrl.errors import GraphrlError, ProblemError
from graphrl.files import write_atomically
from graphrl.graphs.readers.json import read_strict_json
from graphrl.units import as_integers

FORMAT, VERSION = "graphrl-chip", 1
PAGE = 64  # default page size, bytes
MAX_MEMORIES = 16
# Within these limits the most FLOPs and bytes of a graph take seconds that float32 can hold, as the device twin needs.
PEAKS, BANDWIDTHS = (1e-6, 1e30), (1e-15, 1e30)  # operations and bytes a second
SECONDS = 0.0, 1e6


@dataclasses.dataclass(frozen=True)
class ChipMemory:
    """One memory of a chip.

    Attributes:
      name: memory name.
      capacity: bytes, None for no limit.
      read, write: bandwidths, bytes per second, from 1e-15 to 1e30.
      setup: seconds that every tensor takes in addition to its bytes.
    """

    name: str
    capacity: int | None
    read: float
    write: float
    setup: float = 0.0


@dataclasses.dataclass(frozen=True)
class MemoryChip:
    """A chip that runs one op after the other, on tensors in memories from large and slow to small and fast.

    Attributes:
      name: chip name.
      peak: operations per second, with a multiply-add as two; from 1e-6 to 1e30.
      memories: from the largest and slowest to the smallest and fastest; each at most as large as the one before.
      launch: seconds that every op takes in addition to its work; like all seconds, from 0 to 1e6.
      page: page size in bytes; memory is allocated in whole pages.

    Raises:
      ProblemError: a figure is out of range; one line that names it.
    """

    name: str
    peak: float
    memories: tuple[ChipMemory, ...]
    launch: float = 0.0
    page: int = PAGE

    def __post_init__(self) -> None:
        chip = f"chip {self.name!r}"
        _check_figure(chip, "peak", self.peak, PEAKS)
        _check_figure(chip, "launch", self.launch, SECONDS)
        if type(self.page) is not int or not 1 <= self.page <= 2**30:
            raise ProblemError(f"{chip}: page is {self.page!r}: must be an integer of bytes from 1 to 2^30")
        if not 1 <= len(self.memories) <= MAX_MEMORIES:
            raise ProblemError(f"{chip} has {len(self.memories)} memories: must be from 1 to {MAX_MEMORIES}")
        for memory in self.memories:
            _check_memory(f"{chip}, memory {memory.name!r}", memory)
        names = self.names
        if len(set(names)) < len(names):
            raise ProblemError(f"{chip} has two memories of one name: {', '.join(names)}")
        for larger, smaller in itertools.pairwise(self.memories):
            if _room(larger) < _room(smaller):
                raise ProblemError(
                    f"{chip}: memory {smaller.name!r} is larger than {larger.name!r} before it: must be in order, the "
                    "largest first"
                )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the memories."""
        return tuple(memory.name for memory in self.memories)

    def to_dict(self) -> dict[str, Any]:
        """Returns the chip as the JSON object of a chip file."""
        return {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the chip file atomically: whole or not at all.

        Raises:
          GraphrlError: it cannot be written.
        """
        write_atomically(path, lambda file: file.write(json.dumps(self.to_dict(), indent=1) + "\n"))


def _room(memory: ChipMemory) -> float:
    return math.inf if memory.capacity is None else memory.capacity


def _check_memory(where: str, memory: ChipMemory) -> None:
    capacity = memory.capacity
    if capacity is not None and (type(capacity) is not int or not 0 <= capacity <= 2**62):
        raise ProblemError(
            f"{where}: capacity is {_shorten(capacity)}: must be an integer of bytes from 0 to 2^62, or null"
        )
    _check_figure(where, "read", memory.read, BANDWIDTHS)
    _check_figure(where, "write", memory.write, BANDWIDTHS)
    _check_figure(where, "setup", memory.setup, SECONDS)


def _check_figure(where: str, key: str, value: float, limits: tuple[float, float]) -> None:
    least, most = limits
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not least <= value <= most:
        raise ProblemError(f"{where}: {key} is {_shorten(value)}: must be a number from {least:g} to {most:g}")


def _shorten(value: object) -> str:
    """Formats a value for error messages, in at most 40 characters."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a huge integer"
    return text if len(text) <= 40 else text[:37] + "..."


MIB = 2**20

NNP_I = MemoryChip(
    "nnp-i",
    # Hot Chips 31 slides (Wechsler, Behar & Daga 2019): up to 92 TOPS of int8 in 12 inference engines.
    peak=92e12,
    memories=(
        # the same slides: LPDDR4x-4200 of 128 bits, 67.2 GB/s. The card has 16 GB: no limit for any model here.
        ChipMemory("DRAM", None, 67.2e9, 67.2e9, 1e-6),
        # WikiChip, "Spring Hill": 24 MiB and about 680 GB/s. We leave 8 MiB to an inference: the engines share it with
        # two host cores and with other inferences.
        ChipMemory("LLC", 8 * MIB, 680e9, 680e9, 0.2e-6),
        # WikiChip, "Spring Hill": 4 MiB of deep SRAM an engine and about 6.8 TB/s for the 12. We leave one engine's
        # 4 MiB, which every engine holds a copy of.
        ChipMemory("SRAM", 4 * MIB, 6.8e12, 6.8e12, 0.0),
    ),
    # ours: no public figure. The memories' set-up times too are ours: a DMA descriptor, and a cache's pipeline.
    launch=0.0,
)
"""An accelerator like Intel's NNP-I 1000. It is our model, not a measurement: bandwidths are public and rise tenfold
from memory to memory; usable capacities and set-up times are our choice, made so that capacity binds for batch 1."""

CHIPS = {chip.name: chip for chip in (NNP_I,)}


def find_chip(chip: str | os.PathLike[str] | MemoryChip) -> MemoryChip:
    """Returns the chip of a name in `CHIPS` or of a file's path; a `MemoryChip` is returned as it is.

    Raises:
      GraphrlError: the file cannot be read.
      ProblemError: the file contains no chip, or there is neither such a chip nor such a file.
    """
    if isinstance(chip, MemoryChip):
        return chip
    name = os.fspath(chip)
    if name in CHIPS:
        return CHIPS[name]
    try:
        return read_chip(name)
    except ProblemError:
        raise
    except GraphrlError as error:
        raise ProblemError(f"{error}; chips by name are {', '.join(CHIPS)}") from None


def read_chip(path: str | os.PathLike[str]) -> MemoryChip:
    """Reads a chip file.

    Raises:
      GraphrlError: the file cannot be read.
      ProblemError: it contains no chip; one line that names the file and the first fault.
    """
    return read_strict_json(path, chip_from_dict, ProblemError)


def chip_from_dict(value: object) -> MemoryChip:
    """Builds a chip from the JSON object of a chip file.

    Raises:
      ProblemError: one line that names the first fault.
    """
    if isinstance(value, dict):
        for key, right in (("format", FORMAT), ("version", VERSION)):
            if value.get(key) != right or isinstance(value[key], bool):
                raise ProblemError(f"{key} is {_shorten(value.get(key))}: must be {right!r}")
    figures = _converted(value, MemoryChip, "a chip")
    memories = (_converted(entry, ChipMemory, f"memory number {i}") for i, entry in enumerate(figures.pop("memories")))
    return MemoryChip(memories=tuple(ChipMemory(**memory) for memory in memories), **figures)


def _converted(value: object, kind: type, where: str) -> dict[str, Any]:
    """Returns the fields of a chip or a memory in a file; checks their types and that there are no others."""
    import msgspec

    try:
        file: Any = msgspec.convert(as_integers(value), _file_type(kind))
    except (msgspec.ValidationError, OverflowError) as error:
        raise ProblemError(f"{where}: {error}") from None
    return {field.name: getattr(file, field.name) for field in dataclasses.fields(kind)}


@functools.cache
def _file_type(kind: type) -> type:
    """Returns the type that msgspec checks: the fields of the dataclass, for a chip after those of the format."""
    import msgspec

    head = [("format", str), ("version", int)] if kind is MemoryChip else []
    types = {"memories": list[dict[str, Any]]}
    fields: list[Any] = [
        (field.name, types.get(field.name, field.type))
        if field.default is dataclasses.MISSING
        else (field.name, field.type, field.default)
        for field in dataclasses.fields(kind)
    ]
    return msgspec.defstruct(kind.__name__, head + fields, forbid_unknown_fields=True)
