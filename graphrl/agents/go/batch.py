"""The problems that graphs are trained on."""

import functools
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from graphrl.agents.go.hint import hinted
from graphrl.agents.go.lessons import Lesson, lesson
from graphrl.agents.go.settings import GoSettings
from graphrl.costs.problem import SCHEDULED, Problem, Transfer
from graphrl.envs.compile.instance import CompileParams
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes

Batch = dict[str, Any]  # by transfer model `CompileParams`, or a `Lesson` to imitate; leading axis g on each


def problem_of(settings: GoSettings, graph: ComputationGraph, transfer: Transfer) -> Problem:
    """The problem of a graph under a transfer model: how many devices, and how slow transfers are, by its name. Under
    max_load the graph's machine, if it names one, and its tensors may say what is left of that.
    """
    which = zlib.crc32(graph.name.encode())
    devices = settings.devices[which % len(settings.devices)]
    slowness = settings.slowness[which // len(settings.devices) % len(settings.slowness)]
    a = graph.arrays
    seconds = slowness * (a.runtime.mean() if a.num_ops else 0.0)
    size = float(a.tensor_bytes.mean()) if a.num_tensors else 0.0
    slow = {} if seconds <= 0 or size <= 0 else {"latency": 0.2 * seconds, "bandwidth": size / (0.8 * seconds)}
    objective = settings.problem.objective
    machine = {"devices": devices} if graph.machine is None or objective in SCHEDULED else {}
    return Problem.on(graph.machine, objective=objective, transfer=transfer, **machine, **slow)


def batch(settings: GoSettings, graphs: Sequence[ComputationGraph], to: Sizes) -> Batch:
    """Graphs as instances under each transfer model, for imitation as lessons."""
    machines = [graph.machine for graph in graphs if graph.machine is not None]
    most = max((machine.accelerators + machine.cpus for machine in machines), default=1)
    get = functools.partial(_CACHE.get, settings, to, most)
    rows = {transfer: [get(graph, transfer) for graph in graphs] for transfer in settings.models}
    return {transfer: jax.tree.map(lambda *leaves: np.stack(leaves), *each) for transfer, each in rows.items()}


class _Cache:
    """What was made of graphs: a hint takes milliseconds, and a lesson a second."""

    def __init__(self, most: int) -> None:
        self._most, self._made = most, dict[Any, Any]()

    def get(self, settings: GoSettings, to: Sizes, devices: int, graph: ComputationGraph, transfer: Transfer) -> Any:
        """The row of a graph in a batch of so many devices, or more."""
        key = settings, to, devices, id(graph), transfer
        if key not in self._made:
            if len(self._made) >= self._most:
                self._made.clear()
            row = _row(settings, to, devices, graph, transfer)
            self._made[key] = graph, row  # the graph lives on, and so is its id
        return self._made[key][1]


_CACHE = _Cache(4096)


def _row(
    settings: GoSettings, to: Sizes, devices: int, graph: ComputationGraph, transfer: Transfer
) -> CompileParams | Lesson:
    problem = problem_of(settings, graph, transfer)
    instance = hinted(graph, problem, to, settings, devices=devices)
    if settings.learning == "ppo":
        return instance
    return lesson(graph, problem, instance, settings.stops, settings.network.tasks)
