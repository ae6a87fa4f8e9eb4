"""What the population searches share: work in chunks that show progress, stop in time, and survive Ctrl-C."""

import functools
import time
from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np

from graphrl.costs.device.fitness import objective
from graphrl.graphs.padding import PaddedGraph, Sizes
from graphrl.plan import Plan
from graphrl.solvers.base import Task
from graphrl.solvers.chromosomes.warm_start import decisions

_CHUNK_SECONDS = 0.3  # of device work between two looks at the clock

State = TypeVar("State")
Share = tuple[float, float]  # see `Task.share`


def search_population(
    task: Task,
    padded: PaddedGraph,
    state: State,
    advance: Callable[[State, int, Share], State],
    best: Callable[[State], tuple[jax.Array, jax.Array]],
    evaluations: int,
) -> Plan:
    """A search whose state lives on the device and advances a number of equal steps at a call, until the budget is
    spent; at least one.

    Args:
      padded: the graph as a batch of one.
      state: before the first step.
      advance: (state, steps, share of the budget spent before them and by each) -> state; may donate the state.
      best: state -> (genes `[k]`, fitness `[]`), on the device.
      evaluations: of one step.
    """
    total = None if task.budget.evaluations is None else max(1, task.budget.evaluations // evaluations)
    unit = float(np.asarray(padded.byte_unit if task.problem.objective == "peak_memory" else padded.second_unit)[0])
    done, steps = 0, 1
    while True:
        began = time.perf_counter()
        state = advance(state, steps, task.share(done, total))
        genes, value = best(state)
        done += steps
        task.best = functools.partial(_plan, task, padded.sizes, np.asarray(genes), done * evaluations)
        task.report(done * evaluations, objective(float(value), task.problem) * unit, at_once=True)
        now = time.perf_counter()
        if done == total or now >= task.end:
            return task.best()
        # the first call compiles: its time says nothing about a step's
        fitting = 1 if done == 1 else max(1, int(min(_CHUNK_SECONDS, task.end - now) * steps / (now - began)))
        steps = fitting if total is None else min(fitting, total - done)


def _plan(task: Task, sizes: Sizes, genes: np.ndarray, evaluations: int) -> Plan:
    return task.plan(*decisions(task.graph, task.problem, sizes, genes), evaluations=evaluations)
