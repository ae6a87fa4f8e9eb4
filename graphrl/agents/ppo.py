"""PPO as an agent, in any environment on graphs with any networks, and as the method "ppo".

    graphrl train ppo --env my_module:Env --network my_module:network --out out/mine
    graphrl evaluate out/mine

- An environment is an id, or "module:NAME" of a class, a function without arguments, or an object. It follows the
  contract of `graphrl.envs.base`, and has `make_instances(graphs, to)`: a batch of instances of graphs, arrays with a
  leading axis, padded to the sizes `to` (`graphs.padding.Sizes`; `to.ops` is the number of ops). Methods `load(names)`
  and `sizes(graphs)`, if it has them, replace how graphs are loaded and sizes chosen.
- A network is "module:NAME" of a function: environment -> `ppo.PolicyValue`, a policy network (logits with the
  action's structure and a last axis of options) and a value network. The shapes of their parameters must not depend on
  the size of the graph. Options that the observation's `action_mask` forbids are never drawn. `graph_network` is the
  default.
- The greedy policy makes the plans of the method "ppo", if the environment has `problem`, a `Problem` (or a
  `MemoryChip`), and `plan(graph, instance, state)`, as those of graphrl have.
"""

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from graphrl.costs.host.lowering import costs_of_lanes
from graphrl.costs.maps.chip import MemoryChip
from graphrl.costs.problem import Problem
from graphrl.envs import registry, specs
from graphrl.envs.base import TimeStep, sample_action, validate_timestep
from graphrl.envs.compile.compiled_features import features_of_schedules
from graphrl.errors import GraphrlError, ProblemError, import_entry_point, one_line, place
from graphrl.graphs.datasets.sets import load_graphs
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes, common_sizes, roomy_sizes
from graphrl.learning import learner as learning
from graphrl.learning import ppo
from graphrl.learning.learner import MAX_COUNT, Learner, LearnerState, check_ranges
from graphrl.learning.ppo import PolicyValue, PpoSettings
from graphrl.learning.ppo.settings import masked
from graphrl.networks.base import network
from graphrl.networks.encoders import OpEncoder
from graphrl.networks.heads import GraphValue, OpLogits
from graphrl.plan import Plan
from graphrl.plan.memory_map import MemoryMap
from graphrl.solvers.base import Task
from graphrl.solvers.maps.task import MapTask, map_solver
from graphrl.solvers.solver import solver
from graphrl.training import agent
from graphrl.training.agent import Agent, tiny_graph
from graphrl.training.config import Schedule
from graphrl.training.data import Data, DataConfig

MAX_STEPS = 10_000  # of an episode

_PPO = PpoSettings(
    steps=1,
    environments=32,
    epochs=4,
    minibatches=2,
    ratio="choice",
    entropy_coefficient=0.003,
    learning_rate=1e-3,
    max_grad_norm=5.0,
    discount=1.0,
)


@dataclasses.dataclass(frozen=True)
class PpoConfig:
    """Settings of `graphrl train ppo`.

    Attributes:
      env: the environment: an id such as Compile-v0, or module:NAME of a class, a function without arguments or an
        object. Modules are found in the working directory too.
      network: module:NAME of a function from the environment to `ppo.PolicyValue`, its networks.
      ppo: see `PpoSettings`. A roll-out is at least as long as the longest episode with random actions on the largest
        training graphs, so that episodes end.
      problem: the problem for which plans are made, for environments with an argument `problem`.
      evaluations: number of evaluations of every method in `graphrl evaluate`, and of a search of environments with an
        argument `evaluations`.
      init_checkpoint: a file of `Policy.save` or a checkpoint of the same network, from whose policy training starts;
        "" starts from new parameters.

    Raises:
      ProblemError: a value is out of range.
    """

    env: str = "Compile-v0"
    network: str = "graphrl.agents.ppo:graph_network"
    ppo: PpoSettings = _PPO
    problem: Problem = Problem("makespan", 2)
    evaluations: int = 1000
    init_checkpoint: str = ""

    def __post_init__(self) -> None:
        check_ranges(self, integers={"evaluations": (1, MAX_COUNT)}, above_zero=(), options={})


class Parts(NamedTuple):
    """The environment and the networks of a configuration."""

    env: Any
    networks: PolicyValue  # the policy is masked
    observation: Any  # shapes and dtypes of an observation of `tiny_graph`
    play: Callable[..., ppo.Episode]  # (params, instance, key) -> the greedy episode; jitted


