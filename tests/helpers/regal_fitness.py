"""What REGAL's policies are worth on three small graphs: a fitness for tests of evolution."""

import jax
import jax.numpy as jnp

from graphrl.agents.regal.config import RegalConfig
from graphrl.agents.regal.network import networks, played
from graphrl.costs.problem import Problem
from graphrl.envs.proposal import ProposalEnv, ProposalParams, instances
from graphrl.graphs.datasets.regal_like import regal_like
from graphrl.learning.evolution import Params
from graphrl.solvers.chromosomes.brkga import Parameters

_CONFIG = RegalConfig(
    problem=Problem("makespan", 2),
    evaluations=16,
    parameters=Parameters(population=10, elites=2, mutants=4),
    rounds=1,
    width=8,
)
_ENV = ProposalEnv(_CONFIG.problem, _CONFIG.evaluations, _CONFIG.parameters, _CONFIG.coding)
_POLICY = networks(_CONFIG).policy
_GRAPHS = instances([regal_like(seed, num_ops=12) for seed in range(3)], None, None)


def _reward(params: Params, key: jax.Array, graph: ProposalParams) -> jax.Array:
    """Of one graph, by one sample of the policy's proposals."""
    reset_key, action_key, step_key = jax.random.split(key, 3)
    state, first = _ENV.reset(reset_key, graph)
    action = played(_CONFIG, action_key, _POLICY.apply(params, first.observation))
    return _ENV.step(step_key, state, action, graph)[1].reward


def _worth(params: Params, key: jax.Array) -> jax.Array:
    """The mean over graphs and sixteen samples: `[]` float32."""
    keys = jax.random.split(key, (16, 3))
    return jax.vmap(jax.vmap(_reward, (None, 0, 0)), (None, 0, None))(params, keys, _GRAPHS).mean()


@jax.jit
def regal_fitness(population: Params) -> jax.Array:
    """`[m]` float32, always with the same random numbers."""
    return jax.vmap(_worth, (0, None))(population, jax.random.key(1))


@jax.jit
def held_out(params: Params) -> jax.Array:
    """`[]` float32, with others, and more."""
    return jnp.stack([_worth(params, jax.random.key(seed)) for seed in (2, 3)]).mean()


START: Params = _POLICY.init(
    jax.random.key(0), _ENV.reset(jax.random.key(0), jax.tree.map(lambda leaf: leaf[0], _GRAPHS))[1].observation
)
