"""The folder of a run: its lock, its settings in `run.json`, and its metrics in `metrics.jsonl`.

One process owns the folder at a time, and a run that fails before its first checkpoint restores it. The metrics are one
JSON object per line: `{"step": 12, "seconds": 3.4, "bucket": 96, "loss": ...}` for an update, and for a validation on
the held-out graphs `{"step": 25, "validation": {...}}`. If tensorboardX is installed, the same values are written for
TensorBoard.
"""

import contextlib
import dataclasses
import fcntl
import functools
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphrl.errors import GraphrlError, MissingExtraError, ProblemError, require
from graphrl.files import content, make_folder, quote_path, read_document, write_document
from graphrl.training import devices
from graphrl.training.checkpoints import RENAMED_FOR, Checkpoints, current_metrics
from graphrl.training.config import current_names

if TYPE_CHECKING:
    from io import FileIO

    from tensorboardX import SummaryWriter


FILE, BOARD = "metrics.jsonl", "tensorboard"


class MetricsLog:
    """Appends metrics without buffering: the operating system has each line when the call returns, so that kill -9
    loses none.
    """

    def __init__(self, file: "FileIO", board: "SummaryWriter | None") -> None:
        self._file, self._board = file, board

    def update(self, step: int, seconds: float, bucket: int, values: Mapping[str, float]) -> None:
        """Records an update.

        Args:
          step: number of the update, from 1.
          seconds: training time so far.
          bucket: padded number of ops of the update's graphs.
          values: metrics by name, all finite.
        """
        self._append({"step": step, "seconds": round(seconds, 3), "bucket": bucket, **values})
        self._show("train", step, values)

    def validation(self, step: int, values: Mapping[str, float]) -> None:
        """Records a validation: means of metrics over the held-out graphs."""
        self._append({"step": step, "validation": dict(values)})
        self._show("validation", step, values)
        if self._board is not None:
            self._board.flush()

    def _append(self, value: Mapping[str, object]) -> None:
        line = memoryview(json.dumps(value, allow_nan=False).encode() + b"\n")
        while line:
            line = line[self._file.write(line) :]

    def _show(self, group: str, step: int, values: Mapping[str, float]) -> None:
        if self._board is None:
            return
        for name, value in values.items():
            self._board.add_scalar(f"{group}/{name}", value, step)


@contextlib.contextmanager
def metrics_log(folder: Path, after: int | None) -> Iterator[MetricsLog]:
    """Opens the metrics of a run's folder, as a context manager.

    Args:
      folder: folder of the run.
      after: step of the checkpoint from which the run continues: lines (and TensorBoard's points) of later steps are
        removed; None starts from an empty file.

    Raises:
      GraphrlError: the files cannot be written.
    """
    try:
        with open(folder / FILE, "a+b", buffering=0) as file:
            _truncate(file, after)
            with _board(folder, None if after is None else after + 1) as board:
                yield MetricsLog(file, board)
    except OSError as error:
        raise GraphrlError(f"cannot write into {quote_path(folder)}: {error.strerror or error}") from None


def _board(folder: Path, purge: int | None) -> "contextlib.AbstractContextManager[SummaryWriter | None]":
    """Opens the writer for TensorBoard; None, and a line on standard error, if tensorboardX is not installed."""
    try:
        writer = require("tensorboardX", "tensorboard", "the record for TensorBoard").SummaryWriter
    except MissingExtraError as error:
        _print_once(f"graphrl: {error} (this run does not write it)")
        return contextlib.nullcontext()
    return writer(str(folder / BOARD), purge_step=purge, flush_secs=10)


