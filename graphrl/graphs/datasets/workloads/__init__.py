"""Graphs that papers report on, by name: `workloads:resnet50`, `workloads:gnmt-8`, `workloads:gnmt-8/v100-fp32`.

egrl.py: EGRL's, layer by layer, whose run times depend on a chip's memories. go.py: GO's, op by op, with run times on
the chip in the name.
"""

import os
from fnmatch import fnmatchcase

from graphrl.errors import ProblemError, suggest
from graphrl.graphs.datasets.workloads import egrl, go
from graphrl.graphs.graph import ComputationGraph

PREFIX = "workloads:"
NAMES = (*egrl.WORKLOADS, *go.WORKLOADS)


def is_workload(model: object) -> bool:
    """True if the argument names workloads ("workloads:resnet50") and not a file."""
    return isinstance(model, str) and model.startswith(PREFIX) and not os.path.lexists(model)


def select(model: str) -> tuple[str, ...]:
    """Lists the workloads that match a pattern with `*` and `?`, given with the prefix: `workloads:gnmt-*/v100-fp32`.

    Raises:
      ProblemError: no name matches, or one of EGRL's is given a chip.
    """
    pattern, slash, chip = model.removeprefix(PREFIX).partition("/")
    names = tuple(PREFIX + name + slash + chip for name in NAMES if fnmatchcase(name, pattern))
    if not names or (slash and any(fnmatchcase(name, pattern) for name in egrl.WORKLOADS)):
        raise ProblemError(
            f"unknown workload {model.removeprefix(PREFIX)!r}: {suggest(model, [PREFIX + name for name in NAMES])}; "
            f"GO's ({', '.join(go.FAMILIES)}) take a chip: {PREFIX}{next(iter(go.WORKLOADS))}/v100-fp32"
        )
    return names


def load(model: str) -> ComputationGraph:
    """Loads the workload of that name, with or without the prefix `workloads:`.

    Raises:
      ProblemError: no workload matches, or several do.
      GraphrlError: the chip is unknown, or a file is missing or broken.
    """
    names = select(model)
    if len(names) > 1:
        raise ProblemError(f"{model} names {len(names)} workloads, where one is needed: for example {names[0]}")
    name, _, chip = names[0].removeprefix(PREFIX).partition("/")
    return egrl.WORKLOADS[name]() if name in egrl.WORKLOADS else go.load(name, chip or go.CHIP).graph