@functools.lru_cache(maxsize=16)
def parts(config: PpoConfig) -> Parts:
    """Creates the environment and the networks.

    Raises:
      GraphrlError: a module or a name does not exist, or what it names does not follow its contract.
    """
    env = _environment(config)
    with _as_one_line(f"agent.env={config.env}"):
        tiny = [tiny_graph()]
        one = _first(_instances(env, tiny, _sizes(env, tiny)))
        observation = jax.eval_shape(env.reset, jax.random.key(0), one)[1].observation
    name = f"agent.network={config.network}"
    create = import_entry_point(config.network, name)
    if not callable(create):
        raise GraphrlError(f"{name} is of type {type(create).__name__}: must be a function of the environment")
    with _as_one_line(name):
        networks = create(env)
    if not isinstance(networks, PolicyValue):
        raise GraphrlError(
            f"{name} returns a {type(networks).__name__}: must return graphrl.learning.ppo.PolicyValue(policy, value)"
        )
    if hasattr(observation, "action_mask"):
        networks = networks._replace(policy=masked(networks.policy, lambda observation: observation.action_mask))

    def play(params: Any, instance: Any, key: jax.Array) -> ppo.Episode:
        return ppo.play_episode(env, networks.policy, params, instance, key, steps=MAX_STEPS)

    return Parts(env, networks, observation, jax.jit(play))


def _environment(config: PpoConfig) -> Any:
    """Creates the environment, with those of its arguments that are settings."""
    name = f"agent.env={config.env}"
    if ":" not in config.env and config.env not in registry.registered():
        raise ProblemError(f"{name}: must be {', '.join(registry.registered())}, or module:NAME of your own")
    build = import_entry_point(config.env, name) if ":" in config.env else registry.find(config.env)
    if not isinstance(build, type) and hasattr(build, "reset"):
        env, accepted = build, set()
    elif callable(build):
        with _as_one_line(name):
            accepted = {"problem", "evaluations"} & set(inspect.signature(build).parameters)
            env = build(**{option: getattr(config, option) for option in accepted})
    else:
        raise GraphrlError(f"{name} is of type {type(build).__name__}: must be a class or an environment")
    methods = ("reset", "step", "observation_spec", "action_spec", "make_instances")
    if missing := [method for method in methods if not hasattr(env, method)]:
        raise GraphrlError(f"{name} has no {' and no '.join(missing)}: must have {', '.join(methods)}")
    if "problem" not in accepted and config.problem != PpoConfig.problem:
        raise ProblemError(f"agent.problem: {name} has no argument problem: leave it out")
    return env


@contextlib.contextmanager
def _as_one_line(name: str) -> Iterator[None]:
    """Context manager that converts errors of a user's code to a `GraphrlError` of one line: `name`, the fault, and its
    place in that code.
    """
    try:
        yield
    except GraphrlError as error:
        raise type(error)(f"{name}: {error}{place(error)}") from error
    except Exception as error:  # a user's code may fail in any way
        raise GraphrlError(f"{name}: {one_line(error)}") from error


def _instances(env: Any, graphs: Sequence[ComputationGraph], to: Any) -> Any:
    """Makes a batch of instances, as NumPy arrays.

    Raises:
      GraphrlError: an array does not have one row for each graph.
    """
    batch = jax.tree.map(np.asarray, env.make_instances(graphs, to))
    rows = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(batch)}
    if rows != {(len(graphs),)}:
        raise GraphrlError(f"make_instances: every array must have a leading axis of {len(graphs)}, the graphs")
    return batch


def _sizes(env: Any, graphs: Sequence[ComputationGraph]) -> Any:
    return env.sizes(graphs) if hasattr(env, "sizes") else common_sizes(graphs)


def _first(batch: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[0, ...], batch)


def batch(config: PpoConfig, graphs: Sequence[ComputationGraph], to: Any) -> Any:
    """Converts graphs to a batch of instances; see `Agent`."""
    env = parts(config).env
    with _as_one_line(f"agent.env={config.env}"):
        return _instances(env, graphs, to)


def load(config: PpoConfig, names: Sequence[str]) -> list[ComputationGraph]:
    """Loads graphs by the names of their sets; see `Agent`."""
    env = parts(config).env
    graphs: list[ComputationGraph] = env.load(names) if hasattr(env, "load") else load_graphs(names)
    return graphs


# The learner


