"""Cases of the throughput benchmark: random graphs and chromosomes, the settings of a run, and its table rows.

Graphs come from three random families, with 2 to 3 edges per op from 64 ops on. Tensor sizes (bytes) and run times
(seconds) are whole numbers whose float32 sums are exact, so all methods must agree exactly. Every op writes one tensor.
Ops are numbered in a topological order.

All methods share one chromosome layout, that of `costs.device.decisions` without padding. For d devices, n ops and t
tensors it is affinities `[d, n]`, op keys `[n]` and transfer keys `[d, t]`, flattened: (d + 1) n + d t genes.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jax.sharding import Mesh

from graphrl.bench import machine
from graphrl.costs.problem import Objective, Problem, Transfer
from graphrl.errors import ProblemError, clipped, suggest
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.padding import Sizes
from graphrl.solvers.chromosomes.brkga import Parameters

MIN_OPS = 16
Inputs = list[list[int]]  # for each op, the ops whose tensors it reads
DEVICES = 2
PARAMETERS = Parameters(population=100, elites=20, mutants=20, elite_bias=0.7)
TRANSFERS: tuple[Transfer, ...] = ("free", "rendezvous", "link")
BATCHES = (1, 64)  # numbers of graphs per batch in the headline cases
# seconds, and bytes per second, on the scale of the graphs: ops take 1 to 99 s, tensors have 16 to 2,048 bytes
LATENCY, BANDWIDTH = 5.0, 16.0
MAX_OPS = 1 << 16


def random_graphs(num_ops: int, count: int, seed: int) -> list[ComputationGraph]:
    """Generates `count` graphs of `num_ops` ops each, cycling through the families."""
    families = list(FAMILIES)
    return [random_graph(families[i % len(families)], num_ops, seed + i // len(families)) for i in range(count)]


def padded(genes: np.ndarray, graph: ComputationGraph, sizes: Sizes, devices: int) -> np.ndarray:
    """Converts genes `[count, genes]` to the layout of a padded graph, `[count, padded genes]`; padding genes are 0."""
    n, t, count = graph.arrays.num_ops, graph.arrays.num_tensors, len(genes)
    by_op = np.zeros((count, devices + 1, sizes.ops), np.float32)
    by_op[..., :n] = genes[:, : (devices + 1) * n].reshape(count, devices + 1, n)
    by_tensor = np.zeros((count, devices, sizes.tensors), np.float32)
    by_tensor[..., :t] = genes[:, (devices + 1) * n :].reshape(count, devices, t)
    return np.concatenate([by_op.reshape(count, -1), by_tensor.reshape(count, -1)], 1)


def problem(objective: Objective, transfer: Transfer) -> Problem:
    """Returns the problem that all measurements use, with this objective and transfer model."""
    return Problem(objective, DEVICES, transfer, LATENCY, BANDWIDTH)


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of the table: a workload on which graphrl and every yardstick are measured."""

    num_ops: int  # in each graph
    graphs: int  # number of graphs in a batch
    transfer: Transfer
    makespan: bool  # True if the makespan is computed
    memory: bool  # True if peak memory is computed
    search: bool = False  # True runs BRKGA for one objective; False decodes and costs a population

    @property
    def objective(self) -> Objective:
        return "makespan" if self.makespan else "peak_memory"

    @property
    def what(self) -> str:
        parts = [name for name, is_costed in (("makespan", self.makespan), ("memory", self.memory)) if is_costed]
        return "brkga" if self.search else " + ".join(["decode", *parts])

    @property
    def title(self) -> str:
        """Describes the case in words, without the sizes."""
        if self.search:
            return f"BRKGA, {self.objective.replace('_', ' ')}"
        return f"{self.what}, {self.transfer}" if self.makespan else self.what


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a benchmark run.

    Attributes:
      sizes: numbers of ops per graph to measure.
      threads: number of CPU threads; 1 keeps the process on one core.
      repeats: number of timing samples per program.
      seconds: approximate minimum duration of a sample.
      graphs: number of graphs in a batch, except in the headline cases; 0 for three per thread.
      evaluations: number of evaluations of a BRKGA run on each graph.
      transfers: transfer models to measure.
      quick: True measures only a few cases, as a smoke test.
      seed: seed of the graphs and of all random numbers.

    Raises:
      ProblemError: a value is out of range.
    """

    sizes: tuple[int, ...] = (64, 128, 512, 2048)
    threads: int = 1
    repeats: int = 5
    seconds: float = 0.2
    graphs: int = 0
    evaluations: int = 5000
    transfers: tuple[Transfer, ...] = TRANSFERS
    quick: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for size in self.sizes:
            if not MIN_OPS <= size <= MAX_OPS:
                raise ProblemError(f"sizes has {size}: must be from {MIN_OPS} to {MAX_OPS} ops")
        for name, values in (("sizes", self.sizes), ("transfers", self.transfers)):
            if not values or len(set(values)) < len(values):
                raise ProblemError(f"{name} is {clipped(', '.join(map(str, values))) or 'empty'}: must list each once")
        for transfer in self.transfers:
            if transfer not in TRANSFERS:
                raise ProblemError(f"transfers has {transfer!r}: {suggest(transfer, TRANSFERS)}")
        for name, value in (("threads", self.threads), ("repeats", self.repeats)):
            if not 1 <= value <= 1000:
                raise ProblemError(f"{name} is {value}: must be from 1 to 1,000")
        if self.graphs < 0 or self.graphs % self.threads:
            raise ProblemError(f"graphs is {self.graphs}: must be a multiple of the {self.threads} threads")

    @property
    def num_graphs(self) -> int:
        """Number of graphs in a batch; by default every thread gets one of each of the three families."""
        return self.graphs or 3 * self.threads

    def cases(self) -> Iterator[Case]:
        """Yields all cases: first the headline ones, the decoder on one graph and on a batch, then the rest by size."""
        first, *others = self.transfers
        for size, graphs in itertools.product(self.sizes, BATCHES[-1:] if self.quick else BATCHES):
            yield Case(size, graphs, first, makespan=True, memory=True)
        for size in self.sizes:
            case = functools.partial(Case, size, self.num_graphs)
            if not self.quick:
                yield case("free", makespan=False, memory=True)  # without clocks all transfer models are the same
                yield case(first, makespan=True, memory=False)
                for transfer, memory in itertools.product(others, (False, True)):
                    yield case(transfer, makespan=True, memory=memory)
                yield case("free", makespan=True, memory=False, search=True)
            yield case("free", makespan=False, memory=True, search=True)


class Work:
    """The graphs, chromosomes and problem of one case, from which its programs are compiled."""

    def __init__(self, settings: Settings, case: Case) -> None:
        self.settings, self.case = settings, case
        self.graphs = random_graphs(case.num_ops, case.graphs, settings.seed)
        self.problem = problem(case.objective, case.transfer)

    @functools.cached_property
    def chromosomes(self) -> list[np.ndarray]:
        """For each graph a population of p chromosomes, `[p, genes]` float32; see `random_chromosomes`."""
        seed, count = self.settings.seed, PARAMETERS.population
        return [random_chromosomes(graph, DEVICES, count, seed + i) for i, graph in enumerate(self.graphs)]

    def mesh(self, graphs: int) -> Mesh:
        """Returns the devices that share a batch of `graphs` graphs."""
        return machine.make_mesh(self.settings.threads, graphs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """Fields shared by the rows of all tables: the measurement and its conditions."""

    what: str
    threads: int
    pinned: bool  # True if the process was pinned to one core
    device_kind: str
    jax: str
    repeats: int
    clock: str  # clock for seconds and rates: "cpu" if pinned, else "wall"

    def to_dict(self) -> dict[str, Any]:
        """Returns the row as a JSON object."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row(Measured):
    """Measurement of graphrl or a yardstick in one case, `what`: "decode + ..." or "brkga". None: not measured."""

    method: str  # "graphrl", or a yardstick's name
    n: int  # number of ops in each graph
    graphs: int  # number of graphs in a batch
    population: int
    devices: int
    transfer: str
    objective: str | None  # objective that BRKGA minimises
    evaluations: int  # number of evaluations in one sample, on all graphs
    compile_s: float | None  # time to trace and compile, without a cache
    median_s: float  # seconds per sample
    min_s: float
    wall_s: float  # median
    cpu_s: float  # median, all threads
    evaluations_per_s: float  # from median_s
    ratios: dict[str, float]  # for each yardstick, evaluations_per_s / the yardstick's
    cached_compile_s: float | None = None  # compile_s in a second process, with a cache
    own_share: float | None = None  # share of a BRKGA run's time for random numbers, crossover and selection
    beta_share: float | None = None  # share of the time of a BRKGA run with Beta proposals for sampling them


