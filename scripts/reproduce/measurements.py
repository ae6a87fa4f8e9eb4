"""Measurements in a file of one JSON object a line, so that a stopped script resumes where it was.

A line is `{"key": {...}, "value": {...} or null, "error": text or null, "machine", "graphrl", "jax", "date"}`; of lines
with equal keys the last counts (`graphrl.compare.comparison`). Of the timers only `median_seconds` excludes
compilation.

`map_in_processes` works in parallel processes with one core each, so that times do not depend on their number.
"""

import datetime
import functools
import json
import multiprocessing
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax

import graphrl
from graphrl.bench.machine import device_name
from graphrl.compare.cluster import share
from graphrl.compare.comparison import Kind, Store, open_store
from graphrl.errors import GraphrlError
from graphrl.process import count_cores
from reproduce.results import Origin, Table, bullets

T = TypeVar("T")
R = TypeVar("R")


def map_in_processes(work: Callable[[T], R], items: Sequence[T], processes: int) -> Iterator[R]:
    """Applies `work` to each item, in parallel processes of one core each. Yields results as they arrive.

    Raises:
      GraphrlError: a process died, or there are fewer cores than processes.
    """
    share(processes)
    if not items:
        return
    context = multiprocessing.get_context("spawn")  # JAX has threads
    cores: SimpleQueue[int] = context.SimpleQueue()
    for core in sorted(os.sched_getaffinity(0))[:processes]:
        cores.put(core)
    with ProcessPoolExecutor(processes, context, _init_worker, (cores,)) as pool:
        try:
            for future in as_completed([pool.submit(work, item) for item in items]):
                yield future.result()
        except BrokenProcessPool:
            raise GraphrlError("a process died: run the same command to resume") from None
        finally:
            for process in multiprocessing.active_children():
                process.kill()


def _init_worker(cores: "SimpleQueue[int]") -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.sched_setaffinity(0, {cores.get()})


def _end_with_parent() -> None:
    """Ends this process with its parent: a killed parent would leave it waiting for work forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # only the pool starts one
    parent.join()
    os._exit(1)


MIB = 2**20

Figures = dict[str, Any]
Key = Mapping[str, Any]
RENAMED = {"foretold": "predicted", "given": "arguments"}  # figures in files of version 0.1


class Measurement(NamedTuple):
    """A measurement, one line of the file.

    Attributes:
      key: key that identifies the measurement.
      value: measured figures by name, or None if the measurement failed.
      error: reason of the failure, one line.
      machine, graphrl, jax, date: machine, versions and time (UTC, ISO 8601).
    """

    key: dict[str, Any]
    value: Figures | None
    error: str | None
    machine: str
    graphrl: str
    jax: str
    date: str

    def to_dict(self) -> dict[str, Any]:
        """Converts the measurement to a dict, as in the file's line."""
        return self._asdict()

    @staticmethod
    def from_dict(value: object) -> "Measurement":
        """Reads a measurement from such a dict.

        Raises:
          GraphrlError: the value is not a measurement.
        """
        try:
            one = Measurement(**value)  # type: ignore[arg-type]
        except TypeError:
            raise GraphrlError("it is no measurement") from None
        return one._replace(value=one.value and {RENAMED.get(name, name): own for name, own in one.value.items()})


