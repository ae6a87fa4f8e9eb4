"""The family `kinds`: graphs of many kinds, the curriculum of agents that are to plan any graph.

Every seed draws a structure and its costs, independently:

- structure: a random DAG, a layered graph, an in-tree or out-tree, an unrolled recurrence, a network of blocks
  (`structures.py`), or an excerpt of a real training step (`programs.py`). Some of the others are made training steps
  too: a forward pass, and its mirror image.
- run times of ops and bytes of tensors: each from one of the distributions `RUNTIMES`, correlated in half of the
  graphs; or in pairs from the ops of a program. Some ops have no run time.
- transfers: from free to dear. Over the link `LATENCY`, `BANDWIDTH` a mean tensor's transfer takes 0.01 to 10 mean run
  times of an op, log-uniform, of which 1 to 50% is the latency.
- in some graphs weights, workspace, control edges, and outputs that stay to the end.

`HELD_OUT` names the kinds of graphs that are not among them, for comparisons on kinds that no agent was trained on.
"""

import math
from typing import NamedTuple

import numpy as np

from graphrl.errors import ProblemError, suggest
from graphrl.graphs.datasets.kinds.programs import Program, draw_costs, draw_program, most_ops
from graphrl.graphs.datasets.kinds.structures import STRUCTURES, Structure, mirrored
from graphrl.graphs.datasets.seeds import check_count, generator, log_uniform
from graphrl.graphs.graph import ComputationGraph, Op, Tensor

__all__ = ["BANDWIDTH", "HELD_OUT", "LATENCY", "LEAST_OPS", "RUNTIMES", "SHARES", "kinds"]

HELD_OUT = ("series-parallel", "pipeline", "zoo:valid-split", "zoo:test-split")  # families, and words of the zoo
LATENCY, BANDWIDTH = 5e-6, 3e11  # seconds, bytes per second: of the link that sets the scale of run times and bytes
LEAST_OPS = 10

# structure -> probability, and that of a training step
SHARES: dict[str, tuple[float, float]] = {
    "random": (0.25, 0.25),
    "layered": (0.15, 0.25),
    "in-tree": (0.05, 0.0),
    "out-tree": (0.05, 0.0),
    "recurrent": (0.2, 0.4),
    "blocks": (0.1, 0.4),
    "program": (0.2, 0.0),
}
RUNTIMES = ("constant", "uniform", "normal", "log-normal", "pareto", "program")

_SIZES = 30, 2000  # range of the log-uniform number of ops
_RATIO = 0.01, 10.0  # ratio of the mean tensor's transfer time to the mean op's run time
_LATENCY_SHARE = 0.01, 0.5  # of the mean tensor's transfer time
_OWN = 0.6  # probability that a program keeps its run times and bytes, with noise
_NOISE = 0.1, 1.0  # standard deviation of its logarithm


def kinds(
    num_ops: int | None,
    seed: int,
    structure: str | None = None,
    runtime: str | None = None,
    transfer: float | None = None,
) -> ComputationGraph:
    """Generates a random graph of the family `kinds`.

    Args:
      num_ops: at least `LEAST_OPS`; None draws it, log-uniform from 30 to 2,000.
      seed: at least 0. Passing the structure that the seed draws gives the same graph.
      structure: a key of `SHARES`; None draws it by these probabilities.
      runtime: one of `RUNTIMES`, which "program" also makes the distribution of the bytes; None draws it.
      transfer: ratio of the mean tensor's transfer time (over the link `LATENCY`, `BANDWIDTH`) to the mean op's run
        time, from 0.001 to 1,000; None draws it, log-uniform from 0.01 to 10.

    Raises:
      ProblemError: an argument is unknown or out of range.
    """
    for what, value, known in (("structure", structure, SHARES), ("runtime", runtime, RUNTIMES)):
        if value is not None and value not in known:
            raise ProblemError(f"unknown {what} {value!r}: {suggest(str(value), known)}")
    if transfer is not None and not (isinstance(transfer, int | float) and 1e-3 <= transfer <= 1e3):
        raise ProblemError(f"transfer is {transfer!r}: must be from 0.001 to 1000")
    if num_ops is None:
        num_ops = round(log_uniform(generator("kinds-size", seed), *_SIZES))
    check_count("num_ops", num_ops, LEAST_OPS)
    if structure is None:
        names = [name for name in SHARES if name != "program" or num_ops <= most_ops()]
        shares = np.array([SHARES[name][0] for name in names])
        structure = names[int(generator("kinds-structure", seed, num_ops).choice(len(names), p=shares / shares.sum()))]
    rng = generator(f"kinds-{structure}", seed, num_ops)
    drawn, own = _structure(structure, num_ops, rng)
    if runtime is None:
        runtime = "program" if own and rng.random() < _OWN else RUNTIMES[int(rng.integers(len(RUNTIMES)))]
    costs = _own_costs(own, rng) if own and runtime == "program" else _costs(drawn, runtime, rng)
    return _graph(f"kinds-{structure}-{num_ops}-{seed}", drawn, _scaled(costs, transfer, rng))


class Costs(NamedTuple):
    """Costs of n ops and t tensors, in any unit until `_scaled`."""

    runtime: np.ndarray  # [n] float64, seconds
    workspace: np.ndarray  # [n] float64, bytes
    weights: np.ndarray  # [n] float64, bytes
    bytes: np.ndarray  # [t] float64
    kept: np.ndarray  # [t] bool


