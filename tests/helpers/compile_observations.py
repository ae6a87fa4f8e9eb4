"""`Compile-v0` on small graphs: observations with all three tasks, random choices, and their order on the host."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.costs import exact
from graphrl.costs.problem import Problem
from graphrl.envs.compile.generator import Choices, level_features, make_instance
from graphrl.envs.compile.observation import allowed, observe
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes

LEVELS, FUSIONS = 4, 3
TASKS = ("placement", "priority", "fusion")


def problem(devices: int) -> Problem:
    return Problem("makespan", devices, latency=1.0, bandwidth=10.0)


def seen(graph: ComputationGraph, devices: int = 2, to: Sizes | None = None, **options: Any) -> Any:
    """Observation after randomly drawn choices, with only odd ops fusible."""
    n, generator = len(graph.ops), np.random.default_rng(0)
    drawn = [generator.integers(0, count, n).astype(np.int32) for count in (devices, LEVELS, FUSIONS)]
    start = Choices(*drawn[:2])
    instance = make_instance(graph, problem(devices), to, levels=LEVELS, baseline=1.0, start=start, **options)
    observation = observe(instance, instance.start, TASKS[:2])
    fusible = observation.mask & (jnp.arange(len(instance.order)) % 2 == 1)
    return observation._replace(
        options=observation.options | {"fusion": jnp.asarray(level_features(FUSIONS))},
        action_mask=observation.action_mask | {"fusion": allowed(jnp.ones((1, FUSIONS), bool), fusible)},
        previous=observation.previous | {"fusion": jnp.asarray(np.pad(drawn[2], (0, len(instance.order) - n)))},
    )


class Renumbered(NamedTuple):
    """An observation whose op i was op `old[i]`."""

    observation: Any
    old: np.ndarray


def renumbered(observation: Any, seed: int) -> Renumbered:
    """The same ops renumbered, real ops and padding mixed; their order stays the same."""
    n = observation.mask.shape[0]
    old = np.random.default_rng(seed).permutation(n)
    new = np.append(np.argsort(old), n)  # edges of padding stay where they are
    graph = observation.graph
    graph = graph._replace(
        nodes=jnp.concatenate([graph.nodes[:-1][old], graph.nodes[-1:]]),
        senders=jnp.asarray(new[graph.senders], jnp.int32),
        receivers=jnp.asarray(new[graph.receivers], jnp.int32),
    )
    observation = observation._replace(
        graph=graph,
        mask=observation.mask[old],
        order=jnp.asarray(new[observation.order], jnp.int32),
        action_mask={task: of[old] for task, of in observation.action_mask.items()},
        previous={task: of[old] for task, of in observation.previous.items()},
        plan_features=jax.tree.map(lambda of: of[old], observation.plan_features),
    )
    return Renumbered(observation, old)


KEY = jax.random.key(0)


def random_choices(graph: ComputationGraph, devices: int, seed: int) -> Choices:
    generator = np.random.default_rng(seed)
    drawn = (generator.integers(0, count, len(graph.ops)).astype(np.int32) for count in (devices, LEVELS))
    return Choices(*drawn)


def padded(choices: Choices, n: int) -> dict[str, jax.Array]:
    return {
        name: jnp.asarray(np.pad(one, (0, n - len(one)))) for name, one in choices.of(("placement", "priority")).items()
    }


def keys_of(graph: ComputationGraph, priority: Any, levels: int = LEVELS) -> np.ndarray:
    """Keys `[n]` float32: among ops of equal priority the first in the graph's order has the largest key."""
    a = graph.arrays
    keys = np.asarray(priority) * a.num_ops + a.num_ops - 1 - a.rank
    return keys.astype(np.float32) / np.float32(levels * a.num_ops)


def order_of(graph: ComputationGraph, problem: Problem, placement: Any, keys: np.ndarray) -> np.ndarray:
    """The order on the host; a transfer's key is the largest of the ops that wait for it."""
    a, placement = graph.arrays, np.asarray(placement)
    transfers = np.zeros((a.num_tensors, problem.devices), np.float32)
    np.maximum.at(transfers, (a.use_tensor, placement[a.use_op]), keys[a.use_op])
    return exact.decode(graph, problem, placement, keys, transfers)
