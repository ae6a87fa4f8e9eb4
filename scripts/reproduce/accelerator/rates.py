"""Throughput of rollouts, decoding and BRKGA on the device that jax computes on.

A rollout is a reset and then random valid actions to the end of the episode, as one compiled program. It outputs the
return and the last observation, so that XLA removes no part of the environment.
"""

import importlib
import itertools
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding

from graphrl.bench import machine
from graphrl.bench.cases import PARAMETERS, Case, Settings, Work, problem, random_graphs
from graphrl.bench.measure import graphrl_search
from graphrl.bench.timing import BY_GRAPH, compile_program, graphrl_evaluation, interleaved, repeated_calls
from graphrl.costs.maps.chip import NNP_I
from graphrl.costs.maps.problem import map_problem
from graphrl.envs import specs
from graphrl.envs.base import Environment
from graphrl.envs.registry import make
from graphrl.errors import GraphrlError
from graphrl.graphs.datasets.workloads.egrl import WORKLOADS
from reproduce.accelerator.job import Job, Row, Write, faults

GRAPHS = 64  # different ones; environments take turns with them
COUNTS = 64, 256, 1024, 4096, 16_384
GROWTH = 4  # most growth of an environment's time from a count to the next
GOAL = problem("makespan", "free")


class _Episode(NamedTuple):
    """An environment whose rollouts are measured."""

    env: Environment[Any, Any, Any]
    params: Any  # instances, leading axis g
    n: int  # ops of each graph
    steps: int  # of an episode


def _proposal(settings: Settings) -> _Episode:
    n = settings.sizes[0]
    env = make("Proposal-v0", problem=GOAL, evaluations=settings.evaluations)
    return _Episode(env, _instances("proposal")(random_graphs(n, GRAPHS, settings.seed)), n, 1)


def _ordering(settings: Settings) -> _Episode:
    n = settings.sizes[0]
    return _Episode(make("Ordering-v0"), _instances("ordering")(random_graphs(n, GRAPHS, settings.seed)), n, n)


def _compile(settings: Settings) -> _Episode:
    n = settings.sizes[0]
    params = _instances("compile.generator")(random_graphs(n, GRAPHS, settings.seed), [GOAL] * GRAPHS)
    return _Episode(make("Compile-v0"), params, n, 1)


def _memory_map(_: Settings) -> _Episode:
    graph = WORKLOADS["resnet50"]()  # the paper's workload, whatever `sizes` is
    return _Episode(make("MemoryMap-v0"), _instances("memory_map")([map_problem(graph, NNP_I)]), len(graph.ops), 1)


def _instances(env: str) -> Callable[..., Any]:
    """Imports the function that makes instances of an environment; its module may need packages of its own."""
    function: Callable[..., Any] = importlib.import_module(f"graphrl.envs.{env}").instances
    return function


ENVS = {"MemoryMap-v0": _memory_map, "Ordering-v0": _ordering, "Compile-v0": _compile, "Proposal-v0": _proposal}


def rollouts(job: Job, write: Write) -> None:
    """Writes a row for every environment and count for which there is time, the smallest counts first."""
    settings = _settings(job, 32 if job.small else 128, 80 if job.small else 400)
    episodes: dict[str, _Episode] = {}
    for id, prepare in ENVS.items():
        with faults(write, env=id):
            episodes[id] = prepare(settings)
    seconds = dict.fromkeys(episodes, 0.0)  # of the last count; infinite after a fault
    for count, (id, episode) in itertools.product(COUNTS[:1] if job.small else COUNTS, episodes.items()):
        if GROWTH * seconds[id] > job.left:
            if math.isfinite(seconds[id]):
                write({"env": id, "envs": count, "fault": f"no time left for some {GROWTH * seconds[id]:.0f} s"})
            continue
        started, seconds[id] = time.time(), math.inf
        with faults(write, env=id, envs=count):
            rates = _rates(episode, count, settings)
            write({"env": id, "envs": count, **rates, "evaluations": settings.evaluations})
            seconds[id] = time.time() - started