@functools.cache  # once for all runs of a sweep
def _print_once(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def read_metrics(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Reads a run's `metrics.jsonl`, one dict per line, for plots; metrics have their new names.

    An incomplete last line, of a run that was killed or still writes, is left out.

    Raises:
      GraphrlError: the file cannot be read.
    """
    settings = Path(folder) / SETTINGS
    # another package's agent may have a metric of an old name
    is_own = settings.is_file() and read_document(settings, RunSettings, FORMAT, VERSION).agent not in RENAMED_FOR
    lines = []
    with content(Path(folder) / FILE) as data:
        for line in bytes(data).splitlines():
            try:
                lines.append(json.loads(line, object_hook=None if is_own else current_metrics))
            except ValueError:
                break
    return lines


def _truncate(file: "FileIO", after: int | None) -> None:
    """Removes lines of steps after `after`, and an incomplete last line; removes all lines if `after` is None."""
    file.seek(0)
    length = 0
    for line in file.readall().splitlines(keepends=True):
        try:
            if after is None or json.loads(line)["step"] > after:
                break
        except (ValueError, KeyError, TypeError):
            break
        length += len(line)
    file.truncate(length)


SETTINGS, _LOCK = "run.json", ".lock"
FORMAT, VERSION = "graphrl-training", 1


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """Contents of `run.json`: the agent's name, every setting (`config.as_dict`), and the name of the held-out metric
    that selects the best checkpoint ("" in runs of version 0.2.0), and its unit ("" without one).
    """

    agent: str
    config: dict[str, Any]
    score: str = ""
    unit: str = ""

    @property
    def score_title(self) -> str:
        """The name of the score, with its unit in brackets: "greedy (%)"."""
        return f"{self.score} ({self.unit})" if self.unit else self.score


def read_settings(folder: Path) -> RunSettings:
    """Reads the settings with which the folder's run was started; they have their new names.

    Raises:
      GraphrlError: the folder has no readable `run.json`.
    """
    settings = read_document(folder / SETTINGS, RunSettings, FORMAT, VERSION)
    return dataclasses.replace(settings, config=current_names(settings.config, quote_path(folder / SETTINGS)))


def write_settings(folder: Path, settings: RunSettings) -> None:
    """Writes the settings of a run, atomically.

    Raises:
      GraphrlError: the file cannot be written.
    """
    write_document(folder / SETTINGS, settings, FORMAT, VERSION)


def has_run(folder: Path) -> bool:
    """True if a run was started in the folder."""
    return (folder / SETTINGS).is_file()


@contextlib.contextmanager
def locked_folder(folder: Path, resume: bool) -> Iterator[None]:
    """Locks the folder of a run for this process (with several processes, for the first), and creates it if necessary.

    If a new run fails before its first checkpoint, for example by settings that are rejected late, the files that it
    wrote are removed: the next attempt finds no run to continue.

    Raises:
      ProblemError: the folder contains a run and `resume` is false.
      GraphrlError: the folder cannot be created or written to, or another process has locked it.
    """
    if not devices.is_main():
        yield
        return
    created = [path for path in _run_paths(folder) if not os.path.lexists(path)]
    make_folder(folder)
    lock = _acquire_lock(folder)
    try:
        new = not has_run(folder)
        if not new and not resume:
            raise ProblemError(f"{quote_path(folder)} has a run: continue it (--resume), or choose another --out")
        try:
            yield
        except BaseException:
            if new and Checkpoints(folder, 1).latest() is None:
                _clear(folder, created)
            raise
    finally:
        os.close(lock)


def _run_paths(folder: Path) -> list[Path]:
    """Lists the paths that a run may create before its first checkpoint, innermost first, with its folder's parents."""
    inside = [folder / name for name in (SETTINGS, FILE, _LOCK, BOARD)]
    return [*inside, folder, *folder.parents]


def _acquire_lock(folder: Path) -> int:
    """Acquires the folder's lock and returns its file descriptor."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise GraphrlError(f"cannot write into {quote_path(folder)}: {error.strerror or error}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise GraphrlError(f"{quote_path(folder)}: another process is training there: choose another --out") from None
    return lock


def _clear(folder: Path, created: list[Path]) -> None:
    """Removes these paths, innermost first; folders only if they are empty."""
    with contextlib.suppress(OSError):  # the original error is more useful than one of the cleanup
        for path in created:
            if path == folder / BOARD:
                shutil.rmtree(path, ignore_errors=True)
            elif path.is_dir():
                path.rmdir()
            else:
                path.unlink(missing_ok=True)
