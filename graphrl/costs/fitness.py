"""One number to minimise for every candidate solution."""

import jax
import jax.numpy as jnp

from graphrl.costs.decisions import Decisions
from graphrl.costs.evaluate import evaluate, node_seconds
from graphrl.costs.problem import Problem
from graphrl.graphs.padding import PaddedGraph


def fitness(graph: PaddedGraph, decisions: Decisions, problem: Problem) -> jax.Array:
    """The objective of every candidate solution, in the graph's units: `[g, p]` float32, smaller is better.

    Under a memory limit every feasible schedule ranks above every infeasible one, and those by their excess
    (DESIGN.md 3): an infeasible one counts the time of running everything one after the other, which no schedule
    exceeds, plus the bytes by which its largest peak exceeds the limit.
    """
    if problem.objective == "peak_memory":
        return evaluate(graph, decisions, problem, makespan=False).peak_memory.max(0)
    limited = problem.memory_limit is not None
    costs = evaluate(graph, decisions, problem, memory=limited)
    if problem.memory_limit is None:
        return costs.makespan
    limit = jnp.float32(problem.memory_limit) / graph.byte_unit
    excess = jnp.maximum(costs.peak_memory.max(0) - limit[:, None], 0.0)
    serial = node_seconds(graph, problem).sum(-1)[:, None]
    return jnp.where(excess > 0, serial + excess, costs.makespan)
