"""What each device does for a sample in pipelined execution, exactly: the host twin of `device/loads.py`."""

import numpy as np

from graphrl.costs.exact.routes import Routes
from graphrl.costs.pipeline import ACCELERATOR, CPU, Pipeline
from graphrl.costs.problem import Problem
from graphrl.errors import PlanError
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.topology import distinct


class Stages:
    """The devices' shares of a sample under a placement.

    Attributes:
      seconds: `[slots]` of every op and every transfer, as `Routes` numbers them.
      loads: `[devices]` float64, seconds.
      resident: `[devices]` int64, bytes of weights.

    Raises:
      PlanError: an op is where it cannot run.
    """

    def __init__(self, graph: ComputationGraph, problem: Problem, routes: Routes) -> None:
        pipeline, placement, devices = Pipeline.of(graph, problem), routes.placement, problem.devices
        runtime = pipeline.runtime[np.arange(len(placement)), pipeline.kinds[placement]]
        _check_placement(graph, pipeline, placement, runtime)
        moved = pipeline.transfer[routes.transfer_tensor]
        self.seconds = np.concatenate([runtime, moved])
        sent = distinct(routes.transfer_tensor)
        moving = np.bincount(routes.transfer_to, moved, minlength=devices)
        moving += np.bincount(routes.home[sent], pipeline.transfer[sent], minlength=devices)
        self.loads = np.bincount(placement, runtime, minlength=devices)
        self.loads += np.where(pipeline.kinds == ACCELERATOR, moving, 0.0)
        self.resident = np.zeros(devices, np.int64)
        np.add.at(self.resident, placement, graph.arrays.weight_bytes)


def _check_placement(graph: ComputationGraph, pipeline: Pipeline, placement: np.ndarray, runtime: np.ndarray) -> None:
    bad = np.flatnonzero(np.isinf(runtime))
    if len(bad):
        op, device = graph.ops[bad[0]].name, placement[bad[0]]
        kind = "a CPU" if pipeline.kinds[device] == CPU else "an accelerator"
        raise PlanError(f"op {op!r} is placed on device {device}, {kind}: it cannot run there")
