"""The training loop: batches in, parameters out; whatever ends it, the run can go on from where it was."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from graphrl.errors import GraphrlError
from graphrl.training import devices
from graphrl.training.checkpoints import Checkpoint, Checkpoints, Info
from graphrl.training.data import Batch, Data
from graphrl.training.learner import Learner, Metrics
from graphrl.training.prefetch import made_ahead
from graphrl.training.schedule import Schedule

Values = dict[str, float]


class TrainingError(GraphrlError):
    """Training has produced a number that is none."""


class Watch(Protocol):
    """Told of everything as it happens: what records metrics and shows progress."""

    def update(self, step: int, seconds: float, bucket: int, values: Values) -> None:
        """After every update."""

    def validation(self, step: int, values: Values) -> None:
        """After every look at the held-out graphs."""


class Outcome(NamedTuple):
    """What came of it: the step that was reached, whether a signal ended it, the looks at the held-out graphs."""

    step: int
    interrupted: bool
    validation: list[Values]


@dataclasses.dataclass
class Loop:
    """One run in one process (of perhaps several).

    Attributes:
      learner, data, mesh, schedule: what is trained, on what, where and for how long.
      checkpoints: of the run's folder.
      info: what every checkpoint says beside step, seconds and metrics; with the key that all others come from.
      watch: told of everything.
      stopped: asked after every step whether to end with a checkpoint.
    """

    learner: Learner
    data: Data
    mesh: Mesh
    schedule: Schedule
    checkpoints: Checkpoints
    info: Info
    watch: Watch
    stopped: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        root = jax.random.wrap_key_data(jnp.array(self.info.key, jnp.uint32), impl=self.info.key_impl)
        self._init_key, self._update_key, self._validation_key = jax.random.split(root, 3)
        self._history: list[Values] = list(self.info.validation)
        self._started = time.perf_counter() - self.info.seconds
        self._good = self.checkpoints.latest()

    def run(self, checkpoint: Checkpoint | None = None) -> Outcome:
        """Trains from the beginning or from a checkpoint (read with `Learner.template`) to the last step.

        Raises:
          TrainingError: a metric or a parameter is not finite: the step, its graphs and the last checkpoint are named.
          GraphrlError: a checkpoint cannot be written.
        """
        step = 0 if checkpoint is None else checkpoint.info.step
        state = self.learner.init(self._init_key) if checkpoint is None else checkpoint.state
        state = devices.replicate(state, self.mesh)
        if checkpoint is None:
            state = self._look_and_save(0, state, {})
        interrupted = False
        left = range(step + 1, self.schedule.steps + 1)
        with made_ahead(self.data.batch, left, self.data.ahead) as batches:
            while step < self.schedule.steps and not interrupted:
                step += 1
                state, values = self._update(step, state, next(batches))
                interrupted = devices.anywhere(self.stopped())
                if interrupted or self.schedule.saves(step):
                    state = self._look_and_save(step, state, values)
        return Outcome(step, interrupted and step < self.schedule.steps, self._history)

    def _update(self, step: int, state: Any, batch: Batch) -> tuple[Any, Values]:
        key = devices.replicate(jax.random.fold_in(self._update_key, step), self.mesh)
        state, metrics = self.learner.update(state, key, self._spread(batch))
        values = self._values(step, metrics, batch.names)
        self.watch.update(step, self._seconds(), batch.sizes.ops, values)
        return state, values

    def _look_and_save(self, step: int, state: Any, values: Values) -> Any:
        """Validates where it is time to, and saves: the state to go on with, which is the one in the checkpoint."""
        found = self._validate(step, state) if step == 0 or self.schedule.validates(step) else None
        if found is not None:
            state = self.learner.validated(state, found)
        self._save(step, state, values, found)
        return state

    def _validate(self, step: int, state: Any) -> Values:
        """Means over the held-out graphs; every look has the same keys, so that differences are the parameters'."""
        found: list[Values] = []
        for number, batch in enumerate(self.data.validation()):
            key = devices.replicate(jax.random.fold_in(self._validation_key, number), self.mesh)
            metrics = self.learner.evaluate(state.params, key, self._spread(batch))
            found.append(self._values(step, metrics, batch.names))
        values = {name: sum(one[name] for one in found) / len(found) for name in found[0]}
        self._history.append({"step": step, **values})
        self.watch.validation(step, values)
        return values

    def _save(self, step: int, state: Any, values: Values, validation: Mapping[str, float] | None) -> None:
        host = jax.tree.map(np.asarray, state)
        self._check_finite(step, {"the state": host}, ())
        info = dataclasses.replace(
            self.info,
            step=step,
            seconds=self._seconds(),
            metrics=values,
            validation=list(self._history),
            score=None if validation is None else validation[self.learner.score],
        )
        if devices.is_main():
            self._good = self.checkpoints.save(info, host)

    def _spread(self, batch: Batch) -> Any:
        return devices.shard(batch.rows, self.mesh, len(batch.names))

    def _seconds(self) -> float:
        return time.perf_counter() - self._started

    def _values(self, step: int, metrics: Metrics, names: tuple[str, ...]) -> Values:
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
