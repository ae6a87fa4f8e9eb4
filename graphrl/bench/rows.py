"""What rows of every measurement but the search's say: where, how often and by which clock."""

import dataclasses
from typing import Any

import jax

from graphrl.bench import machine
from graphrl.bench.cases import Settings
from graphrl.bench.timing import Samples


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
