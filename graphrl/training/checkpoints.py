"""Checkpoints of a run: one folder each, complete or absent, even if the process is killed.

`RUN/step-00000120/state` is orbax's: the learner's state as a folder of NumPy arrays, which each process writes and
reads alone. `checkpoint.json` next to it contains everything else. Both are written into a folder with a temporary
name, which is then renamed. `RUN/best` is a link to the checkpoint with the best validation score. A broken checkpoint
is renamed to `RUN/broken-step-00000120`.
"""

import contextlib
import dataclasses
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.errors import GraphrlError
from graphrl.files import BrokenError, quote_path, read_document, write_document
from graphrl.process import installed_version
from graphrl.training.config import renamed

_LOOP_CLOSED = "Event loop is closed"


def save(path: Path, state: Any) -> None:
    """Writes a pytree of NumPy arrays to a new folder `path`.

    Raises:
      OSError: the folder cannot be written.
    """
    try:
        with _orbax() as checkpointer:
            checkpointer.save(str(path.absolute()), state)
    except ValueError as error:
        # tensorstore's error for a full disk: "...: Failed writing ...: No space left on device [os_error_code='28']"
        reason = " ".join(str(error).split()).partition(" [os_error_code")[0].rpartition(": ")[2]
        raise OSError(None, reason[:300]) from None


def restore(path: Path) -> Any:
    """Reads the pytree of a folder: NumPy arrays in nested dicts (also for NamedTuples and dataclasses) and lists.

    Raises:
      ValueError: the folder, or a file in it, is missing or broken; one line.
    """
    hook = sys.unraisablehook

    def ignore_closed_loop(unraisable: "sys.UnraisableHookArgs") -> None:
        # After the first broken array, tensorstore's threads report for each of the others that orbax's loop is closed.
        if str(unraisable.exc_value) != _LOOP_CLOSED:
            hook(unraisable)

    sys.unraisablehook = ignore_closed_loop
    try:
        with _orbax() as checkpointer:
            state = checkpointer.restore(str(path.absolute()))
    except (OSError, ValueError, KeyError) as error:  # keep the hook: late errors can still arrive
        raise ValueError(" ".join(str(error).split()).partition(" [tensorstore_spec=")[0][:300]) from None
    except BaseException:
        sys.unraisablehook = hook
        raise
    sys.unraisablehook = hook
    if not state:
        raise ValueError("it has no arrays")
    return state


@contextlib.contextmanager
def _orbax() -> Iterator[Any]:
    """Yields an orbax checkpointer for this process alone: each process reads for itself, and the first one writes."""
    import orbax.checkpoint as ocp

    log = logging.getLogger("absl")
    level = log.level
    # Orbax warns about a missing OCDBT merge even when OCDBT is off, and logs the errors that it raises.
    log.setLevel(logging.CRITICAL)
    me = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(primary_host=me, active_processes={me})
    # one file per array: OCDBT, designed for thousands of arrays, takes twice as long for ours
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

Values = dict[str, int | float]  # metrics by name; a "step" among them is an integer
T = TypeVar("T")

RENAMED_FOR = frozenset({"egrl", "gdp", "go", "regal", "regal-hint", "topoformer"})  # agents of version 0.2
# old -> new names of their metrics, which are still read
RENAMED_METRICS = {
    "alone": "policy",
    "by_chance": "random",
    "clipped": "clip_fraction",
    "critic_error": "critic_loss",
    "divergence": "approx_kl",
    "evaluations": "env_steps",
    "gradient_norm": "grad_norm",
    "matched": "not_worse",
    "reward": "return",
    "value": "q_value",
}
for _metric in ("greedy", "improvement", "speedup"):
    RENAMED_METRICS |= {f"{_metric}_least": f"{_metric}_min", f"{_metric}_most": f"{_metric}_max"}


