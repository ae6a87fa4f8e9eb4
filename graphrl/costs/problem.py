"""What is asked of a plan: devices, how tensors move between them, what is minimised, and what limits it."""

import dataclasses
import math
from typing import Literal, get_args

from graphrl.errors import ProblemError

Transfer = Literal["rendezvous", "free", "link"]
Objective = Literal["peak_memory", "makespan"]

MAX_DEVICES = 64
MIN_BANDWIDTH = 1e-9  # bytes per second: a billionth, so that seconds stay far inside float32


@dataclasses.dataclass(frozen=True)
class Problem:
    """One planning problem; the text of `graphrl.costs` says what it means.

    Attributes:
      objective: "peak_memory" (the largest peak of a device, bytes) or "makespan" (seconds).
      devices: number of identical devices.
      transfer: "rendezvous" (a transfer occupies both devices), "free" (nobody) or "link" (the sender's outgoing link).
      latency: seconds a transfer takes beside its bytes.
      bandwidth: bytes per second, may be infinite.
      memory_limit: bytes a device may hold at its peak, or None. Only with the makespan objective.
      resident_weights: whether the weights of the ops placed on a device count there from the start.

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
            if self.objective != "makespan":
                raise ProblemError("memory_limit goes with the makespan objective: peak_memory minimises memory itself")

    def transfer_seconds(self, num_bytes: float) -> float:
        """Seconds that moving `num_bytes` takes."""
        return self.latency + num_bytes / self.bandwidth


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
