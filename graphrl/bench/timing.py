"""Clocks and repeats: programs take turns, so that ratios come from the same minutes of the machine."""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from graphrl.bench import machine
from graphrl.bench.cases import Measured, Settings
from graphrl.bench.report import Table
from graphrl.errors import ProblemError, clipped

_MAX_RUNS = 100_000
Say = Callable[[str], None]  # gets what is going on, for a progress line


@dataclasses.dataclass(frozen=True)
class Sample:
    """One timing."""

    evaluations: int
    wall_s: float  # seconds
    cpu_s: float  # seconds of all threads of this process


@dataclasses.dataclass(frozen=True)
class Samples:
    """All timings of one program, each of the same number of evaluations."""

    samples: tuple[Sample, ...]

    @property
    def evaluations(self) -> int:
        """Of one sample."""
        return self.samples[0].evaluations

    def seconds(self, clock: str) -> list[float]:
        """Of each sample, by clock "wall" or "cpu"."""
        return [sample.wall_s if clock == "wall" else sample.cpu_s for sample in self.samples]

    def median(self, clock: str) -> float:
        """Median seconds of a sample."""
        return statistics.median(self.seconds(clock))

    def per_second(self, clock: str) -> float:
        """Evaluations a second, by the median."""
        return self.evaluations / max(self.median(clock), 1e-12)


class Costs(NamedTuple):
    """What a program says of the chromosomes that it was given; 0 where it was not asked."""

    makespan: np.ndarray  # [g, p] seconds
    peak: np.ndarray  # [g, p, d] bytes


class Program(NamedTuple):
    """Something compiled, to be timed."""

    run: Callable[[int], Sample]  # runs it so many times over; `timed` makes one
    compile_s: float = 0.0  # of tracing and compiling, without a cache; 0 for what was compiled before
    costs: Costs | None = None
    on_host: bool = False  # whatever device jax computes on


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing(Measured):
    """A row of what was timed."""

    compile_s: float
    median_s: float  # of a sample
    min_s: float


def timed_fields(settings: Settings, pinned: bool, compile_s: float, samples: Samples) -> dict[str, Any]:
    """The fields of a `Timing` but `what`."""
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


class Prepared(NamedTuple):
    """Programs by the work that they do, and what their rates are compared with."""

    programs: Mapping[str, Program]
    yardstick: Callable[[int], Sample] | None = None


class Timed(NamedTuple):
    """A program that was timed."""

    work: str  # that it does
    ops: int  # of each graph
    number: int  # at once
    rate: float  # a second, by the median
    ratio: float  # of the rate and the yardstick's, if there is one


@dataclasses.dataclass(frozen=True)
class Bench:
    """Something that has a rate, for graphs of some ops and so many of it at once.

    Attributes:
      option: of the command, whose values are the numbers at once.
      what: the rows are said to measure.
      unit: of the numbers, in the singular.
      most: at once.
      prepare: (settings, ops, how many, mesh, whether it is the first number) -> what is timed.
      row: (settings, what was timed, fields of a `Timing`) -> a row.
      table: how rows are shown.
    """

    option: str
    what: str
    unit: str
    most: int
    prepare: Callable[[Settings, int, int, Mesh, bool], Prepared]
    row: Callable[[Settings, Timed, dict[str, Any]], Timing]
    table: Table

    def measure(self, settings: Settings, counts: Sequence[int], say: Say) -> Iterator[list[Timing]]:
        """Rows for each size of graphs and each of the counts.

        Args:
          settings: what to measure.
          counts: how many at once.
          say: see `Say`.

        Raises:
          ProblemError: a count is out of range or given twice, or jax has not as many devices as threads are asked for.
          GraphrlError: two programs do not compute the same.
        """
        if not counts or len(set(counts)) < len(counts) or not 1 <= min(counts) <= max(counts) <= self.most:
            have = clipped(", ".join(map(str, counts))) or "empty"
            raise ProblemError(f"{self.option} is {have}: must name numbers from 1 to {self.most}, each once")
        with machine.pinned(settings.threads) as pinned:
            machine.configure(settings.threads)
            for ops in settings.sizes:
                for count in counts:
                    yield self._rows(settings, ops, count, count == counts[0], pinned, say)

    def _rows(self, settings: Settings, ops: int, count: int, first: bool, pinned: bool, say: Say) -> list[Timing]:
        title = f"n = {ops}, {count} {self.unit}{'s' * (count > 1)}"
        say(f"{title}: preparing")
        mesh = machine.make_mesh(settings.threads, count)
        programs, yardstick = self.prepare(settings, ops, count, mesh, first)
        say(f"{title}: timing")
        runs = [program.run for program in programs.values()] + ([] if yardstick is None else [yardstick])
        samples, clock = interleaved(runs, settings.repeats, settings.seconds), machine.clock(pinned)
        base = 1.0 if yardstick is None else samples[-1].per_second(clock)
        rows = []
        for (work, program), taken in zip(programs.items(), samples, strict=False):
            rate = taken.per_second(clock)
            fields = {"what": self.what, **timed_fields(settings, pinned, program.compile_s, taken)}
            rows.append(self.row(settings, Timed(work, ops, count, rate, rate / base), fields))
        return rows


def timed(work: Callable[[int], int]) -> Callable[[int], Sample]:
    """`work(runs)`, which blocks and returns its evaluations, with both clocks around it."""

    def run(runs: int) -> Sample:
        wall, cpu = time.perf_counter(), time.process_time()
        evaluations = work(runs)
        return Sample(evaluations, time.perf_counter() - wall, time.process_time() - cpu)

    return run


def interleaved(programs: Sequence[Callable[[int], Sample]], repeats: int, seconds: float) -> list[Samples]:
    """Times every program `repeats` times, in turns.

    Args:
      programs: each takes a number of runs.
      repeats: samples of each.
      seconds: a sample's least length, about: runs are repeated in it until it lasts so long.
    """
    runs = [_runs_needed(program, seconds) for program in programs]
    taken: list[list[Sample]] = [[] for _ in programs]
    for _ in range(repeats):
        for program, count, samples in zip(programs, runs, taken, strict=True):
            samples.append(program(count))
    return [Samples(tuple(samples)) for samples in taken]


def _runs_needed(program: Callable[[int], Sample], seconds: float) -> int:
    """Runs that make a sample of that length. Looks again after the first ones, which are slow: they warm up."""
    runs, taken = 1, 0.0
    while taken < seconds / 2 and runs < _MAX_RUNS:
        taken = program(runs).wall_s
        runs = max(runs, min(_MAX_RUNS, math.ceil(runs * seconds / max(taken, 1e-6))))
    return runs
