"""Training of an agent within a time limit, by graphrl's training loop, without files."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from graphrl.agents import find_agent
from graphrl.mesh import make_mesh, most_that_share
from graphrl.progress import Pace, compile_clock
from graphrl.signals import Stop
from graphrl.training.checkpoints import Checkpoints, Info, Values
from graphrl.training.config import Schedule, parsed, updated
from graphrl.training.loop import Loop
from graphrl.training.run import default_config, initial_info, run_data
from reproduce.accelerator.job import Job, Row, Write

VALIDATIONS = 6  # approximately
SMALL = {
    "regal": "data.train=regal-like:12x8@10000 data.validation=regal-like:12x2@5000 data.graphs=2 data.buckets=1 "
    "agent.evaluations=160 agent.actions=2 agent.rounds=1 agent.width=8",
    "topoformer": "data.train=layered:20x8@10000 data.validation=layered:20x4@5000 data.test=layered:20x2 "
    "data.graphs=2 data.curriculum=0 agent.layers=1 agent.width=8 agent.samples=4",
    "go": "data.train=layered:20x4@10000 data.validation=layered:20x2@5000 data.test=layered:20x2 data.graphs=2 "
    "data.buckets=1 agent.transfers=free agent.devices=2 agent.rounds=1 agent.samples=4 agent.levels=4 "
    "agent.ppo.environments=4 agent.network.width=8 agent.network.rounds=1 agent.network.layers=0 "
    "agent.network.heads=1 agent.network.superposition=none agent.network.coupling=none",
    "egrl": "data.train=layered:10x2@10000 data.validation=layered:10x2@5000 data.test=layered:10x2 data.graphs=2 "
    "agent.population=4 agent.replay=1000 agent.width=4",
}


def training(job: Job, write: Write) -> None:
    """Writes a row for every validation, the first one before training."""
    agent = find_agent(job.part)
    values = parsed(SMALL[job.part].split()) if job.small else {}
    config = updated(default_config(agent), {**values, "seed": job.seed})
    count, what = agent.work_items(config)
    devices = jax.devices()
    mesh = make_mesh(count, devices[: most_that_share(count, len(devices))], what=what)
    data = run_data(agent, config, mesh)
    learner = agent.learner(config.agent, mesh, data)
    info = initial_info(job.part, config)
    with compile_clock() as compiling:
        timer = _Timer(job, {"agent": job.part, "score": learner.score}, compiling, write)
        Loop(
            learner,
            data,
            mesh,
            _ByTimer(timer=timer),
            _Nowhere(Path(), 1),
            info,
            [timer],
            timer,
            agent.shares(config.agent),
        ).run()


class _Timer(Stop):
    """Spreads validations over the time, ends training before the limit, and writes a row for each validation."""

    def __init__(self, job: Job, labels: Row, compiling: Callable[[], float], write: Write) -> None:
        super().__init__()
        self._job, self._labels, self._compiling, self._write = job, labels, compiling, write
        self._pace = Pace(compiling)
        self._began, self._last = time.time(), 0.0
        self._every, self._margin = job.left / VALIDATIONS, max(1.0, 0.05 * job.left)

    @property
    def is_over(self) -> bool:
        """True if at most one more validation fits in the time left; never before the first."""
        return self._last > 0.0 and self._job.left < 1.5 * (self._pace.each("validation") or 0.0) + self._margin

    @property
    def is_due(self) -> bool:
        """True if a validation follows this update."""
        return self.is_over or time.time() - self._last >= self._every

    def __call__(self) -> bool:
        """True if training ends here."""
        return self.is_over

    def update(self, step: int, seconds: float, bucket: int, values: Values) -> None:
        """See `training.loop.Observer`."""
        self._pace.add("update")

    def validation(self, step: int, values: Values) -> None:
        """See `training.loop.Observer`."""
        self._pace.add("validation")
        self._last = time.time()
        each = self._pace.each("update")
        times = {"seconds": self._last - self._began, "compile_s": self._compiling()}
        rate = {"updates_per_s": 1 / each if each else 0.0, "value": values[self._labels["score"]]}
        self._write({**self._labels, "step": step, **times, **rate})


@dataclasses.dataclass(frozen=True)
class _ByTimer(Schedule):
    """Schedule whose validations the timer decides."""

    steps: int = 2**31 - 1
    timer: Any = None  # a `_Timer`

    def __post_init__(self) -> None:
        """Skips the checks of `Schedule`: the timer is not a number."""

    def validates(self, step: int) -> bool:
        return bool(self.timer.is_due)

    def saves(self, step: int) -> bool:
        return self.validates(step)


class _Nowhere(Checkpoints):
    """Checkpoints that are never saved: such a run is not resumed."""

    def save(self, info: Info, state: Any) -> Path:
        return Path()

    def latest(self) -> None:
        return None
