"""Costs of compiling: seconds, and the memory maps that compiled programs take."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax.monitoring

_MAPS, _MOST_MAPS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
_PREFIX = "/jax/core/compile/"  # tracing, lowering, and compiling or loading from the cache


@contextlib.contextmanager
def compile_clock() -> Iterator[Callable[[], float]]:
    """Gives a function that says how many seconds of the `with` went into compiling, in whatever thread.

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


def maps_run_short(share: float = 0.5) -> bool:
    """Whether this process has more than this share of the memory maps that Linux allows it (65,530 by default).

    Every compiled program takes some, as long as it is kept; at the limit LLVM ends the process. False elsewhere.
    """
    try:
        most = int(_MOST_MAPS.read_text())
        with _MAPS.open("rb") as file:
            return sum(1 for _ in file) > share * most
    except OSError:
        return False
