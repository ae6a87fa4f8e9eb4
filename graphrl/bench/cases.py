"""What is measured: the cases, the settings of a run, and the rows that it gives."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from jax.sharding import Mesh

from graphrl.bench import machine
from graphrl.bench.graphs import MIN_OPS, random_chromosomes, random_graphs
from graphrl.costs.problem import Objective, Problem, Transfer
from graphrl.errors import ProblemError, clipped, near
from graphrl.solvers.chromosomes.brkga import Parameters

DEVICES = 2
PARAMETERS = Parameters(population=100, elites=20, mutants=20, elite_bias=0.7)
TRANSFERS: tuple[Transfer, ...] = ("free", "rendezvous", "link")
BATCHES = (1, 64)  # graphs at once, of the headline
# seconds and bytes a second, on the scale of the graphs' run times: 1 to 99 s and 16 to 2,048 bytes
LATENCY, BANDWIDTH = 5.0, 16.0
MAX_OPS = 1 << 16


def problem(objective: Objective, transfer: Transfer) -> Problem:
    """The problem on which everything is measured."""
    return Problem(objective, DEVICES, transfer, LATENCY, BANDWIDTH)


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of the table: something to measure, with graphrl and every yardstick."""

    num_ops: int
    graphs: int  # at once
    transfer: Transfer
    makespan: bool
    memory: bool
    search: bool = False  # a BRKGA run, for the one objective; else decoding and costing a population

    @property
    def objective(self) -> Objective:
        return "makespan" if self.makespan else "peak_memory"

    @property
    def what(self) -> str:
        parts = [name for name, is_costed in (("makespan", self.makespan), ("memory", self.memory)) if is_costed]
        return "brkga" if self.search else " + ".join(["decode", *parts])

    @property
    def title(self) -> str:
        """In words, without the sizes."""
        if self.search:
            return f"BRKGA, {self.objective.replace('_', ' ')}"
        return f"{self.what}, {self.transfer}" if self.makespan else self.what


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to measure, and how.

    Attributes:
      sizes: ops of the graphs.
      threads: CPU threads; 1 keeps the process on one core.
      repeats: samples of each program.
      seconds: the least length of a sample, about.
      graphs: at once, but in the headline; 0 for three a thread.
      evaluations: of a BRKGA run on each graph.
      transfers: transfer models.
      quick: few cases, for a look whether everything works.
      seed: of the graphs and of everything random.

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
                raise ProblemError(f"{name} is {clipped(', '.join(map(str, values))) or 'empty'}: must name each once")
        for transfer in self.transfers:
            if transfer not in TRANSFERS:
                raise ProblemError(f"transfers has {transfer!r}: {near(transfer, TRANSFERS)}")
        for name, value in (("threads", self.threads), ("repeats", self.repeats)):
            if not 1 <= value <= 1000:
                raise ProblemError(f"{name} is {value}: must be from 1 to 1,000")
        if self.graphs < 0 or self.graphs % self.threads:
            raise ProblemError(f"graphs is {self.graphs}: must be a multiple of the {self.threads} threads")

    @property
    def num_graphs(self) -> int:
        """Graphs at once: by default every thread gets all three families."""
        return self.graphs or 3 * self.threads

    def cases(self) -> Iterator[Case]:
        """All cases: the headline, which is the decoder on one graph and on many at once, and then the rest by size."""
        first, *others = self.transfers
        for size, graphs in itertools.product(self.sizes, BATCHES[-1:] if self.quick else BATCHES):
            yield Case(size, graphs, first, makespan=True, memory=True)
        for size in self.sizes:
            case = functools.partial(Case, size, self.num_graphs)
            if not self.quick:
                yield case("free", makespan=False, memory=True)  # without clocks all models are one
                yield case(first, makespan=True, memory=False)
                for transfer, memory in itertools.product(others, (False, True)):
                    yield case(transfer, makespan=True, memory=memory)
                yield case("free", makespan=True, memory=False, search=True)
            yield case("free", makespan=False, memory=True, search=True)


class Work:
    """One case made ready: its graphs, its chromosomes, its problem. Programs are made of it."""

    def __init__(self, settings: Settings, case: Case) -> None:
        self.settings, self.case = settings, case
        self.graphs = random_graphs(case.num_ops, case.graphs, settings.seed)
        self.problem = problem(case.objective, case.transfer)

    @functools.cached_property
    def chromosomes(self) -> list[np.ndarray]:
        """`[p, genes]` float32 of each graph (graphs.py)."""
        seed, count = self.settings.seed, PARAMETERS.population
        return [random_chromosomes(graph, DEVICES, count, seed + i) for i, graph in enumerate(self.graphs)]

    def mesh(self, graphs: int) -> Mesh:
        """The devices that share so many graphs."""
        return machine.make_mesh(self.settings.threads, graphs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """What the rows of all tables have: what was measured, and how."""

    what: str
    threads: int
    pinned: bool  # to one core
    device_kind: str
    jax: str
    repeats: int
    clock: str  # which one seconds and rates are by: "cpu" if pinned, else "wall"

    def to_dict(self) -> dict[str, Any]:
        """The row as a JSON object."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row(Measured):
    """What graphrl or a yardstick took in one case, `what`: "decode + ..." or "brkga". None: no such figure."""

    method: str  # "graphrl", or a yardstick's name
    n: int  # ops of each graph
    graphs: int  # at once
    population: int
    devices: int
    transfer: str
    objective: str | None  # of BRKGA
    evaluations: int  # of one sample, on all graphs
    compile_s: float | None  # of tracing and compiling, without a cache
    median_s: float
    min_s: float
    wall_s: float  # median
    cpu_s: float  # median, all threads
    evaluations_per_s: float  # by median_s
    ratios: dict[str, float]  # of evaluations_per_s to that of each yardstick
    cached_compile_s: float | None = None  # compile_s of a second process, with a cache
    own_share: float | None = None  # of a BRKGA run's seconds: random numbers, crossover, selection
    beta_share: float | None = None  # of a BRKGA run's seconds with Beta proposals: sampling them