def learner(config: PpoConfig, mesh: Mesh, data: Data) -> Learner:
    """Creates the learner, with roll-outs long enough for the largest training graphs; see `Agent`.

    Raises:
      GraphrlError: the environment or the network does not follow its contract, or episodes do not end.
    """
    env, networks, observation, _ = parts(config)
    largest = data.largest()
    _check(config, _first(largest))
    with _as_one_line(f"agent.env={config.env}"):
        steps = longest_episode(env, largest)
    if steps == MAX_STEPS:
        raise GraphrlError(f"agent.env={config.env}: an episode must end within {MAX_STEPS:,} random actions")
    settings = dataclasses.replace(config.ppo, steps=max(config.ppo.steps, steps))

    def init(key: jax.Array, policy: Any = None) -> LearnerState:
        return ppo.init(settings, networks, key, _zeros(observation), policy)

    def evaluate(params: Any, key: jax.Array, batch: Any) -> learning.Metrics:
        keys = learning.keys(key, jax.tree.leaves(batch)[0].shape[0])
        play = functools.partial(ppo.play_episode, env, networks.policy, params["policy"], steps=MAX_STEPS)
        return learning.mean_min_max("return", jax.vmap(play)(batch, keys).episode_return)

    update = functools.partial(_update_one_step if settings.steps == 1 else ppo.update, settings, env, networks)
    return Learner(init, update, evaluate, score="return")


def _update_one_step(
    settings: PpoSettings, env: Any, networks: PolicyValue, state: LearnerState, key: jax.Array, instances: Any
) -> tuple[LearnerState, learning.Metrics]:
    """Runs an update as `ppo.update` does, for episodes of one step: all of an instance's share a reset, and so a call
    of the networks.
    """
    sample_key, learn_key = jax.random.split(key)
    graphs = jax.tree.leaves(instances)[0].shape[0]
    samples = ppo.sample_actions(settings, env, networks, state.params, learning.keys(sample_key, graphs), instances)
    return ppo.learn(settings, networks, state, learning.keys(learn_key, graphs), samples)


def longest_episode(env: Any, instances: Any) -> int:
    """Counts the steps of the longest of g episodes with random legal actions, one for each instance; at most
    `MAX_STEPS`.
    """

    def steps(instances: Any, keys: jax.Array) -> jax.Array:
        def one(instance: Any, key: jax.Array) -> jax.Array:
            def act(key: jax.Array, timestep: TimeStep[Any]) -> Any:
                return sample_action(key, env, timestep, instance)

            return ppo.run_episode(env, act, instance, key, steps=MAX_STEPS).steps

        return jax.vmap(one)(instances, keys).max()

    graphs = jax.tree.leaves(instances)[0].shape[0]
    return int(jax.jit(steps)(instances, jax.random.split(jax.random.key(0), graphs)))


def _check(config: PpoConfig, instance: Any) -> None:
    """Checks shapes and dtypes of an environment and its networks, without compiling.

    Raises:
      GraphrlError: they do not follow their contracts.
    """
    env, networks, tiny, _ = parts(config)

    def timesteps(key: jax.Array, instance: Any) -> Any:
        state, first = env.reset(key, instance)
        spec = env.action_spec(instance)
        if any(one.num_values and one.minimum for one in jax.tree.leaves(spec)):
            raise GraphrlError("action_spec: options must count from 0, as those of specs.choices")
        action = specs.sample(spec, key)
        after, last = env.step(key, state, action, instance)
        for timestep in (first, last):
            validate_timestep(env, timestep, instance)
        for what, pair in (("state", (state, after)), ("info", (first.info, last.info))):
            if len({str(jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), one)) for one in pair}) > 1:
                raise GraphrlError(f"{what} has other arrays, shapes or dtypes after step than after reset")
        return first.observation

    def outputs(key: jax.Array, observation: Any) -> None:
        logits, value = (one.apply(one.init(key, _zeros(tiny)), observation) for one in networks)
        expected = jax.tree.map(lambda one: specs.floats((*one.shape, one.num_values)), env.action_spec(instance))
        specs.validate(expected, logits, "the policy's output")
        specs.validate(specs.floats(()), value, "the value network's output")

    with _as_one_line(f"agent.env={config.env}"):
        observation = jax.eval_shape(timesteps, jax.random.key(0), instance)
    with _as_one_line(f"agent.network={config.network}"):
        jax.eval_shape(outputs, jax.random.key(0), observation)


def _zeros(shapes: Any) -> Any:
    return jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype), shapes)


# The trained policy, and its method


class Policy(agent.Policy[PpoConfig]):
    """See `training.agent.Policy`."""

    agents: ClassVar[tuple[str, ...]] = ("ppo",)
    defaults: ClassVar[Path] = Path(__file__).parent / "defaults"  # none
    network: ClassVar[str] = "network, environment and problem"
    settings = staticmethod(PpoConfig)

    @classmethod
    def default(cls, problem: Any) -> Self:
        """Raises GraphrlError: the package ships no policy."""
        raise GraphrlError("graphrl ships no policy of this agent: name one, as in ppo:checkpoint=PATH")

    @staticmethod
    def initial(config: PpoConfig, key: jax.Array) -> Any:
        """See `training.agent.Policy`."""
        _, networks, observation, _ = parts(config)
        with _as_one_line(f"agent.network={config.network}"):
            return networks.policy.init(key, _zeros(observation))


