"""Graphs that papers report on, by name: `workloads:resnet50`, `workloads:gnmt-8`, `workloads:gnmt-8/v100-fp32`.

egrl.py: EGRL's, layer by layer, whose run times a chip's memories decide. go.py: GO's, op by op, with run times on
the chip that the name says.
"""

import os

from graphrl.errors import ProblemError
from graphrl.graphs.datasets.workloads import egrl, go
from graphrl.graphs.graph import ComputationGraph

PREFIX = "workloads:"
NAMES = (*egrl.WORKLOADS, *go.WORKLOADS)


def is_workload(model: object) -> bool:
    """Whether it names one of them ("workloads:resnet50") and no file."""
    return isinstance(model, str) and model.startswith(PREFIX) and not os.path.lexists(model)


def load(model: str) -> ComputationGraph:
    """The graph of that name, with the prefix or without.

    Raises:
      ProblemError: there is none.
      GraphrlError: the chip is unknown, or a file is missing or broken.
    """
    name, _, chip = model.removeprefix(PREFIX).partition("/")
    if name in go.WORKLOADS:
        return go.load(name, chip or go.CHIP).graph
    if name not in egrl.WORKLOADS or chip:
        raise ProblemError(
            f"unknown workload {model.removeprefix(PREFIX)!r}: known are "
            f"{', '.join(PREFIX + known for known in NAMES)}; GO's ({', '.join(go.FAMILIES)}) take a chip: "
            f"{PREFIX}{next(iter(go.WORKLOADS))}/v100-fp32"
        )
    return egrl.WORKLOADS[name]()
