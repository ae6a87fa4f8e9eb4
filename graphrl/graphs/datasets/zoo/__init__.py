"""The model zoo: real programs, traced and shipped as graphs (`scripts/build_zoo.py` makes them).

    select("training/hlo")                                      # what there is
    load("efficientnetb0/training/b8/hlo").graph
    augmented(graph, seed=0)                                    # another problem on the same topology

`graphrl optimize zoo:NAME` and `graphrl compare zoo:training/hlo` take the same names, and sets of them. The
environment variable GRAPHRL_ZOO names a folder with another zoo.
"""

import os

from graphrl.graphs.datasets.zoo.catalogue import DATA, PREFIX, entries, home, select, select_one
from graphrl.graphs.datasets.zoo.program import KINDS, LEVELS, SPLITS, ZooProgram, augmented
from graphrl.graphs.datasets.zoo.storage import file_name, read_program

__all__ = [
    "DATA",
    "KINDS",
    "LEVELS",
    "PREFIX",
    "SPLITS",
    "ZooProgram",
    "augmented",
    "entries",
    "load",
    "select",
    "select_one",
]


def load(name: str, *, folder: str | os.PathLike[str] | None = None) -> ZooProgram:
    """The program of this name, as in `efficientnetb0/training/b8/hlo`, or whatever `select` takes for one program.

    Raises:
      ProblemError: there is none, or more than one.
      GraphrlError: its file is missing or broken.
    """
    entry = select_one(name, folder)
    path = os.path.join(home() if folder is None else folder, file_name(entry.architecture, entry.kind, entry.level))
    return read_program(path, entry.batch)
