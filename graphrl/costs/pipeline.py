"""A graph and a problem as pipelined execution sees them: what `max_load` is computed from."""

import dataclasses
import math

import numpy as np

from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.pipelined import Pipelined

ACCELERATOR, CPU = 0, 1  # kinds of devices
_PLAIN = Pipelined()


@dataclasses.dataclass(frozen=True, eq=False)
class Pipeline:
    """Times and colocation of a graph's n ops and t tensors."""

    runtime: np.ndarray  # [n, 2] float64, seconds on an accelerator and on a CPU; inf where it cannot run
    transfer: np.ndarray  # [t] float64, seconds that a transfer takes an accelerator
    colocation: np.ndarray  # [n] int64, ops of one number share a device; from 0 on, by their first op
    backward: np.ndarray  # [n] bool
    kinds: np.ndarray  # [devices] int64, ACCELERATOR or CPU

    @classmethod
    def of(cls, graph: ComputationGraph, problem: Problem) -> "Pipeline":
        """What they say."""
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
