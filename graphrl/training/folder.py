"""The folder of a run: its lock, and the record `metrics.jsonl`.

One process has the folder at a time, and a run that never began leaves it as it was. The record is a JSON object a
line: `{"step": 12, "seconds": 3.4, "bucket": 96, "loss": ...}` for an update and `{"step": 25, "validation": {...}}`
for an evaluation on the held-out graphs. Where tensorboardX is installed, the same is written for TensorBoard.
"""

import contextlib
import fcntl
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from graphrl.errors import GraphrlError, MissingExtraError, ProblemError, require
from graphrl.files import make_folder, shown
from graphrl.training import devices
from graphrl.training.checkpoints import Checkpoints

if TYPE_CHECKING:
    from io import FileIO

    from tensorboardX import SummaryWriter


FILE, BOARD = "metrics.jsonl", "tensorboard"


class MetricsLog:
    """Appends; a line is in the operating system's hands when the call returns, so that kill -9 loses none."""

    def __init__(self, file: "FileIO", board: "SummaryWriter | None") -> None:
        self._file, self._board = file, board

    def update(self, step: int, seconds: float, bucket: int, values: Mapping[str, float]) -> None:
        """Records an update.

        Args:
          step: from 1.
          seconds: of training until then.
          bucket: padded ops of its graphs.
          values: finite.
        """
        self._append({"step": step, "seconds": round(seconds, 3), "bucket": bucket, **values})
        self._show("train", step, values)

    def validation(self, step: int, values: Mapping[str, float]) -> None:
        """Records means over the held-out graphs."""
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
    """The record of a run's folder for the length of a `with`.

    Args:
      folder: of the run.
      after: step of the checkpoint that the run goes on from: later lines and points are cut; None starts anew.

    Raises:
      GraphrlError: the files cannot be written.
    """
    try:
        with open(folder / FILE, "a+b", buffering=0) as file:
            _cut(file, after)
            with _board(folder, None if after is None else after + 1) as board:
                yield MetricsLog(file, board)
    except OSError as error:
        raise GraphrlError(f"cannot write into {shown(folder)}: {error.strerror or error}") from None


def _board(folder: Path, purge: int | None) -> "contextlib.AbstractContextManager[SummaryWriter | None]":
    """The writer for TensorBoard; None, and a line on standard error, where tensorboardX is not installed."""
    try:
        writer = require("tensorboardX", "tensorboard", "the record for TensorBoard").SummaryWriter
    except MissingExtraError as error:
        print(f"graphrl: {error} (this run does without)", file=sys.stderr, flush=True)
        return contextlib.nullcontext()
    return writer(str(folder / BOARD), purge_step=purge, flush_secs=10)


def read_metrics(folder: str | os.PathLike[str]) -> list[dict[str, object]]:
    """The lines of a run's `metrics.jsonl`, for plots."""
    with open(Path(folder) / FILE, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _cut(file: "FileIO", after: int | None) -> None:
    """Removes what is later than the checkpoint, a line that was cut short too."""
    file.seek(0)
    whole = 0
    for line in file.readall().splitlines(keepends=True):
        try:
            if after is None or json.loads(line)["step"] > after:
                break
        except (ValueError, KeyError, TypeError):
            break
        whole += len(line)
    file.truncate(whole)


SETTINGS, _LOCK = "run.json", ".lock"


def has_run(folder: Path) -> bool:
    """Whether a run was started there."""
    return (folder / SETTINGS).is_file()


@contextlib.contextmanager
def owned(folder: Path, resume: bool) -> Iterator[None]:
    """The folder of a run for this process alone (of several processes, for the first), made if there is none.

    A new run that ends by an error before its first checkpoint, as with settings that are refused late, takes away what
    it has written: the next try finds no run to go on with.

    Raises:
      ProblemError: the folder holds a run and `resume` is false.
      GraphrlError: it cannot be made or written to, or another process has it.
    """
    if not devices.is_main():
        yield
        return
    ours = [path for path in _written(folder) if not os.path.lexists(path)]
    make_folder(folder)
    lock = _locked(folder)
    try:
        new = not has_run(folder)
        if not new and not resume:
            raise ProblemError(f"{shown(folder)} holds a run: go on with it (--resume), or name another --out")
        try:
            yield
        except BaseException:
            if new and Checkpoints(folder, 1).latest() is None:
                _clear(folder, ours)
            raise
    finally:
        os.close(lock)


def _written(folder: Path) -> list[Path]:
    """What a run makes before its first checkpoint: files, folders, and around them the folders on the way."""
    inside = [folder / name for name in (SETTINGS, FILE, _LOCK, BOARD)]
    return [*inside, folder, *folder.parents]


def _locked(folder: Path) -> int:
    """The descriptor of the folder's lock, held."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise GraphrlError(f"cannot write into {shown(folder)}: {error.strerror or error}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise GraphrlError(f"{shown(folder)}: another process trains there now: name another --out") from None
    return lock


def _clear(folder: Path, ours: list[Path]) -> None:
    """Removes these, innermost first; folders only where nobody else has put anything."""
    with contextlib.suppress(OSError):  # the error that led here says more than one of clearing up
        for path in ours:
            if path == folder / BOARD:
                shutil.rmtree(path, ignore_errors=True)
            elif path.is_dir():
                path.rmdir()
            else:
                path.unlink(missing_ok=True)
