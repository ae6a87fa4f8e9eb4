"""Timing: compiled programs, clocks, repeats, and benchmarks that measure a rate (`Bench`).

Programs take turns, so that ratios compare times from the same minutes. JAX programs take a batch of graphs, sharded
over a mesh of devices. A CPU device processes its graphs one after the other, an accelerator all in parallel.
"""

import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from graphrl.bench import machine
from graphrl.bench.cases import DEVICES, PARAMETERS, Measured, Settings, Work, padded
from graphrl.bench.report import Table
from graphrl.costs.device.decisions import DeviceProblem, from_genes
from graphrl.costs.device.evaluate import Form, evaluate
from graphrl.errors import ProblemError, clipped
from graphrl.graphs.padding import PaddedGraph, common_sizes, pad_batch

T = TypeVar("T")

BY_GRAPH, REPLICATED = PartitionSpec("graphs"), PartitionSpec()
_MAX_RUNS = 100_000
Log = Callable[[str], None]  # receives the present activity, for a progress line


@dataclasses.dataclass(frozen=True)
class Sample:
    """Times of one measurement: several runs of a program."""

    evaluations: int  # number of evaluations in these runs
    wall_s: float  # seconds
    cpu_s: float  # seconds of all threads of this process


@dataclasses.dataclass(frozen=True)
class Samples:
    """All timings of one program, each of the same number of evaluations."""

    samples: tuple[Sample, ...]

    @property
    def evaluations(self) -> int:
        """Number of evaluations in one sample."""
        return self.samples[0].evaluations

    def seconds(self, clock: str) -> list[float]:
        """Returns the seconds of each sample on the clock "wall" or "cpu"."""
        return [sample.wall_s if clock == "wall" else sample.cpu_s for sample in self.samples]

    def median(self, clock: str) -> float:
        """Returns the median seconds of a sample on that clock."""
        return statistics.median(self.seconds(clock))

    def per_second(self, clock: str) -> float:
        """Returns the evaluations per second, from the median sample."""
        return self.evaluations / max(self.median(clock), 1e-12)


class Costs(NamedTuple):
    """Costs that a program computes for its chromosomes; 0 where they are not requested."""

    makespan: np.ndarray  # [g, p] seconds
    peak: np.ndarray  # [g, p, d] bytes


class Program(NamedTuple):
    """A compiled program to time."""

    run: Callable[[int], Sample]  # number of runs -> their times; see `timed`
    compile_s: float = 0.0  # time to trace and compile, without a cache; 0 if compiled before
    costs: Costs | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing(Measured):
    """A table row with the times of a program, in seconds."""

    compile_s: float
    median_s: float  # median time of a sample
    min_s: float  # time of the fastest sample


def timed_fields(settings: Settings, pinned: bool, compile_s: float, samples: Samples) -> dict[str, Any]:
    """Returns the fields of a `Timing` except `what`, by name."""
    clock = machine.clock(pinned)
    return {
        "threads": settings.threads,
        "pinned": pinned,
        "device_kind": machine.device_name(),
        "jax": jax.__version__,
        "repeats": settings.repeats,
        "clock": clock,
        "compile_s": compile_s,
        "median_s": samples.median(clock),
        "min_s": min(samples.seconds(clock)),
    }


