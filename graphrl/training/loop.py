"""The training loop (`Loop`): consumes batches, and produces parameters, metrics and checkpoints.

However it ends, the run can continue from its last checkpoint. `_Compiler` compiles updates before they are needed.
"""

import collections
import dataclasses
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import jax
import numpy as np
from jax.sharding import Mesh

from graphrl.errors import GraphrlError, ProblemError
from graphrl.learning.learner import Learner, Metrics, OnMesh, on_mesh
from graphrl.signals import Stop
from graphrl.training import devices
from graphrl.training.checkpoints import Checkpoint, Checkpoints, Info, Values
from graphrl.training.config import Schedule
from graphrl.training.data import Batch, Data, Padded, Shared, prefetched


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
            _Compiler(self, start, remaining) as compiler,
        ):
            state = self.learner.init(self._init_key, start) if checkpoint is None else checkpoint.state
            state = devices.replicate(state, self.mesh)
            if checkpoint is None:
                state = self._validate_and_save(0, state)
            interrupted = self._stop_requested()
            while step < self.schedule.steps and not interrupted:
                step += 1
                batch = next(batches)
                if not compiler.has_compiled(batch.sizes):
                    self.stop.work = "this compilation and this update"
                    self._record(0)  # the updates in flight
                compiler.wait(step, batch.sizes)
                self.stop.work = "this update"
                state = self._update(step, state, batch)
                interrupted = self._stop_requested()
                if interrupted or self.schedule.saves(step):
                    state = self._validate_and_save(step, state)
                    interrupted = interrupted or self._stop_requested()
        return Outcome(step, interrupted and step < self.schedule.steps, self._history)

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
        if self.learner.score not in means:
            raise ProblemError(f"evaluate returns {', '.join(means)}: must have {self.learner.score!r}, the score")
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


class _Update(NamedTuple):
    """An update that the device is computing or has finished."""

    step: int
    batch: Batch
    metrics: Metrics


class TrainingError(GraphrlError):
    """Training has produced a number that is not finite."""


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


_LOOK_AHEAD = 50  # updates whose sizes are compiled in advance


class _Compiler:
    """Compiles the update in a thread: for the first sizes of graphs while the loop initialises and validates, for
    later ones while it trains.

    On CPUs of one process only. Several processes must compile in the same order, and accelerators time their kernels
    when they compile, which other work would disturb: there the loop compiles when it needs a program.
    """

    def __init__(self, loop: "Loop", start: Any, steps: range) -> None:
        self._loop, self._steps, self._seen = loop, steps, steps.start  # sizes of the steps before `_seen` are known
        self._compiled: dict[Padded, Future[None]] = {}
        self._pool = ThreadPoolExecutor(1, "graphrl-compiler")
        self._is_on = jax.process_count() == 1 and loop.mesh.devices.flat[0].platform == "cpu"
        if self._is_on and steps:
            self._state = jax.eval_shape(loop.learner.init, loop._init_key, start)
            self._look_ahead(steps.start + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.stop.work = "this compilation"
        self._pool.shutdown(wait=True, cancel_futures=True)

    def has_compiled(self, sizes: Padded) -> bool:
        """True unless these sizes are still being compiled."""
        return sizes not in self._compiled or self._compiled[sizes].done()

    def wait(self, step: int, sizes: Padded) -> None:
        """Waits for the program of a step's sizes; then those of the next steps are compiled."""
        if sizes in self._compiled:
            self._compiled[sizes].result()
        if self._is_on:
            self._look_ahead(step + _LOOK_AHEAD)

    def _look_ahead(self, end: int) -> None:
        for step in range(self._seen, min(end, self._steps.stop)):
            sizes = self._loop.data.sizes(step)
            if sizes not in self._compiled:
                self._compiled[sizes] = self._pool.submit(self._compile, sizes)
            self._seen = step + 1

    def _compile(self, sizes: Padded) -> None:
        update, loop = self._loop.learner.update, self._loop
        assert isinstance(update, OnMesh)
        update.compile(self._state, jax.random.key(0), loop.data.sample(sizes))
