"""The problems that graphs are trained on."""

import zlib
from collections.abc import Sequence

import jax
import numpy as np

from graphrl.agents.go.hint import hinted
from graphrl.agents.go.settings import GoSettings
from graphrl.costs.problem import Problem, Transfer
from graphrl.envs.compile.instance import CompileParams
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes

Batch = dict[str, CompileParams]  # by transfer model, leading axis g on each


def problem_of(settings: GoSettings, graph: ComputationGraph, transfer: Transfer) -> Problem:
    """The problem of a graph under a transfer model: how many devices, and how slow transfers are, by its name."""
    which = zlib.crc32(graph.name.encode())
    devices = settings.devices[which % len(settings.devices)]
    slowness = settings.slowness[which // len(settings.devices) % len(settings.slowness)]
    a = graph.arrays
    seconds = slowness * (a.runtime.mean() if a.num_ops else 0.0)
    size = float(a.tensor_bytes.mean()) if a.num_tensors else 0.0
    if seconds <= 0 or size <= 0:
        return Problem("makespan", devices, transfer)
    return Problem("makespan", devices, transfer, 0.2 * seconds, size / (0.8 * seconds))


def batch(settings: GoSettings, graphs: Sequence[ComputationGraph], to: Sizes) -> Batch:
    """Graphs as instances, under each transfer model."""
    rows = {transfer: [_instance(settings, graph, transfer, to) for graph in graphs] for transfer in settings.transfers}
    return {transfer: jax.tree.map(lambda *leaves: np.stack(leaves), *each) for transfer, each in rows.items()}


def _instance(settings: GoSettings, graph: ComputationGraph, transfer: Transfer, to: Sizes) -> CompileParams:
    problem = problem_of(settings, graph, transfer)
    most, levels = max(settings.devices), settings.levels
    return hinted(graph, problem, to, devices=most, levels=levels, reach=settings.reach)