@dataclasses.dataclass(frozen=True)
class Info:
    """Metadata of a checkpoint: everything except the learner's state.

    Attributes:
      agent: name of the agent.
      step: number of updates applied to the state.
      config: settings of the run (`config.as_dict`).
      key: data of the run's root key, from which all other keys derive; `key_impl` is its implementation.
      seconds: training time so far, without the time between interruption and resumption.
      metrics: metrics of the last update.
      validation: means over the held-out graphs for each validation so far, each with its "step".
      score: score of the last validation if it took place at this step, else None.
      versions: versions of graphrl, its git commit (None outside a repository) and jax.
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
        """The run's root key, from which all other keys derive.

        Raises:
          BrokenError: the stored data are not a key.
        """
        try:
            return jax.random.wrap_key_data(jnp.asarray(np.array(self.key, np.uint32)), impl=self.key_impl)
        except (TypeError, ValueError, OverflowError):
            raise BrokenError(
                f"the checkpoint of step {self.step} is broken: {str(self.key)[:60]} is not a key"
            ) from None


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in memory, as `read` returns it.

    Attributes:
      path: folder of the checkpoint.
      info: see `Info`.
      state: the learner's state, NumPy arrays; nested dicts and lists if it was read without a template.
    """

    path: Path
    info: Info
    state: Any


class Checkpoints:
    """Manages the checkpoints in a run's folder: the last `keep`, and the best."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder, self._keep = folder, keep

    def save(self, info: Info, state: Any) -> Path:
        """Writes a checkpoint, unless the step already has one; then removes those that are no longer kept.

        Raises:
          GraphrlError: the checkpoint cannot be written; earlier ones are untouched.
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
                    raise GraphrlError(f"cannot write {quote_path(path)}: {error.strerror or error}") from None
                raise
        self.clean()
        return path

    def last_readable(self, like: Callable[[], Any]) -> tuple[Checkpoint | None, dict[Path, BrokenError]]:
        """Reads the last checkpoint that is not broken (see `read`); None if there are no checkpoints. Also returns the
        errors of the broken ones after it, by path, the last first.

        Args:
          like: returns the shapes of a state, see `read`; called if there are checkpoints.

        Raises:
          GraphrlError: all are broken, or the last readable one does not have the structure of `like`.
        """
        broken: dict[Path, BrokenError] = {}
        for path in reversed(_folders(self._folder)):
            try:
                checkpoint = read(path, like())
                checkpoint.info.root  # noqa: B018 (raises if it is not a key)
                return checkpoint, broken
            except BrokenError as error:
                broken[path] = error
        if broken:
            raise next(iter(broken.values()))
        return None, broken

    def set_aside(self, path: Path) -> None:
        """Renames a broken checkpoint, so that a new one can be written in its place."""
        aside = path.with_name(f"broken-{path.name}")
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(path, aside)

    def latest(self) -> Path | None:
        """Returns the folder of the last checkpoint; None if there are no checkpoints."""
        return next(reversed(_folders(self._folder)), None)

    def clean(self) -> None:
        """Updates the `best` link, and removes checkpoints that are no longer kept and leftovers of killed
        processes.
        """
        paths = _folders(self._folder)
        scores = {}
        for path in paths:
            with contextlib.suppress(BrokenError):  # removed later, with the old ones
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
                os.rename(path, _temporary(path))  # renamed first: a half-removed checkpoint must not look like one
        for path in self._folder.glob(f".{_PREFIX}*.tmp"):  # includes leftovers of killed processes
            shutil.rmtree(path, ignore_errors=True)


def read_info(path: Path) -> Info:
    """Reads the metadata of a checkpoint's folder; settings and metrics have their new names.

    Raises:
      GraphrlError: the folder is not a checkpoint, or has another version.
    """
    info = read_document(path / INFO, Info, FORMAT, VERSION)
    info = dataclasses.replace(info, config=renamed(info.config))
    if info.agent not in RENAMED_FOR:
        return info
    validation, metrics = [current_metrics(values) for values in info.validation], current_metrics(info.metrics)
    return dataclasses.replace(info, metrics=metrics, validation=validation)


