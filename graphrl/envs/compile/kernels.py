"""Fusion as a task of `Compile-v0`: what an instance says of it, and the kernels that priorities make of a graph."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from graphrl.costs.fusion.device import fuse
from graphrl.costs.fusion.padded_graph import PaddedKernels, kernel_sizes, padded_kernels
from graphrl.costs.fusion.padding import FusionSizes, PaddedFusion, common_sizes, pad
from graphrl.costs.fusion.problem import FusionProblem
from graphrl.envs.compile.options import level_features
from graphrl.errors import ProblemError
from graphrl.graphs.padding import PaddedGraph, Sizes


class FusionParams(NamedTuple):
    """Of one graph, or with a leading axis g of a batch."""

    problem: PaddedFusion
    levels: jax.Array | np.ndarray  # [f, LEVEL_FEATURES] float32, of fusion priorities


def fusion_sizes(problems: Sequence[FusionProblem], to: Sizes) -> FusionSizes:
    """Sizes that hold all problems, of as many ops and tensors as their graphs are padded to.

    Raises:
      ProblemError: their kernels have different limits.
    """
    if len({(problem.max_ops, problem.max_arguments) for problem in problems}) > 1:
        raise ProblemError("the fusion problems of a batch must have equal limits of kernels")
    return dataclasses.replace(common_sizes(problems), ops=to.ops, tensors=to.tensors)


def fusion_params(problem: FusionProblem, to: FusionSizes, levels: int) -> FusionParams:
    """The task on one graph, with so many fusion priorities."""
    return FusionParams(pad(problem, to), level_features(levels))


def kernels_of(graph: PaddedGraph, fusion: FusionParams, priorities: jax.Array) -> PaddedKernels:
    """The kernels of one graph under fusion priorities `[n]` int32 from 0. Memory is linear in n."""
    return padded_kernels(graph, fusion.problem, fuse(fusion.problem, priorities), kernel_sizes(graph.sizes))