class Limit:
    """Time limit of a run, from now on: cases that would exceed it are left out, and counted in `left_out`.

    Args:
      seconds: None for no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self._end = math.inf if seconds is None else time.perf_counter() + seconds
        self.left_out = 0

    @property
    def left(self) -> float:
        """Number of seconds left."""
        return self._end - time.perf_counter()

    def share(self, parts: int) -> "Limit":
        """Returns the limit of the next part of a run, if `parts` parts share the time left equally."""
        return Limit(None if math.isinf(self._end) else self.left / parts)

    def within(self, cases: Sequence[T]) -> Iterator[T]:
        """Yields the first case, and more until one that takes as long as the last one would exceed the limit."""
        seconds = 0.0
        for number, case in enumerate(cases):
            if number and seconds > self.left:
                self.left_out = len(cases) - number
                return
            started = time.perf_counter()
            yield case
            seconds = time.perf_counter() - started


def check_counts(option: str, counts: Sequence[int], largest: int) -> None:
    """Checks the batch sizes of an option.

    Raises:
      ProblemError: a count is out of range or given twice, or the list of counts is empty.
    """
    if not counts or len(set(counts)) < len(counts) or not 1 <= min(counts) <= max(counts) <= largest:
        have = clipped(", ".join(map(str, counts))) or "empty"
        raise ProblemError(f"{option} is {have}: must be different numbers from 1 to {largest}")


class Prepared(NamedTuple):
    """Programs to time, by the name of their work, and the yardstick to which their rates are compared, if any."""

    programs: Mapping[str, Program]
    baseline: Callable[[int], Sample] | None = None


class Timed(NamedTuple):
    """The measured rate of a program."""

    work: str  # name of the work that the program does
    ops: int  # number of ops in each graph
    number: int  # batch size
    rate: float  # evaluations per second, from the median time
    ratio: float  # rate / the yardstick's rate; without a yardstick the rate itself


@dataclasses.dataclass(frozen=True)
class Bench:
    """A benchmark that measures rates (evaluations per second) for several graph sizes and batch sizes.

    Attributes:
      option: command-line option that takes the batch sizes.
      what: name of the measurement in rows.
      unit: name of the items in a batch, in the singular.
      largest: the largest allowed batch size.
      prepare: (settings, number of ops, batch size, mesh, True for the first batch size) -> the programs to time.
      row: (settings, a timed program, fields of a `Timing`) -> a table row.
      table: how to print and plot the rows.
    """

    option: str
    what: str
    unit: str
    largest: int
    prepare: Callable[[Settings, int, int, Mesh, bool], Prepared]
    row: Callable[[Settings, Timed, dict[str, Any]], Timing]
    table: Table

    def titles(self, settings: Settings, counts: Sequence[int]) -> list[str]:
        """Names the cases, in the order in which they are measured."""
        return [self._title(*case) for case in itertools.product(settings.sizes, counts)]

    def measure(self, settings: Settings, counts: Sequence[int], limit: Limit, log: Log) -> Iterator[list[Timing]]:
        """Times the programs for each graph size and each batch size in turn, and yields their rows.

        Args:
          settings: settings of the run, with the graph sizes.
          counts: batch sizes.
          limit: time limit of the run.
          log: receives progress (`Log`).

        Raises:
          ProblemError: a count is out of range or given twice, or jax has fewer devices than threads.
          GraphrlError: two programs compute different results.
        """
        check_counts(self.option, counts, self.largest)
        with machine.pinned(settings.threads) as pinned:
            machine.configure(settings.threads)
            for ops, count in limit.within(list(itertools.product(settings.sizes, counts))):
                yield self._rows(settings, ops, count, count == counts[0], pinned, log)

    def _title(self, ops: int, count: int) -> str:
        return f"n = {ops}, {count} {self.unit}{'s' * (count > 1)}"

    def _rows(self, settings: Settings, ops: int, count: int, first: bool, pinned: bool, log: Log) -> list[Timing]:
        title = self._title(ops, count)
        log(f"{title}: preparing")
        mesh = machine.make_mesh(settings.threads, count)
        programs, baseline = self.prepare(settings, ops, count, mesh, first)
        log(f"{title}: timing")
        runs = [program.run for program in programs.values()] + ([] if baseline is None else [baseline])
        samples, clock = interleaved(runs, settings.repeats, settings.seconds), machine.clock(pinned)
        base = 1.0 if baseline is None else samples[-1].per_second(clock)
        rows = []
        for (work, program), taken in zip(programs.items(), samples, strict=False):
            rate = taken.per_second(clock)
            fields = {"what": self.what, **timed_fields(settings, pinned, program.compile_s, taken)}
            rows.append(self.row(settings, Timed(work, ops, count, rate, rate / base), fields))
        return rows


def timed(work: Callable[[int], int]) -> Callable[[int], Sample]:
    """Wraps `work(runs)`, which blocks and returns its number of evaluations, to measure wall and CPU time."""

    def run(runs: int) -> Sample:
        wall, cpu = time.perf_counter(), time.process_time()
        evaluations = work(runs)
        return Sample(evaluations, time.perf_counter() - wall, time.process_time() - cpu)

    return run


def interleaved(programs: Sequence[Callable[[int], Sample]], repeats: int, seconds: float) -> list[Samples]:
    """Times every program `repeats` times, in turns.

    Args:
      programs: functions that take a number of runs.
      repeats: number of samples per program.
      seconds: approximate minimum duration of a sample, which determines its number of runs.
    """
    runs = [_runs_needed(program, seconds) for program in programs]
    taken: list[list[Sample]] = [[] for _ in programs]
    for _ in range(repeats):
        for program, count, samples in zip(programs, runs, taken, strict=True):
            samples.append(program(count))
    return [Samples(tuple(samples)) for samples in taken]


def _runs_needed(program: Callable[[int], Sample], seconds: float) -> int:
    """Measures how many runs take that long. Measures again after the first runs, which are slower."""
    runs, taken = 1, 0.0
    while taken < seconds / 2 and runs < _MAX_RUNS:
        taken = program(runs).wall_s
        runs = max(runs, min(_MAX_RUNS, math.ceil(runs * seconds / max(taken, 1e-6))))
    return runs


def graphrl_evaluation(work: Work, form: Form = "auto") -> Program:
    """Compiles decoding and costing of a population on every graph with graphrl, in a form of `evaluate`."""
    graphs, problem, case, d = work.graphs, work.problem, work.case, DEVICES
    sizes = common_sizes(graphs)
    batch = pad_batch(graphs, sizes)
    genes = np.stack([padded(x, graph, sizes, d).T for x, graph in zip(work.chromosomes, graphs, strict=True)])

    def costs(group: PaddedGraph, genes: jax.Array) -> tuple[jax.Array, jax.Array]:
        decisions = from_genes(jnp.moveaxis(genes, 0, 1), sizes, d)
        task, wanted = DeviceProblem.of(problem), {"makespan": case.makespan, "memory": case.memory}
        cost = evaluate(group, decisions, task, **wanted, orders=False, form=form)
        second_unit, byte_unit = group.second_unit[:, None], group.byte_unit[:, None, None]
        return cost.makespan * second_unit, jnp.moveaxis(cost.peak_memory, 0, -1) * byte_unit

    return evaluation_program(costs, batch, genes, work.mesh(len(graphs)))


def evaluation_program(
    costs: Callable[[Any, jax.Array], tuple[jax.Array, jax.Array]], batch: Any, genes: np.ndarray, mesh: Mesh
) -> Program:
    """Compiles a program that computes the costs of the same genes repeatedly.

    Args:
      costs: (graphs with leading axis s, genes `[s, ...]`) -> makespan `[s, p]` and peak `[s, p, d]`.
    """

    def run_repeatedly(group: Any, genes: jax.Array, runs: jax.Array) -> tuple[jax.Array, jax.Array]:
        def repeat(_: jax.Array, state: tuple) -> tuple:
            # one gene depends on the last result: else XLA may hoist the computation out of the loop
            genes, (makespan, peak) = state
            total = makespan.sum() + peak.sum()
            genes = genes.at[(0,) * genes.ndim].min(jnp.where(total < 0, 0.0, 1.0))
            return genes, costs(group, genes)

        return lax.fori_loop(0, runs, repeat, (genes, empty(group, genes)))[1]

    def empty(group: Any, genes: jax.Array) -> Any:
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(costs, group, genes))

    batch, genes = jax.device_put((batch, genes), NamedSharding(mesh, BY_GRAPH))
    compiled, compile_s = compile_program(spread(run_repeatedly, mesh), batch, genes, _replicated(1, mesh))
    makespan, peak = jax.device_get(compiled(batch, genes, _replicated(1, mesh)))

    def work(runs: int) -> int:
        jax.block_until_ready(compiled(batch, genes, _replicated(runs, mesh)))
        return runs * len(genes) * PARAMETERS.population

    return Program(timed(work), compile_s, Costs(makespan, peak))


def mapped_program(function: Callable[..., Any], arguments: tuple, mesh: Mesh, evaluations: int) -> Program:
    """Compiles a function for a batch whose leading axes are sharded over the mesh; every run calls it again.

    `evaluations` is the number per call.
    """
    local = jax.shard_map(function, mesh=mesh, in_specs=BY_GRAPH, out_specs=BY_GRAPH, check_vma=False)
    arguments = jax.device_put(arguments, NamedSharding(mesh, BY_GRAPH))
    compiled, compile_s = compile_program(local, *arguments)
    return Program(repeated_calls(compiled, arguments, evaluations), compile_s)


def spread(function: Callable[..., Any], mesh: Mesh) -> Callable[..., Any]:
    """Maps `function(graphs, per graph, replicated)` over a mesh; CPU devices process their graphs one by one."""

    def one_by_one(graphs: Any, per_graph: Any, replicated: Any) -> Any:
        singles = jax.tree.map(lambda x: x[:, None], (graphs, per_graph))
        results = lax.map(lambda single: function(*single, replicated), singles)
        return jax.tree.map(lambda x: x[:, 0], results)

    local = one_by_one if mesh.devices.flat[0].platform == "cpu" else function
    specs = (BY_GRAPH, BY_GRAPH, REPLICATED)
    return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=BY_GRAPH, check_vma=False)


def compile_program(function: Callable[..., Any], *arguments: Any) -> tuple[jax.stages.Compiled, float]:
    """Compiles a function for the arguments; returns the program, and the seconds to trace and compile it."""
    started = time.perf_counter()
    compiled = jax.jit(function).lower(*arguments).compile()
    return compiled, time.perf_counter() - started


def repeated_calls(function: Callable[..., Any], arguments: Any, evaluations: int) -> Callable[[int], Sample]:
    """Returns a function that times repeated calls with the same arguments; `evaluations` is the number per call."""

    def work(runs: int) -> int:
        for _ in range(runs):
            jax.block_until_ready(function(*arguments))
        return runs * evaluations

    return timed(work)


def _replicated(value: int, mesh: Mesh) -> jax.Array:
    return jax.device_put(jnp.int32(value), NamedSharding(mesh, REPLICATED))