def current_metrics(values: Mapping[str, T]) -> dict[str, T]:
    """Renames metrics with old names (`RENAMED_METRICS`), unless there is one with the new name as well."""
    names = {name: RENAMED_METRICS.get(name, name) for name in values}
    return {name if names[name] in values else names[name]: value for name, value in values.items()}


def find(path: str | os.PathLike[str]) -> Path:
    """Returns the folder of a checkpoint: `path` itself, or, for a run's folder, the best (else the last) checkpoint's.

    Raises:
      GraphrlError: there is no checkpoint.
    """
    folder = Path(path)
    if (folder / INFO).is_file():
        return folder.parent / os.readlink(folder) if folder.is_symlink() else folder
    if (folder / BEST / INFO).is_file():
        return folder / os.readlink(folder / BEST)
    latest = Checkpoints(folder, 1).latest() if folder.is_dir() else None
    if latest is None:
        raise GraphrlError(f"{quote_path(path)}: no checkpoint: name the folder of one, or of a run of `graphrl train`")
    return latest


def read(path: str | os.PathLike[str], like: Any = None) -> Checkpoint:
    """Reads the checkpoint that `find` returns, on any number of devices.

    Args:
      path: see `find`.
      like: a state whose structure, shapes and dtypes the result must have; None gives nested dicts (also for
        NamedTuples and dataclasses) and lists.

    Raises:
      GraphrlError: there is no checkpoint, or the state does not match `like`; a `BrokenError` if it is broken.
    """
    folder = find(path)
    info = read_info(folder)
    try:
        state = restore(folder / STATE)
    except ValueError as error:
        raise BrokenError(f"{quote_path(folder)}: the checkpoint is broken: {error}") from None
    return Checkpoint(folder, info, state if like is None else _as_structure(state, like, folder))


def _as_structure(state: Any, like: Any, folder: Path) -> Any:
    """Arranges the leaves that orbax read in the structure of `like`, matched by name."""
    by_name = {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}
    like_leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    leaves = []
    for path, leaf in like_leaves:
        array = by_name.pop(_name(path), None)
        if array is None or np.shape(array) != np.shape(leaf) or np.asarray(array).dtype != leaf.dtype:
            has = "nothing" if array is None else f"{np.asarray(array).dtype} {np.shape(array)}"
            raise GraphrlError(
                f"{quote_path(folder)} does not fit its settings: {'.'.join(_name(path))} is {has}, "
                f"must be {leaf.dtype} {np.shape(leaf)}"
            )
        leaves.append(array)
    if by_name:
        raise GraphrlError(
            f"{quote_path(folder)} does not fit its settings: {'.'.join(next(iter(by_name)))} is unknown"
        )
    return jax.tree.unflatten(structure, leaves)


def _name(path: tuple[Any, ...]) -> tuple[str, ...]:
    """Converts a leaf's path to names, the same for attributes, keys and indices."""
    return tuple(str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", key)))) for key in path)


def versions() -> dict[str, str | None]:
    """Returns the versions of graphrl, its git commit (None outside a repository) and jax."""
    commit = None
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["git", "rev-parse", "HEAD"]
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=5, check=True)
        commit = done.stdout.strip()
    return {"graphrl": installed_version(), "commit": commit, "jax": jax.__version__}


def _folders(folder: Path) -> list[Path]:
    """Lists the folders of a run's complete checkpoints, in the order of their steps."""
    return sorted(path for path in folder.glob(f"{_PREFIX}*") if (path / INFO).is_file())


def _temporary(path: Path) -> Path:
    """Returns the path of a checkpoint's folder while it is written or removed."""
    return path.with_name(f".{path.name}.tmp")


def _write(folder: Path, info: Info, state: Any) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    save(folder / STATE, state)
    write_document(folder / INFO, info, FORMAT, VERSION)
