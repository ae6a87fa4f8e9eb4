"""Flipping one op at a time so that the kernels, one after the other, take less: compiled for the host."""

import functools

import numpy as np

from graphrl.compiled import announced, entry, integer
from graphrl.compiled.random import below, uniform
from graphrl.costs.fusion.exact import Fusion, fuse, fusion_of
from graphrl.costs.fusion.problem import fusion_problem
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.solvers.fusion.kernels import UNLIMITED, Kernels, flip, keep, kernels_of, undo

LEAST_GAIN = 1e-12  # of the time of all kernels: less is rounding
HOT, COLD = 1e-3, 1e-7  # first and last temperature of annealing, parts of the time of all kernels


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


@entry
def _try_each(k: Kernels, ops: np.ndarray, more: np.ndarray) -> None:
    """Writes by how many seconds all kernels take longer where one of the ops `[m]` is flipped into `more` `[m]`."""
    for i in range(len(ops)):
        more[i] = flip(k, ops[i])[1]
        undo(k, ops[i])


@entry
def _anneal(
    k: Kernels, ops: np.ndarray, best: np.ndarray, rng: np.ndarray, moves: int, hot: float, cold: float
) -> None:
    """Flips ops drawn from `ops` `[m]` by Metropolis' rule, while the temperature, seconds, falls geometrically; writes
    who is inlined in the fusion of least time that it meets into `best` `[n]`.
    """
    time = least = 0.0  # against where it begins
    cooling = (cold / hot) ** (1.0 / max(1, moves))
    for _ in range(integer(moves)):
        hot *= cooling
        op = ops[below(rng, len(ops))]
        count, more = flip(k, op)
        if more > -hot * np.log(uniform(rng)):
            undo(k, op)
            continue
        keep(k, count)
        time += more
        if time < least - COLD * hot:
            least = time
            for i in range(len(best)):
                best[i] = k.inlined[i]


def annealed(fusion: Fusion, moves: int, seed: int = 0) -> Fusion:
    """The fusion that simulated annealing ends at, from this one on, with a descent behind it."""
    prepare()
    problem = fusion.problem
    legal, best = np.flatnonzero(problem.legal), fusion.inlined.copy()
    if len(legal):
        rng = np.random.SeedSequence(seed).generate_state(1, np.uint64)
        hot, cold = HOT * fusion.seconds, COLD * fusion.seconds
        _anneal(kernels_of(fusion), legal, best, rng, moves, hot, cold)
    return descended(fusion_of(problem, best))


def descended(fusion: Fusion, max_bytes: int = UNLIMITED) -> Fusion:
    """The fusion that no flip of one op improves any more, from this one on.

    Ops are tried from the last in topological order to the first, so that readers are decided before what they read.

    Args:
      fusion: to begin from.
      max_bytes: that a kernel of several ops may read and write; those of `fusion` do not go beyond it.
    """
    prepare()
    problem = fusion.problem
    order = problem.graph.arrays.topological[::-1].astype(np.int64)
    state = kernels_of(fusion, max_bytes)
    _descend(state, np.ascontiguousarray(order[problem.legal[order]]), LEAST_GAIN * fusion.seconds)
    return fusion_of(problem, state.inlined)


def flip_costs(fusion: Fusion) -> np.ndarray:
    """By how many seconds all kernels take longer if one op alone is flipped: `[n]` float64, infinite where a limit is
    broken then or the op may not be inlined.
    """
    legal = np.flatnonzero(fusion.problem.legal)
    costs, more = np.full(fusion.problem.num_ops, np.inf), np.zeros(len(legal))
    _try_each(kernels_of(fusion), legal, more)
    costs[legal] = more
    return costs


@functools.cache
def prepare() -> None:
    """Compiles flipping, or loads it, once in a process."""
    problem = fusion_problem(ComputationGraph("one", (Op("a"),)))
    with announced(_descend, "fusion", seconds=3):
        state = kernels_of(fuse(problem, np.zeros(1, np.int64)))
        _descend(state, np.zeros(0, np.int64), 0.0)
        _anneal(state, np.zeros(1, np.int64), state.inlined.copy(), np.zeros(1, np.uint64), 0, 1.0, 1.0)
