"""Plans that REGAL's policy draws, without a search: method "regal-once", for one graph or a batch of graphs.

BRKGA searches around the policy's proposals; here its choices are a plan, in one pass of the network. Each op goes to
the device that was chosen for it. The ops run in the order of their priorities' means or, from the sequential network,
also in the order in which it expects them to start, and transfers follow from that order (`envs/compile/sends.py`). On
100 graphs of 100 ops (two devices) the expected starts are the better order of nearly every draw.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.agents.regal.agent import find_policy
from graphrl.agents.regal.config import RegalConfig
from graphrl.agents.regal.instances import RegalInstance, make_instance
from graphrl.agents.regal.network import Policy
from graphrl.agents.regal.placement import OP_FEATURES
from graphrl.agents.regal.proposers import LEVELS, Proposal, proposer
from graphrl.costs.device.decisions import DeviceProblem
from graphrl.costs.device.evaluate import DeviceCosts, ranked
from graphrl.costs.problem import Problem
from graphrl.envs.compile.reward import Keyed, costs_of
from graphrl.envs.graph_environment import stacked
from graphrl.envs.proposal import coding, op_choices
from graphrl.errors import ProblemError
from graphrl.graphs.padding import common_sizes
from graphrl.plan import Plan
from graphrl.solvers.base import Task
from graphrl.solvers.chromosomes.brkga import UNIFORM
from graphrl.solvers.solver import batch_solver
from graphrl.solvers.transfer_rules.plans import with_transfers

MAX_SAMPLES = 4096
_BELOW_ONE = 1 - 2.0**-24


@batch_solver(
    "regal-once", "the best of a few plans that regal's policy draws, without a search", digest=Policy.digest_of
)
def solve(tasks: Sequence[Task], *, samples: int = 16, checkpoint: str = "") -> list[Plan]:
    """Draws plans from the policy and returns the best of each graph. The budget's evaluations limit their number; its
    seconds have no effect.

    Args:
      samples: number of draws; the first is the most likely one. A draw of the sequential network is two plans.
      checkpoint: as of "regal".

    Raises:
      GraphrlError: the checkpoint cannot be read, or is for another number of devices.
      ProblemError: samples is out of range.
    """
    if not 1 <= samples <= MAX_SAMPLES:
        raise ProblemError(f"samples is {samples}: must be from 1 to {MAX_SAMPLES:,}")
    first, graphs = tasks[0], [task.graph for task in tasks]
    policy, problem = find_policy(first, checkpoint), first.problem
    orders = 2 if policy.config.placement == "sequential" else 1
    plans = min(samples * orders, first.budget.evaluations or samples * orders)
    sizes = first.sizes or common_sizes(graphs)
    instances = stacked([make_instance(policy.config, graph, sizes, problem) for graph in graphs], rounded=True)
    keys = jax.random.split(jax.random.key(first.seed), -(-plans // orders))
    placements, places = _best_plans(
        policy.params, instances, keys, DeviceProblem.of(problem), policy.config, problem, plans
    )
    return [
        _plan(task, placement, place, plans)
        for task, placement, place in zip(tasks, np.asarray(placements), np.asarray(places), strict=False)
    ]


def _plan(task: Task, placement: np.ndarray, place: np.ndarray, evaluations: int) -> Plan:
    """Makes the plan of a placement `[n]` and of the position of each op, `[n]`; both may be longer."""
    n = len(task.graph.ops)
    ops = np.empty(n, np.int64)
    ops[place[:n]] = np.arange(n)
    devices = placement[:n].astype(np.int64)
    return task.plan(devices, with_transfers(task.graph, task.problem, devices, ops), evaluations=evaluations)


@functools.partial(jax.jit, static_argnames=("config", "problem", "plans"))
def _best_plans(
    params: Any,
    instances: RegalInstance,
    keys: jax.Array,
    device_problem: DeviceProblem,
    config: RegalConfig,
    problem: Problem,
    plans: int,
) -> tuple[jax.Array, jax.Array]:
    """Draws plans for g graphs (leading axis g), the same random numbers for each, and selects the best.

    Returns:
      The device of each op and its position among the ops, `[g, n]` int32 each.
    """
    propose = proposer(config, problem)

    def draw(instance: RegalInstance) -> Keyed:
        drawn = jax.tree.map(lambda leaf: leaf[None], propose.best(params, keys[0], instance))
        if len(keys) > 1:
            others = jax.vmap(propose.sample, (None, 0, None))(params, keys[1:], instance)
            drawn = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), drawn, others)
        each = jax.vmap(functools.partial(_keyed, config=config, devices=problem.devices))(drawn)
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:plans], each)

    keyed, graph = jax.vmap(draw)(instances), instances.proposal.graph
    costs = costs_of(graph, device_problem, keyed)
    measured = DeviceCosts(costs.makespan, costs.peak[None], costs.place, costs.end)
    best = ranked(graph, measured, device_problem).argmin(1)
    rows = jnp.arange(len(best), dtype=jnp.int32)
    return keyed.placement[rows, best], costs.place[rows, best]


def _keyed(proposal: Proposal, config: RegalConfig, devices: int) -> Keyed:
    """Converts a proposal to plans: placements and op keys, `[orders, n]` each."""
    distributions = coding(config.coding)
    choice = op_choices(proposal.action, distributions)
    genes = jnp.where(choice == UNIFORM, 0.5, jnp.asarray(distributions.means, jnp.float32)[jnp.maximum(choice, 0)])
    placement, keys = genes[:devices].argmax(0).astype(jnp.int32), genes[devices:]
    if config.placement == "sequential":
        placement = proposal.choices.place // len(LEVELS)  # also where the proposal does not prefer a device
        starts = 1 - proposal.choices.ops[:, OP_FEATURES.index("rank")]
        keys = jnp.stack([jnp.clip(starts, 0, _BELOW_ONE), keys[0]])
    return Keyed(jnp.broadcast_to(placement, keys.shape), keys, None)
