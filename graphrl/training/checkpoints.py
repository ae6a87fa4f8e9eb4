"""Checkpoints of a run: one folder each, complete or absent, even if the process is killed.

`RUN/step-00000120/state` is orbax's: the learner's state as a folder of NumPy arrays, written and read by this process
alone. `checkpoint.json` next to it has everything else. Both are written under a temporary name that is then
exchanged for the right one. `RUN/best` is a link to the best checkpoint by validation. A broken checkpoint is set
aside, as `RUN/broken-step-00000120`.
"""

import contextlib
import dataclasses
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.errors import GraphrlError
from graphrl.files import BrokenError, read_document, shown, write_document
from graphrl.process import installed_version

_LATE = "Event loop is closed"


def save(path: Path, state: Any) -> None:
    """Writes a pytree of NumPy arrays into a new folder.

    Raises:
      OSError: it cannot be written.
    """
    try:
        with _orbax() as checkpointer:
            checkpointer.save(str(path.absolute()), state)
    except ValueError as error:
        # tensorstore's, of a full disk: "...: Failed writing ...: No space left on device [os_error_code='28']"
        reason = " ".join(str(error).split()).partition(" [os_error_code")[0].rpartition(": ")[2]
        raise OSError(None, reason[:300]) from None


def restore(path: Path) -> Any:
    """The pytree of a folder: NumPy arrays in nested dicts (of NamedTuples and dataclasses too) and lists.

    Raises:
      ValueError: the folder, or a file in it, is missing or broken; one line.
    """
    usual = sys.unraisablehook

    def without_late(unraisable: "sys.UnraisableHookArgs") -> None:
        # After the first broken array tensorstore's threads say of the others that orbax no longer listens.
        if str(unraisable.exc_value) != _LATE:
            usual(unraisable)

    sys.unraisablehook = without_late
    try:
        with _orbax() as checkpointer:
            state = checkpointer.restore(str(path.absolute()))
    except (OSError, ValueError, KeyError) as error:  # the hook stays: the late ones are still to come
        raise ValueError(" ".join(str(error).split()).partition(" [tensorstore_spec=")[0][:300]) from None
    except BaseException:
        sys.unraisablehook = usual
        raise
    sys.unraisablehook = usual
    if not state:
        raise ValueError("it has no arrays")
    return state


@contextlib.contextmanager
def _orbax() -> Iterator[Any]:
    """Orbax for this process alone: of several processes the first one writes, and each reads for itself."""
    import orbax.checkpoint as ocp

    log = logging.getLogger("absl")
    level = log.level
    # Orbax warns that there is no OCDBT to merge, whether it was asked for or not, and logs the errors that it raises.
    log.setLevel(logging.CRITICAL)
    me = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(primary_host=me, active_processes={me})
    # one file an array: OCDBT, made for thousands of them, takes twice as long for ours
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False, multiprocessing_options=alone)
    checkpointer = ocp.Checkpointer(handler, multiprocessing_options=alone)
    try:
        yield checkpointer
    finally:
        checkpointer.close()
        log.setLevel(level)


FORMAT, VERSION = "graphrl-checkpoint", 1
INFO, STATE, BEST = "checkpoint.json", "state", "best"
_PREFIX = "step-"

Values = dict[str, int | float]  # metrics by name; a "step" among them is whole


@dataclasses.dataclass(frozen=True)
class Info:
    """What a checkpoint says beside the learner's state.

    Attributes:
      agent: name of the agent.
      step: updates that the state has had.
      config: of the run (`config.as_dict`).
      key: data of the key that all others of the run come from, and `key_impl`, its kind.
      seconds: of training so far, interruptions not counted.
      metrics: of the last update.
      validation: means on the held-out graphs of every look at them, each with its "step".
      score: of the last validation, if it was after this very step.
      versions: of graphrl, its git commit (None outside a repository) and jax.
    """

    agent: str
    step: int
    config: dict[str, Any]
    key: list[int]
    key_impl: str
    seconds: float
    metrics: Values
    validation: list[Values]
    score: float | None
    versions: dict[str, str | None] = dataclasses.field(default_factory=lambda: versions())

    @property
    def root(self) -> jax.Array:
        """The key that all others of the run come from.

        Raises:
          BrokenError: it is none.
        """
        try:
            return jax.random.wrap_key_data(jnp.asarray(np.array(self.key, np.uint32)), impl=self.key_impl)
        except (TypeError, ValueError, OverflowError):
            raise BrokenError(f"the checkpoint of step {self.step} is broken: {str(self.key)[:60]} is no key") from None


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read.

    Attributes:
      path: its folder.
      info: see `Info`.
      state: the learner's state, NumPy arrays; nested dicts and lists where it was read without a template.
    """

    path: Path
    info: Info
    state: Any


class Checkpoints:
    """The checkpoints of a run's folder: the last `keep`, and the best."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder, self._keep = folder, keep

    def save(self, info: Info, state: Any) -> Path:
        """Writes a checkpoint, unless the step has one; then removes those that are no longer kept.

        Raises:
          GraphrlError: it cannot be written; those before are untouched.
        """
        path = self._folder / f"{_PREFIX}{info.step:08d}"
        if not path.exists():
            temporary = _temporary(path)
            try:
                _write(temporary, info, state)
                os.rename(temporary, path)
            except BaseException as error:
                shutil.rmtree(temporary, ignore_errors=True)  # the disk may be full
                if isinstance(error, OSError):
                    raise GraphrlError(f"cannot write {shown(path)}: {error.strerror or error}") from None
                raise
        self.clean()
        return path

    def last_whole(self, like: Any) -> tuple[Checkpoint | None, dict[Path, BrokenError]]:
        """The last checkpoint that can be read (see `read`), None if there is none at all; and what is wrong with those
        after it, the last first.

        Raises:
          GraphrlError: all are broken, or the last whole one is not like `like`.
        """
        broken: dict[Path, BrokenError] = {}
        for path in reversed(_folders(self._folder)):
            try:
                checkpoint = read(path, like)
                checkpoint.info.root  # noqa: B018 (whether it is a key)
                return checkpoint, broken
            except BrokenError as error:
                broken[path] = error
        if broken:
            raise next(iter(broken.values()))
        return None, broken

    def set_aside(self, path: Path) -> None:
        """Takes a broken checkpoint out of the way of the one that will be written in its place."""
        aside = path.with_name(f"broken-{path.name}")
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(path, aside)

    def latest(self) -> Path | None:
        """The folder of the last checkpoint."""
        return next(reversed(_folders(self._folder)), None)

    def clean(self) -> None:
        """Removes what is no longer kept, or was left by a process that was killed, and has `best` link to the best."""
        paths = _folders(self._folder)
        scores = {}
        for path in paths:
            with contextlib.suppress(BrokenError):  # it will go in its turn
                scores[path] = read_info(path).score
        scored = {path: score for path, score in scores.items() if score is not None}
        best = max(scored, key=lambda path: (scored[path], path.name), default=None)
        if best is not None:
            link = self._folder / f".{BEST}.tmp"
            link.unlink(missing_ok=True)
            link.symlink_to(best.name)
            os.replace(link, self._folder / BEST)
        for path in paths[: -self._keep]:
            if path != best:
                os.rename(path, _temporary(path))  # first: half a checkpoint must not look like one
        for path in self._folder.glob(f".{_PREFIX}*.tmp"):  # also those that a killed process left
            shutil.rmtree(path, ignore_errors=True)