def _training(num_ops: int, rng: np.random.Generator) -> tuple[Inputs, set[int]]:
    """Generates a training step: a forward chain with skips and weights, then backward ops in reverse order.

    Each backward op reads the activations of its forward op. Each weight has an update op, and all updates read the
    learning rate (a hub).

    Returns:
      For each op the ops that it reads from, and the ops that take no time (inputs and weights).
    """
    inputs: Inputs = [[], []]
    light = {0, 1}
    rate, forward, weights = 1, [0], {}
    while len(inputs) < 0.46 * num_ops and len(forward) < 0.3 * num_ops:
        sources = [forward[-1 - int(rng.integers(min(6, len(forward))))] if rng.random() < 0.3 else forward[-1]]
        if rng.random() < 0.4:
            sources.append(forward[-1 - int(rng.integers(min(9, len(forward))))])
        if rng.random() < 0.45:
            light.add(len(inputs))
            sources.append(len(inputs))
            inputs.append([])
            weights[len(inputs)] = sources[-1]
        forward.append(len(inputs))
        inputs.append(sources)
    readers: dict[int, list[int]] = {}
    for op in forward:
        for source in set(inputs[op]):
            readers.setdefault(source, []).append(op)
    backward: dict[int, int] = {}
    for op in reversed(forward[1:]):
        gradients = [backward[reader] for reader in readers.get(op, ()) if reader in backward]
        backward[op] = len(inputs)
        inputs.append([op, inputs[op][0], *gradients])
        if op in weights:
            inputs.append([backward[op], weights[op], rate])
    del inputs[num_ops:]
    while len(inputs) < num_ops:  # ops outside the model, such as metrics
        inputs.append((len(inputs) - 1 - rng.integers(min(30, len(inputs)), size=2)).tolist())
    return inputs, light


