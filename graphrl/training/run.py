"""Trains an agent in a folder with settings, metrics and checkpoints (`train`), and shows its progress."""

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
from jax.sharding import Mesh

from graphrl.errors import GraphrlError, ProblemError
from graphrl.files import BrokenError, enable_compilation_cache, quote_path
from graphrl.learning.learner import Learner
from graphrl.mesh import make_mesh
from graphrl.progress import Pace, ShowRow, compile_clock, progress_table
from graphrl.signals import Stop, stop_on_signals
from graphrl.training import devices
from graphrl.training.agent import Agent
from graphrl.training.checkpoints import Checkpoint, Checkpoints, Info, Values, find
from graphrl.training.config import RunConfig, Schedule, as_dict, differences, updated
from graphrl.training.data import Data
from graphrl.training.folder import RunSettings, locked_folder, metrics_log, read_settings, write_settings
from graphrl.training.loop import Loop, Observer, Outcome
from graphrl.units import format_end

_LINE_EVERY = 10.0  # seconds between lines of progress without a terminal


class Result(NamedTuple):
    """Result of a training run: the loop's outcome, and the latest and best checkpoints of its folder."""

    outcome: Outcome
    latest: Path
    best: Path


def default_config(agent: Agent) -> RunConfig[Any]:
    """Returns all settings of an agent with their default values."""
    return RunConfig(agent.policy.settings(), agent.data, agent.schedule)


def run_config(
    agent: Agent, values: Mapping[str, Any], folder: Path | None = None, *, name: str = ""
) -> RunConfig[Any]:
    """Returns the settings of a run: the agent's defaults, updated by those of the folder's run, then by `values`.

    Args:
      agent: the agent.
      values: nested dict of the settings to change.
      folder: folder of the run to continue, or None. With a folder, only `training.*` may change.
      name: name of the agent that the folder's run must have; needed with a folder.

    Raises:
      ProblemError: an unknown or wrong setting, a change that a continued run cannot have, or another agent's run.
      GraphrlError: the folder's settings cannot be read.
    """
    if folder is None:
        return updated(default_config(agent), values)
    return continued_config(agent, _stored_settings(folder, name), values, folder)


def continued_config(
    agent: Agent, stored: Mapping[str, Any], values: Mapping[str, Any], folder: Path
) -> RunConfig[Any]:
    """Returns the settings stored in a folder, updated by `values`, which may change `training.*` only.

    Raises:
      ProblemError: an unknown or wrong setting, or another change.
    """
    stored = agent.current_settings(stored)
    config = updated(updated(default_config(agent), stored), values)
    changed = [key for key in differences(stored, as_dict(config)) if not key.startswith("training.")]
    if changed:
        raise ProblemError(
            f"{quote_path(folder)} was started with another {changed[0]}: leave it as it was, or choose another --out"
        )
    return config


class Parts(NamedTuple):
    """The parts of a run that do not depend on its seed and schedule, so that several runs can share them."""

    mesh: Mesh
    data: Data
    learner: Learner

    @classmethod
    def create(cls, agent: Agent, config: RunConfig[Any]) -> Self:
        """Loads the graphs and creates the learner.

        Raises:
          GraphrlError: a set of graphs cannot be read, or the settings are inconsistent.
        """
        count, what = agent.work_items(config)
        mesh = make_mesh(count, what=what)
        devices.barrier(mesh)
        data = run_data(agent, config, mesh)
        return cls(mesh, data, agent.learner(config.agent, mesh, data))


def train(
    name: str,
    agent: Agent,
    config: RunConfig[Any],
    folder: Path,
    *,
    resume: bool = False,
    parts: Parts | None = None,
    stop: Stop | None = None,
) -> Result:
    """Trains in a folder (see `folder.locked_folder`) until the last step or a signal to stop.

    Enables JAX's persistent compilation cache (`files.enable_compilation_cache`).

    Args:
      name: name of the agent.
      agent, config: the agent, and every setting.
      folder: folder of the run.
      resume: True continues an existing run from its last complete checkpoint; broken checkpoints after it are renamed,
        and one line on standard error reports this.
      parts: parts of an earlier run with equal settings except seed and schedule, whose compiled programs it shares;
        None creates them.
      stop: the caller's `stop_on_signals`; None uses one for this run.

    Raises:
      ProblemError: the folder contains a run and `resume` is false, or the settings are inconsistent.
      GraphrlError: the folder cannot be used, a set of graphs cannot be read, or training produces numbers that are not
        finite.
      KeyboardInterrupt: a signal before the first checkpoint of a run, or a second signal.
    """
    enable_compilation_cache()
    with locked_folder(folder, resume):
        for call in agent.calls:
            call.start()
        mesh, data, learner = parts or Parts.create(agent, config)
        data = data.with_seed(config.seed)
        checkpoints = Checkpoints(folder, config.training.keep)
        last = _last_readable(checkpoints, learner)
        settings = RunSettings(name, as_dict(config), learner.score, learner.unit)
        if devices.is_main():
            write_settings(folder, settings)
            _warn_of_warmup(config)
        info = dataclasses.replace(initial_info(name, config) if last is None else last.info, config=as_dict(config))
        path = config.agent.init_checkpoint if last is None else ""  # a resumed run does not need its initial policy
        params = agent.policy.load_params(path, config.agent) if path else None
        stopping = stop_on_signals() if stop is None else contextlib.nullcontext(stop)
        with _observers(folder, config, last, settings) as observers, stopping as requested:
            loop = Loop(
                learner,
                data,
                mesh,
                config.training,
                checkpoints,
                info,
                observers,
                requested,
                agent.shares(config.agent),
            )
            outcome = loop.run(last, params)
        return Result(outcome, checkpoints.latest() or folder, find(folder))


