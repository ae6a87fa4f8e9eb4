"""Files of chips (format "graphrl-chip", version 1).

They are read by msgspec, which chips themselves do not need.
"""

import os
from typing import Any, TypeVar

import msgspec

from graphrl.costs.maps.chip import FORMAT, PAGE, VERSION, ChipMemory, MemoryChip, short
from graphrl.errors import ProblemError
from graphrl.graphs.readers.json import read_strict_json
from graphrl.units import whole_numbers

T = TypeVar("T")


class _ChipFile(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int
    name: str
    peak: float
    memories: list[dict[str, Any]]
    launch: float = 0.0
    page: int = PAGE


class _MemoryFile(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    capacity: int | None
    read: float
    write: float
    setup: float = 0.0


def chip_from_dict(value: object) -> MemoryChip:
    """The chip of an object of the file's shape.

    Raises:
      ProblemError: one line that names the first fault.
    """
    if isinstance(value, dict):
        for key, right in (("format", FORMAT), ("version", VERSION)):
            if value.get(key) != right or isinstance(value[key], bool):
                raise ProblemError(f"{key} is {short(value.get(key))}: must be {right!r}")
    file = _converted(value, _ChipFile, "a chip")
    entries = [_converted(entry, _MemoryFile, f"memory number {i}") for i, entry in enumerate(file.memories)]
    memories = tuple(ChipMemory(**msgspec.structs.asdict(entry)) for entry in entries)
    return MemoryChip(file.name, file.peak, memories, file.launch, file.page)


def read_chip(path: str | os.PathLike[str]) -> MemoryChip:
    """The chip of a file.

    Raises:
      GraphrlError: the file cannot be read.
      ProblemError: it holds no chip; one line that names the file and the first fault.
    """
    return read_strict_json(path, chip_from_dict, ProblemError)


def _converted(value: object, kind: type[T], where: str) -> T:
    try:
        return msgspec.convert(whole_numbers(value), kind)
    except (msgspec.ValidationError, OverflowError) as error:
        raise ProblemError(f"{where}: {error}") from None
