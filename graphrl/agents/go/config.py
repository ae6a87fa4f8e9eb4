"""Settings of GO and GDP: of their networks, and of their training."""

import dataclasses
from typing import Any, ClassVar, Literal, get_args

from graphrl.costs.problem import MAX_DEVICES, SCHEDULED, Problem, Transfer
from graphrl.envs.base import Environment
from graphrl.envs.compile.env import CompileEnv
from graphrl.envs.compile.generator import OBJECTIVES, Task, check_tasks
from graphrl.envs.compile.sends import Sends
from graphrl.errors import ProblemError, clipped
from graphrl.learning.learner import MAX_COUNT, check_ranges
from graphrl.learning.ppo import PpoSettings
from graphrl.networks.decisions import Coupling, Superposition
from graphrl.networks.encoders import Neighbours

Learning = Literal["ppo", "imitation"]
DecoderName = Literal["changes", "groups"]
SENDS: Sends = "rule"


@dataclasses.dataclass(frozen=True)
class GoConfig:
    """Settings of GO's networks. The paper's text gives none of the numbers: they are ours.

    The numbers of devices, priorities and fusion priorities are not settings: they are inputs, and one policy supports
    all numbers. GO's predecessor GDP is superposition="none" and coupling="none", on one task (`graphrl train gdp`).

    Attributes:
      tasks: decisions per op, in the order in which later ones are conditioned on earlier ones: "placement" (its
        device), "priority" (the highest of the ready ops runs first) and "fusion" (its fusion priority, for
        observations that have it as a task).
      width: width of all vectors: a multiple of `heads`.
      rounds: number of GraphSAGE rounds; with 0 an op's vector depends only on its own features.
      neighbours: "together" pools an op's predecessors and successors together in GraphSAGE, as in the paper; "apart"
        pools them separately.
      layers: number of attention layers along the ops in topological order, in addition to the task heads; at least 0.
      heads: number of attention heads.
      segment: number of ops per segment, within which attention is unrestricted; a segment that covers the graph gives
        a full transformer.
      cached: True to attend to the previous segment as well.
      superposition: rescaling of the features that enter each layer: by the same factors for the whole "graph", by
        separate ones for each of its "ops", or not at all ("none").
      coupling: "recurrent" conditions tasks on one another's decisions through attention; "none" decides them
        independently.
      iterations: number of times that the network decides, each time given its previous option probabilities.
      spread: approximate standard deviation of the initial policy's logits, in nats; see `TaskHeads`.
      preference: bonus of the initial policy for the last choice, in nats.
      changes: expected share of ops that change their choice, per task: the policy learns where to change, but not how
        much (see `network.changing`); 0 leaves the number to the policy too.
      votes: True shows each op how many of its neighbours have chosen each of its options (ours).
      plan_features: True shows each op the schedule of the last choices: when it and others ran, their waiting times,
        and how busy each device was (ours).

    Raises:
      ProblemError: a value is out of range.
    """

    tasks: tuple[Task, ...] = ("placement", "priority")
    width: int = 64
    rounds: int = 2
    neighbours: Neighbours = "apart"
    layers: int = 2
    heads: int = 4
    segment: int = 128
    cached: bool = True
    superposition: Superposition = "graph"
    coupling: Coupling = "recurrent"
    iterations: int = 1
    spread: float = 1.0
    preference: float = 0.0
    votes: bool = False
    plan_features: bool = False
    changes: float = 0.0

    def __post_init__(self) -> None:
        integers = {"width": (1, 4096), "rounds": (0, 64), "layers": (0, 64), "heads": (1, 256)}
        integers |= {"segment": (1, 65_536), "iterations": (1, 64)}
        names = {"neighbours": Neighbours, "superposition": Superposition, "coupling": Coupling}
        check_ranges(self, integers=integers, above_zero=("spread",), options=names)
        check_tasks(self.tasks)
        if self.width % self.heads:
            raise ProblemError(f"heads is {self.heads}: must divide the width, {self.width}")
        if not 0 <= self.preference < float("inf"):
            raise ProblemError(f"preference is {self.preference!r}: must be at least 0 and finite")
        if not 0 <= self.changes < 1:
            raise ProblemError(f"changes is {self.changes!r}: must be at least 0 and below 1")


# Episodes start from a good plan: most ops keep their devices, and a step of PPO compares plans that differ in some.
_NETWORK = GoConfig(width=32, layers=1, votes=True, plan_features=True, changes=0.02)
GDP_NETWORK = dataclasses.replace(_NETWORK, tasks=("placement",), superposition="none", coupling="none")
_PPO = PpoSettings(
    steps=1,
    environments=32,
    epochs=2,
    minibatches=1,
    ratio="choice",
    entropy_coefficient=0.0,
    learning_rate=1e-3,
    discount=1.0,
)