def run_data(agent: Agent, config: RunConfig[Any], mesh: Mesh) -> Data:
    """Loads the graphs of a run; in each batch, this process builds only the rows for its own devices.

    Raises:
      GraphrlError: a set of graphs cannot be read.
      ProblemError: the sets are unsuitable, or there are several processes and the agent needs every graph in each.
    """
    own = range(config.data.graphs)
    if agent.shares(config.agent) == "graphs":
        own = devices.own_rows(mesh, config.data.graphs)
    elif jax.process_count() > 1:
        raise ProblemError(
            "--distributed divides a batch, but this agent needs all graphs in each process: leave it out"
        )
    build = functools.partial(agent.batch, config.agent)
    load, common = functools.partial(agent.load, config.agent), functools.partial(agent.sizes, config.agent)
    shared = agent.shares(config.agent)
    return Data(
        config.data, config.seed, build, own, load=load, common=common, generated=agent.generated, shared=shared
    )


def initial_info(name: str, config: RunConfig[Any]) -> Info:
    """Creates the metadata of the checkpoint before the first step, for a run of the agent with that name."""
    key = jax.random.key(config.seed)
    data, impl = jax.random.key_data(key).tolist(), str(jax.random.key_impl(key))
    return Info(name, 0, {}, data, impl, 0.0, {}, [], None)


def _stored_settings(folder: Path, name: str) -> dict[str, Any]:
    """Reads the settings with which the folder's run was started, and checks that it is a run of this agent."""
    try:
        started = read_settings(folder)
    except BrokenError as error:
        raise GraphrlError(f"{error}: it has no settings of a run: choose another --out") from None
    if started.agent != name:
        raise ProblemError(
            f"{quote_path(folder)} has a run of {started.agent!r}: must be one of {name!r}; choose another --out"
        )
    return started.config


def _warn_of_warmup(config: RunConfig[Any]) -> None:
    """Prints a line if the run ends before the learning rate has reached its value."""
    warmup, steps = getattr(config.agent, "warmup", 0), config.training.steps
    if steps < warmup:
        text = f"agent.warmup={warmup} is more than training.steps={steps}: the learning rate rises to the end"
        print(f"graphrl: {text}; for a short run set agent.warmup=0", file=sys.stderr, flush=True)


def _last_readable(checkpoints: Checkpoints, learner: Learner) -> Checkpoint | None:
    """Reads the checkpoint from which a run continues, None if it has no checkpoint yet; renames broken later ones."""
    last, broken = checkpoints.last_readable(lambda: jax.eval_shape(learner.init, jax.random.key(0)))
    devices.any_process(bool(broken))  # barrier: all processes have read before one of them removes anything
    if last is not None and devices.is_main():
        for path in broken:
            checkpoints.set_aside(path)
        if broken:
            fault = next(iter(broken.values()))
            print(f"graphrl: {fault}: continuing from {quote_path(last.path)}", file=sys.stderr, flush=True)
        checkpoints.clean()
    return last


@contextlib.contextmanager
def _observers(
    folder: Path, config: RunConfig[Any], last: Checkpoint | None, settings: RunSettings
) -> Iterator[Sequence[Observer]]:
    """Yields observers that record and show the run: in the first process only, no observers in the others."""
    after = None if last is None else last.info.step
    if not devices.is_main():
        yield ()
        return
    schedule = config.training
    table = progress_table(schedule.steps, after or 0, text="compiling the first update", every=_LINE_EVERY)
    with metrics_log(folder, after) as log, table as show, compile_clock() as compiling:
        yield log, _Progress(schedule, Pace(compiling), show, settings, [] if last is None else last.info.validation)


# columns of the table of progress: metrics, of which each agent has some, and their titles
_COLUMNS = {
    "env_steps": "env steps",
    "env_steps_per_second": "steps/s",
    "loss": "loss",
    "return": "return",
    "entropy": "entropy",
    "grad_norm": "grad norm",
}


class _Progress:
    """Shows the most important values of every update, the score of the last validation, and the expected end."""

    def __init__(
        self, schedule: Schedule, pace: Pace, show: ShowRow, settings: RunSettings, validations: Sequence[Values] = ()
    ) -> None:
        self._schedule, self._pace, self._show = schedule, pace, show
        self._score, self._title = settings.score, f"held-out {settings.score_title}"
        last = validations[-1].get(self._score) if validations else None  # an old run may have another score
        self._held_out = "-" if last is None else _cell(last)

    def update(self, step: int, seconds: float, bucket: int, values: Values) -> None:
        """See `Observer`."""
        self._pace.add("update")
        cells = {title: _cell(values[name]) for name, title in _COLUMNS.items() if name in values}
        self._show(step, {**cells, self._title: self._held_out}, self._end(step))

    def validation(self, step: int, values: Values) -> None:
        """See `Observer`."""
        self._pace.add("validation")
        self._held_out = _cell(values[self._score])

    def _end(self, step: int) -> str:
        """Describes the expected end of the run; "compiling" until an update without compilation has been timed."""
        remaining = self._schedule.steps - step
        validations = self._schedule.validations_after(step - 1)  # includes the validation of this step
        update, validation = self._pace.each("update"), self._pace.each("validation") or 0.0
        if update is None and remaining > 0:
            return "compiling"
        return format_end(remaining * (update or 0.0) + validations * validation)


def _cell(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
