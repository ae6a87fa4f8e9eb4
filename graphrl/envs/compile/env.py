"""`CompileEnv`, the environment of GO's policy."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.costs.exact import decode
from graphrl.costs.fusion.exact import fuse, fused_graph
from graphrl.costs.fusion.problem import fusion_problem
from graphrl.costs.problem import Problem
from graphrl.envs import specs
from graphrl.envs.base import TimeStep
from graphrl.envs.compile.generator import (
    FUSION_LEVELS,
    LEVELS,
    OBJECTIVES,
    Choices,
    CompileInstance,
    Task,
    check_tasks,
    make_instances,
)
from graphrl.envs.compile.observation import Observation, observe, options_of, plan_features
from graphrl.envs.compile.reward import op_keys, outcome, possible_choices, reward
from graphrl.envs.compile.sends import Sends
from graphrl.envs.graph_environment import GraphEnvironment
from graphrl.errors import PlanError, ProblemError
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.roofline import DEFAULT_CHIP, Chip
from graphrl.plan import Plan
from graphrl.solvers.loads.groups import placed_order
from graphrl.solvers.transfer_rules.plans import with_transfers


class State(NamedTuple):
    """State of one episode."""

    chosen: Choices  # the last choices
    step: jax.Array  # [] int32, number of environment steps so far


@dataclasses.dataclass(frozen=True)
class CompileEnv(GraphEnvironment[CompileInstance]):
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
      tasks: the decisions: one or more of "placement", "priority" and "fusion". Instances have fusion if it is a task.
      episode_steps: number of steps; with more than 1, later steps refine the last choices.
      sends: "urgent": a transfer has the priority of the most urgent op that waits for it. "rule": transfers follow
        from the order of ops alone (`solvers.transfer_rules.plans`), as in plans of `anneal-ops` and `go`: right before
        the first op that waits, under `rendezvous` bundled with all that are ready between the same two devices.
      problem: the devices of instances, and their transfers; its objective is the makespan or `max_load`.
      levels, fusion_levels: numbers of priorities and of fusion priorities of instances.
      chip: the chip of kernels' run times, if fusion is a task: a name in `graphs.roofline.CHIPS` or a `Chip`.

    Version history: v0, the first.

    Raises:
      ProblemError: a task is unknown or repeated, or the number of steps, `sends` or the objective is out of range.
    """

    tasks: tuple[Task, ...] = ("placement", "priority")
    episode_steps: int = 1
    sends: Sends = "urgent"
    problem: Problem = Problem("makespan", 2)
    levels: int = LEVELS
    fusion_levels: int = FUSION_LEVELS
    chip: str | Chip = DEFAULT_CHIP

    def __post_init__(self) -> None:
        check_tasks(self.tasks)
        if type(self.episode_steps) is not int or self.episode_steps < 1:
            raise ProblemError(f"episode_steps is {self.episode_steps!r}: must be an integer of at least 1")
        if self.sends not in get_args(Sends):
            raise ProblemError(f"sends is {self.sends!r}: must be one of {', '.join(get_args(Sends))}")
        if self.problem.objective not in OBJECTIVES:
            raise ProblemError(f"objective is {self.problem.objective!r}: must be {' or '.join(OBJECTIVES)}")

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

    def make_instances(self, graphs: Sequence[ComputationGraph], to: Any = None) -> CompileInstance:
        """See `GraphEnvironment`."""
        fusions = [fusion_problem(graph, self.chip) for graph in graphs] if "fusion" in self.tasks else None
        problems = [self.problem] * len(graphs)
        levels: dict[str, Any] = {"levels": self.levels, "fusion_levels": self.fusion_levels}
        return make_instances(graphs, problems, to, fusions=fusions, **levels)

    def _plan(self, graph: ComputationGraph, instance: CompileInstance, state: State) -> Plan:
        n = len(graph.ops)
        if min(np.min(choice[:n], initial=0) for choice in jax.tree.leaves(state.chosen)) < 0:
            raise PlanError("nothing has been chosen yet: a plan needs a step")
        chosen = jax.tree.map(lambda choice: np.asarray(choice)[:n], possible_choices(instance, state.chosen))
        facts: dict[str, Any] = {"method": "Compile-v0", "seconds": 0.0, "evaluations": 1, "seed": 0}
        if self.problem.objective == "max_load":
            return Plan.from_order(graph, self.problem, *placed_order(graph, self.problem, chosen.placement), **facts)
        placement, keys = chosen.placement, np.asarray(op_keys(instance, jnp.asarray(state.chosen.priority)))[:n]
        if chosen.fusion is not None:
            kernels = fused_graph(fuse(fusion_problem(graph, self.chip), chosen.fusion))
            roots = list(kernels.fusion.members)
            graph, placement, keys = kernels, placement[roots], keys[roots]
        order = order_of_keys(graph, self.problem, placement, keys, self.sends)
        return Plan.from_order(graph, self.problem, placement, order, **facts)


def order_of_keys(
    graph: ComputationGraph, problem: Problem, placement: np.ndarray, keys: np.ndarray, sends: Sends
) -> np.ndarray:
    """Computes the environment's order of ops and transfers, on the host: `[m]` node ids as in `costs.exact`.

    Args:
      graph: graph of ops, or of kernels.
      problem: the planning problem.
      placement: `[n]` devices.
      keys: `[n]` keys of ops in [0, 1]: the ready op with the largest key runs first.
      sends: see `CompileEnv`.
    """
    a = graph.arrays
    if sends == "rule":
        alone = Problem("makespan", 1, "free")
        ops = decode(graph, alone, np.zeros(a.num_ops, np.int64), keys, np.zeros((a.num_tensors, 1), keys.dtype))
        return with_transfers(graph, problem, placement, ops)
    of_sends = np.zeros((a.num_tensors, problem.devices), keys.dtype)
    np.maximum.at(of_sends, (a.use_tensor, placement[a.use_op]), keys[a.use_op])
    return decode(graph, problem, placement, keys, of_sends)
