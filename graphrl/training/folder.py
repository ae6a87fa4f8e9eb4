"""The folder of a run: one process has it at a time, and a run that never began leaves it as it was."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from graphrl.errors import GraphrlError, ProblemError
from graphrl.files import make_folder, shown
from graphrl.training import devices, metrics
from graphrl.training.checkpoints import Checkpoints

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
    inside = [folder / name for name in (SETTINGS, metrics.FILE, _LOCK, metrics.BOARD)]
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
            if path == folder / metrics.BOARD:
                shutil.rmtree(path, ignore_errors=True)
            elif path.is_dir():
                path.rmdir()
            else:
                path.unlink(missing_ok=True)
