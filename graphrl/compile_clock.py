"""Seconds that JAX spends on compiling."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import jax.monitoring

_PREFIX = "/jax/core/compile/"  # tracing, lowering, and compiling or loading from the cache


@contextlib.contextmanager
def compile_clock() -> Iterator[Callable[[], float]]:
    """Gives a function that returns the seconds of the `with` that went into compiling, in all threads.

    Programs inside programs are traced inside one another: time that several such spans cover counts once.
    """
    spans: list[tuple[float, float]] = []

    def listen(event: str, start_time: float, end_time: float, **_: str | int) -> None:
        if event.startswith(_PREFIX):
            spans.append((start_time, end_time))

    def seconds() -> float:
        known = len(spans)
        spans[:known] = _union(spans[:known])  # few, however often it is asked; other threads append meanwhile
        return sum(end - start for start, end in spans)

    jax.monitoring.register_event_time_span_listener(listen)
    try:
        yield seconds
    finally:
        jax.monitoring.unregister_event_time_span_listener(listen)


def _union(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans, ascending, that cover the same time, each moment once."""
    union: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if union and start <= union[-1][1]:
            union[-1] = union[-1][0], max(end, union[-1][1])
        else:
            union.append((start, end))
    return union