def problem(config: PpoConfig) -> Problem | MemoryChip:
    """Returns the problem of the environment's plans, or the chip of its maps; see `Agent`.

    Raises:
      ProblemError: the environment makes no plans.
    """
    env = parts(config).env
    if not isinstance(getattr(env, "problem", None), Problem | MemoryChip) or not hasattr(env, "plan"):
        raise ProblemError(
            f"agent.env={config.env} makes no plans to compare: give it problem, a graphrl.Problem, and "
            "plan(graph, instance, state)"
        )
    of_plans: Problem | MemoryChip = env.problem
    return of_plans


def _greedy(config: PpoConfig, params: Any, graph: ComputationGraph, to: Any, seed: int) -> Any:
    """Plays an episode with the most likely actions; returns the environment's plan of it."""
    env, _, _, play = parts(config)
    instance = _first(batch(config, [graph], to))
    episode = play(params, instance, jax.random.key(seed))
    with _as_one_line(f"agent.env={config.env}"):
        return env.plan(graph, instance, episode.state)


def _config_for(policy: Policy, wanted: Problem | MemoryChip) -> PpoConfig:
    """Returns the settings for another problem, if the policy supports it.

    Raises:
      GraphrlError: it does not.
    """
    own = problem(policy.config)
    if own == wanted:
        return policy.config
    if isinstance(wanted, Problem):
        with contextlib.suppress(GraphrlError):  # the environment has no problem as an argument, or not this one
            config = dataclasses.replace(policy.config, problem=wanted)
            if problem(config) == wanted and Policy.fits(policy.params, config):
                return config
    names = (getattr(one, "name", one) for one in (own, wanted))  # chips have names
    raise ProblemError("method 'ppo' has a policy for {}, not for {}".format(*names))


@solver(
    "ppo",
    "the plan of a policy's most likely actions in the environment of `graphrl train ppo`",
    objectives=("peak_memory", "makespan", "max_load"),
    digest=Policy.digest_of,
)
def solve(task: Task, *, checkpoint: str = "") -> Plan:
    """Plays one episode with the most likely actions.

    Args:
      checkpoint: a checkpoint of `graphrl train ppo`, or a file of `Policy.save`; there is no default.

    Raises:
      GraphrlError: the checkpoint or its modules cannot be read, or its environment makes no plans for this problem.
    """
    policy = Policy.load_or_default(task.problem, checkpoint)
    config = _config_for(policy, task.problem)
    if task.budget.evaluations is not None:
        config = dataclasses.replace(config, evaluations=task.budget.evaluations)
    to = _sizes(parts(config).env, [task.graph])
    if isinstance(to, Sizes):  # larger ones, which graphs share: fewer programs
        to = task.sizes or roomy_sizes(task.graph)
    plan = _greedy(config, policy.params, task.graph, to, task.seed)
    return task.answer(task.as_answer(plan, plan.evaluations))


@map_solver("ppo", "the map of a policy's most likely actions in the environment of `graphrl train ppo`")
def solve_map(task: MapTask, *, checkpoint: str = "") -> MemoryMap:
    """Plays one episode with the most likely actions. Args and errors: as `solve`."""
    policy = Policy.load_or_default(None, checkpoint)
    config, graph = _config_for(policy, task.problem.chip), task.problem.graph
    made = _greedy(config, policy.params, graph, _sizes(parts(config).env, [graph]), task.seed)
    return task.answer(dataclasses.replace(made, method=task.method, seconds=task.seconds, seed=task.seed))


def graph_network(env: Any) -> PolicyValue:
    """Returns graph networks for the observations of graphrl's environments, and for others with the same fields."""
    del env
    return PolicyValue(network(OpLogits(OpEncoder())), network(GraphValue(OpEncoder(), 64)))


AGENT = Agent(
    policy=Policy,
    learner=learner,
    batch=batch,
    methods=lambda _: ("ppo",),
    opponents=("list", "brkga", "auto", "compiler"),
    load=load,
    sizes=lambda config, graphs: _sizes(parts(config).env, graphs),
    data=DataConfig(
        train=("layered:20x512@10000",),
        validation=("layered:20x32@5000",),
        test=("layered:20x48",),
        graphs=16,
        buckets=1,
    ),
    schedule=Schedule(steps=300, validate_every=25, checkpoint_every=25),
    problem=problem,
    calls=(costs_of_lanes, features_of_schedules),
)
