"""Simulated annealing on placement and keys, many chains at once.

Chains start at the plan of list scheduling (or at random ones), walk as `chains.py` says while the temperature falls
geometrically over the budget, and now and then the best of them replace the worst ("go with the winners", Aldous &
Vazirani 1994).
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from graphrl.costs.device.decisions import DeviceProblem
from graphrl.errors import ProblemError
from graphrl.graphs.padding import PaddedGraph, pad_batch
from graphrl.plan import Plan
from graphrl.solvers.base import PlacedOrder, Task
from graphrl.solvers.chromosomes import chains as walks
from graphrl.solvers.chromosomes.brkga_solver import search_population
from graphrl.solvers.chromosomes.neighbourhood import Mix, random_solution
from graphrl.solvers.rules.list_scheduling import schedule
from graphrl.solvers.rules.plan_builder import prepare
from graphrl.solvers.solver import solver

MIX = Mix(device=0.2, edge=0.1, place=0.4, swap=0.1, transfer=0.2)
EXCHANGE = 50  # steps between two exchanges
COPIED = 0.25  # share of the chains that an exchange replaces


@solver(
    "anneal-keys",
    "simulated annealing on placement and keys, many chains at once, from list scheduling",
    prepare=prepare,
)
def solve(
    task: Task,
    *,
    start: str = "list",
    chains: int = 8,
    tries: int = 16,
    hot: float = 0.01,
    cold: float = 0.0002,
    hint: Plan | None = None,
) -> Plan:
    """Whole steps of `chains * tries` evaluations within the budget; at least one. Random starts depend on the padding,
    and so ignore the task's sizes.

    Args:
      start: "list", which the result is then never worse than (up to some 16,000 nodes: `brkga_solver.chromosome`), or
        "random".
      chains: how many walk.
      tries: neighbours that each of them looks at in a step.
      hot, cold: first and last temperature: a rise of the objective by that share is accepted with chance 1/e.
      hint: a plan to start from in place of list scheduling.

    Raises:
      ProblemError: an option is out of range.
    """
    if start not in ("list", "random"):
        raise ProblemError(f"start is {start!r}: must be list or random")
    if chains < 1 or tries < 1:
        raise ProblemError(f"chains is {chains} and tries is {tries}: must be at least 1")
    if not 0 < cold <= hot:
        raise ProblemError(f"hot is {hot} and cold is {cold}: must be above 0, and cold at most hot")
    if task.budget.evaluations is not None and task.budget.evaluations < chains * tries:
        chains, tries = 1, task.budget.evaluations  # one step
    plan = None
    if hint is not None:
        plan = hint.decisions(task.graph)
    elif start == "list":
        plan = schedule(task.graph, task.problem)
    padded = jax.device_put(pad_batch([task.graph], task.sizes if plan is not None else None))
    on_device = DeviceProblem.of(task.problem)
    return search_population(
        task,
        padded,
        _start(task, padded, chains, plan),
        advance=lambda state, steps, share: _advance(state, padded, on_device, tries, hot, cold, *share, steps),
        best=lambda state: (state.genes, state.value),
        evaluations=chains * tries,
    )


def _start(task: Task, padded: PaddedGraph, chains: int, plan: PlacedOrder | None) -> walks.Chains:
    key, devices = jax.random.key(task.seed), task.problem.devices
    if plan is None:
        solution = random_solution(jax.random.bits(key, (1, 2)), padded.sizes, devices, chains)
        return walks.start(padded, solution, devices, key)
    return walks.start_at(task.graph, task.problem, padded, plan, chains, key)


@functools.partial(jax.jit, static_argnames=("tries",), donate_argnames=("state",))
def _advance(
    state: walks.Chains,
    graph: PaddedGraph,
    problem: DeviceProblem,
    tries: int,
    hot: float,
    cold: float,
    spent: float,
    share: float,
    steps: int,
) -> walks.Chains:
    """Runs `steps` steps, the first of them when `spent` of the budget is gone; each takes `share` of it."""

    def step(index: jax.Array, state: walks.Chains) -> walks.Chains:
        gone = jnp.minimum(spent + index.astype(jnp.float32) * share, 1.0)
        state = walks.advance(state, graph, problem, MIX, tries, hot * (cold / hot) ** gone)
        return lax.cond(state.step % EXCHANGE == 0, _exchanged, lambda state: state, state)

    return lax.fori_loop(0, steps, step, state)


def _exchanged(state: walks.Chains) -> walks.Chains:
    """The best chains replace the worst."""
    count = state.energy.shape[0]
    copied = int(COPIED * count)
    rank = jnp.argsort(state.energy)
    source = jnp.arange(count).at[rank[count - copied :]].set(rank[:copied])
    solution = jax.tree.map(lambda x: x[..., source], state.solution)
    return state._replace(solution=solution, energy=state.energy[source])
