"""The throughput of whole rollouts: episodes a second of any environment, against the number of environments at once.

A rollout is a reset and then random valid actions to the end of the episode, as one compiled program; it returns the
return and the last observation, so that XLA leaves no part of the environment out.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding

from graphrl.bench import machine
from graphrl.bench.cases import Settings, problem
from graphrl.bench.graphs import random_graphs
from graphrl.bench.programs import BY_GRAPH, compile_program, over_and_over
from graphrl.bench.timing import Program, TimedRow, interleaved, timed_fields
from graphrl.costs.maps.chips import NNP_I
from graphrl.costs.maps.problem import map_problem
from graphrl.envs import specs
from graphrl.envs.base import Environment
from graphrl.envs.registry import make
from graphrl.errors import GraphrlError
from graphrl.graphs.datasets.workloads.egrl import WORKLOADS

GRAPHS = 64  # different ones, at most: environments share them in turns


@dataclasses.dataclass(frozen=True, kw_only=True)
class RolloutRow(TimedRow):
    """Whole episodes of so many environments at once."""

    env: str  # its id
    n: int  # ops of each graph
    envs: int  # at once
    steps: int  # of an episode
    rollouts_per_s: float  # by the median

    @property
    def steps_per_s(self) -> float:
        """Of all environments."""
        return self.steps * self.rollouts_per_s


class Case(NamedTuple):
    """An environment to be rolled out."""

    env: Environment[Any, Any, Any]
    params: Any  # instances, leading axis g
    n: int  # ops of each graph
    steps: int  # of an episode


def _proposal(settings: Settings) -> Case:
    from graphrl.envs.proposal.instance import instances

    n = settings.sizes[0]
    env = make("Proposal-v0", problem=problem("makespan", settings.transfers[0]), evaluations=settings.evaluations)
    return Case(env, instances(random_graphs(n, GRAPHS, settings.seed)), n, 1)


def _ordering(settings: Settings) -> Case:
    from graphrl.envs.ordering.instance import instances

    n = settings.sizes[0]
    return Case(make("Ordering-v0"), instances(random_graphs(n, GRAPHS, settings.seed)), n, n)


def _compile(settings: Settings) -> Case:
    from graphrl.envs.compile.instance import instances

    n, goal = settings.sizes[0], problem("makespan", settings.transfers[0])
    return Case(make("Compile-v0"), instances(random_graphs(n, GRAPHS, settings.seed), [goal] * GRAPHS), n, 1)


def _memory_map(settings: Settings) -> Case:
    from graphrl.envs.memory_map.instance import instances

    graph = WORKLOADS["resnet50"]()
    return Case(make("MemoryMap-v0"), instances([map_problem(graph, NNP_I)]), len(graph.ops), 1)


# By id; the first size and transfer model of the settings count. Each imports its packages when it is called.
ENVS: Mapping[str, Callable[[Settings], Case]] = {
    "MemoryMap-v0": _memory_map,  # ResNet-50, the paper's first workload, whatever the size
    "Ordering-v0": _ordering,
    "Compile-v0": _compile,
    "Proposal-v0": _proposal,  # with so many evaluations a BRKGA run as the settings say
}


def measure_rollouts(id: str, case: Case, count: int, settings: Settings) -> RolloutRow:
    """The row of so many environments at once; `threads` CPU devices of the settings share them.

    Raises:
      GraphrlError: an episode does not end where it should.
    """
    program = _program(case, count, settings)
    (samples,) = interleaved([program.run], settings.repeats, settings.seconds)
    fields = timed_fields(settings, False, program.compile_s, samples)
    rate = samples.per_second(machine.clock(False))
    return RolloutRow(what="rollout", env=id, n=case.n, envs=count, steps=case.steps, rollouts_per_s=rate, **fields)


def _program(case: Case, count: int, settings: Settings) -> Program:
    """Rollouts of so many environments over and over, spread over the devices."""
    mesh = machine.make_mesh(settings.threads, count)
    of = jnp.arange(count, dtype=jnp.int32) % len(jax.tree.leaves(case.params)[0])
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf)[of], case.params)
    keys = jax.random.split(jax.random.key(settings.seed), count)
    mapped = jax.vmap(lambda key, params: _rollout(case, key, params))
    spread = jax.shard_map(mapped, mesh=mesh, in_specs=BY_GRAPH, out_specs=BY_GRAPH, check_vma=False)
    arguments = jax.device_put((keys, params), NamedSharding(mesh, BY_GRAPH))
    compiled, compile_s = compile_program(spread, *arguments)
    _, _, ended = compiled(*arguments)
    if not bool(jnp.all(ended)):
        raise GraphrlError(f"{case.env}: an episode has not ended after its {case.steps} steps")
    return Program(over_and_over(compiled, arguments, count), compile_s)


def _rollout(case: Case, key: jax.Array, params: Any) -> tuple[jax.Array, Any, jax.Array]:
    """An episode of random valid actions: its return, the last observation, and whether it has ended."""
    env, keys = case.env, jax.random.split(key, case.steps + 1)

    def step(key: jax.Array, state: Any, mask: Any) -> tuple[Any, Any]:
        act_key, step_key = jax.random.split(key)
        return env.step(step_key, state, _action(env, act_key, mask, params), params)

    def advance(carry: tuple[Any, Any, jax.Array], key: jax.Array) -> tuple[tuple[Any, Any, jax.Array], None]:
        state, mask, total = carry
        state, timestep = step(key, state, mask)
        return (state, _mask(timestep.observation), total + timestep.reward), None

    state, first = env.reset(keys[0], params)
    carry = state, _mask(first.observation), first.reward
    if case.steps > 1:  # a loop of no steps would be compiled all the same
        carry, _ = lax.scan(advance, carry, keys[1:-1])
    state, mask, total = carry
    _, last = step(keys[-1], state, mask)
    return total + last.reward, last.observation, last.done


def _mask(observation: Any) -> Any:
    """What may be chosen; None for everything."""
    return getattr(observation, "action_mask", None)


def _action(env: Environment[Any, Any, Any], key: jax.Array, mask: Any, params: Any) -> Any:
    """A random action, uniform over what may be chosen."""
    if mask is None:
        return specs.sample(env.action_spec(params), key)
    leaves, structure = jax.tree.flatten(mask)
    logits = (jnp.where(leaf, 0.0, -jnp.inf) for leaf in leaves)
    chosen = (jax.random.categorical(k, x) for k, x in zip(jax.random.split(key, len(leaves)), logits, strict=True))
    return jax.tree.unflatten(structure, [jnp.astype(one, jnp.int32) for one in chosen])
