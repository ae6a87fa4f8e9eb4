"""JSON files, `{"format": ..., "version": ..., ...}`, read into dataclasses with every type checked.

msgspec is imported when a file is read: training without files, as of `scripts/accelerator.py`, does without.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any, TypeVar

from graphrl.errors import GraphrlError
from graphrl.files import content, shown, write_atomically

T = TypeVar("T")


class BrokenError(GraphrlError):
    """A file is not what it was written as: cut short, or changed since."""


@dataclasses.dataclass(frozen=True)
class _Header:
    format: str
    version: int


def read_document(path: Path, kind: type[T], form: str, version: int) -> T:
    """The dataclass of such a file.

    Raises:
      GraphrlError: it cannot be read, or is of another format or version; a `BrokenError` if it holds none of either.
    """
    import msgspec

    with content(path) as data:
        text = bytes(data)
    try:
        header = msgspec.json.decode(text, type=_Header)
        if (header.format, header.version) == (form, version):
            return msgspec.json.decode(text, type=kind)
    except (ValueError, RecursionError) as error:
        raise BrokenError(f"{shown(path)}: is no {form}: {error}") from None
    is_of = f"{header.format[:60]!r} version {header.version}"
    raise GraphrlError(f"{shown(path)} is {is_of}: must be {form} version {version}")


def write_document(path: Path, value: Any, form: str, version: int) -> None:
    """Writes a dataclass, whole or not at all.

    Raises:
      GraphrlError: it cannot be written.
    """
    fields = {"format": form, "version": version, **dataclasses.asdict(value)}
    write_atomically(path, lambda file: json.dump(fields, file, indent=1))
