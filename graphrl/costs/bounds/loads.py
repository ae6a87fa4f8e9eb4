"""A lower bound of the largest load: colocated ops are one, and transfers are free.

- Every group of colocated ops runs somewhere, at best on the faster kind of device.
- The loads of a accelerators and c CPUs add up to the run times. Let a part of every group run on each kind: the least
  possible load is then that of a fractional knapsack, in which the groups that a CPU slows down least go to the CPUs.
"""

import numpy as np

from graphrl.costs.pipeline import Pipeline
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph

ROUNDING = 1e-12  # relative: of sums in another order


def load_bound(graph: ComputationGraph, problem: Problem) -> float:
    """Seconds that the largest load of no placement is below, memory aside; inf where a group cannot run anywhere."""
    pipeline = Pipeline.of(graph, problem)
    groups = int(pipeline.colocation.max()) + 1
    accelerator, cpu = (np.bincount(pipeline.colocation, kind, minlength=groups) for kind in pipeline.runtime.T)
    if not problem.accelerators:
        accelerator[:] = np.inf
    if not problem.cpus:
        cpu[:] = np.inf
    largest = float(np.minimum(accelerator, cpu).max())
    return max(largest, _shared(accelerator, cpu, problem)) * (1 - ROUNDING) if np.isfinite(largest) else largest


def _shared(accelerator: np.ndarray, cpu: np.ndarray, problem: Problem) -> float:
    """The least load if groups could be divided."""
    if not problem.cpus or not problem.accelerators:
        return float(np.minimum(accelerator, cpu).sum()) / problem.devices
    never, always = np.isinf(cpu), np.isinf(accelerator)
    either = ~never & ~always
    fast, slow = accelerator[either], cpu[either]
    order = np.argsort(slow / np.maximum(fast, 1e-300), kind="stable")
    # After the first k of them have gone to the CPUs: loads of both kinds; the lines cross within one group.
    left = float(accelerator[never].sum()) + np.append(0.0, np.cumsum(fast[order][::-1]))[::-1]
    gone = float(cpu[always].sum()) + np.append(0.0, np.cumsum(slow[order]))
    left, gone = left / problem.accelerators, gone / problem.cpus
    k = int(np.argmax(gone >= left)) if (gone >= left).any() else len(left) - 1
    if k == 0 or gone[k] < left[k]:
        return float(max(left[k], gone[k]))
    rise, fall = gone[k] - gone[k - 1], left[k - 1] - left[k]
    part = (left[k - 1] - gone[k - 1]) / (rise + fall) if rise + fall > 0 else 0.0
    return float(gone[k - 1] + part * rise)
