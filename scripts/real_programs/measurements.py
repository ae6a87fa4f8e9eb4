"""What was measured, in a file of one JSON object a line, so that a script that was stopped goes on where it was.

A line is `{"key": {...}, "value": {...} or null, "error": text or null, "machine", "graphrl", "jax", "date"}`; of lines
with equal keys the last counts. A last line that a kill cut short is dropped.
"""

import datetime
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

import graphrl
from graphrl.bench.machine import cores, cpu_name
from graphrl.errors import GraphrlError

Figures = dict[str, Any]


class Measurement(NamedTuple):
    """One line.

    Attributes:
      key: what was measured.
      value: figures by name, or None if it failed.
      error: why, one line.
      machine, graphrl, jax, date: where, with which versions and when (UTC, ISO 8601).
    """

    key: dict[str, Any]
    value: Figures | None
    error: str | None
    machine: str
    graphrl: str
    jax: str
    date: str


class Measurements:
    """The lines of a file.

    Attributes:
      used: what was asked for since `used` was emptied, in order: a table's sources.
    """

    def __init__(self, path: Path, *, retry: bool) -> None:
        self._path = path
        self._retry = retry
        self._known = {_text(found.key): found for found in _read(path)}
        self.used: list[Measurement] = []

    def get(self, key: Mapping[str, Any], measure: Callable[[], Figures]) -> Figures | None:
        """The figures under a key, measured now if the file has none; None if that failed, now or before."""
        found = self._known.get(_text(key))
        if found is None or (self._retry and found.error is not None):
            found = self._measured(dict(key), measure)
        self.used.append(found)
        return found.value

    def _measured(self, key: dict[str, Any], measure: Callable[[], Figures]) -> Measurement:
        print("measuring:", *key.values(), file=sys.stderr, flush=True)
        value, error = None, None
        try:
            value = measure()
        except Exception as fault:  # one program that fails must not end days of measuring
            error = " ".join(f"{type(fault).__name__}: {fault}".split())[:300]
            print(error, file=sys.stderr, flush=True)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        machine = f"{cpu_name()}, {cores()} cores"
        found = Measurement(key, value, error, machine, graphrl.__version__, jax.__version__, now)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found._asdict()) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._known[_text(key)] = found
        return found


def provenance(used: Sequence[Measurement], command: str) -> str:
    """Where the figures of a table come from: command, seed, machine, versions and date; then what failed and why."""
    machines = "; ".join(sorted({found.machine for found in used}))
    versions = "; ".join(sorted({f"graphrl {found.graphrl}, jax {found.jax}" for found in used}))
    dates = sorted({found.date[:10] for found in used})
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    failed = [f"- failed: {' '.join(map(str, found.key.values()))}: {found.error}" for found in used if found.error]
    told = "".join(f"{line}\n" for line in dict.fromkeys(failed))
    return f"{told}\n`{command}`; seed 0; {machines}; {versions}; {when}\n"


def _text(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)


def _read(path: Path) -> list[Measurement]:
    """The whole lines of a file; what a kill cut short is taken off it.

    Raises:
      GraphrlError: the file holds something else.
    """
    data = path.read_bytes() if path.exists() else b""
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        os.truncate(path, len(whole))
    try:
        return [Measurement(**json.loads(line)) for line in whole.splitlines()]
    except (ValueError, TypeError) as error:
        raise GraphrlError(f"{path}: it holds no measurements: {error}") from None
