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
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import PaddedGraph, pad_batch
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Progress
from graphrl.solvers.chromosomes import chains as walks
from graphrl.solvers.chromosomes.neighbourhood import Mix, random_solution
from graphrl.solvers.chromosomes.population_search import PopulationSearch

MIX = Mix(device=0.5, edge=0.0, place=0.5, swap=0.0, transfer=0.0)


class _State(NamedTuple):
    climbers: walks.Chains
    waited: jax.Array  # [C] int32, steps since the climber found something better


def solve(
    graph: ComputationGraph,
    problem: Problem,
    budget: Budget,
    seed: int,
    progress: Progress | None = None,
    *,
    climbers: int = 1,
    neighbours: int = 20,
    patience: int = 200,
) -> Plan:
    """The `Solver` "local-search": whole steps of `climbers * neighbours` evaluations within the budget; at least one.

    Args:
      graph, problem, budget, seed, progress: see `Solver`.
      climbers: searches side by side.
      neighbours: of each climber, costed in a step.
      patience: steps without a better solution after which a climber starts anew.

    Raises:
      ProblemError: an option is below 1.
      Interrupted: on Ctrl-C, with the best plan so far.
    """
    if min(climbers, neighbours, patience) < 1:
        raise ProblemError(
            f"climbers is {climbers}, neighbours is {neighbours} and patience is {patience}: must be at least 1"
        )
    if budget.evaluations is not None and budget.evaluations < climbers * neighbours:
        climbers, neighbours = 1, budget.evaluations  # one step
    padded = jax.tree.map(jnp.asarray, pad_batch([graph]))
    key, on_device = jax.random.key(seed), DeviceProblem.of(problem)
    solution = random_solution(jax.random.bits(key, (1, 2)), padded.sizes, problem.devices, climbers)
    first = _State(walks.start(padded, solution, problem.devices, key), jnp.zeros(climbers, jnp.int32))
    search: PopulationSearch[_State] = PopulationSearch(
        graph,
        problem,
        "local-search",
        seed,
        padded,
        advance=lambda state, steps: _advance(state, padded, on_device, neighbours, patience, steps),
        best=lambda state: (state.climbers.genes, state.climbers.value),
        evaluations=climbers * neighbours,
    )
    return search.run(first, budget, progress)


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