def _layered(num_ops: int, rng: np.random.Generator) -> tuple[Inputs, set[int]]:
    """Generates ops that read from a sliding window of two layers; see `_training` for the results."""
    width = int(rng.integers(max(4, int(num_ops**0.5) // 2), int(num_ops**0.5) * 2))
    inputs: Inputs = [[] for _ in range(num_ops)]
    for op in range(width // 2, num_ops):
        inputs[op] = rng.integers(max(0, op - 2 * width), op, size=1 + rng.poisson(1.4)).tolist()
    return inputs, set()


def _hubs(num_ops: int, rng: np.random.Generator) -> tuple[Inputs, set[int]]:
    """Generates ops by preferential attachment to the last 200: few tensors get many readers, few ops many inputs."""
    inputs: Inputs = [[] for _ in range(num_ops)]
    degree = np.ones(num_ops)
    for op in range(3, num_ops):
        chance = degree[:op] * (np.arange(op) >= op - 200)
        count = min(op, 1 + int(rng.random() < 0.7) + int(rng.random() < 0.45))
        inputs[op] = rng.choice(op, size=count, p=chance / chance.sum(), replace=False).tolist()
        degree[inputs[op]] += 1
        if rng.random() < 0.01:
            inputs[op] += rng.integers(max(0, op - 60), op, size=16).tolist()
    return inputs, set()


FAMILIES: dict[str, Callable[[int, np.random.Generator], tuple[Inputs, set[int]]]] = {
    "training": _training,
    "layered": _layered,
    "hubs": _hubs,
}


def random_graph(family: str, num_ops: int, seed: int) -> ComputationGraph:
    """Generates a graph of `num_ops` ops.

    Args:
      family: a key of `FAMILIES`.
      num_ops: at least MIN_OPS.
      seed: random seed; graphs with different families, sizes or seeds are independent.

    Raises:
      ProblemError: the family is unknown, or there are too few ops.
    """
    if family not in FAMILIES:
        raise ProblemError(f"unknown graph family {family!r}: {suggest(family, FAMILIES)}")
    if num_ops < MIN_OPS:
        raise ProblemError(f"a benchmark graph of {num_ops} ops: must have at least {MIN_OPS}")
    rng = np.random.default_rng([seed, num_ops, list(FAMILIES).index(family)])
    inputs, light = FAMILIES[family](num_ops, rng)
    num_bytes = np.exp(rng.uniform(np.log(16), np.log(2048), num_ops)).astype(int)
    seconds = rng.integers(1, 100, num_ops)
    ops = [
        Op(
            name=f"op{i}",
            runtime=0.0 if i in light else float(seconds[i]),
            inputs=tuple(f"t{source}" for source in sorted(set(inputs[i]))),
            outputs=(Tensor(f"t{i}", int(num_bytes[i])),),
        )
        for i in range(num_ops)
    ]
    return ComputationGraph(f"{family}-{num_ops}-{seed}", tuple(ops))


def random_chromosomes(graph: ComputationGraph, devices: int, count: int, seed: int) -> np.ndarray:
    """Draws chromosomes for a graph: `[count, genes]` float32, uniform in [0, 1)."""
    genes = (devices + 1) * graph.arrays.num_ops + devices * graph.arrays.num_tensors
    return np.random.default_rng(seed).random((count, genes), dtype=np.float32)
