"""Topoformer as an agent of the training loop, and as methods that order the ops of one device.

A trained policy's network is called once per graph; a decoder converts its outputs to orders.
"""

from collections.abc import Sequence
from typing import get_args

import numpy as np

from graphrl.agents.topoformer.config import PROBLEM
from graphrl.agents.topoformer.learner import learner
from graphrl.agents.topoformer.network import Decoding, Policy
from graphrl.decoding.host import orders_of_lanes
from graphrl.decoding.host_beam import sequential_beam
from graphrl.decoding.host_sequential import sequential_gradient, sequential_orders
from graphrl.envs.graph_environment import stacked
from graphrl.envs.ordering import make_instance, make_instances
from graphrl.errors import ProblemError
from graphrl.graphs.padding import roomy_sizes
from graphrl.plan import Plan
from graphrl.solvers.anneal.orders import solve as anneal
from graphrl.solvers.base import Task
from graphrl.solvers.portfolio import Portfolio, Stage
from graphrl.solvers.solver import batch_solver, solver
from graphrl.training.agent import Agent
from graphrl.training.config import Schedule
from graphrl.training.data import DataConfig

AGENT = Agent(
    policy=Policy,
    learner=lambda config, mesh, data: learner(config),
    batch=lambda _, graphs, sizes: make_instances(graphs, sizes),
    methods=lambda _: ("topoformer", "topoformer+"),
    opponents=("random-priorities", "depth-first", "breadth-first", "anneal"),
    data=DataConfig(
        train=("layered:100x128@10000", "layered:200x128@10000", "layered:500x32@10000"),
        validation=("layered:200x64@5000",),
        test=("layered:500x100",),
        graphs=8,
        curriculum=9_000,
        fresh=True,
    ),
    schedule=Schedule(steps=14_000, validate_every=250, checkpoint_every=250),
    calls=(orders_of_lanes, sequential_orders, sequential_gradient, sequential_beam),
)


MAX_ORDERS = 4096  # maximum number of orders of a graph in one batch
# Number of annealing's eight chains that start from learned orders; the others use its own. After 1 s, on 44 graphs of
# 500 ops, two such chains tie with plain annealing: means within 0.03%, the worst graph 0.4% above. Four tie on the
# mean too, with 3.8% on the worst graph; all eight were 0.2% above on the mean of 20 of the graphs, 3.3% on the worst.
# Annealing's moves are not learned: they weigh all places of an op anyway. Two variants did not help: drawing ops by
# their distance from the learned place, and a pull towards that place which fades as the chains cool. With the moves of
# 1 s both together were 0.00 ± 0.06% above this on 60 graphs of 500 ops and 0.07 ± 0.11% above on 20 of 1,000; other
# seeds alone make 0.04 ± 0.09% and -0.03 ± 0.09%.
STARTS = 2


@batch_solver(
    "topoformer",
    "the best of the orders that a trained policy makes",
    one_device=True,
    digest=Policy.digest_of,
)
def solve(tasks: Sequence[Task], *, decode: str = "greedy", samples: int = 16, checkpoint: str = "") -> list[Plan]:
    """Decodes orders from one network call, and returns the one of lowest peak for each graph. The budget's evaluations
    limit the number of orders; its seconds have no effect.

    Args:
      decode: "greedy" (one order, deterministic), "sample" or "beam".
      samples: number of orders that are sampled, or kept by the beam at every step.
      checkpoint: a checkpoint of `graphrl train topoformer`, or a file of `Policy.save`; by default the shipped policy.

    Raises:
      GraphrlError: the checkpoint cannot be read.
      ProblemError: an option is out of range.
    """
    orders, evaluations = _orders(tasks, decode, samples, checkpoint)
    return [task.plan(None, ranked[0], evaluations=evaluations) for task, ranked in zip(tasks, orders, strict=True)]


@solver(
    "topoformer+",
    "anneal from the best orders that topoformer samples",
    one_device=True,
    digest=Policy.digest_of,
)
def solve_warm(task: Task, *, samples: int = 16, checkpoint: str = "") -> Plan:
    """Samples orders, then anneals from the best ones with the rest of the budget. Args and errors: as `solve`."""
    (orders,), evaluations = _orders([task], "sample", samples, checkpoint)
    portfolio = Portfolio(task)
    portfolio.keep(task.plan(None, orders[0], evaluations=evaluations))
    return portfolio.run([Stage(anneal, options=lambda _: {"starts": orders[:STARTS]})])


def _orders(tasks: Sequence[Task], decode: str, samples: int, checkpoint: str) -> tuple[list[np.ndarray], int]:
    """Decodes orders of each graph, `[k, n]` int64, sorted by peak, lowest first; also returns the number of
    evaluations that they cost for a graph.
    """
    if decode not in get_args(Decoding):
        raise ProblemError(f"decode is {decode!r}: must be one of {', '.join(get_args(Decoding))}")
    if not 1 <= samples <= MAX_ORDERS:
        raise ProblemError(f"samples is {samples}: must be from 1 to {MAX_ORDERS:,}")
    first = tasks[0]
    count = min(samples, first.budget.evaluations or samples)
    sizes = first.sizes or roomy_sizes(first.graph)
    batch = stacked([make_instance(task.graph, sizes) for task in tasks], rounded=True)
    rollout = Policy.load_or_default(PROBLEM, checkpoint).rollout(batch, decode, count, first.seed)  # type: ignore[arg-type]
    ranked = []
    for task, orders, peaks in zip(tasks, np.asarray(rollout.order), np.asarray(rollout.peak), strict=False):
        best_first = np.argsort(peaks, kind="stable")
        ranked.append(orders[best_first, : len(task.graph.ops)].astype(np.int64))
    return ranked, 1 if decode == "greedy" else count