def read_info(path: Path) -> Info:
    """What the checkpoint of a folder says.

    Raises:
      GraphrlError: the folder is no checkpoint, or of another version.
    """
    return read_document(path / INFO, Info, FORMAT, VERSION)


def find(path: str | os.PathLike[str]) -> Path:
    """The folder of a checkpoint: `path` itself, or the best (else the last) one of a run's folder.

    Raises:
      GraphrlError: there is none.
    """
    folder = Path(path)
    if (folder / INFO).is_file():
        return folder.parent / os.readlink(folder) if folder.is_symlink() else folder
    if (folder / BEST / INFO).is_file():
        return folder / os.readlink(folder / BEST)
    latest = Checkpoints(folder, 1).latest() if folder.is_dir() else None
    if latest is None:
        raise GraphrlError(f"{shown(path)}: no checkpoint: name the folder of one, or of a run of `graphrl train`")
    return latest


def read(path: str | os.PathLike[str], like: Any = None) -> Checkpoint:
    """Reads a checkpoint of `find`, on any number of devices.

    Args:
      path: see `find`.
      like: a state of the same structure, shapes and types, which the state then has; None gives nested dicts (of
        NamedTuples and dataclasses too) and lists.

    Raises:
      GraphrlError: there is none, or the state is not like `like`; a `BrokenError` if it is broken.
    """
    folder = find(path)
    info = read_info(folder)
    try:
        state = restore(folder / STATE)
    except ValueError as error:
        raise BrokenError(f"{shown(folder)}: the checkpoint is broken: {error}") from None
    return Checkpoint(folder, info, state if like is None else _as_structure(state, like, folder))


def _as_structure(state: Any, like: Any, folder: Path) -> Any:
    """The leaves of what orbax read, in the structure of `like`: both flattened to the same names."""
    by_name = {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}
    like_leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    leaves = []
    for path, leaf in like_leaves:
        array = by_name.pop(_name(path), None)
        if array is None or np.shape(array) != np.shape(leaf) or np.asarray(array).dtype != leaf.dtype:
            has = "nothing" if array is None else f"{np.asarray(array).dtype} {np.shape(array)}"
            raise GraphrlError(
                f"{shown(folder)} does not fit its settings: {'.'.join(_name(path))} is {has}, "
                f"must be {leaf.dtype} {np.shape(leaf)}"
            )
        leaves.append(array)
    if by_name:
        raise GraphrlError(f"{shown(folder)} does not fit its settings: {'.'.join(next(iter(by_name)))} is unknown")
    return jax.tree.unflatten(structure, leaves)


def _name(path: tuple[Any, ...]) -> tuple[str, ...]:
    """The place of a leaf, alike for attributes, keys and indices."""
    return tuple(str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", key)))) for key in path)


def versions() -> dict[str, str | None]:
    """Of graphrl, its git commit and jax."""
    commit = None
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["git", "rev-parse", "HEAD"]
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=5, check=True)
        commit = done.stdout.strip()
    return {"graphrl": installed_version(), "commit": commit, "jax": jax.__version__}


def _folders(folder: Path) -> list[Path]:
    """The whole checkpoints of a run, in the order of their steps."""
    return sorted(path for path in folder.glob(f"{_PREFIX}*") if (path / INFO).is_file())


def _temporary(path: Path) -> Path:
    """What a checkpoint is called while it is written or removed."""
    return path.with_name(f".{path.name}.tmp")


def _write(folder: Path, info: Info, state: Any) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    save(folder / STATE, state)
    write_document(folder / INFO, info, FORMAT, VERSION)
