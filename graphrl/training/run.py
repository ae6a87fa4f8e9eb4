"""Trains an agent in a folder with settings, metrics and checkpoints (`train`), by the loop that writes them (`Loop`).

The loop consumes batches and produces parameters. However it ends, the run can continue from its last checkpoint.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import jax
import numpy as np
from jax.sharding import Mesh

from graphrl.costs.host.lowering import start_compiling
from graphrl.errors import GraphrlError, ProblemError
from graphrl.files import BrokenError, enable_compilation_cache, quote_path
from graphrl.learning.learner import Learner, Metrics, OnMesh, on_mesh
from graphrl.mesh import make_mesh
from graphrl.progress import Pace, ShowRow, compile_clock, progress_table
from graphrl.signals import Stop, stop_on_signals
from graphrl.training import devices
from graphrl.training.agent import Agent
from graphrl.training.checkpoints import Checkpoint, Checkpoints, Info, Values, find
from graphrl.training.config import RunConfig, Schedule, as_dict, differences, updated
from graphrl.training.data import Batch, Data, Padded, Shared, prefetched
from graphrl.training.folder import RunSettings, locked_folder, metrics_log, read_settings, write_settings
from graphrl.units import format_end

_LINE_EVERY = 10.0  # seconds between lines of progress without a terminal


class Observer(Protocol):
    """Callbacks for updates and validations, for recording metrics or showing progress."""

    def update(self, step: int, seconds: float, bucket: int, values: Values) -> None:
        """Called after an update on graphs padded to `bucket` ops; `seconds` is the training time so far."""

    def validation(self, step: int, values: Values) -> None:
        """Called after a validation, with means over the held-out graphs."""


class Outcome(NamedTuple):
    """Result of the loop: the last step, whether a signal ended it early, and all validations."""

    step: int
    interrupted: bool
    validation: list[Values]


@dataclasses.dataclass
class Loop:
    """The training loop of one run, in one of its processes.

    Attributes:
      learner, data, mesh, schedule: the learner (compiled here), its data, its devices, and when to validate and save.
      checkpoints: checkpoints of the run's folder.
      info: metadata of every checkpoint except step, seconds, metrics, validation and score; includes the root key.
      observers: receive all updates and validations.
      stop: checked after every step: True ends the run with a checkpoint. It receives the texts for its messages.
      shares: see `Agent`.
    """

    learner: Learner
    data: Data
    mesh: Mesh
    schedule: Schedule
    checkpoints: Checkpoints
    info: Info
    observers: Sequence[Observer] = ()
    stop: Stop = dataclasses.field(default_factory=Stop)
    shares: Shared = "graphs"

    def __post_init__(self) -> None:
        self.learner = on_mesh(self.learner, self.mesh)
        self._init_key, self._update_key, self._validation_key = jax.random.split(self.info.root, 3)
        self._history: list[Values] = list(self.info.validation)
        self._start_time = time.perf_counter() - self.info.seconds
        self._in_flight: collections.deque[_Update] = collections.deque()
        self._values: Values = {}  # of the last recorded update
        self._env_steps = _EnvSteps(int(self.info.metrics.get("env_steps", 0)))
        self._set_last_checkpoint(self.checkpoints.latest())

    def run(self, checkpoint: Checkpoint | None = None, start: Any = None) -> Outcome:
        """Trains to the last step.

        Args:
          checkpoint: the checkpoint to continue from, with a state as `Learner.init` returns it; None starts from
            scratch.
          start: initial parameters of the policy; None initialises new ones.

        Raises:
          TrainingError: a metric or a parameter is not finite; the message names the step, its graphs and the last
            checkpoint.
          GraphrlError: a checkpoint cannot be written.
          KeyboardInterrupt: a stop was requested before the first checkpoint, when there is nothing to save.
        """
        step = 0 if checkpoint is None else checkpoint.info.step
        remaining = range(step + 1, self.schedule.steps + 1)
        with (
            prefetched(self.data.batch, remaining, self.data.prefetch) as batches,
            self._compiled_ahead(start, remaining) as wait_for,
        ):
            state = self.learner.init(self._init_key, start) if checkpoint is None else checkpoint.state
            state = devices.replicate(state, self.mesh)
            if checkpoint is None:
                state = self._validate_and_save(0, state)
            interrupted = self._stop_requested()
            while step < self.schedule.steps and not interrupted:
                step += 1
                self.stop.work = "this update"
                batch = next(batches)
                wait_for(batch.sizes)
                state = self._update(step, state, batch)
                interrupted = self._stop_requested()
                if interrupted or self.schedule.saves(step):
                    state = self._validate_and_save(step, state)
                    interrupted = interrupted or self._stop_requested()
        return Outcome(step, interrupted and step < self.schedule.steps, self._history)

    @contextlib.contextmanager
    def _compiled_ahead(self, start: Any, steps: range) -> Iterator[Callable[[Padded], None]]:
        """Context in which a thread compiles the update: for the first bucket while this thread initialises and
        validates, for the others while it trains. Yields a function that waits for the update of a bucket's sizes.

        Several processes compile when they need a program, all in the same order, which XLA requires on accelerators.
        """
        update, compiled = self.learner.update, dict[Padded, Future[None]]()
        assert isinstance(update, OnMesh)
        samples = self.data.samples(steps[0]) if steps and jax.process_count() == 1 else iter(())

        def submit(batches: Iterable[Batch]) -> None:
            for batch in batches:
                compiled[batch.sizes] = pool.submit(update.compile, state, key, batch.rows)

        def wait_for(sizes: Padded) -> None:
            if sizes in compiled:
                if not compiled[sizes].done():
                    self._record(0)  # meanwhile, the updates in flight
                compiled[sizes].result()
            submit(samples)

        state = jax.eval_shape(self.learner.init, self._init_key, start)
        key = devices.replicate(self._update_key, self.mesh)
        pool = ThreadPoolExecutor(1, "graphrl-compiler")
        try:
            submit(itertools.islice(samples, 1))
            yield wait_for
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _stop_requested(self) -> bool:
        """True if any process is to stop; all processes must call this at the same point."""
        return devices.any_process(self.stop())

    def _update(self, step: int, state: Any, batch: Batch) -> Any:
        """Dispatches one more update and returns its state, which the device may still be computing."""
        key = devices.replicate(jax.random.fold_in(self._update_key, step), self.mesh)
        state, metrics = self.learner.update(state, key, self._to_devices(batch))
        self._in_flight.append(_Update(step, batch._replace(rows=None), metrics))
        self._record(self.schedule.max_in_flight)
        return state

    def _record(self, max_in_flight: int) -> None:
        """Waits until at most `max_in_flight` updates are in flight, and reports the finished ones to the observers."""
        while len(self._in_flight) > max_in_flight:
            step, batch, metrics = self._in_flight.popleft()
            self._values = self._env_steps.add(self._to_floats(step, metrics, batch.names))
            for observer in self.observers:
                observer.update(step, self._seconds(), batch.sizes.ops, self._values)

    def _validate_and_save(self, step: int, state: Any) -> Any:
        """Validates if the schedule asks for it, and saves. Returns the state in the checkpoint, from which training
        continues.
        """
        self._record(0)
        means = self._validate(step, state) if step == 0 or self.schedule.validates(step) else None
        if means is not None:
            state = self.learner.after_validation(state, means)
        self._save(step, state, means)
        self._env_steps.resume()
        return state

    def _validate(self, step: int, state: Any) -> Values:
        """Computes the means of the metrics over the held-out graphs. Every validation uses the same keys, so that only
        the parameters cause differences.
        """
        by_batch: list[Values] = []
        self.stop.work = "this validation"
        for number, batch in enumerate(self.data.validation()):
            if step == 0 and self._stop_requested():
                raise KeyboardInterrupt
            key = devices.replicate(jax.random.fold_in(self._validation_key, number), self.mesh)
            metrics = self.learner.evaluate(state.params, key, self._to_devices(batch))
            by_batch.append(self._to_floats(step, metrics, batch.names))
        means = {name: sum(values[name] for values in by_batch) / len(by_batch) for name in by_batch[0]}
        self._history.append({"step": step, **means})
        for observer in self.observers:
            observer.validation(step, means)
        return means

    def _save(self, step: int, state: Any, means: Values | None) -> None:
        host = jax.tree.map(np.asarray, state)
        self._check_finite(step, {"the state": host}, ())
        info = dataclasses.replace(
            self.info,
            step=step,
            seconds=self._seconds(),
            metrics=self._values,
            validation=list(self._history),
            score=None if means is None else means[self.learner.score],
        )
        if devices.is_main():
            self.stop.work = "writing this checkpoint"
            self._set_last_checkpoint(self.checkpoints.save(info, host))

    def _set_last_checkpoint(self, checkpoint: Path | None) -> None:
        """Stores the last complete checkpoint, for messages."""
        self._last = checkpoint
        if devices.is_main():
            last = f"the last checkpoint is {checkpoint}: --resume continues from it"
            self.stop.saved = last if checkpoint else "there is no checkpoint yet: --resume starts from the beginning"

    def _to_devices(self, batch: Batch) -> Any:
        if self.shares == "graphs":
            return devices.shard(batch.rows, self.mesh, len(batch.names))
        return devices.replicate(batch.rows, self.mesh)

    def _seconds(self) -> float:
        return time.perf_counter() - self._start_time

    def _to_floats(self, step: int, metrics: Metrics, names: tuple[str, ...]) -> Values:
        values = {name: float(value) for name, value in metrics.items()}
        self._check_finite(step, values, names)
        return values

    def _check_finite(self, step: int, values: Mapping[str, Any], names: tuple[str, ...]) -> None:
        for name, value in values.items():
            for leaf in jax.tree.leaves(value):
                if np.issubdtype(np.asarray(leaf).dtype, np.inexact) and not np.isfinite(leaf).all():
                    raise TrainingError(self._fault_message(step, name, names))

    def _fault_message(self, step: int, name: str, names: tuple[str, ...]) -> str:
        graphs = f" on {', '.join(names)}" if names else ""
        last = "there is no checkpoint" if self._last is None else f"the last checkpoint is {self._last}"
        return f"step {step}: {name} is not finite{graphs}; {last}"


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
    default = default_config(agent)
    if folder is None:
        return updated(default, values)
    return continued_config(default, _stored_settings(folder, name), values, folder)


def continued_config(
    default: RunConfig[Any], stored: Mapping[str, Any], values: Mapping[str, Any], folder: Path
) -> RunConfig[Any]:
    """Returns the settings stored in a folder, updated by `values`, which may change `training.*` only.

    Raises:
      ProblemError: an unknown or wrong setting, or another change.
    """
    config = updated(updated(default, stored), values)
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
        start_compiling()
        mesh, data, learner = parts or Parts.create(agent, config)
        data = data.with_seed(config.seed)
        checkpoints = Checkpoints(folder, config.training.keep)
        last = _last_readable(checkpoints, learner)
        if devices.is_main():
            write_settings(folder, RunSettings(name, as_dict(config), learner.score))
        info = dataclasses.replace(initial_info(name, config) if last is None else last.info, config=as_dict(config))
        path = config.agent.init_checkpoint if last is None else ""  # a resumed run does not need its initial policy
        stopping = stop_on_signals() if stop is None else contextlib.nullcontext(stop)
        with _observers(folder, config, last, learner.score) as observers, stopping as requested:
            loop = Loop(learner, data, mesh, config.training, checkpoints, info, observers, requested, agent.shares)
            outcome = loop.run(last, agent.policy.load_params(path, config.agent) if path else None)
        return Result(outcome, checkpoints.latest() or folder, find(folder))


def run_data(agent: Agent, config: RunConfig[Any], mesh: Mesh) -> Data:
    """Loads the graphs of a run; in each batch, this process builds only the rows for its own devices.

    Raises:
      GraphrlError: a set of graphs cannot be read.
      ProblemError: the sets are unsuitable, or there are several processes and the agent needs every graph in each.
    """
    own = range(config.data.graphs)
    if agent.shares == "graphs":
        own = devices.own_rows(mesh, config.data.graphs)
    elif jax.process_count() > 1:
        raise ProblemError(
            "--distributed divides a batch, but this agent needs all graphs in each process: leave it out"
        )
    build = functools.partial(agent.batch, config.agent)
    return Data(config.data, config.seed, build, own, load=agent.load, common=agent.sizes, shared=agent.shares)


def initial_info(name: str, config: RunConfig[Any]) -> Info:
    """Creates the metadata of the checkpoint before the first step, for a run of the agent with that name."""
    key = jax.random.key(config.seed)
    data, impl = jax.random.key_data(key).tolist(), str(jax.random.key_impl(key))
    return Info(name, 0, {}, data, impl, 0.0, {}, [], None)


class _Update(NamedTuple):
    """An update that the device is computing or has finished."""

    step: int
    batch: Batch
    metrics: Metrics


class TrainingError(GraphrlError):
    """Training has produced a number that is not finite."""


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


def _last_readable(checkpoints: Checkpoints, learner: Learner) -> Checkpoint | None:
    """Reads the checkpoint from which a run continues, None if it has no checkpoint yet; renames broken later ones."""
    last, broken = checkpoints.last_readable(jax.eval_shape(learner.init, jax.random.key(0)))
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
    folder: Path, config: RunConfig[Any], last: Checkpoint | None, score: str
) -> Iterator[Sequence[Observer]]:
    """Yields observers that record and show the run: in the first process only, no observers in the others."""
    after = None if last is None else last.info.step
    if not devices.is_main():
        yield ()
        return
    schedule = config.training
    table = progress_table(schedule.steps, after or 0, text="compiling", every=_LINE_EVERY)
    with metrics_log(folder, after) as log, table as show, compile_clock() as compiling:
        yield log, _Progress(schedule, Pace(compiling), show, score)


class _EnvSteps:
    """Total of the environment steps of a run, and their number per second of training."""

    def __init__(self, total: int) -> None:
        self._total, self._since = total, time.perf_counter()

    def add(self, values: Values) -> Values:
        """Replaces the "env_steps" of an update, if it has any, by the total, and adds "env_steps_per_second", the rate
        since the last update or `resume`.
        """
        now = time.perf_counter()
        seconds, self._since = max(now - self._since, 1e-9), now
        if "env_steps" not in values:
            return values
        steps = round(values["env_steps"])
        self._total += steps
        return {**values, "env_steps": self._total, "env_steps_per_second": steps / seconds}

    def resume(self) -> None:
        """Excludes the time since the last update, as for a validation and a checkpoint."""
        self._since = time.perf_counter()


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

    def __init__(self, schedule: Schedule, pace: Pace, show: ShowRow, score: str) -> None:
        self._schedule, self._pace, self._show, self._score = schedule, pace, show, score
        self._held_out = "-"

    def update(self, step: int, seconds: float, bucket: int, values: Values) -> None:
        """See `Observer`."""
        self._pace.add("update")
        cells = {title: _cell(values[name]) for name, title in _COLUMNS.items() if name in values}
        self._show(step, {**cells, f"held-out {self._score}": self._held_out}, self._end(step))

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
