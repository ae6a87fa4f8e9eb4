"""Training of an agent for as long as there is time, by graphrl's training loop, without any file."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import jax

from graphrl.agents import find_agent
from graphrl.mesh import make_mesh, most_that_share
from graphrl.signals import Stop
from graphrl.training.checkpoints import Checkpoints, Info, Values
from graphrl.training.config import parsed, updated
from graphrl.training.loop import Loop
from graphrl.training.run import default_config, first_info, run_data
from graphrl.training.schedule import Schedule
from reproduce.accelerator.job import Job, Write

LOOKS = 6  # at the held-out graphs, about
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
    """Rows of the first update, of updates as they come, and of every look at the held-out graphs."""
    agent = find_agent(job.part)
    values = parsed(SMALL[job.part].split()) if job.small else {}
    config = updated(default_config(agent), {**values, "seed": job.seed})
    count, what = agent.shared(config)
    devices = jax.devices()
    mesh = make_mesh(count, devices[: most_that_share(count, len(devices))], what=what)
    data = run_data(agent, config, mesh)
    learner = agent.learner(config.agent, mesh, data)
    clock = _Clock(job)
    record = _Record(job.part, learner.score, write, clock)
    nothing = 2**31 - 1
    schedule = _ByClock(steps=nothing, validate_every=nothing, checkpoint_every=nothing, clock=clock)
    info = first_info(job.part, config)
    Loop(learner, data, mesh, schedule, _Nowhere(Path(), 1), info, (record,), clock, agent.shares).run()


class _Clock(Stop):
    """Says after every update whether to look at the held-out graphs, and whether to end, which leaves time to."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job, self._every = job, job.left / LOOKS
        self._margin = max(1.0, 0.05 * job.left)
        self._next = time.time() + self._every
        self._asked = self._look = 0.0
        self.is_due = False

    def __call__(self) -> bool:
        """Whether training ends here."""
        self._asked = time.time()
        is_over = self._job.left < 1.5 * self._look + self._margin
        self.is_due = is_over or self._asked >= self._next
        return is_over

    def looked(self) -> None:
        """A look has been taken; the first, before any update, may have compiled what the others use."""
        self._look = time.time() - self._asked if self._asked else 0.0
        self._next = time.time() + self._every


@dataclasses.dataclass(frozen=True)
class _ByClock(Schedule):
    """Looks at the held-out graphs when the clock says so."""

    clock: Any = None  # a `_Clock`

    def __post_init__(self) -> None:
        """There is nothing to check, and the clock is no number."""

    def validates(self, step: int) -> bool:
        return bool(self.clock.is_due)

    def saves(self, step: int) -> bool:
        return self.validates(step)


class _Nowhere(Checkpoints):
    """Keeps nothing: such a run is not gone on with."""

    def save(self, info: Info, state: Any) -> Path:
        return Path()

    def latest(self) -> None:
        return None


class _Record:
    """Writes rows: of updates some two a second. See `loop.Observer`."""

    def __init__(self, agent: str, score: str, write: Write, clock: _Clock) -> None:
        self._agent, self._score, self._write, self._clock = agent, score, write, clock
        self._began = time.time()
        self._last = self._written = self._busy = 0.0
        self._timed = 0

    def update(self, step: int, seconds: float, bucket: int, values: Values) -> None:
        """See `loop.Observer`."""
        now = time.time()
        if self._last:  # the first one compiles, and the one after a look waits for it
            self._busy, self._timed = self._busy + now - self._last, self._timed + 1
        self._last = now
        if step == 1 or now - self._written > 0.5:
            self._written = now
            rate = self._timed / self._busy if self._busy else None
            self._write({"agent": self._agent, "step": step, "after": now - self._began, "updates_per_s": rate})

    def validation(self, step: int, values: Values) -> None:
        """See `loop.Observer`."""
        self._clock.looked()
        self._last = 0.0
        row = {"agent": self._agent, "step": step, "after": time.time() - self._began}
        self._write({**row, "score": self._score, "value": values[self._score]})
