"""The environment of GO's policy."""

import dataclasses
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp

from graphrl.envs import specs
from graphrl.envs.base import TimeStep
from graphrl.envs.compile.generator import Choices, CompileParams, Task, check_tasks
from graphrl.envs.compile.observation import Observation, observe, options_of, seen
from graphrl.envs.compile.reward import outcome, possible_choices, reward
from graphrl.envs.compile.sends import Sends
from graphrl.errors import ProblemError


class State(NamedTuple):
    """Of one episode."""

    chosen: Choices
    step: jax.Array  # [] int32


@dataclasses.dataclass(frozen=True)
class CompileEnv:
    """`Compile-v0`: choose device, priority and fusion of every op at once, for a short run time (GO, 3 and 5).

    The run time is the makespan, or where samples follow one another through the devices (instances of the objective
    `max_load`) the largest load of a device: there placement is all that is decided.

    - Observation: the graph with its features, a topological order of its ops, features of the options of each task,
      what may be chosen, what was chosen last, -1 for nothing yet, and how that ran (`features.py`): when ops ran and
      what they waited for, and the devices' busy times; or devices' loads, and the loads with an op on another device.
      With fusion that is known of kernels' roots alone.
    - Action: of each task an option for every op, a dictionary of int32 `[n]`: "placement", a device; "priority", a
      level: of the ready ops the highest level runs first, and of equal ones the first in the order (of some hundred
      that are neighbours in it the first of the graph, where keys of 50,000 ops are too coarse: `costs/device/lanes`).
      A transfer has the priority of the most urgent op that waits for it, or see `sends`. Padding counts as
      option 0, and a device that cannot run an op, or is not there, as the first that can; ops of a group stand on the
      device of its first one in the order. "fusion" is the priority of `graphrl.costs.fusion`: an op of priority 0, or
      that may not be, is never inlined into the kernels that read it, others are as far as the limits of kernels allow.
      A kernel has device and priority of its root, the op that is not inlined; those of inlined ops count for nothing.
    - Tasks that the environment does not have stay as the instance's start has them (nothing there is option 0).
      Instances without fusion run single ops, with the graph's run times; those with it run kernels, with the
      roofline's, also where nothing is inlined.
    - Reward: -sqrt(run time / baseline's), so -1 is as good as the baseline; -10 where a device needs more memory than
      there is. So do kernels that read more than twice as many tensors as ops do: there is no room for them, and the
      run time is not theirs.
    - End: terminated after `episode_steps` steps, each of which sets all choices anew.
    - State: what was chosen last. No random numbers are drawn.
    - Info: "runtime", seconds, and "valid"; after `reset` 0 and false, for nothing has run.

    Deviations from the paper: there a scheduler with a queue for each device takes what is ready by the clock; here
    priorities make an order, as everywhere in `graphrl.costs`. There colocation can be violated, which earns -10; here
    it cannot. The paper's rules of fusion are in a supplement that could not be had; these are ours.

    Attributes:
      tasks: what is decided: one or more of "placement", "priority" and "fusion", the last on instances with fusion.
      episode_steps: more than 1 refine the last choice.
      sends: "urgent": a transfer has a priority as said above. "rule": they follow from the order of ops alone
        (`solvers.sending.plans`), as in plans of `anneal-ops` and `go`: right before the first op that waits, under
        `rendezvous` with all that the same two devices have for one another by then.

    Version history: v0, the first.

    Raises:
      ProblemError: there are no such tasks, or episodes have no steps.
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

    def reset(self, key: jax.Array, params: CompileParams) -> tuple[State, TimeStep[Observation]]:
        """What is chosen is the instance's start. See `Environment`; `key` is not used."""
        del key
        params = jax.tree.map(jnp.asarray, params)
        no, zero = jnp.asarray(False), jnp.float32(0)
        first = seen(params, params.start, self.tasks, self.sends)
        return State(params.start, jnp.int32(0)), TimeStep(first, zero, no, no, {"runtime": zero, "valid": no})

    def step(
        self, key: jax.Array, state: State, action: dict[str, jax.Array], params: CompileParams
    ) -> tuple[State, TimeStep[Observation]]:
        """Makes choices, and runs the graph under them. See `Environment`; `key` is not used."""
        del key
        params = jax.tree.map(jnp.asarray, params)
        chosen = possible_choices(params, params.start._replace(**{task: action[task] for task in self.tasks}))
        came = outcome(params, chosen, self.sends)
        state = State(chosen, state.step + jnp.int32(1))
        return state, TimeStep(
            observe(params, chosen, self.tasks, came),
            reward=reward(params, came),
            terminated=state.step >= self.episode_steps,
            truncated=jnp.asarray(False),
            info={"runtime": came.seconds * params.second_unit, "valid": came.valid},
        )

    def observation_spec(self, params: CompileParams) -> Any:
        """See `Environment`."""
        shapes = jax.eval_shape(lambda params: self.reset(jax.random.key(0), params)[1].observation, params)
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
            played=jax.tree.map(lambda times: specs.floats(times.shape), shapes.played),
        )
        return Observation(**fields)

    def action_spec(self, params: CompileParams) -> Any:
        """See `Environment`."""
        shapes = jax.eval_shape(lambda params: options_of(params, self.tasks), params)
        return {task: specs.choices((params.order.shape[0],), options.shape[0]) for task, options in shapes.items()}
