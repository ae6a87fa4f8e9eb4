"""One number to minimise for every candidate solution."""

import math

import jax
import jax.numpy as jnp

from graphrl.costs.device.decisions import Decisions
from graphrl.costs.device.evaluate import DeviceCosts, evaluate
from graphrl.costs.device.problem import DeviceProblem
from graphrl.costs.problem import Problem
from graphrl.graphs.padding import PaddedGraph

_SHORTEST = 2.0**-100  # second units: stands in for a makespan of 0


def fitness(graph: PaddedGraph, decisions: Decisions, problem: DeviceProblem) -> jax.Array:
    """What is minimised, in the graph's units: `[g, p]` float32; `ranked` says what it is under a memory limit."""
    return ranked(graph, measured(graph, decisions, problem), problem)


def measured(graph: PaddedGraph, decisions: Decisions, problem: DeviceProblem) -> DeviceCosts:
    """The costs that matter to the objective; the others are 0."""
    makespan = problem.objective == "makespan"
    return evaluate(
        graph, decisions, problem, makespan=makespan, memory=not makespan or problem.memory_limit is not None
    )


def ranked(graph: PaddedGraph, costs: DeviceCosts, problem: DeviceProblem) -> jax.Array:
    """One number for costs, `[g, p]` float32, in the graph's units.

    The objective itself or, under a memory limit, -1 / makespan where the solution fits, and else the bytes by which
    the largest peak exceeds it: so every feasible schedule ranks above every infeasible one, those rank by their
    excess, and neither loses digits to the other.
    """
    if problem.objective == "peak_memory":
        return costs.peak_memory.max(0)
    if problem.memory_limit is None:
        return costs.makespan
    limit = problem.memory_limit / graph.byte_unit
    excess = costs.peak_memory.max(0) - limit[:, None]
    return jnp.where(excess > 0, excess, -1 / jnp.maximum(costs.makespan, _SHORTEST))


def objective(value: float, problem: Problem) -> float:
    """The objective that a fitness stands for, in the graph's units; inf if it exceeds the memory limit."""
    if problem.memory_limit is None:
        return value
    return -1 / value if value < 0 else math.inf
