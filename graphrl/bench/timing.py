"""Clocks and repeats: programs take turns, so that ratios come from the same minutes of the machine."""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from graphrl.bench import machine
from graphrl.bench.cases import Settings

_MAX_RUNS = 100_000


@dataclasses.dataclass(frozen=True)
class Sample:
    """One timing."""

    evaluations: int
    wall_s: float | None  # seconds; None: not known
    cpu_s: float | None  # seconds of all threads of this process; None: not known


@dataclasses.dataclass(frozen=True)
class Samples:
    """All timings of one program, each of the same number of evaluations."""

    samples: tuple[Sample, ...]

    @property
    def evaluations(self) -> int:
        """Of one sample."""
        return self.samples[0].evaluations

    def own_median(self, clock: str) -> float | None:
        """Median seconds of a sample by clock "wall" or "cpu"; None where the program does not know that clock."""
        values = [sample.wall_s if clock == "wall" else sample.cpu_s for sample in self.samples]
        seconds = [value for value in values if value is not None]
        return statistics.median(seconds) if seconds else None

    def seconds(self, clock: str) -> list[float]:
        """Of each sample, by a clock; by the other one where a program knows only that."""
        pairs = [(s.wall_s, s.cpu_s) if clock == "wall" else (s.cpu_s, s.wall_s) for s in self.samples]
        return [first if first is not None else second or 0.0 for first, second in pairs]

    def median(self, clock: str) -> float:
        """Median seconds of a sample, as `seconds`."""
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
    graphs: int = 1
    population: int = 1
    costs: Costs | None = None
    on_host: bool = False  # whatever device jax computes on
    note: str | None = None  # what readers of its figures must know


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimedRow:
    """A program, the machine and its timings."""

    what: str  # was measured
    threads: int
    pinned: bool  # to one core
    device_kind: str
    jax: str
    compile_s: float
    repeats: int
    clock: str  # "cpu" if pinned, else "wall"
    median_s: float  # of a sample
    min_s: float

    def to_dict(self) -> dict[str, Any]:
        """The row as a JSON object."""
        return dataclasses.asdict(self)


def timed_fields(settings: Settings, pinned: bool, compile_s: float, samples: Samples) -> dict[str, Any]:
    """The fields of a `TimedRow` but `what`."""
    clock = machine.clock(pinned)
    return {
        "threads": settings.threads,
        "pinned": pinned,
        "device_kind": machine.device_name(),
        "jax": jax.__version__,
        "compile_s": compile_s,
        "repeats": settings.repeats,
        "clock": clock,
        "median_s": samples.median(clock),
        "min_s": min(samples.seconds(clock)),
    }


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
        sample = program(runs)
        taken = sample.wall_s or sample.cpu_s or 0.0
        runs = max(runs, min(_MAX_RUNS, math.ceil(runs * seconds / max(taken, 1e-6))))
    return runs
