"""Cost of ops with bodies (loops, branches, calls), shared by all readers of programs."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple


class Work(NamedTuple):
    """Cost of one run of an op or of a body.

    Attributes:
      flops: floating-point operations.
      runtime: seconds.
      workspace_bytes: peak bytes allocated, without its inputs and results.
      step_bytes: peak bytes allocated, without its inputs but with its results, as in one step of a loop.
      weight_bytes: bytes of the weights and constants inside its bodies.
    """

    flops: int = 0
    runtime: float = 0.0
    workspace_bytes: int = 0
    step_bytes: int = 0
    weight_bytes: int = 0


class Step(NamedTuple):
    """Memory of an op of a body: bytes of the values that it writes, names of those that it reads, its workspace."""

    written: Mapping[Any, int]
    read: Iterable[Hashable]
    workspace_bytes: int


def in_turn(works: Sequence[Work]) -> Work:
    """Adds up the costs of ops or bodies that run in sequence; the result has no `step_bytes`."""
    return Work(
        sum(work.flops for work in works),
        sum(work.runtime for work in works),
        max((work.workspace_bytes for work in works), default=0),
        weight_bytes=sum(work.weight_bytes for work in works),
    )


def repeated(work: Work, trips: int) -> Work:
    """Multiplies FLOPs and run time by `trips`, for repeated runs in the same memory."""
    return work._replace(flops=trips * work.flops, runtime=trips * work.runtime)


def costliest(works: Sequence[Work]) -> Work:
    """Takes the maximum over branches, for each figure separately; the weights of all branches are summed."""
    maximum = Work(*(max(figures) for figures in zip(*works, strict=True)))
    return maximum._replace(weight_bytes=sum(work.weight_bytes for work in works))


def traffic(input_bytes: Sequence[int], output_bytes: int, *, partial: bool) -> int:
    """Counts the bytes transferred between memory and chip: each input and each output once.

    If `partial`, the first input counts at most the bytes of the outputs.
    """
    first = min(input_bytes[0], output_bytes) if partial and input_bytes else sum(input_bytes[:1])
    return first + sum(input_bytes[1:]) + output_bytes


def peak_bytes(steps: Sequence[Step], kept: AbstractSet[Hashable]) -> int:
    """Computes the peak bytes of values that a body's steps write, in their order; values in `kept` live to the end."""
    accessed = [{*step.written, *step.read} for step in steps]
    last = {name: place for place, names in enumerate(accessed) for name in names}
    size: dict[Hashable, int] = {}
    live = peak = 0
    for place, step in enumerate(steps):
        size |= step.written
        live += sum(step.written.values())
        peak = max(peak, live + step.workspace_bytes)
        live -= sum(size.get(name, 0) for name in accessed[place] if last[name] == place and name not in kept)
    return peak
