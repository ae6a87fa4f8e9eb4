"""What pipelined execution on accelerators and CPUs knows beside a graph's ops and tensors.

Only the objective `max_load` (`graphrl.costs`) looks at it, but for colocation, which every placement keeps.
"""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Pipelined:
    """Where an op may run, and with which others.

    Attributes:
      cpu_runtime: seconds on a CPU, >= 0 (`Op.runtime` are those on an accelerator); None where it cannot run on one.
      cpu_only: whether no accelerator can run it.
      colocation: ops of the same number run on one device; None for an op that may run alone.
      backward: whether it is of the backward pass of a training step: a contiguous split is one of the forward pass.
    """

    cpu_runtime: float | None = None
    cpu_only: bool = False
    colocation: int | None = None
    backward: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """The devices that a graph's file names.

    Attributes:
      accelerators, cpus: how many there are.
      memory_bytes: of each accelerator, None without a limit.
    """

    accelerators: int
    cpus: int = 0
    memory_bytes: int | None = None
