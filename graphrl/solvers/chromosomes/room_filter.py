"""REGAL's filter of graphs: keeps those that BRKGA can improve with more evaluations, as in REGAL's released data.

That release keeps a graph if and only if BRKGA with few evaluations does not fit the hardware's memory and with many
does, or many make the running time at least 20% shorter. The release does not state its limits. Here they are
arguments, and the script that writes such a data set records them (`scripts/make_graphs.py`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.costs.device.evaluate import objective
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes, pad_batch
from graphrl.solvers.chromosomes.brkga import Parameters, run_batch


class Room(NamedTuple):
    """Objectives of BRKGA on g graphs with few and with many evaluations, and the filter's result."""

    low: np.ndarray  # [g] float64, objective in seconds or bytes (to float32's digits); inf above the memory limit
    high: np.ndarray  # [g] float64, the same with many; never more than `low`
    kept: np.ndarray  # [g] bool, True if there is room to improve


def room_to_improve(
    graphs: Sequence[ComputationGraph],
    seeds: Sequence[int],
    problem: Problem,
    low: int,
    high: int,
    shorter: float = 0.2,
    parameters: Parameters = Parameters(),
    sizes: Sizes | None = None,
) -> Room:
    """Runs BRKGA twice on every graph, all graphs in one program, and applies the filter.

    Both runs of a graph start alike, so that the long one can only be better.

    Args:
      graphs: graphs to filter.
      seeds: seeds of BRKGA, one per graph: given `sizes`, a graph's result does not depend on the others.
      problem: REGAL's is the makespan on 2 devices; its memory limit is the hardware's.
      low, high: evaluations of the two runs; rounded down to whole generations, at least one.
      shorter: a graph is kept if high's objective is at most (1 - shorter) times low's.
      parameters: parameters of BRKGA.
      sizes: sizes to pad to, so that several calls share a program; by default the graphs' common sizes.

    Raises:
      ProblemError: there are no graphs, the number of seeds differs from that of graphs, `low` is below a generation,
        the limits do not ascend by a generation, or `shorter` is not in [0, 1).
    """
    if len(seeds) != len(graphs) or not graphs:
        raise ProblemError(f"{len(graphs)} graphs and {len(seeds)} seeds: must be equally many, at least one")
    if low < parameters.offspring or parameters.generations(low) >= parameters.generations(high):
        raise ProblemError(
            f"limits of {low} and {high} evaluations: the low one must be at least a generation of "
            f"{parameters.offspring}, and the high one at least one more"
        )
    if not 0 <= shorter < 1:
        raise ProblemError(f"shorter is {shorter}: must be at least 0 and below 1")
    padded = jax.tree.map(jnp.asarray, pad_batch(graphs, sizes))
    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    unit = padded.second_unit if problem.objective == "makespan" else padded.byte_unit
    few, many = (_objectives(run_batch(keys, padded, problem, parameters, n)[1], unit, problem) for n in (low, high))
    return Room(few, many, (np.isinf(few) & np.isfinite(many)) | (np.isfinite(few) & (many <= (1 - shorter) * few)))


def _objectives(values: jax.Array, unit: jax.Array, problem: Problem) -> np.ndarray:
    """Converts fitness values `[g]` to objectives in seconds or bytes."""
    each = [objective(value, problem) for value in np.asarray(values, np.float64).tolist()]
    return np.array(each) * np.asarray(unit, np.float64)
