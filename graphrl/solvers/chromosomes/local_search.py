"""REGAL's local search (BASELINES): from a random placement and schedule, greedily, by moving an op across devices or
changing an op's place in the order; from a new random start when that no longer helps.

Ours looks at 20 neighbours a step (REGAL does not say how many it looks at); the best
of them is taken if it is not worse, so that plateaus are walked on. Transfers run right before they are needed.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from graphrl.costs.device.problem import DeviceProblem
from graphrl.errors import ProblemError
from graphrl.graphs.padding import PaddedGraph, pad_batch
from graphrl.plan import Plan
from graphrl.solvers.base import Task
from graphrl.solvers.chromosomes import chains as walks
from graphrl.solvers.chromosomes.neighbourhood import Mix, random_solution
from graphrl.solvers.chromosomes.population_search import search_population
from graphrl.solvers.solver import solver

MIX = Mix(device=0.5, edge=0.0, place=0.5, swap=0.0, transfer=0.0)


class _State(NamedTuple):
    climbers: walks.Chains
    waited: jax.Array  # [C] int32, steps since the climber found something better


@solver("local-search", "REGAL's local search: moves of one op, from one random plan after the other")
def solve(task: Task, *, climbers: int = 1, neighbours: int = 20, patience: int = 200) -> Plan:
    """Whole steps of `climbers * neighbours` evaluations within the budget; at least one.

    Args:
      climbers: searches side by side.
      neighbours: of each climber, costed in a step.
      patience: steps without a better solution after which a climber starts anew.

    Raises:
      ProblemError: an option is below 1.
    """
    if min(climbers, neighbours, patience) < 1:
        raise ProblemError(
            f"climbers is {climbers}, neighbours is {neighbours} and patience is {patience}: must be at least 1"
        )
    if task.budget.evaluations is not None and task.budget.evaluations < climbers * neighbours:
        climbers, neighbours = 1, task.budget.evaluations  # one step
    padded = jax.tree.map(jnp.asarray, pad_batch([task.graph]))
    key, devices, on_device = jax.random.key(task.seed), task.problem.devices, DeviceProblem.of(task.problem)
    solution = random_solution(jax.random.bits(key, (1, 2)), padded.sizes, devices, climbers)
    return search_population(
        task,
        padded,
        _State(walks.start(padded, solution, devices, key), jnp.zeros(climbers, jnp.int32)),
        advance=lambda state, steps, _: _advance(state, padded, on_device, neighbours, patience, steps),
        best=lambda state: (state.climbers.genes, state.climbers.value),
        evaluations=climbers * neighbours,
    )


@functools.partial(jax.jit, static_argnames=("neighbours",), donate_argnames=("state",))
def _advance(
    state: _State, graph: PaddedGraph, problem: DeviceProblem, neighbours: int, patience: int, steps: int
) -> _State:
    def step(_: jax.Array, state: _State) -> _State:
        after = walks.advance(state.climbers, graph, problem, MIX, neighbours, jnp.float32(0))
        waited = jnp.where(after.energy < state.climbers.energy, 0, state.waited + 1)
        stuck = waited >= patience
        restarted = lax.cond(stuck.any(), lambda: _restarted(after, graph, problem.devices, stuck), lambda: after)
        return _State(restarted, jnp.where(stuck, 0, waited))

    return lax.fori_loop(0, steps, step, state)


def _restarted(climbers: walks.Chains, graph: PaddedGraph, devices: int, stuck: jax.Array) -> walks.Chains:
    """Those that are stuck at new random solutions."""
    seeds = ~jax.random.bits(jax.random.fold_in(climbers.key, climbers.step), (1, 2))
    fresh = random_solution(seeds, graph.sizes, devices, stuck.shape[0])
    solution = jax.tree.map(lambda a, b: jnp.where(stuck, a, b), fresh, climbers.solution)
    return climbers._replace(solution=solution, energy=jnp.where(stuck, jnp.inf, climbers.energy))
