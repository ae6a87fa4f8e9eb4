"""Small graphs for the searches, all of one padded size."""

import numpy as np

from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.padding import Sizes

SIZES = Sizes(ops=32, tensors=32, slots=32, rows=48, uses=64, controls=0, shares=0)


def random_dag(seed: int, ops: int = 30) -> ComputationGraph:
    """A random DAG: each op reads up to two of the eight before it."""
    rng = np.random.default_rng(seed)
    drawn = []
    for i in range(ops):
        recent = range(max(0, i - 8), i)
        count = min(len(recent), int(rng.integers(1, 3)))
        chosen = sorted(rng.choice(recent, count, replace=False).tolist()) if i else []
        inputs = tuple(f"t{j}" for j in chosen)
        output = Tensor(f"t{i}", int(rng.integers(1, 50)))
        drawn.append(Op(f"op{i}", runtime=float(rng.integers(1, 9)), inputs=inputs, outputs=(output,)))
    return ComputationGraph(f"dag{seed}", tuple(drawn))


def tangle(ops: int) -> ComputationGraph:
    """A random graph on which list scheduling is not optimal."""
    random = np.random.default_rng(0)
    drawn = [Op("op0", runtime=1.0, outputs=(Tensor("t0", 3),))]
    for i in range(1, ops):
        inputs = tuple(f"t{j}" for j in sorted(set(random.integers(max(0, i - 9), i, 2).tolist())))
        drawn.append(
            Op(f"op{i}", "x", float(random.integers(1, 9)), inputs, (Tensor(f"t{i}", int(random.integers(9))),))
        )
    return ComputationGraph("tangle", tuple(drawn))
