"""The workloads of GO (Zhou et al. 2020, table 2) as graphs of ops: fourteen training steps of six architectures.

    gnmt = load("gnmt-8")                                       # run times on a P100
    gnmt.graph, gnmt.devices, gnmt.colocation
    load("gnmt-8", "v100-fp32").graph                           # as the paper's fusion is measured

The paper's supplement, which describes its TensorFlow graphs, was not available. These were written in plain JAX and
traced (`scripts/build_workloads.py` describes each; `scripts/reproduce/workloads.py` converts it to a graph). Each has
a forward pass, a backward pass, and an update of every parameter by plain gradient descent, in float32, with one op for
an equation of the jaxpr and recurrent networks unrolled. Their sizes are ours. docs/results/go-workloads.md lists the
totals of each.

Files are those of the model zoo (`zoo/storage.py`), with bytes moved in place of run times.
"""

import dataclasses
from pathlib import Path
from typing import NamedTuple

import numpy as np

from graphrl.graphs.datasets.zoo.storage import file_name, read_program
from graphrl.graphs.graph import ComputationGraph, Pipelined
from graphrl.graphs.roofline import Chip, find_chip, runtime

DATA = Path(__file__).parent / "data"
CHIP = "p100-fp32"
MEMORY_BYTES = 16 * 2**30  # of a P100 or V100
KIND, LEVEL = "training", "jaxpr"  # the zoo's terms

VARIABLE = "variable"  # type of ops that provide a parameter: they take no time
# One byte per second and no other cost, so that a run time on it is a number of bytes.
TRAFFIC = Chip("traffic", flops_per_second=1e30, bytes_per_second=1.0, source="no chip")


class Setting(NamedTuple):
    """A row of GO's table 2: file, batch size and number of devices."""

    architecture: str
    batch: int
    devices: int


WORKLOADS = {
    "rnnlm-2": Setting("rnnlm-2", 64, 2),
    "rnnlm-4": Setting("rnnlm-4", 64, 4),
    "rnnlm-8": Setting("rnnlm-8", 64, 8),
    "gnmt-2": Setting("gnmt-2", 64, 2),
    "gnmt-4": Setting("gnmt-4", 64, 4),
    "gnmt-8": Setting("gnmt-8", 64, 8),
    "transformer-xl-2": Setting("transformer-xl-2", 16, 2),
    "transformer-xl-4": Setting("transformer-xl-4", 16, 4),
    "transformer-xl-8": Setting("transformer-xl-8", 16, 8),
    "inception-b32": Setting("inception", 32, 2),
    "inception-b64": Setting("inception", 64, 2),
    "amoebanet": Setting("amoebanet", 32, 4),
    "wavenet-2x18": Setting("wavenet-2x18", 8, 2),
    "wavenet-4x36": Setting("wavenet-4x36", 8, 4),
}
FAMILIES = ("rnnlm", "gnmt", "transformer-xl", "inception", "amoebanet", "wavenet")


class Workload(NamedTuple):
    """A workload of GO, with n ops.

    Attributes:
      name: a key of `WORKLOADS`.
      family: the architecture, one of `FAMILIES`; GO's figure 5 leaves one out of training.
      devices: number of devices in GO's table 2, with `MEMORY_BYTES` each.
      graph: the ops, with run times on a chip.
      colocation: `[n] int32`, the group of each op: ops of a group share one device. A group with an op of type
        `VARIABLE` is a parameter with its update; every other group has the ops derived from one op of the forward
        pass.
    """

    name: str
    family: str
    devices: int
    graph: ComputationGraph
    colocation: np.ndarray

    @property
    def colocated(self) -> ComputationGraph:
        """Graph with `colocation` in its ops, so that every method keeps groups together or rejects the graph."""
        ops = (
            dataclasses.replace(op, pipelined=Pipelined(colocation=group))
            for op, group in zip(self.graph.ops, self.colocation.tolist(), strict=True)
        )
        return dataclasses.replace(self.graph, ops=tuple(ops))


def load(name: str, chip: str | Chip = CHIP) -> Workload:
    """Loads a workload by its name in `WORKLOADS`.

    Args:
      name: name in `WORKLOADS`.
      chip: determines run times: a name in `roofline.CHIPS`, or a `Chip`.

    Raises:
      GraphrlError: the chip is unknown, or the file is missing or broken.
    """
    setting, figures = WORKLOADS[name], find_chip(chip)
    program = read_program(DATA / file_name(setting.architecture, KIND, LEVEL), setting.batch)
    ops = tuple(
        op if op.type == VARIABLE else dataclasses.replace(op, runtime=runtime(op.flops, op.runtime, figures))
        for op in program.graph.ops
    )
    graph = dataclasses.replace(program.graph, name=name, ops=ops)
    assert program.colocation is not None
    return Workload(name, program.family, setting.devices, graph, program.colocation)