def _structure(name: str, n: int, rng: np.random.Generator) -> tuple[Structure, Program | None]:
    """Draws a structure of n ops, and the program that it is, if any."""
    if name == "program":
        own = draw_program(n, rng)
        edges = own.use_tensor, own.use_op, own.control_source, own.control_target
        return Structure(own.producer, *edges, np.arange(n), np.arange(len(own.producer)), np.ones(n, bool)), own
    draw = STRUCTURES[name]
    if rng.random() < SHARES[name][1]:
        return mirrored(draw(-(-n // 2), rng), n, rng), None
    return draw(n, rng), None


def _own_costs(program: Program, rng: np.random.Generator) -> Costs:
    """Returns a program's costs with log-normal noise."""
    sigma = rng.uniform(*_NOISE)

    def noisy(value: np.ndarray) -> np.ndarray:
        return value * np.exp(sigma * rng.standard_normal(len(value)))

    ops = noisy(program.runtime), noisy(program.workspace), noisy(program.weights)
    return Costs(*ops, noisy(program.bytes), program.kept)


def _costs(structure: Structure, runtime: str, rng: np.random.Generator) -> Costs:
    """Draws costs, of mean 1 for tensors; those of equal classes are equal."""
    classes, sizes = (int(array.max(initial=-1)) + 1 for array in (structure.op_class, structure.tensor_class))
    writer = np.zeros(sizes, np.int64)
    writer[structure.tensor_class] = structure.op_class[structure.producer]
    if runtime == "program":
        per_class, written = draw_costs(classes, rng)
        seconds, size = per_class[structure.op_class], written[writer][structure.tensor_class]
    else:
        normal = rng.standard_normal(classes)
        correlation = rng.uniform(0.3, 1.0) if rng.random() < 0.5 else 0.0
        of_tensor = correlation * normal[writer] + (1 - correlation**2) ** 0.5 * rng.standard_normal(sizes)
        seconds = _quantiles(runtime, normal, rng)[structure.op_class]
        size = _quantiles(RUNTIMES[int(rng.integers(len(RUNTIMES) - 1))], of_tensor, rng)[structure.tensor_class]
    if rng.random() < 0.5:
        seconds = seconds * (rng.random(classes) >= rng.uniform(0.0, 0.5))[structure.op_class]
    workspace, weights = (
        (np.exp(rng.normal(0.0, 1.0, classes)) * (rng.random(classes) < rng.uniform(0.0, 0.5)))[structure.op_class]
        * (log_uniform(rng, 0.1, 10.0) * (rng.random() < 0.4))
        for _ in range(2)
    )
    size = size / (size.mean() if size.any() else 1.0)
    unread = np.bincount(structure.use_tensor, minlength=len(size)) == 0
    return Costs(seconds, workspace, weights * structure.first, size, unread & (rng.random() < 0.5))


def _quantiles(distribution: str, normal: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Turns standard normal numbers into those of a positive distribution with random parameters."""
    if distribution == "constant":
        return np.ones_like(normal)
    if distribution == "normal":
        return np.maximum(0.05, 1 + rng.uniform(0.05, 0.4) * normal)
    if distribution == "log-normal":
        return np.exp(rng.uniform(0.3, 2.0) * normal)
    above = np.array([math.erfc(z * 0.5**0.5) / 2 for z in normal.tolist()])  # probability of a larger number
    if distribution == "uniform":
        return 1 - (1 - rng.uniform(0.0, 0.5)) * above
    return above ** (-1 / rng.uniform(1.1, 3.0))


def _scaled(costs: Costs, transfer: float | None, rng: np.random.Generator) -> Costs:
    """Scales run times to seconds and sizes to bytes (see the module)."""
    if not costs.runtime.any():
        costs.runtime[:] = 1.0
    drawn = log_uniform(rng, *_RATIO)
    ratio, share = drawn if transfer is None else transfer, log_uniform(rng, *_LATENCY_SHARE)
    per_byte = LATENCY / share * (1 - share) * BANDWIDTH / (costs.bytes.mean() if costs.bytes.any() else 1.0)
    seconds = costs.runtime * (LATENCY / share / ratio / costs.runtime.mean())

    def scaled(size: np.ndarray, least: int = 0) -> np.ndarray:
        return np.maximum(least, np.rint(size * per_byte).astype(np.int64))

    return Costs(seconds, scaled(costs.workspace), scaled(costs.weights), scaled(costs.bytes, 1), costs.kept)


def _graph(name: str, structure: Structure, costs: Costs) -> ComputationGraph:
    n = len(costs.runtime)
    names, tensors = [f"op{op}" for op in range(n)], [f"t{tensor}" for tensor in range(len(costs.bytes))]
    inputs: list[list[str]] = [[] for _ in range(n)]
    outputs: list[list[Tensor]] = [[] for _ in range(n)]
    after: list[list[str]] = [[] for _ in range(n)]
    for tensor, op in zip(structure.use_tensor.tolist(), structure.use_op.tolist(), strict=True):
        inputs[op].append(tensors[tensor])
    for tensor, op, size in zip(tensors, structure.producer.tolist(), costs.bytes.tolist(), strict=True):
        outputs[op].append(Tensor(tensor, size))
    for source, target in zip(structure.control_source.tolist(), structure.control_target.tolist(), strict=True):
        after[target].append(names[source])
    numbers = zip(costs.runtime.tolist(), costs.workspace.tolist(), costs.weights.tolist(), strict=True)
    ops = tuple(
        Op(names[op], "", seconds, tuple(inputs[op]), tuple(outputs[op]), tuple(after[op]), workspace, weights)
        for op, (seconds, workspace, weights) in enumerate(numbers)
    )
    return ComputationGraph(name, ops, outputs=tuple(tensors[tensor] for tensor in np.flatnonzero(costs.kept)))