@dataclasses.dataclass(frozen=True)
class GoSettings:
    """Settings of `graphrl train go`. The paper gives no numbers that these could follow.

    Attributes:
      decoder: "changes" of the decisions of single ops around a plan; or "groups", which are placed one after another,
        without a plan (`groups.py`), for the makespan.
      group_counts: for "groups", their approximate numbers, 0 for every op on its own; each graph of training gets one
        of them, and plans are drawn with all.
      learning: for "changes", "imitation" of a teacher, see `learner.py`; or "ppo", which works best from a policy
        trained by imitation. "groups" learn by REINFORCE, with the number of plans, learning rate, clipping and entropy
        bonus of `ppo`.
      stops: number of plans per graph for which the teacher computes the gains of all changes.
      network: see `GoConfig`.
      ppo: see `PpoSettings`; episodes have one step.
      rounds: number of rounds in an update and in a validation; each round starts from the best plan so far.
      transfers: the transfer models for which one policy is trained; every graph of a batch is evaluated under each.
        Under max_load only the first is used, as transfer models do not apply.
      devices: numbers of devices; each graph gets one of them, or under max_load the machine that its file names.
      communication_ratios: transfer times of the mean tensor between two devices, relative to the mean op's run time;
        each graph gets one of them. A fifth of it is latency. () is the latency and the bandwidth of `problem`.
      levels: number of priorities that an op can have.
      reach: share of the hint's order by which a priority level moves an op, see
        `envs.compile.generator.make_instance`.
      samples: number of plans sampled for each held-out graph in a round of validation.
      problem: the problem of `graphrl evaluate`; its objective, makespan or max_load, is also that of training.
      evaluations: number of evaluations that `graphrl evaluate` gives every method.
      init_checkpoint: a file of `Policy.save` or a checkpoint of the same network, from whose policy training starts;
        "" starts from new parameters.

    Raises:
      ProblemError: a value is out of range.
    """

    decoder: DecoderName = "changes"
    group_counts: tuple[int, ...] = (16, 64, 256, 0)
    learning: Learning = "ppo"
    stops: int = 2
    network: GoConfig = _NETWORK
    ppo: PpoSettings = _PPO
    rounds: int = 4
    transfers: tuple[Transfer, ...] = ("rendezvous", "link")
    devices: tuple[int, ...] = (2, 4, 8)
    communication_ratios: tuple[float, ...] = (0.0, 0.2)
    levels: int = 8
    reach: float = 0.005
    samples: int = 16
    problem: Problem = Problem("makespan", 4)
    evaluations: int = 1000
    init_checkpoint: str = ""

    decides: ClassVar[tuple[Task, ...]] = ("placement", "priority")  # tasks of the instances

    def __post_init__(self) -> None:
        check_ranges(
            self,
            integers={
                "levels": (1, 1024),
                "stops": (1, 1024),
                "rounds": (1, 1024),
                "samples": (1, 4096),
                "evaluations": (1, MAX_COUNT),
            },
            above_zero=("reach",),
            options={"learning": Learning, "decoder": DecoderName},
        )
        limits = ("devices", 1, MAX_DEVICES), ("communication_ratios", 0, 1e6), ("group_counts", 0, MAX_COUNT)
        for name, least, most in limits:
            values = getattr(self, name)
            if not values and name == "communication_ratios" and self.problem.objective in SCHEDULED:
                continue
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
            raise ProblemError(f"network.tasks is {tasks}: must be placement alone: max_load ignores the order")
        if self.problem.objective == "max_load" and self.decoder == "groups":
            raise ProblemError("decoder is 'groups': must be 'changes' for max_load")
        if self.ppo.steps != 1:
            raise ProblemError(f"ppo.steps is {self.ppo.steps}: must be 1, the steps of an episode; set rounds instead")
        if not self.transfers or not set(self.transfers) <= set(get_args(Transfer)):
            text = f"must be one or more of {', '.join(get_args(Transfer))}"
            raise ProblemError(f"transfers is {clipped(', '.join(self.transfers)) or 'empty'}: {text}")

    @property
    def models(self) -> tuple[Transfer, ...]:
        """The transfer models under which graphs are evaluated."""
        return self.transfers if self.problem.objective in SCHEDULED else self.transfers[:1]

    @property
    def env(self) -> Environment[Any, Any, Any]:
        """The environment for training."""
        env: Any = CompileEnv(self.network.tasks, sends=SENDS)
        return env  # its actions are a dict


class FusingSettings(GoSettings):
    """Settings for learning on instances with a fusion problem, which `graphrl train` does not create."""

    decides = get_args(Task)
