"""Comparison of methods with its results in a file: runs that are not in the file are executed and added to it.

The file has one JSON object a line, so a comparison that was killed can be resumed. `Store` is also used for other
measurements. A row is appended by one write of one line, and is on disk when `append` returns: a kill at any moment
loses at most the row being written. A truncated last line is dropped when the file is opened again.
"""

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from io import FileIO
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from graphrl.compare.cluster import execute_all
from graphrl.compare.runs import FORMAT, Row, Run
from graphrl.errors import GraphrlError
from graphrl.files import quote_path


class Entry(Protocol):
    """An entry of a store, one line of its file."""

    def to_dict(self) -> dict[str, Any]: ...


T = TypeVar("T", bound=Entry)


class Kind(NamedTuple, Generic[T]):
    """A type of entries: how a store reads and identifies them.

    Attributes:
      read: function that converts the JSON value of a line to an entry; raises GraphrlError if it is not one.
      key: function that returns an entry's key; of entries with equal keys the last one counts.
      prefix: first bytes of every line.
    """

    read: Callable[[object], T]
    key: Callable[[T], str]
    prefix: bytes


RUNS = Kind(Row.from_dict, lambda row: row.key, f'{{"format": "{FORMAT}"'.encode())


class Store(Generic[T]):
    """The entries of a file, to which more can be appended.

    Attributes:
      rows: all entries by key.
    """

    def __init__(self, file: FileIO, kind: Kind[T], rows: dict[str, T]) -> None:
        self._file, self._kind = file, kind
        self.rows = rows

    def append(self, row: T) -> None:
        """Appends an entry to the file.

        Raises:
          OSError: the file cannot be written, for example because the disk is full.
        """
        line = memoryview(json.dumps(row.to_dict(), allow_nan=False).encode() + b"\n")
        while line:
            line = line[self._file.write(line) :]
        self.rows[self._kind.key(row)] = row  # before the slow part, in which Ctrl-C is most likely
        os.fsync(self._file.fileno())


@contextlib.contextmanager
def open_store(path: str | os.PathLike[str], kind: Kind[T]) -> Iterator[Store[T]]:
    """Context manager that opens the store of a file, created if missing; only one process at a time can open it.

    Raises:
      GraphrlError: one line, if the file cannot be read or written, contains anything of another kind, or is open
      elsewhere.
    """
    try:
        file = _opened(path)
    except (OSError, ValueError) as error:
        raise GraphrlError(f"cannot write {quote_path(path)}: {getattr(error, 'strerror', None) or error}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise GraphrlError(f"{quote_path(path)}: another comparison writes to it: choose another file") from None
        file.seek(0)
        data = file.read()
        rows, whole = _parse(data, quote_path(path), kind)
        if whole < len(data):
            file.truncate(whole)
        elif data and not data.endswith(b"\n"):
            file.write(b"\n")
        yield Store(file, kind, rows)


def _opened(path: str | os.PathLike[str]) -> FileIO:
    if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(None, "must be a regular file, from which runs are read and to which they are appended")
    return open(path, "a+b", buffering=0)


def _parse(data: bytes, source: str, kind: Kind[T]) -> tuple[dict[str, T], int]:
    """Parses a file's content: returns the entries by key, and the number of bytes up to the last whole line."""
    rows: dict[str, T] = {}
    lines = data.split(b"\n")
    whole = 0
    for number, line in enumerate(lines, start=1):
        last = number == len(lines)
        if line.strip():
            try:
                row = kind.read(json.loads(line))
            except ValueError as error:
                if last and kind.prefix.startswith(line[: len(kind.prefix)]):
                    break
                fault = str(error) if isinstance(error, GraphrlError) else "it is no JSON"
                raise GraphrlError(f"{source}, line {number}: {fault}") from None
            rows[kind.key(row)] = row
        whole += len(line) + (not last)
    return rows, whole


class Comparison(NamedTuple):
    """Result of a comparison.

    Attributes:
      rows: rows of the requested runs, in their order.
      others: all other rows of the file: they may have better values of the same graphs.
      new: number of `rows` that this call executed.
      interrupted: True if Ctrl-C ended the comparison; then some of `rows` are missing.
    """

    rows: list[Row]
    others: list[Row]
    new: int
    interrupted: bool


Watch = Callable[[Sequence[Run]], contextlib.AbstractContextManager[Callable[[Row], None]]]


def _no_watch(runs: Sequence[Run]) -> contextlib.AbstractContextManager[Callable[[Row], None]]:
    return contextlib.nullcontext(lambda row: None)


def compare(
    runs: Sequence[Run],
    path: str | os.PathLike[str] | None = None,
    *,
    processes: int = 1,
    cluster: str | None = None,
    retry: bool = False,
    watch: Watch = _no_watch,
    prepare: Callable[[], object] | None = None,
) -> Comparison:
    """Executes the runs that are not in the file yet.

    Args:
      runs: from `make_runs`; with several processes their `cores` should be `cluster.share(processes)`.
      path: path of the file with the rows, or None to store them nowhere.
      processes, cluster, prepare: see `execute_all`.
      retry: True to repeat runs that failed before.
      watch: context manager, called with the runs to execute; the function that it gives is called with every row.

    Raises:
      GraphrlError: the file or the cluster cannot be used.
      ProblemError: there are fewer cores than processes.
    """
    with contextlib.ExitStack() as stack:
        store = None if path is None else stack.enter_context(open_store(path, RUNS))
        stored = {} if store is None else store.rows
        missing = [run for run in runs if run.key not in stored or (retry and stored[run.key].error is not None)]
        count, interrupted = 0, False
        new = execute_all(missing, processes, cluster=cluster, prepare=prepare)
        try:
            with contextlib.closing(new), watch(missing) as show:
                for row in new:
                    if store is None:
                        stored[row.key] = row
                    else:
                        store.append(row)
                    count += 1
                    show(row)
        except KeyboardInterrupt:
            interrupted = True
    keys = dict.fromkeys(run.key for run in runs)
    rows = [stored[key] for key in keys if key in stored]
    return Comparison(rows, [row for key, row in stored.items() if key not in keys], count, interrupted)
