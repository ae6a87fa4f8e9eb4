"""Flipping one op at a time while the kernels, one after the other, take less: compiled for the host."""

import functools

import numpy as np

from graphrl.compiled import announced, entry
from graphrl.costs.fusion.exact import Fusion, fuse, fusion_of
from graphrl.costs.fusion.problem import fusion_problem
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.solvers.fusion.kernels import Kernels, flip, keep, kernels_of, undo

LEAST_GAIN = 1e-12  # of the time of all kernels: less is rounding


@entry
def _descend(k: Kernels, ops: np.ndarray, least: float) -> None:
    """Flips ops `[m]` in their order, again and again, while one of them gains more than `least` seconds."""
    since = 0
    while since < len(ops):
        for op in ops:
            if since >= len(ops):
                break
            count, more = flip(k, op)
            if more < -least:
                keep(k, count)
                since = 0
            else:
                undo(k, op)
                since += 1


def descended(fusion: Fusion) -> Fusion:
    """The fusion that no flip of one op improves any more, from this one on.

    Ops are tried from the last in topological order to the first, so that readers are decided before what they read.
    """
    prepare()
    problem = fusion.problem
    order = problem.graph.arrays.topological[::-1].astype(np.int64)
    state = kernels_of(fusion)
    _descend(state, np.ascontiguousarray(order[problem.legal[order]]), LEAST_GAIN * fusion.seconds)
    return fusion_of(problem, state.inlined)


@functools.cache
def prepare() -> None:
    """Compiles flipping, or loads it, once in a process."""
    problem = fusion_problem(ComputationGraph("one", (Op("a"),)))
    with announced(_descend, "fusion", seconds=3):
        _descend(kernels_of(fuse(problem, np.zeros(1, np.int64))), np.zeros(0, np.int64), 0.0)