class Measurements:
    """The measurements in a file.

    Attributes:
      used: measurements requested since `used` was emptied, in order: a table's sources.
    """

    def __init__(self, path: Path, *, retry: bool, stored: bool = False) -> None:
        """Opens a file lazily.

        Args:
          path: path of the file.
          retry: True to repeat failed measurements.
          stored: True if `get` measures nothing, and returns None for missing figures.
        """
        self._path = path
        self._retry = retry
        self._stored = stored
        self.used: list[Measurement] = []

    def exists(self) -> bool:
        """True if the file exists: something was measured."""
        return self._path.exists()

    def lacks(self, key: Key) -> bool:
        """True if `get` would have to measure this key."""
        with open_store(self._path, _KIND) as store:
            return self._lacks(store, key)

    def get(self, key: Key, measure: Callable[[], Figures]) -> Figures | None:
        """Returns the figures under a key, measured now if missing; None if the measurement failed, now or before."""
        return self.get_all([(key, measure)])[0]

    def get_all(self, requests: Sequence[tuple[Key, Callable[[], Figures]]]) -> list[Figures | None]:
        """Calls `get` for many keys, but reads the file only once."""
        with open_store(self._path, _KIND) as store:
            for key, measure in requests:
                if self._lacks(store, key):
                    store.append(_measured(dict(key), measure))
            lines = [store.rows.get(_text(key)) for key, _ in requests]
        return self._use(lines)

    def get_groups(
        self, groups: Sequence[Sequence[Key]], measure: Callable[[Key], Figures], processes: int
    ) -> list[list[Figures | None]]:
        """Calls `get` for groups of keys; each group is measured by one of several parallel processes of one core.

        Raises:
          GraphrlError: a process died.
        """
        with open_store(self._path, _KIND) as store:
            missing = [some for group in groups if (some := [key for key in group if self._lacks(store, key)])]
            for measured in map_in_processes(functools.partial(_measured_all, measure), missing, processes):
                for one in measured:
                    store.append(one)
            by_group = [[store.rows.get(_text(key)) for key in group] for group in groups]
        return [self._use(lines) for lines in by_group]

    def all_of(self, part: Key) -> list[Figures]:
        """Returns figures under all keys with this part, whichever command measured them; failures are left out."""
        with open_store(self._path, _KIND) as store:
            lines = list(store.rows.values())
        return [one.value for one in lines if one.value is not None and part.items() <= one.key.items()]

    def table(self, title: str, *texts: str, notes: Iterable[str] = (), summary: str = "") -> Table:
        """Creates a table of all figures since the last table; failures are among its notes."""
        used, self.used = self.used, []
        failed = [f"failed: {' '.join(map(str, one.key.values()))}: {one.error}" for one in used if one.error]
        return Table(title, _origin(used), (*texts, bullets([*notes, *failed])), summary)

    def _use(self, lines: Sequence[Measurement | None]) -> list[Figures | None]:
        """Returns the figures of measurements, which become sources of the next table."""
        self.used += (one for one in lines if one is not None)
        return [None if one is None else one.value for one in lines]

    def _lacks(self, store: Store[Measurement], key: Key) -> bool:
        one = store.rows.get(_text(key))
        return not self._stored and (one is None or (self._retry and one.error is not None))


def mebibytes(value: float | None) -> str:
    """Formats bytes in MiB, with one digit after the point."""
    return "-" if value is None else f"{value / MIB:,.1f}"


def ratio(value: float | None) -> str:
    """Formats a quotient in percent."""
    return "-" if value is None else f"{100 * value:.1f}%"


def time_call(work: Callable[[], Any]) -> tuple[Any, float]:
    """Times a call; returns its result and its seconds."""
    started = time.perf_counter()
    return work(), time.perf_counter() - started


def in_a_line(fault: Exception) -> str:
    """Formats an error as one line for a table."""
    return " ".join(f"{type(fault).__name__}: {fault}".split())[:300]


def _origin(measurements: Sequence[Measurement]) -> Origin:
    return Origin(
        frozenset(one.key.get("seed", 0) for one in measurements),
        frozenset(one.machine for one in measurements),
        frozenset(f"graphrl {one.graphrl}, jax {one.jax}" for one in measurements),
        frozenset(one.date[:10] for one in measurements),
    )


def _text(key: Key) -> str:
    return json.dumps(key, sort_keys=True)


_KIND = Kind(Measurement.from_dict, lambda one: _text(one.key), b'{"key": {')


def _measured_all(measure: Callable[[Key], Figures], keys: Sequence[Key]) -> list[Measurement]:
    return [_measured(dict(key), functools.partial(measure, key)) for key in keys]


def _measured(key: dict[str, Any], measure: Callable[[], Figures]) -> Measurement:
    print("measuring:", *key.values(), file=sys.stderr, flush=True)
    value, error = None, None
    try:
        value = measure()
    except Exception as fault:  # one program that fails must not end days of measuring
        error = in_a_line(fault)
        print(error, file=sys.stderr, flush=True)
    now, cores = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), count_cores()
    machine = f"{device_name()}, {cores} core{'s' * (cores > 1)}"
    return Measurement(key, value, error, machine, graphrl.__version__, jax.__version__, now)


REPEATS = 5


def median_seconds(work: Callable[[], object]) -> float:
    """Measures the median seconds of `REPEATS` calls, after one call that may compile."""
    work()
    return statistics.median(call_seconds(work) for _ in range(REPEATS))


def call_seconds(work: Callable[[], object]) -> float:
    """Measures the seconds of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
