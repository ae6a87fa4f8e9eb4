"""What the training of GO is made from."""

import dataclasses
from typing import Any, ClassVar, Literal, get_args

from graphrl.agents.go.config import GoConfig, Task
from graphrl.costs.problem import MAX_DEVICES, SCHEDULED, Problem, Transfer
from graphrl.envs.base import Environment
from graphrl.envs.compile.env import CompileEnv
from graphrl.envs.compile.instance import OBJECTIVES
from graphrl.envs.compile.run import Sends
from graphrl.errors import ProblemError, clipped
from graphrl.learning.ppo import PpoSettings
from graphrl.learning.ranges import MOST, check_ranges

Learning = Literal["ppo", "imitation"]
SENDS: Sends = "rule"

# Episodes begin at a good plan: most ops stay where they are, and a step of PPO compares plans that differ in some.
_NETWORK = GoConfig(width=32, layers=1, votes=True, played=True, changes=0.02)
GDP_NETWORK = dataclasses.replace(_NETWORK, tasks=("placement",), superposition="none", coupling="none")
_PPO = PpoSettings(
    steps=1, environments=32, epochs=2, minibatches=1, ratio="choice", entropy=0.0, rate=1e-3, discount=1.0
)


@dataclasses.dataclass(frozen=True)
class GoSettings:
    """Settings of `graphrl train go`. The paper gives no numbers that these could follow.

    Attributes:
      learning: "imitation" of a teacher, see `lessons.py`; or "ppo", best of all from a policy that has imitated.
      stops: of the teacher on a graph.
      network: see `GoConfig`.
      ppo: see `PpoSettings`; episodes have one step.
      rounds: of an update, and of playing: each begins at the best plan so far.
      transfers: the transfer models that one policy is trained under; every graph of a batch is played under each.
        Under max_load there is no such thing: the first stands for all.
      devices: their numbers; each graph has one of them, or under max_load the machine that its file names.
      slowness: the time that the mean tensor takes from one device to another, over the mean op's run time; each graph
        has one of these. A fifth of it is latency.
      levels: of priorities.
      reach: by how much of the hint's order a level moves an op, see `compile.instance`.
      samples: plans that are drawn of each held-out graph in a round of validation.
      problem: what `graphrl evaluate` asks for; its objective is what is trained for, makespan or max_load.
      evaluations: what it gives every method.
      start: a file of `Policy.save` or a checkpoint whose policy training begins with, of the same network; "" begins
        anew.

    Raises:
      ProblemError: a value is out of range.
    """

    learning: Learning = "ppo"
    stops: int = 2
    network: GoConfig = _NETWORK
    ppo: PpoSettings = _PPO
    rounds: int = 4
    transfers: tuple[Transfer, ...] = ("rendezvous", "link")
    devices: tuple[int, ...] = (2, 4, 8)
    slowness: tuple[float, ...] = (0.0, 0.2)
    levels: int = 8
    reach: float = 0.005
    samples: int = 16
    problem: Problem = Problem("makespan", 4)
    evaluations: int = 1000
    start: str = ""

    decides: ClassVar[tuple[Task, ...]] = ("placement", "priority")  # what instances are made for

    def __post_init__(self) -> None:
        check_ranges(
            self,
            integers={
                "levels": (1, 1024),
                "stops": (1, 1024),
                "rounds": (1, 1024),
                "samples": (1, 4096),
                "evaluations": (1, MOST),
            },
            above_zero=("reach",),
            options={"learning": get_args(Learning)},
        )
        for name, least, most in (("devices", 1, MAX_DEVICES), ("slowness", 0, 1e6)):
            values = getattr(self, name)
            if not values or not all(least <= value <= most for value in values):
                text = f"must be one or more numbers from {least} to {most:g}"
                raise ProblemError(f"{name} is {clipped(', '.join(map(str, values))) or 'empty'}: {text}")
        if not set(self.network.tasks) <= set(self.decides):
            raise ProblemError(
                "network.tasks has fusion: must be placement, priority or both; graphs are not fused here"
            )
        if self.problem.objective not in OBJECTIVES:
            raise ProblemError(f"problem.objective is {self.problem.objective}: must be {' or '.join(OBJECTIVES)}")
        if self.problem.objective == "max_load" and self.network.tasks != ("placement",):
            tasks = ", ".join(self.network.tasks)
            raise ProblemError(f"network.tasks is {tasks}: must be placement alone, for max_load knows no order")
        if self.ppo.steps != 1:
            raise ProblemError(f"ppo.steps is {self.ppo.steps}: must be 1, an episode's; see rounds")
        if not self.transfers or not set(self.transfers) <= set(get_args(Transfer)):
            text = f"must be one or more of {', '.join(get_args(Transfer))}"
            raise ProblemError(f"transfers is {clipped(', '.join(self.transfers)) or 'empty'}: {text}")

    @property
    def models(self) -> tuple[Transfer, ...]:
        """The transfer models that graphs are played under."""
        return self.transfers if self.problem.objective in SCHEDULED else self.transfers[:1]

    @property
    def env(self) -> Environment[Any, Any, Any]:
        """The environment of the training."""
        env: Any = CompileEnv(self.network.tasks, sends=SENDS)
        return env  # its actions are a dict


class FusingSettings(GoSettings):
    """Of what learns on instances with a fusion problem, which `graphrl train` does not make."""

    decides = get_args(Task)
