"""A problem as device code takes it: what shapes a program is static, what only changes numbers is traced.

So one compiled program serves every latency, bandwidth and memory limit.
"""

import dataclasses

import jax
import numpy as np

from graphrl.costs.problem import SCHEDULED, Objective, Problem, Transfer
from graphrl.errors import ProblemError


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DeviceProblem:
    """`Problem` as a pytree. Its arrays are `[]`: of all graphs of a batch, or `[g]`: of each."""

    latency: jax.Array | np.ndarray  # float32, seconds
    seconds_per_byte: jax.Array | np.ndarray  # float32; 0 where the bandwidth is infinite
    memory_limit: jax.Array | np.ndarray | None  # float32, bytes; None: no limit
    objective: Objective = dataclasses.field(metadata={"static": True})
    devices: int = dataclasses.field(metadata={"static": True})
    transfer: Transfer = dataclasses.field(metadata={"static": True})
    resident_weights: bool = dataclasses.field(metadata={"static": True})

    @classmethod
    def of(cls, problem: Problem) -> "DeviceProblem":
        """The problem as host arrays, for every program that it is an argument of.

        Raises:
          ProblemError: no order decides its objective (`device/loads.py` has that).
        """
        if problem.objective not in SCHEDULED:
            raise ProblemError(f"objective is {problem.objective!r}: must be one of {', '.join(SCHEDULED)}")
        limit = problem.memory_limit
        return cls(
            latency=np.asarray(problem.latency, np.float32),
            seconds_per_byte=1 / np.asarray(problem.bandwidth, np.float32),
            memory_limit=None if limit is None else np.asarray(limit, np.float32),
            objective=problem.objective,
            devices=problem.devices,
            transfer=problem.transfer,
            resident_weights=problem.resident_weights,
        )
