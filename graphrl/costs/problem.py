"""A planning problem: devices, the transfer model between them, the objective, and the limits.

`Pipeline` has the figures of a graph and a problem from which `max_load` is computed.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph, Machine, Pipelined

Transfer = Literal["rendezvous", "free", "link"]
Objective = Literal["peak_memory", "makespan", "max_load"]
SCHEDULED: tuple[Objective, ...] = ("peak_memory", "makespan")  # the objectives that depend on the order

MAX_DEVICES = 64
MIN_BANDWIDTH = 1e-9  # bytes per second: a billionth, so that seconds stay far inside float32


@dataclasses.dataclass(frozen=True)
class Problem:
    """One planning problem; `graphrl.costs` defines its terms.

    Attributes:
      objective: "peak_memory" (the largest peak of a device, bytes), "makespan" (seconds) or "max_load" (the largest
        load of a device in pipelined execution, seconds).
      devices: number of devices. All are identical, except for those that are CPUs.
      transfer: "rendezvous" (a transfer occupies both devices), "free" (no device) or "link" (the sender's outgoing
        link).
      latency: fixed seconds of every transfer, in addition to bytes / bandwidth.
      bandwidth: bytes per second, may be infinite.
      memory_limit: bytes a device may hold at its peak, or None. Not with the objective peak_memory; CPUs have none.
      resident_weights: whether the weights of the ops placed on a device count there from the start. Under max_load
        only weights count, whatever this is.
      cpus: number of devices, the last ones, that are CPUs. Only with the objective max_load.

    Raises:
      ProblemError: a value is out of range.
    """

    objective: Objective = "peak_memory"
    devices: int = 1
    transfer: Transfer = "rendezvous"
    latency: float = 0.0
    bandwidth: float = math.inf
    memory_limit: int | None = None
    resident_weights: bool = False
    cpus: int = 0

    def __post_init__(self) -> None:
        if self.objective not in get_args(Objective):
            raise ProblemError(f"objective is {self.objective!r}: must be one of {', '.join(get_args(Objective))}")
        if self.transfer not in get_args(Transfer):
            raise ProblemError(f"transfer is {self.transfer!r}: must be one of {', '.join(get_args(Transfer))}")
        if type(self.devices) is not int or not 1 <= self.devices <= MAX_DEVICES:
            raise ProblemError(f"devices is {self.devices!r}: must be an integer from 1 to {MAX_DEVICES}")
        if not (_is_number(self.latency) and math.isfinite(self.latency) and self.latency >= 0):
            raise ProblemError(f"latency is {self.latency!r}: must be a finite number of seconds of at least 0")
        if not (_is_number(self.bandwidth) and self.bandwidth >= MIN_BANDWIDTH):
            raise ProblemError(
                f"bandwidth is {self.bandwidth!r}: must be at least {MIN_BANDWIDTH} bytes per second, or inf"
            )
        if self.memory_limit is not None:
            if type(self.memory_limit) is not int or not 0 < self.memory_limit <= 2**62:
                raise ProblemError(f"memory_limit is {self.memory_limit!r}: must be an integer of bytes from 1 to 2^62")
            if self.objective == "peak_memory":
                raise ProblemError("memory_limit requires the objective makespan or max_load: it is peak_memory")
        if type(self.cpus) is not int or not 0 <= self.cpus <= self.devices:
            raise ProblemError(f"cpus is {self.cpus!r}: must be an integer from 0 to {self.devices}, the devices")
        if self.cpus and self.objective != "max_load":
            raise ProblemError(
                f"cpus requires the objective max_load: under {self.objective} all devices are identical"
            )

    @classmethod
    def on(cls, machine: Machine | None, **options: Any) -> "Problem":
        """Makes a problem from options; options that are None keep their defaults.

        Under max_load, `devices` and `cpus` default to those of the machine (without a machine, one accelerator in
        addition to the CPUs), and `memory_limit` to the memory of one of the machine's accelerators.
        """
        given = {name: value for name, value in options.items() if value is not None}
        if given.get("objective") == "max_load":
            if "devices" not in given:
                machine = machine or Machine(1)
                given.setdefault("cpus", machine.cpus)
                given["devices"] = machine.accelerators + given["cpus"]
            if machine is not None and machine.memory_bytes is not None:
                given.setdefault("memory_limit", machine.memory_bytes)
        return cls(**given)

    @property
    def accelerators(self) -> int:
        """Number of devices that are not CPUs; they are the first ones."""
        return self.devices - self.cpus

    def excess(self, peaks: Sequence[int]) -> int:
        """Returns the bytes by which the largest peak of an accelerator exceeds the memory limit; 0 if none does."""
        if self.memory_limit is None:
            return 0
        return max(0, max(peaks[: self.accelerators], default=0) - self.memory_limit)

    def transfer_seconds(self, num_bytes: float) -> float:
        """Returns the seconds that a transfer of `num_bytes` takes."""
        return self.latency + num_bytes / self.bandwidth


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


ACCELERATOR, CPU = 0, 1  # kinds of devices
_PLAIN = Pipelined()


@dataclasses.dataclass(frozen=True, eq=False)
class Pipeline:
    """Run times, transfer times and colocation of a graph's n ops and t tensors, as arrays."""

    runtime: np.ndarray  # [n, 2] float64, seconds on an accelerator and on a CPU; inf where it cannot run
    transfer: np.ndarray  # [t] float64, seconds that an accelerator spends to send or receive the tensor
    colocation: np.ndarray  # [n] int64, group of each op: ops of one group share a device; numbered by first op
    backward: np.ndarray  # [n] bool, True for ops of the backward pass
    kinds: np.ndarray  # [devices] int64, ACCELERATOR or CPU

    @classmethod
    def of(cls, graph: ComputationGraph, problem: Problem) -> "Pipeline":
        """Builds the arrays for a graph and the devices of a problem."""
        extras = [op.pipelined or _PLAIN for op in graph.ops]
        runtime = [
            (math.inf if extra.cpu_only else op.runtime, math.inf if extra.cpu_runtime is None else extra.cpu_runtime)
            for op, extra in zip(graph.ops, extras, strict=True)
        ]
        transfer = [
            problem.transfer_seconds(tensor.bytes) if tensor.transfer_seconds is None else tensor.transfer_seconds
            for op in graph.ops
            for tensor in op.outputs
        ]
        return cls(
            np.array(runtime, np.float64),
            np.array(transfer, np.float64),
            np.arange(len(extras)) if graph.colocation is None else graph.colocation,
            np.array([extra.backward for extra in extras]),
            np.where(np.arange(problem.devices) < problem.accelerators, ACCELERATOR, CPU),
        )
