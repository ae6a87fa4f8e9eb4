"""HDP as a method: it learns on the graph that it is given, and answers with the best placement that it tried."""

import functools

import jax
import jax.numpy as jnp

from graphrl.agents.hdp import learner
from graphrl.agents.hdp.config import HdpConfig
from graphrl.agents.hdp.instance import Instance, instance
from graphrl.agents.hdp.learner import State
from graphrl.costs.device.decisions import to_genes
from graphrl.plan import Plan
from graphrl.solvers.base import Task
from graphrl.solvers.chromosomes.population_search import search_population
from graphrl.solvers.solver import solver


@solver(
    "hdp",
    "hierarchical device placement (Mirhoseini et al. 2018), learned on the given graph",
    colocates=True,
    objectives=("makespan",),
)
def solve(
    task: Task,
    *,
    children: int = 1,
    groups: int = 0,
    hidden: int = 512,
    rate: float = 0.1,
    sampled: int = 500,
    noisy: int = 750,
    updates: int = 1000,
) -> Plan:
    """Whole updates within the budget, of `children` evaluations each; at least one.

    Args:
      options: see `HdpConfig`.

    Raises:
      ProblemError: an option is out of range.
    """
    config = HdpConfig(
        children=children, groups=groups, hidden=hidden, rate=rate, sampled=sampled, noisy=noisy, updates=updates
    )
    learned = jax.tree.map(jnp.asarray, instance(task.graph, task.problem))
    return search_population(
        task,
        learned.graph,
        begin(config, jax.random.key(task.seed), learned),
        advance=lambda state, steps, _: _advanced(config, state, learned, steps),
        best=lambda state: _best(state, learned),
        evaluations=children,
    )


@functools.partial(jax.jit, static_argnums=0)
def begin(config: HdpConfig, key: jax.Array, task: Instance) -> State:
    """See `learner`."""
    return learner.begin(config, key, task)


def _advanced(config: HdpConfig, state: State, task: Instance, steps: int) -> State:
    """Some updates, with a new beginning where one is due."""
    while steps:
        if (done := int(state.step)) == config.updates:
            state, done = _begun_anew(config, state, task), 0
        some = min(steps, config.updates - done)
        state, steps = advance(config, state, task, some), steps - some
    return state


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _begun_anew(config: HdpConfig, state: State, task: Instance) -> State:
    return learner.begin_anew(config, state, task)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def advance(config: HdpConfig, state: State, task: Instance, steps: int) -> State:
    """Some updates."""
    return jax.lax.fori_loop(0, steps, lambda _, state: learner.update(config, state, task), state)


@jax.jit
def _best(state: State, task: Instance) -> tuple[jax.Array, jax.Array]:
    """As `search_population` takes it."""
    return to_genes(learner.decisions(task, state.placement[None]), task.problem.devices)[:, 0, 0], state.value
