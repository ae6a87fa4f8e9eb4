"""A run: a folder with its settings, record and checkpoints, and the loop that fills it."""

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from graphrl.compile_clock import compile_clock
from graphrl.documents import BrokenError, read_document, write_document
from graphrl.errors import GraphrlError, ProblemError
from graphrl.files import shown
from graphrl.learning.learner import Learner
from graphrl.mesh import make_mesh
from graphrl.progress import Pace, Show, progress
from graphrl.signals import stop_signals
from graphrl.training import devices
from graphrl.training.agent import Agent
from graphrl.training.checkpoints import Checkpoint, Checkpoints, Info, Values, find
from graphrl.training.config import RunConfig, as_dict, differences, updated
from graphrl.training.data import Data
from graphrl.training.folder import SETTINGS, owned
from graphrl.training.loop import Loop, Observer, Outcome
from graphrl.training.metrics import metrics_log
from graphrl.training.schedule import Schedule
from graphrl.units import format_end

FORMAT, VERSION = "graphrl-training", 1
_LINE_EVERY = 10.0  # seconds, of progress where there is no terminal


@dataclasses.dataclass(frozen=True)
class Started:
    """What `run.json` says: the agent, and every setting (`config.as_dict`)."""

    agent: str
    config: dict[str, Any]


class Result(NamedTuple):
    """What came of a run: what the loop says, and the checkpoints of its folder."""

    outcome: Outcome
    latest: Path
    best: Path


def default_config(agent: Agent) -> RunConfig[Any]:
    """All settings of an agent, as it has them by default."""
    return RunConfig(agent.policy.settings(), agent.data, agent.schedule)


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
    try:
        started = read_document(folder / SETTINGS, Started, FORMAT, VERSION)
    except BrokenError as error:
        raise GraphrlError(f"{error}: it holds no settings of a run: name another --out") from None
    if started.agent != name:
        raise ProblemError(
            f"{shown(folder)} holds a run of {started.agent!r}: must be one of {name!r}, or name another --out"
        )
    return started.config


def train(name: str, agent: Agent, config: RunConfig[Any], folder: Path, *, resume: bool = False) -> Result:
    """Trains in a folder, made if there is none, until the last step or a signal to stop; see `folder.owned`.

    Args:
      name: of the agent.
      agent, config: what is trained, and every setting.
      folder: of the run.
      resume: whether a run that is there already is gone on with, from its last whole checkpoint; what is broken after
        it is set aside, and one line on standard error says so.

    Raises:
      ProblemError: the folder holds a run and `resume` is false, or the settings do not fit one another.
      GraphrlError: the folder cannot be used, a set of graphs not be read, or training gives numbers that are none.
      KeyboardInterrupt: a signal before the first update of a run, or a second signal.
    """
    with owned(folder, resume):
        count, what = agent.shared(config)
        mesh = make_mesh(count, what=what)
        devices.meet(mesh)
        data = run_data(agent, config, mesh)
        checkpoints = Checkpoints(folder, config.training.keep)
        learner = agent.learner(config.agent, mesh, data)
        last = _last_whole(checkpoints, learner)
        if devices.is_main():
            write_document(folder / SETTINGS, Started(name, as_dict(config)), FORMAT, VERSION)
        info = dataclasses.replace(first_info(name, config) if last is None else last.info, config=as_dict(config))
        path = config.agent.start if last is None else ""  # a run goes on without what it began with
        with _observers(folder, config, last) as observers, stop_signals() as stop:
            loop = Loop(learner, data, mesh, config.training, checkpoints, info, observers, stop, agent.shares)
            outcome = loop.run(last, agent.policy.start(path, config.agent) if path else None)
        return Result(outcome, checkpoints.latest() or folder, find(folder))


def run_data(agent: Agent, config: RunConfig[Any], mesh: Mesh) -> Data:
    """The graphs of a run, of each batch those that this process makes.

    Raises:
      GraphrlError: a set of graphs cannot be read.
      ProblemError: the sets do not do, or there are several processes where all need every graph.
    """
    own = range(config.data.graphs)
    if agent.shares == "graphs":
        own = devices.own_rows(mesh, config.data.graphs)
    elif jax.process_count() > 1:
        raise ProblemError("--distributed shares graphs, and this agent plays all of them: train it in one process")
    build = functools.partial(agent.batch, config.agent)
    return Data(config.data, config.seed, build, own, load=agent.load, common=agent.sizes, shared=agent.shares)


def _last_whole(checkpoints: Checkpoints, learner: Learner) -> Checkpoint | None:
    """The checkpoint that a run goes on from, None if it has none yet."""
    last, broken = checkpoints.last_whole(jax.eval_shape(learner.init, jax.random.key(0)))
    devices.anywhere(bool(broken))  # all processes have read before one of them takes something away
    if last is not None and devices.is_main():
        for path in broken:
            checkpoints.set_aside(path)
        if broken:
            fault = next(iter(broken.values()))
            print(f"graphrl: {fault}: going on from {shown(last.path)}", file=sys.stderr, flush=True)
        checkpoints.clean()
    return last


def first_info(name: str, config: RunConfig[Any]) -> Info:
    """The info of a checkpoint before the first step, of a run of the agent of that name."""
    key = jax.random.key(config.seed)
    data, impl = jax.random.key_data(key).tolist(), str(jax.random.key_impl(key))
    return Info(name, 0, {}, data, impl, 0.0, {}, [], None)


class _Progress:
    """Shows the expected end, the values of every update, and those of the last validation."""

    def __init__(self, schedule: Schedule, pace: Pace, show: Show) -> None:
        self._schedule, self._pace, self._show = schedule, pace, show
        self._held_out: Values = {}

    def update(self, step: int, seconds: float, bucket: int, values: Values) -> None:
        """See `loop.Observer`."""
        self._pace.add("update")
        words = ", ".join(f"{name} {value:.4g}" for name, value in {**values, **self._held_out}.items())
        self._show(step, f"{self._end(step)}; {words}")

    def validation(self, step: int, values: Values) -> None:
        """See `loop.Observer`."""
        self._pace.add("validation")
        self._held_out = {f"held-out {name}": value for name, value in values.items()}

    def _end(self, step: int) -> str:
        """When the run will end; "compiling" as long as every update has compiled."""
        left = self._schedule.steps - step
        looks = self._schedule.validations_after(step - 1)  # that of this step is still to come
        update, look = self._pace.each("update"), self._pace.each("validation") or 0.0
        if update is None and left > 0:
            return "compiling"
        return format_end(left * (update or 0.0) + looks * look)


@contextlib.contextmanager
def _observers(folder: Path, config: RunConfig[Any], last: Checkpoint | None) -> Iterator[Sequence[Observer]]:
    """What records and shows the run: in the first process alone."""
    after = None if last is None else last.info.step
    if not devices.is_main():
        yield ()
        return
    schedule = config.training
    bar = progress(schedule.steps, after or 0, text="compiling", every=_LINE_EVERY)
    with metrics_log(folder, after) as log, bar as show, compile_clock() as compiling:
        yield log, _Progress(schedule, Pace(compiling), show)
