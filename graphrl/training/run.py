"""A run: a folder with its settings, record and checkpoints, and the loop that fills it."""

import contextlib
import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from graphrl.errors import GraphrlError, ProblemError
from graphrl.files import content, shown, write_atomically
from graphrl.progress import Clock, Show, progress
from graphrl.training import devices
from graphrl.training.checkpoints import Checkpoints, Info, find, read, read_info
from graphrl.training.config import RunConfig, as_dict, differences, updated
from graphrl.training.data import Data
from graphrl.training.folder import SETTINGS, owned
from graphrl.training.learner import Agent
from graphrl.training.loop import Loop, Outcome, Values
from graphrl.training.metrics import MetricsLog, metrics_log
from graphrl.training.stopping import stop_signals
from graphrl.units import format_end

FORMAT, VERSION = "graphrl-training", 1
_LINE_EVERY = 10.0  # seconds, of progress where there is no terminal


class Result(NamedTuple):
    """What came of a run: what the loop says, and the checkpoints of its folder."""

    outcome: Outcome
    latest: Path
    best: Path


def default_config(agent: Agent) -> RunConfig[Any]:
    """All settings of an agent, as it has them by default."""
    return RunConfig(agent.config(), agent.data, agent.schedule)


def run_config(
    agent: Agent, values: Mapping[str, Any], folder: Path | None = None, *, name: str = ""
) -> RunConfig[Any]:
    """The settings of a run: the agent's defaults, over them what the folder's run was started with, then `values`.

    Args:
      agent: whose.
      values: nested dict of those to change.
      folder: of the run to go on with, or None. Then only `training.*` may change.
      name: of the agent, whose run the folder's must be; needed with a folder.

    Raises:
      ProblemError: an unknown or wrong setting, or one that the run cannot go on with, or it is another agent's run.
      GraphrlError: the folder's settings cannot be read.
    """
    default = default_config(agent)
    if folder is None:
        return updated(default, values)
    stored = _stored(folder, name)
    config = updated(updated(default, stored), values)
    changed = [key for key in differences(stored, as_dict(config)) if not key.startswith("training.")]
    if changed:
        raise ProblemError(
            f"{shown(folder)} was started with another {changed[0]}: leave it as it was, or name another --out"
        )
    return config


def _stored(folder: Path, name: str) -> dict[str, Any]:
    """The settings that the folder's run of the agent was started with."""
    path = folder / SETTINGS
    with content(path) as data:
        text = bytes(data)
    try:
        stored = json.loads(text)
        found, agent, config = (stored["format"], stored["version"]), stored["agent"], stored["config"]
    except (ValueError, KeyError, TypeError) as error:
        raise GraphrlError(f"{shown(path)}: holds no settings of a run ({error}): name another --out") from None
    if found != (FORMAT, VERSION) or not isinstance(config, dict):
        raise GraphrlError(f"{shown(path)}: must be {FORMAT} version {VERSION}")
    if agent != name:
        raise ProblemError(f"{shown(folder)} holds a run of {agent!r}: must be one of {name!r}, or name another --out")
    return config


def train(name: str, agent: Agent, config: RunConfig[Any], folder: Path, *, resume: bool = False) -> Result:
    """Trains in a folder, made if there is none, until the last step or a signal to stop; see `folder.owned`.

    Args:
      name: of the agent.
      agent, config: what is trained, and every setting.
      folder: of the run.
      resume: whether a run that is there already is gone on with, from its last checkpoint.

    Raises:
      ProblemError: the folder holds a run and `resume` is false, or the settings do not fit one another.
      GraphrlError: the folder cannot be used, a set of graphs not be read, or training gives numbers that are none.
    """
    with owned(folder, resume):
        mesh = devices.make_mesh(config.data.graphs)
        devices.meet(mesh)
        own = devices.own_rows(mesh, config.data.graphs)
        data = Data(config.data, config.seed, functools.partial(agent.batch, config.agent), own)
        checkpoints = Checkpoints(folder, config.training.keep)
        latest = checkpoints.latest()
        if devices.is_main():
            value = {"format": FORMAT, "version": VERSION, "agent": name, "config": as_dict(config)}
            write_atomically(folder / SETTINGS, lambda file: json.dump(value, file, indent=1))
        info = _first_info(name, config) if latest is None else read_info(latest)
        info = dataclasses.replace(info, config=as_dict(config))
        learner = agent.learner(config.agent, mesh)
        with _watch(folder, config, None if latest is None else info.step) as watch, stop_signals() as stopped:
            loop = Loop(learner, data, mesh, config.training, checkpoints, info, watch, stopped)
            outcome = loop.run(None if latest is None else read(latest, learner.template()))
        return Result(outcome, checkpoints.latest() or folder, find(folder))


def _first_info(name: str, config: RunConfig[Any]) -> Info:
    key = jax.random.key(config.seed)
    data, impl = jax.random.key_data(key).tolist(), str(jax.random.key_impl(key))
    return Info(name, 0, {}, data, impl, 0.0, {}, [], None)


class _Watch:
    """Records, and shows the last values."""

    def __init__(self, log: MetricsLog, steps: int, show: Show) -> None:
        self._log, self._clock, self._show = log, Clock(steps), show
        self._shown: Values = {}

    def update(self, step: int, seconds: float, bucket: int, values: Values) -> None:
        """After every update."""
        self._log.update(step, seconds, bucket, values)
        words = ", ".join(f"{name} {value:.4g}" for name, value in {**values, **self._shown}.items())
        self._show(step, f"{format_end(self._clock.seconds_left(step))}; {words}")

    def validation(self, step: int, values: Values) -> None:
        """After every look at the held-out graphs."""
        self._log.validation(step, values)
        self._shown = {f"held-out {name}": value for name, value in values.items()}


class _Silence:
    """What the processes other than the first do with it."""

    def update(self, step: int, seconds: float, bucket: int, values: Values) -> None:
        """Nothing."""

    def validation(self, step: int, values: Values) -> None:
        """Nothing."""


@contextlib.contextmanager
def _watch(folder: Path, config: RunConfig[Any], after: int | None) -> Iterator["_Watch | _Silence"]:
    if not devices.is_main():
        yield _Silence()
        return
    steps = config.training.steps
    with metrics_log(folder, after) as log, progress(steps, after or 0, text="compiling", every=_LINE_EVERY) as show:
        yield _Watch(log, steps, show)
