"""The training loop: batches in, parameters out; whatever ends it, the run can go on from where it was."""

import collections
import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax.sharding import Mesh

from graphrl.errors import GraphrlError
from graphrl.learning.learner import Learner, Metrics
from graphrl.signals import Stop
from graphrl.training import devices
from graphrl.training.checkpoints import Checkpoint, Checkpoints, Info, Values
from graphrl.training.data import Batch, Data, Shared
from graphrl.training.prefetch import made_ahead
from graphrl.training.schedule import Schedule


class TrainingError(GraphrlError):
    """Training has produced a number that is none."""


class Observer(Protocol):
    """Sees everything as it happens: what records metrics or shows progress."""

    def update(self, step: int, seconds: float, bucket: int, values: Values) -> None:
        """An update has been made, `seconds` of training until then, with graphs of `bucket` padded ops."""

    def validation(self, step: int, values: Values) -> None:
        """The held-out graphs were looked at: means over them."""


class Outcome(NamedTuple):
    """What came of it: the step that was reached, whether a signal ended it, the looks at the held-out graphs."""

    step: int
    interrupted: bool
    validation: list[Values]


class _Update(NamedTuple):
    """An update that the device works on, or has made."""

    step: int
    batch: Batch
    metrics: Metrics


@dataclasses.dataclass
class Loop:
    """One run in one process (of perhaps several).

    Attributes:
      learner, data, mesh, schedule: what is trained (compiled for the mesh), on what, where and for how long.
      checkpoints: of the run's folder.
      info: what every checkpoint says beside step, seconds and metrics; with the key that all others come from.
      observers: of everything.
      stop: checked after every step: whether to end with a checkpoint. It gets the words for its messages.
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
        self._init_key, self._update_key, self._validation_key = jax.random.split(self.info.root, 3)
        self._history: list[Values] = list(self.info.validation)
        self._started = time.perf_counter() - self.info.seconds
        self._under_way: collections.deque[_Update] = collections.deque()
        self._values: Values = {}  # of the last update that was recorded
        self._keep(self.checkpoints.latest())

    def run(self, checkpoint: Checkpoint | None = None, start: Any = None) -> Outcome:
        """Trains to the last step.

        Args:
          checkpoint: to go on from, of a state as `Learner.init` makes them; None begins anew.
          start: parameters that the policy then begins with, None for new ones.

        Raises:
          TrainingError: a metric or a parameter is not finite: the step, its graphs and the last checkpoint are named.
          GraphrlError: a checkpoint cannot be written.
          KeyboardInterrupt: it is to stop before the first checkpoint: there is nothing to save yet.
        """
        step = 0 if checkpoint is None else checkpoint.info.step
        state = self.learner.init(self._init_key, start) if checkpoint is None else checkpoint.state
        state = devices.replicate(state, self.mesh)
        if checkpoint is None:
            state = self._look_and_save(0, state)
        interrupted = self._stops()
        left = range(step + 1, self.schedule.steps + 1)
        with made_ahead(self.data.batch, left, self.data.ahead) as batches:
            while step < self.schedule.steps and not interrupted:
                step += 1
                self.stop.doing = "this update"
                state = self._update(step, state, next(batches))
                interrupted = self._stops()
                if interrupted or self.schedule.saves(step):
                    state = self._look_and_save(step, state)
                    interrupted = interrupted or self._stops()
        return Outcome(step, interrupted and step < self.schedule.steps, self._history)

    def _stops(self) -> bool:
        """Whether any process is to stop; all must call this at the same point."""
        return devices.anywhere(self.stop())

    def _update(self, step: int, state: Any, batch: Batch) -> Any:
        """The state after one more update, which the device may still work on."""
        key = devices.replicate(jax.random.fold_in(self._update_key, step), self.mesh)
        state, metrics = self.learner.update(state, key, self._spread(batch))
        self._under_way.append(_Update(step, batch._replace(rows=None), metrics))
        self._record(self.schedule.ahead)
        return state

    def _record(self, under_way: int) -> None:
        """Waits until no more than so many updates are under way, and tells of those that are made."""
        while len(self._under_way) > under_way:
            step, batch, metrics = self._under_way.popleft()
            self._values = self._finite(step, metrics, batch.names)
            for observer in self.observers:
                observer.update(step, self._seconds(), batch.sizes.ops, self._values)

    def _look_and_save(self, step: int, state: Any) -> Any:
        """Validates where it is time to, and saves: the state to go on with, which is the one in the checkpoint."""
        self._record(0)
        means = self._validate(step, state) if step == 0 or self.schedule.validates(step) else None
        if means is not None:
            state = self.learner.validated(state, means)
        self._save(step, state, means)
        return state

    def _validate(self, step: int, state: Any) -> Values:
        """Means over the held-out graphs; every look has the same keys, so that differences are the parameters'."""
        looks: list[Values] = []
        self.stop.doing = "this validation"
        for number, batch in enumerate(self.data.validation()):
            if step == 0 and self._stops():
                raise KeyboardInterrupt
            key = devices.replicate(jax.random.fold_in(self._validation_key, number), self.mesh)
            metrics = self.learner.evaluate(state.params, key, self._spread(batch))
            looks.append(self._finite(step, metrics, batch.names))
        means = {name: sum(look[name] for look in looks) / len(looks) for name in looks[0]}
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
            self.stop.doing = "writing this checkpoint"
            self._keep(self.checkpoints.save(info, host))

    def _keep(self, checkpoint: Path | None) -> None:
        """Notes the last whole checkpoint, for messages."""
        self._good = checkpoint
        if devices.is_main():
            last = f"the last checkpoint is {checkpoint}: --resume goes on from it"
            self.stop.kept = last if checkpoint else "there is no checkpoint yet: --resume begins again"

    def _spread(self, batch: Batch) -> Any:
        if self.shares == "graphs":
            return devices.shard(batch.rows, self.mesh, len(batch.names))
        return devices.replicate(batch.rows, self.mesh)

    def _seconds(self) -> float:
        return time.perf_counter() - self._started

    def _finite(self, step: int, metrics: Metrics, names: tuple[str, ...]) -> Values:
        values = {name: float(value) for name, value in metrics.items()}
        self._check_finite(step, values, names)
        return values

    def _check_finite(self, step: int, values: Mapping[str, Any], names: tuple[str, ...]) -> None:
        for name, value in values.items():
            for leaf in jax.tree.leaves(value):
                if np.issubdtype(np.asarray(leaf).dtype, np.inexact) and not np.isfinite(leaf).all():
                    raise TrainingError(self._fault(step, name, names))

    def _fault(self, step: int, name: str, names: tuple[str, ...]) -> str:
        graphs = f" on {', '.join(names)}" if names else ""
        good = f"the last good checkpoint is {self._good}" if self._good else "there is no checkpoint"
        return f"step {step}: {name} is not finite{graphs}; {good}"
