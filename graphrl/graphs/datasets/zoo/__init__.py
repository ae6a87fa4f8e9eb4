"""The model zoo: real programs, traced and shipped as graphs (`scripts/build_zoo.py` makes them).

    select("training/hlo")                                      # available programs
    load("efficientnetb0/training/b8/hlo").graph
    augmented(graph, seed=0)                                    # another problem on the same topology

`graphrl optimize zoo:NAME` and `graphrl compare zoo:training/hlo` take the same names, and sets of them. The
environment variable GRAPHRL_ZOO names a folder with another zoo.
"""

import difflib
import functools
import json
import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from graphrl import files
from graphrl.errors import GraphError, GraphrlError, ProblemError, clipped
from graphrl.graphs.datasets.zoo.program import KINDS, LEVELS, SPLITS, Split, ZooProgram, augmented, program_name
from graphrl.graphs.datasets.zoo.storage import SUFFIX, contents, file_name, read_program

__all__ = [
    "DATA",
    "INDEX",
    "KINDS",
    "LEVELS",
    "PREFIX",
    "SPLITS",
    "Entry",
    "ZooProgram",
    "augmented",
    "entries",
    "load",
    "select",
    "select_one",
    "write_index",
]

DATA = Path(__file__).parent / "data"
INDEX = "index.json"
FORMAT, VERSION = "graphrl-zoo-index", 1
PREFIX = "zoo:"


class Entry(NamedTuple):
    """Index entry of a program in the zoo: fields as in `ZooProgram`, and the number of ops of its graph."""

    architecture: str
    family: str
    kind: str
    batch: int
    level: str
    ops: int

    @property
    def name(self) -> str:
        return program_name(self.architecture, self.kind, self.batch, self.level)

    @property
    def split(self) -> Split:
        return SPLITS[self.family]

    @property
    def words(self) -> tuple[str, ...]:
        """Words of this program, which `select` compares with its text."""
        return (
            self.architecture,
            self.kind,
            f"b{self.batch}",
            self.level,
            f"{self.split}-split",
            f"{self.family}-family",
        )


def load(name: str, *, folder: str | os.PathLike[str] | None = None) -> ZooProgram:
    """Loads a program by its name, such as `efficientnetb0/training/b8/hlo`, or by any text that selects one program.

    Raises:
      ProblemError: no program matches, or more than one.
      GraphrlError: its file is missing or broken.
    """
    entry = select_one(name, folder)
    path = os.path.join(home() if folder is None else folder, file_name(entry.architecture, entry.kind, entry.level))
    return read_program(path, entry.batch)


def home() -> Path:
    """Returns the zoo's folder: the value of the environment variable GRAPHRL_ZOO, or the shipped one."""
    return Path(os.environ.get("GRAPHRL_ZOO") or DATA)


def write_index(folder: str | os.PathLike[str]) -> tuple[Entry, ...]:
    """Writes the index of a folder's files; returns its entries.

    Raises:
      GraphrlError: a file cannot be read, or the index cannot be written.
    """
    entries = sorted(Entry(*row) for path in Path(folder).glob(f"*{SUFFIX}") for row in contents(path))
    rows = ",\n ".join(json.dumps(entry) for entry in entries)
    text = f'{{"format": "{FORMAT}", "version": {VERSION}, "programs": [\n {rows}\n]}}\n'
    files.write_atomically(Path(folder) / INDEX, lambda file: file.write(text))
    _entries.cache_clear()
    return tuple(entries)


def entries(folder: str | os.PathLike[str] | None = None) -> tuple[Entry, ...]:
    """Lists all programs of a folder (by default of `home()`), sorted by name.

    Raises:
      GraphrlError: the index is missing, or it cannot be read.
      GraphError: its content is not an index.
    """
    return _entries(os.fspath(home() if folder is None else folder))


@functools.lru_cache(maxsize=4)
def _entries(folder: str) -> tuple[Entry, ...]:
    path = Path(folder) / INDEX
    if not path.exists():
        raise GraphrlError(f"{files.quote_path(folder)} has no model zoo: scripts/build_zoo.py builds it")
    with files.content(path) as data:
        try:
            value = json.loads(bytes(data))
            if (value["format"], value["version"]) == (FORMAT, VERSION):
                return tuple(Entry(*row) for row in value["programs"])
        except (ValueError, KeyError, TypeError):
            pass
    raise GraphError(f"{files.quote_path(path)}: not an index of the zoo: must be {FORMAT!r}, version {VERSION}")


def select(text: str, folder: str | os.PathLike[str] | None = None) -> tuple[Entry, ...]:
    """Lists the programs that match every word of `text`.

    Args:
      text: words between slashes, in any order: an architecture, "inference" or "training", a batch size as in "b8",
        "jaxpr" or "hlo", "train-split", "valid-split" or "test-split", a family as in "resnet-family"; with `*` and `?`
        as in file names. A program's name is such a text; a leading "zoo:" is ignored.
      folder: folder of the zoo's files, by default `home()`.

    Raises:
      ProblemError: a word matches no program (near ones are listed), or no program matches all words.
    """
    everything = entries(folder)
    matching: Sequence[Entry] = everything
    text = text.removeprefix(PREFIX)
    if not text:
        raise ProblemError(f"{PREFIX} names no program: give words as in {PREFIX}{everything[0].name}, or {PREFIX}*")
    for word in text.split("/"):
        quoted = clipped(repr(word))
        if not any(fnmatchcase(own, word) for entry in everything for own in entry.words):
            raise ProblemError(f"zoo:{clipped(text)}: no program has {quoted}: {_near(word, everything)}")
        left = [entry for entry in matching if any(fnmatchcase(own, word) for own in entry.words)]
        if not left:
            there = ", ".join(entry.name for entry in matching[:4]) + (", ..." if len(matching) > 4 else "")
            raise ProblemError(f"zoo:{clipped(text)}: no program matches all words; without {quoted}: {there}")
        matching = left
    return tuple(matching)


def select_one(text: str, folder: str | os.PathLike[str] | None = None) -> Entry:
    """Finds the only program that matches every word of `text`.

    Raises:
      ProblemError: no program matches, or more than one.
    """
    matching = select(text, folder)
    if len(matching) > 1:
        raise ProblemError(
            f"{PREFIX}{text.removeprefix(PREFIX)} names {len(matching)} programs, where one is needed: for "
            f"example {PREFIX}{matching[0].name}"
        )
    return matching[0]


def _near(word: str, everything: Sequence[Entry]) -> str:
    words = sorted({own for entry in everything for own in entry.words})
    near = difflib.get_close_matches(word.lower(), words, n=5, cutoff=0.4)
    return f"similar: {', '.join(near)}" if near else f"{PREFIX}{everything[0].name} is a program's whole name"
