"""The model zoo: real programs, traced and shipped as graphs (`scripts/build_zoo.py` makes them).

    names(kind="training", level="hlo")                         # what there is
    load("efficientnetb0/training/b8/hlo").graph
    augmented(graph, seed=0)                                    # another problem on the same topology

`graphrl optimize zoo:NAME` and `graphrl compare zoo:training/hlo` take the same names, and sets of them. The
environment variable GRAPHRL_ZOO names a folder with another zoo.
"""

import os
from typing import get_args

from graphrl.errors import ProblemError
from graphrl.graphs.datasets.zoo.catalogue import DATA, PREFIX, Entry, entries, home, select, select_one
from graphrl.graphs.datasets.zoo.noise import augmented
from graphrl.graphs.datasets.zoo.program import KINDS, LEVELS, ZooProgram, program_name
from graphrl.graphs.datasets.zoo.splits import SPLITS, Split
from graphrl.graphs.datasets.zoo.storage import file_name, read_program

__all__ = [
    "DATA",
    "KINDS",
    "LEVELS",
    "PREFIX",
    "SPLITS",
    "Entry",
    "Split",
    "ZooProgram",
    "augmented",
    "entries",
    "home",
    "load",
    "names",
    "program_name",
    "select",
    "select_one",
    "split",
]


def names(
    *,
    architecture: str | None = None,
    family: str | None = None,
    kind: str | None = None,
    batch: int | None = None,
    level: str | None = None,
    split: Split | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> tuple[str, ...]:
    """Names of the programs with the given properties (see `ZooProgram`); of all, without any.

    Raises:
      ProblemError: there is no such kind, level or split.
      GraphrlError: the folder holds no zoo.
    """
    for what, value, choices in (("kind", kind, KINDS), ("level", level, LEVELS), ("split", split, get_args(Split))):
        if value is not None and value not in choices:
            raise ProblemError(f"{what} is {value!r}: must be one of {', '.join(choices)}")
    wanted = {"architecture": architecture, "family": family, "kind": kind, "batch": batch, "level": level}
    return tuple(
        entry.name
        for entry in entries(folder)
        if all(value is None or getattr(entry, key) == value for key, value in {**wanted, "split": split}.items())
    )


def load(name: str, *, folder: str | os.PathLike[str] | None = None) -> ZooProgram:
    """The program of this name, as in `efficientnetb0/training/b8/hlo`, or whatever `select` takes for one program.

    Raises:
      ProblemError: there is none, or more than one.
      GraphrlError: its file is missing or broken.
    """
    entry = select_one(name, folder)
    path = os.path.join(home() if folder is None else folder, file_name(entry.architecture, entry.kind, entry.level))
    return read_program(path, entry.batch)


def split(name: str, *, folder: str | os.PathLike[str] | None = None) -> Split:
    """The set that the program's family is in: "train", "valid" or "test".

    Raises:
      ProblemError: there is no such program.
    """
    return select_one(name, folder).split
