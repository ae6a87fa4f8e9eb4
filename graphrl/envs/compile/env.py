"""`CompileEnv`, the environment of GO's policy."""

import dataclasses
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp

from graphrl.envs import specs
from graphrl.envs.base import TimeStep
from graphrl.envs.compile.generator import Choices, CompileInstance, Task, check_tasks
from graphrl.envs.compile.observation import Observation, observe, options_of, plan_features
from graphrl.envs.compile.reward import outcome, possible_choices, reward
from graphrl.envs.compile.sends import Sends
from graphrl.errors import ProblemError


class State(NamedTuple):
    """State of one episode."""

    chosen: Choices  # the last choices
    step: jax.Array  # [] int32, number of environment steps so far


@dataclasses.dataclass(frozen=True)
class CompileEnv:
    """`Compile-v0`: choose device, priority and fusion of all ops in one step, for a low run time (GO, sections 3, 5).

    The run time is the makespan. For pipelined execution of many samples (instances of the objective `max_load`) it is
    the largest load of a device, and placement is the only decision.

    - Observation: the graph with its features, a topological order of its ops, features of the options of each task,
      the allowed options, the last choices (-1 before the first), and features of their run (`features.py`). For the
      makespan these are the times at which ops ran, their waiting times, and the devices' busy times; for `max_load`
      the devices' loads, and the loads with an op on another device. With fusion these features exist only for kernels'
      roots.
    - Action: for each task an option for every op, a dictionary of int32 `[n]`. "placement" is a device. "priority" is
      a level: of the ready ops the highest level runs first, and of equal ones the first in the order. (Keys of 50,000
      ops are too coarse to distinguish about a hundred neighbours in the order; of these the first in the graph runs
      first: `costs/device/lanes`.) A transfer has the priority of the most urgent op that waits for it, or see `sends`.
      Padding counts as option 0, and a device that cannot run an op, or does not exist, as the first that can. Ops of a
      group are on the device of its first op in the order. "fusion" is the priority of `graphrl.costs.fusion`: an op of
      priority 0, or that cannot be fused, is never inlined into the kernels that read it; others are inlined as far as
      the limits of kernels allow. A kernel has device and priority of its root, the op that is not inlined; those of
      inlined ops are ignored.
    - Tasks that the environment does not have keep the choices of the instance's start (no choice counts as option 0).
      Instances without fusion run single ops, with the graph's run times. Instances with fusion run kernels, with the
      roofline's run times, even if nothing is inlined.
    - Reward: -sqrt(run time / baseline's), so -1 is as good as the baseline; -10 if a device exceeds its memory limit.
      The reward is also -10 for kernels that read more than twice the number of tensors that ops read: they exceed the
      padded size, and the reported run time is not theirs.
    - End: terminated after `episode_steps` steps, each of which sets all choices.
    - State: the last choices. No random numbers are drawn.
    - Info: "runtime", seconds, and "valid"; 0 and false after `reset`, since nothing has run.

    Deviations from the paper: its scheduler has a queue for each device and takes ready ops by time; here priorities
    define an order, as everywhere in `graphrl.costs`. In the paper colocation can be violated, with a reward of -10;
    here it cannot. The paper's fusion rules are in a supplement that was not available; these are ours.

    Attributes:
      tasks: the decisions: one or more of "placement", "priority" and "fusion", the last on instances with fusion.
      episode_steps: number of steps; with more than 1, later steps refine the last choices.
      sends: "urgent": a transfer has the priority of the most urgent op that waits for it. "rule": transfers follow
        from the order of ops alone (`solvers.transfer_rules.plans`), as in plans of `anneal-ops` and `go`: right before
        the first op that waits, under `rendezvous` bundled with all that are ready between the same two devices.

    Version history: v0, the first.

    Raises:
      ProblemError: a task is unknown or repeated, or the number of steps or `sends` is out of range.
    """

    tasks: tuple[Task, ...] = ("placement", "priority")
    episode_steps: int = 1
    sends: Sends = "urgent"

    def __post_init__(self) -> None:
        check_tasks(self.tasks)
        if type(self.episode_steps) is not int or self.episode_steps < 1:
            raise ProblemError(f"episode_steps is {self.episode_steps!r}: must be an integer of at least 1")
        if self.sends not in get_args(Sends):
            raise ProblemError(f"sends is {self.sends!r}: must be one of {', '.join(get_args(Sends))}")

    def reset(self, key: jax.Array, instance: CompileInstance) -> tuple[State, TimeStep[Observation]]:
        """Sets the choices to the instance's start. See `Environment`; `key` is not used."""
        del key
        instance = jax.tree.map(jnp.asarray, instance)
        no, zero = jnp.asarray(False), jnp.float32(0)
        first = observe(instance, instance.start, self.tasks, sends=self.sends)
        return State(instance.start, jnp.int32(0)), TimeStep(first, zero, no, no, {"runtime": zero, "valid": no})

    def step(
        self, key: jax.Array, state: State, action: dict[str, jax.Array], instance: CompileInstance
    ) -> tuple[State, TimeStep[Observation]]:
        """Sets the choices, and runs the graph with them. See `Environment`; `key` is not used."""
        del key
        instance = jax.tree.map(jnp.asarray, instance)
        chosen = possible_choices(instance, instance.start._replace(**{task: action[task] for task in self.tasks}))
        result = outcome(instance, chosen, self.sends)
        state = State(chosen, state.step + jnp.int32(1))
        return state, TimeStep(
            observe(instance, chosen, self.tasks, plan_features(instance, chosen, result)),
            reward=reward(instance, result),
            terminated=state.step >= self.episode_steps,
            truncated=jnp.asarray(False),
            info={"runtime": result.seconds * instance.second_unit, "valid": result.valid},
        )

    def observation_spec(self, instance: CompileInstance) -> Any:
        """See `Environment`."""
        shapes = jax.eval_shape(lambda instance: self.reset(jax.random.key(0), instance)[1].observation, instance)
        n, edges = shapes.mask.shape[0], shapes.graph.senders.shape[0]
        place, nodes, edge_counts = (
            specs.integers(shape, 0, most) for shape, most in (((edges,), n), ((2,), n + 1), ((2,), edges))
        )
        features = shapes.graph._replace(nodes=specs.floats(shapes.graph.nodes.shape))
        counts = {task: options.shape[0] for task, options in shapes.options.items()}
        fields: dict[str, Any] = dict(  # noqa: C408  (reads as the constructor that it fills)
            graph=features._replace(senders=place, receivers=place, n_node=nodes, n_edge=edge_counts),
            mask=specs.booleans((n,)),
            order=specs.choices((n,), n),
            options={task: specs.floats(options.shape) for task, options in shapes.options.items()},
            action_mask={task: specs.booleans((n, count)) for task, count in counts.items()},
            previous={task: specs.integers((n,), -1, count - 1) for task, count in counts.items()},
            plan_features=jax.tree.map(lambda times: specs.floats(times.shape), shapes.plan_features),
        )
        return Observation(**fields)

    def action_spec(self, instance: CompileInstance) -> Any:
        """See `Environment`."""
        shapes = jax.eval_shape(lambda instance: options_of(instance, self.tasks), instance)
        return {task: specs.choices((instance.order.shape[0],), options.shape[0]) for task, options in shapes.items()}