def _rates(episode: _Episode, count: int, settings: Settings) -> Row:
    """Measures the rates of `count` parallel environments, sharded over all devices.

    Raises:
      GraphrlError: an episode has not ended after its number of steps.
    """
    mesh = machine.make_mesh(settings.threads, count)
    index = jnp.arange(count, dtype=jnp.int32) % len(jax.tree.leaves(episode.params)[0])
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf)[index], episode.params)
    keys = jax.random.split(jax.random.key(settings.seed), count)
    mapped = jax.vmap(lambda key, params: rollout(episode, key, params))
    spread = jax.shard_map(mapped, mesh=mesh, in_specs=BY_GRAPH, out_specs=BY_GRAPH, check_vma=False)
    arguments = jax.device_put((keys, params), NamedSharding(mesh, BY_GRAPH))
    compiled, compile_s = compile_program(spread, *arguments)
    if not bool(jnp.all(compiled(*arguments)[-1])):
        raise GraphrlError(f"{episode.env}: an episode has not ended after its {episode.steps} steps")
    (samples,) = interleaved([repeated_calls(compiled, arguments, count)], settings.repeats, settings.seconds)
    rate = samples.per_second("wall")
    rates = {"rollouts_per_s": rate, "steps_per_s": episode.steps * rate, "compile_s": compile_s}
    return {"n": episode.n, "steps": episode.steps, "threads": settings.threads, **rates}


def rollout(episode: _Episode, key: jax.Array, params: Any) -> tuple[jax.Array, Any, jax.Array]:
    """Plays an episode of random valid actions: returns its return, the last observation, and True if it has ended."""
    env, keys = episode.env, jax.random.split(key, episode.steps + 1)

    def step(key: jax.Array, state: Any, mask: Any) -> tuple[Any, Any]:
        act_key, step_key = jax.random.split(key)
        return env.step(step_key, state, _action(env, act_key, mask, params), params)

    def advance(carry: tuple[Any, Any, jax.Array], key: jax.Array) -> tuple[tuple[Any, Any, jax.Array], None]:
        state, mask, total = carry
        state, timestep = step(key, state, mask)
        return (state, _mask(timestep.observation), total + timestep.reward), None

    state, first = env.reset(keys[0], params)
    carry = state, _mask(first.observation), first.reward
    if episode.steps > 1:  # XLA would compile a loop of no steps too
        carry, _ = lax.scan(advance, carry, keys[1:-1])
    state, mask, total = carry
    _, last = step(keys[-1], state, mask)
    return total + last.reward, last.observation, last.done


def _mask(observation: Any) -> Any:
    """Returns the mask of valid actions, None if all are valid."""
    return getattr(observation, "action_mask", None)


def _action(env: Environment[Any, Any, Any], key: jax.Array, mask: Any, params: Any) -> Any:
    """Draws a valid action uniformly."""
    if mask is None:
        return specs.sample(env.action_spec(params), key)
    leaves, structure = jax.tree.flatten(mask)
    logits = (jnp.where(leaf, 0.0, -jnp.inf) for leaf in leaves)
    actions = (jax.random.categorical(k, x) for k, x in zip(jax.random.split(key, len(leaves)), logits, strict=True))
    return jax.tree.unflatten(structure, [jnp.astype(one, jnp.int32) for one in actions])


def search(job: Job, write: Write) -> None:
    """Writes rows of decoding and of BRKGA for each size of graphs."""
    graphs = 8 if job.small else 64
    settings = _settings(job, 0, 400 if job.small else 5000)
    for n, is_search in itertools.product((32,) if job.small else (128, 64, 512), (False, True)):
        labels = {"work": "BRKGA, makespan" if is_search else "decode + makespan + memory", "n": n, "graphs": graphs}
        with faults(write, **labels):
            work = Work(settings, Case(n, graphs, "free", makespan=True, memory=not is_search, search=is_search))
            program = (graphrl_search if is_search else graphrl_evaluation)(work)
            (samples,) = interleaved([program.run], settings.repeats, settings.seconds)
            rate = samples.per_second("wall")
            searched = PARAMETERS.generations(settings.evaluations) * PARAMETERS.offspring
            each = searched if is_search else PARAMETERS.population
            figures = {"evaluations": each, "evaluations_per_s": rate, "ms_a_graph": 1000 * each / rate}
            write({**labels, **figures, "compile_s": program.compile_s})


def _settings(job: Job, n: int, evaluations: int) -> Settings:
    short = {"repeats": 3, "seconds": 0.05} if job.small else {"repeats": 5, "seconds": 0.2}
    sizes = {"sizes": (n,)} if n else {}
    return Settings(threads=len(jax.local_devices()), evaluations=evaluations, seed=job.seed, **sizes, **short)  # type: ignore[arg-type]
