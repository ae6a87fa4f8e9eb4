"""Random neural networks for pipelined execution: what the layers and operators of Tarnawski et al. (2020) are like.

A chain of ops with branches and skips; parameters are ops of no time that only the next ones read. Few ops have most of
the work, and transfers take next to nothing, as between layers, or longer than most ops, as between operators: so it is
in their graphs, of which these have the ranges. Half of the graphs are training steps: every op has one of the backward
pass, with which it shares a device. The machine has 2 to 6 accelerators and a CPU.
"""

import numpy as np

from graphrl.graphs.datasets import check_count, generator
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.pipelined import Machine, Pipelined

_SPREAD = 0.5, 1.5  # deviation of the logarithm of run times
_IDLE = 0.1, 0.5  # share of ops without run time
_TRANSFER = 0.01, 10.0  # of the mean tensor over the mean op's run time
_CPU = 5.0, 25.0  # times as long a CPU takes
_MEMORY = 1.2, 8.0  # of all accelerators over the weights
_GIB = 2**30


def pipeline(num_ops: int, seed: int) -> ComputationGraph:
    """A graph, with its machine.

    Args:
      num_ops: at least 2; an odd op of a training step has none of the backward pass.
      seed: at least 0; graphs of different sizes and seeds are independent.

    Raises:
      ProblemError: a number is out of range.
    """
    check_count("num_ops", num_ops, 2)
    rng = generator("pipeline", seed, num_ops)
    trains = bool(rng.random() < 0.5)
    n = -(-num_ops // 2) if trains else num_ops
    reads = _reads(n, rng)
    runtime = np.exp(rng.normal(0.0, rng.uniform(*_SPREAD), num_ops)) * (rng.random(num_ops) > rng.uniform(*_IDLE))
    sizes = np.exp(rng.normal(0.0, 1.0, num_ops))
    seconds = sizes * (_log_uniform(rng, *_TRANSFER) * runtime.mean() / sizes.mean())
    weights = (rng.exponential(1.0, n) * _GIB / n).astype(np.int64)
    slower, limit = rng.uniform(*_CPU), _log_uniform(rng, *_MEMORY)
    accelerators = int(rng.integers(2, 7))
    if trains:  # of the backward pass each op reads what came of the readers of its own op, and what that wrote
        readers = [[2 * n - 1 - op for op in range(n) if source in reads[op]] for source in range(n)]
        reads += [[*readers[source], source] for source in range(n - 1, 2 * n - 1 - num_ops, -1)]
        reads = reads[:num_ops]
    ops = []
    for op, sources in enumerate(reads):
        forward = op if op < n else 2 * n - 1 - op
        extra = Pipelined(float(slower * runtime[op]), colocation=forward if trains else None, backward=op >= n)
        ops.append(
            Op(
                f"op{op}",
                runtime=float(runtime[op]),
                inputs=tuple(f"t{source}" for source in sources),
                outputs=(Tensor(f"t{op}", int(1000 * sizes[op]) + 1, transfer_seconds=float(seconds[op])),),
                weight_bytes=int(weights[forward]),
                pipelined=extra,
            )
        )
    held = sum(op.weight_bytes for op in ops)
    machine = Machine(accelerators, 1, int(limit * held / accelerators) + 1)
    return ComputationGraph(f"pipeline-{num_ops}-{seed}", tuple(ops), machine=machine)


def _log_uniform(rng: np.random.Generator, least: float, most: float) -> float:
    return float(np.exp(rng.uniform(np.log(least), np.log(most))))


def _reads(count: int, rng: np.random.Generator) -> list[list[int]]:
    """The ops that each reads: mostly one of the last few, now and then one further back, of a parameter none."""
    sources, skips = rng.uniform(0.0, 0.3), rng.uniform(0.05, 0.3)
    reads: list[list[int]] = [[]]
    for op in range(1, count):
        if rng.random() < sources:
            reads.append([])
            continue
        steps = [1 if not reads[op - 1] else int(rng.geometric(0.6))]
        if not reads[op - 1] or rng.random() < skips:
            steps.append(int(rng.geometric(0.2)))
        reads.append(sorted({max(0, op - step) for step in steps}))
    return reads
