"""Checkpoints of a run: a folder each, there whole or not at all, whatever kills the process.

`RUN/step-00000120/state` is orbax's (the learner's state, NumPy arrays), `checkpoint.json` beside it holds everything
else. Both are written under a temporary name that is then exchanged for the right one. `RUN/best` is a link to the
best one by validation.
"""

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jax
import numpy as np

from graphrl.errors import GraphrlError
from graphrl.files import content, shown, write_atomically
from graphrl.training import states

FORMAT, VERSION = "graphrl-checkpoint", 1
INFO, STATE, BEST = "checkpoint.json", "state", "best"
_PREFIX = "step-"


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
    metrics: dict[str, float]
    validation: list[dict[str, float]]
    score: float | None
    versions: dict[str, str | None] = dataclasses.field(default_factory=lambda: versions())


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
            try:
                _write(path, info, state)
            except OSError as error:
                raise GraphrlError(f"cannot write {shown(path)}: {error.strerror or error}") from None
        self._clean()
        return path

    def latest(self) -> Path | None:
        """The folder of the last checkpoint."""
        return next(reversed(_folders(self._folder)), None)

    def _clean(self) -> None:
        paths = _folders(self._folder)
        scores = {path: score for path in paths if (score := read_info(path).score) is not None}
        best = max(scores, key=lambda path: (scores[path], path.name), default=None)
        if best is not None:
            link = self._folder / f".{BEST}.tmp"
            link.unlink(missing_ok=True)
            link.symlink_to(best.name)
            os.replace(link, self._folder / BEST)
        for path in paths[: -self._keep]:
            if path != best:
                doomed = path.with_name(f".{path.name}.tmp")  # renamed first: half a checkpoint must not look like one
                os.rename(path, doomed)
                shutil.rmtree(doomed, ignore_errors=True)


def read_info(path: Path) -> Info:
    """What the checkpoint of a folder says.

    Raises:
      GraphrlError: the folder is no checkpoint, or of another version.
    """
    with content(path / INFO) as data:
        text = bytes(data)
    try:
        value = json.loads(text)
        form, version = value.pop("format"), value.pop("version")
        if (form, version) != (FORMAT, VERSION):
            raise GraphrlError(f"{shown(path / INFO)} is {form} version {version}: must be {FORMAT} version {VERSION}")
        return Info(**value)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, GraphrlError):
            raise
        raise GraphrlError(f"{shown(path / INFO)}: is no checkpoint: {error}") from None


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
    found = Checkpoints(folder, 1).latest() if folder.is_dir() else None
    if found is None:
        raise GraphrlError(f"{shown(path)}: no checkpoint: name the folder of one, or of a run of `graphrl train`")
    return found


def read(path: str | os.PathLike[str], like: Any = None) -> Checkpoint:
    """Reads a checkpoint of `find`, on any number of devices.

    Args:
      path: see `find`.
      like: a state of the same structure, shapes and types, which the state then has; None gives nested dicts (of
        NamedTuples and dataclasses too) and lists.

    Raises:
      GraphrlError: there is none, it is broken, or the state is not like `like`.
    """
    folder = find(path)
    info = read_info(folder)
    try:
        state = states.restore(folder / STATE)
    except ValueError as error:
        raise GraphrlError(f"{shown(folder)}: the checkpoint is broken: {error}") from None
    return Checkpoint(folder, info, state if like is None else _as_structure(state, like, folder))


def _as_structure(state: Any, like: Any, folder: Path) -> Any:
    """The leaves of what orbax read, in the structure of `like`: both flattened to the same names."""
    found = {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}
    wanted, structure = jax.tree_util.tree_flatten_with_path(like)
    leaves = []
    for path, leaf in wanted:
        got = found.pop(_name(path), None)
        if got is None or np.shape(got) != np.shape(leaf) or np.asarray(got).dtype != leaf.dtype:
            has = "nothing" if got is None else f"{np.asarray(got).dtype} {np.shape(got)}"
            raise GraphrlError(
                f"{shown(folder)} does not fit its settings: {'.'.join(_name(path))} is {has}, "
                f"must be {leaf.dtype} {np.shape(leaf)}"
            )
        leaves.append(got)
    if found:
        raise GraphrlError(f"{shown(folder)} does not fit its settings: {'.'.join(next(iter(found)))} is unknown")
    return jax.tree.unflatten(structure, leaves)


def _name(path: tuple[Any, ...]) -> tuple[str, ...]:
    """The place of a leaf, alike for attributes, keys and indices."""
    return tuple(str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", key)))) for key in path)


def versions() -> dict[str, str | None]:
    """Of graphrl, its git commit and jax."""
    try:
        package: str | None = importlib.metadata.version("graphrl")
    except importlib.metadata.PackageNotFoundError:
        package = None
    commit = None
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["git", "rev-parse", "HEAD"]
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=5, check=True)
        commit = done.stdout.strip()
    return {"graphrl": package, "commit": commit, "jax": jax.__version__}


def _folders(folder: Path) -> list[Path]:
    """The whole checkpoints of a run, in the order of their steps."""
    return sorted(path for path in folder.glob(f"{_PREFIX}*") if (path / INFO).is_file())


def _write(path: Path, info: Info, state: Any) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    states.save(temporary / STATE, state)
    value = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(info)}
    write_atomically(temporary / INFO, lambda file: json.dump(value, file, indent=1))
    os.rename(temporary, path)
